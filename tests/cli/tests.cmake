# SPDX-License-Identifier: Apache-2.0
if(TARGET tilewright_cli)
  # With the tool's own objects but main(), so that commands can be run in the test's process, on the driver double.
  tilewright_test(cli tilewright SQLite::SQLite3 CLI11::CLI11 fake_cuda)
  target_sources(test_cli PRIVATE tuner/tuner_test.cpp
    "$<FILTER:$<TARGET_OBJECTS:tilewright_cli_objects>,EXCLUDE,/main\\.cpp>")
  add_dependencies(test_cli tilewright_cli fake_nvrtc_old fake_nvrtc_builtins_old)
  add_test(NAME cli COMMAND test_cli)
endif()
