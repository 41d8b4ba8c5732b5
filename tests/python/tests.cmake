# SPDX-License-Identifier: Apache-2.0
# The Python package's own tests (python/tests), over the C library and the driver's double of this build. They need a
# Python with the packages of python/tests/requirements.txt, which ./dev test makes.
set(TILEWRIGHT_TEST_PYTHON "" CACHE FILEPATH "Python that runs the tests of the Python package; empty: they are skipped")

# tilewright_python_test(NAME pytest arguments...)
function(tilewright_python_test name)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E env ${sanitizer}
    TILEWRIGHT_LIBRARY=$<TARGET_FILE:tilewright_c> TILEWRIGHT_CLI=$<TARGET_FILE:tilewright_cli>
    TILEWRIGHT_FAKE_CUDA=$<TARGET_FILE:fake_cuda> PYTHONPATH=${PROJECT_SOURCE_DIR}/python PYTHONDONTWRITEBYTECODE=1
    ${TILEWRIGHT_TEST_PYTHON} -m pytest -q -p no:cacheprovider ${ARGN} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES COST 60)
endfunction()

# AddressSanitizer's runtime has to be in the interpreter before anything else, and libstdc++ for it to see exceptions.
# The interpreter never frees all it has.
if(TILEWRIGHT_SANITIZE MATCHES address)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so OUTPUT_VARIABLE asan OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so.6 OUTPUT_VARIABLE stdcxx OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(sanitizer "LD_PRELOAD=${asan} ${stdcxx}" ASAN_OPTIONS=detect_leaks=0)
endif()
set(python_tests ${PROJECT_SOURCE_DIR}/python/tests)
if(TILEWRIGHT_TEST_PYTHON AND TILEWRIGHT_CLI AND NOT TILEWRIGHT_SANITIZE MATCHES thread)
  tilewright_python_test(python ${python_tests} --ignore=${python_tests}/with_torch)
  if(NOT TILEWRIGHT_SANITIZE)  # PyTorch under a sanitizer takes hours
    tilewright_python_test(python_torch ${python_tests}/with_torch)
  endif()
else()
  add_test(NAME python COMMAND ${CMAKE_COMMAND} -E echo "skipped: no TILEWRIGHT_TEST_PYTHON, or a build with ThreadSanitizer")
  set_tests_properties(python PROPERTIES SKIP_REGULAR_EXPRESSION "skipped:")
endif()
