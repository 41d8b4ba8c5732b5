# SPDX-License-Identifier: Apache-2.0
enable_language(C)  # the header is one of C
# Links the shared library alone, as a C program would, and the double of the driver in order to steer it.
tilewright_test(capi tilewright_c tilewright_cuda_kernels fake_cuda)
target_include_directories(test_capi PRIVATE ${PROJECT_SOURCE_DIR}/capi)
target_compile_options(test_capi PRIVATE -ffp-contract=off)  # of elements.h
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/header_test.c PROPERTIES LANGUAGE C)
target_sources(test_capi PRIVATE ${CMAKE_CURRENT_LIST_DIR}/header_test.c)
set_property(TARGET test_capi PROPERTY C_STANDARD 11)
target_compile_options(test_capi PRIVATE $<$<COMPILE_LANGUAGE:C>:-pedantic -Werror>)
add_test(NAME capi COMMAND test_capi)
# The functions that leave the library, and their version, are the header's: none is missing and none is added.
add_test(NAME capi_symbols COMMAND ${CMAKE_COMMAND} -DHEADER=${PROJECT_SOURCE_DIR}/include/tilewright/tilewright_c.h
  -DLIBRARY=$<TARGET_FILE:tilewright_c> -P ${CMAKE_CURRENT_LIST_DIR}/symbols.cmake)
# Layouts and signatures are those that were published. --write publishes what was added.
find_program(TILEWRIGHT_PYTHON python3)
add_test(NAME capi_abi COMMAND ${TILEWRIGHT_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/abi_check.py
  ${PROJECT_SOURCE_DIR}/include/tilewright/tilewright_c.h ${CMAKE_CURRENT_LIST_DIR}/tilewright_1.abi ${CMAKE_CURRENT_BINARY_DIR}/abi)
set_tests_properties(capi_abi PROPERTIES SKIP_RETURN_CODE 77)
