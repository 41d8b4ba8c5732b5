# SPDX-License-Identifier: Apache-2.0
if(TARGET tilewright_cli)
  tilewright_test(cli tilewright SQLite::SQLite3)
  target_sources(test_cli PRIVATE ${PROJECT_SOURCE_DIR}/cli/progress.cpp)
  add_dependencies(test_cli tilewright_cli fake_nvrtc_old fake_nvrtc_builtins_old)
  add_test(NAME cli COMMAND test_cli)
endif()
