# SPDX-License-Identifier: Apache-2.0
# The documentation's programs compile, its commands run, its tables and pictures are what makes them.
find_program(TILEWRIGHT_PYTHON python3)
if(TILEWRIGHT_PYTHON)
  add_test(NAME readme_check COMMAND ${TILEWRIGHT_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/readme/check_test.py ${CMAKE_CXX_COMPILER})
  add_test(NAME dev_help COMMAND ${TILEWRIGHT_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/readme/dev_test.py)
endif()
if(TARGET tilewright_cli AND TILEWRIGHT_TEST_PREFIX AND TILEWRIGHT_PYTHON)
  add_test(NAME readme COMMAND ${TILEWRIGHT_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/readme/check.py
    --source ${PROJECT_SOURCE_DIR} --tool $<TARGET_FILE:tilewright_cli> --prefix ${TILEWRIGHT_TEST_PREFIX}
    --driver $<TARGET_FILE:fake_cuda> --libdir ${CMAKE_INSTALL_LIBDIR} --needs sqlite3$<$<BOOL:${TILEWRIGHT_COMPILED_FMT}>:,fmt> --cxx ${CMAKE_CXX_COMPILER}
    --work ${PROJECT_BINARY_DIR}/readme $<$<BOOL:${TILEWRIGHT_TEST_PYTHON}>:--python=${TILEWRIGHT_TEST_PYTHON}>)
  set_tests_properties(readme PROPERTIES FIXTURES_REQUIRED installed COST 30)
endif()
