# SPDX-License-Identifier: Apache-2.0
# The library with an operation more: its folder, and the list with its line. Nothing of the library's is rebuilt.
tilewright_embed(${CMAKE_CURRENT_BINARY_DIR}/operation ${PROJECT_SOURCE_DIR}/templates ${CMAKE_CURRENT_SOURCE_DIR}/operation)
set(library_objects
  "$<FILTER:$<TARGET_OBJECTS:tilewright_templates>,EXCLUDE,(templates/operations|embedded)\\.cpp>"
  $<TARGET_OBJECTS:tilewright_jit> $<TARGET_OBJECTS:tilewright_cache> $<TARGET_OBJECTS:tilewright_tuner>
  $<TARGET_OBJECTS:tilewright_files> $<TARGET_OBJECTS:tilewright_quantize>)
add_library(row_scale OBJECT operation/operations.cpp operation/row_scale/operation.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/operation/embedded.cpp)
target_include_directories(row_scale PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE
  ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/templates ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/operation)
target_link_libraries(row_scale PUBLIC ${TILEWRIGHT_FMT})

add_executable(test_operation operation/operation_test.cpp tuner/tuner_test.cpp $<TARGET_OBJECTS:tests_main>
  $<TARGET_OBJECTS:row_scale> ${library_objects})
target_include_directories(test_operation PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/operation)
target_link_libraries(test_operation PRIVATE tests_main emulator fake_cuda SQLite::SQLite3)
add_test(NAME operation COMMAND test_operation)
if(TARGET tilewright_cli)
  # The tool over that library.
  add_executable(tilewright_with_row_scale $<TARGET_OBJECTS:tilewright_cli_objects> $<TARGET_OBJECTS:row_scale>
    ${library_objects})
  target_link_libraries(tilewright_with_row_scale PRIVATE ${TILEWRIGHT_FMT} SQLite::SQLite3 Threads::Threads ${CMAKE_DL_LIBS})
  add_dependencies(test_operation tilewright_with_row_scale)
endif()
if(TILEWRIGHT_TEST_PYTHON AND TILEWRIGHT_CLI AND NOT TILEWRIGHT_SANITIZE)
  # The library for C over it, and the Python package over that, neither of which knows the operation.
  add_library(tilewright_c_with_row_scale SHARED $<TARGET_OBJECTS:row_scale> ${library_objects}
    $<TARGET_OBJECTS:tilewright_capi>)
  target_link_libraries(tilewright_c_with_row_scale PRIVATE ${TILEWRIGHT_FMT} SQLite::SQLite3 Threads::Threads ${CMAKE_DL_LIBS})
  add_dependencies(test_operation tilewright_c_with_row_scale)
  add_test(NAME operation_python COMMAND ${CMAKE_COMMAND} -E env
    TILEWRIGHT_LIBRARY=$<TARGET_FILE:tilewright_c_with_row_scale> TILEWRIGHT_FAKE_CUDA=$<TARGET_FILE:fake_cuda>
    PYTHONPATH=${PROJECT_SOURCE_DIR}/python:${PROJECT_SOURCE_DIR}/python/tests PYTHONDONTWRITEBYTECODE=1
    ${TILEWRIGHT_TEST_PYTHON} -m pytest -q -p no:cacheprovider -p conftest ${CMAKE_CURRENT_SOURCE_DIR}/operation/test_row_scale.py
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
endif()

# An operation that leaves out a function of OperationOf, or a field, does not compile, and the compiler names it.
function(compile_incomplete name)
  add_test(NAME operation_${name} COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only ${ARGN}
    "-I$<JOIN:$<TARGET_PROPERTY:row_scale,INCLUDE_DIRECTORIES>,;-I>"
    ${CMAKE_CURRENT_SOURCE_DIR}/operation/incomplete/operation.cpp COMMAND_EXPAND_LISTS)
endfunction()
compile_incomplete(complete)
foreach(function title families check extents_of set_rows bytes_of ops_of contract_of describe_task compute judge)
  compile_incomplete(refuses_without_${function} -DLEAVE_OUT_${function})
  set_tests_properties(operation_refuses_without_${function} PROPERTIES
    PASS_REGULAR_EXPRESSION "error: [^\n]*abstract.*[: ]${function}\\(")
endforeach()
compile_incomplete(refuses_without_factor -DLEAVE_OUT_factor)
set_tests_properties(operation_refuses_without_factor PROPERTIES
  PASS_REGULAR_EXPRESSION "error: [^\n]*(4 names provided|decomposes into)")
