# SPDX-License-Identifier: Apache-2.0
if(TARGET tilewright_gguf)
  tilewright_test(cli tilewright_gguf SQLite::SQLite3)
  add_dependencies(test_cli tilewright_cli)
  add_test(NAME cli COMMAND test_cli)
endif()
