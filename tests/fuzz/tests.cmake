# SPDX-License-Identifier: Apache-2.0
# Fuzz targets, with clang only: cmake -DCMAKE_CXX_COMPILER=clang++ -DTILEWRIGHT_FUZZ=ON, then
# bin/fuzz_gguf tests/fuzz/corpus/gguf. As a test each replays its corpus and runs ten thousand more.
option(TILEWRIGHT_FUZZ "Build the libFuzzer targets (clang)" OFF)
if(TILEWRIGHT_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TILEWRIGHT_FUZZ needs clang, not ${CMAKE_CXX_COMPILER_ID}")
  endif()
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz-found)
  foreach(reader gguf safetensors npy)
    add_executable(fuzz_${reader} fuzz/${reader}_fuzz.cpp ${PROJECT_SOURCE_DIR}/files/${reader}.cpp
      ${PROJECT_SOURCE_DIR}/files/byte_source.cpp)
    target_include_directories(fuzz_${reader} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(fuzz_${reader} PRIVATE ${TILEWRIGHT_FMT} nlohmann_json::nlohmann_json)
    target_compile_options(fuzz_${reader} PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
    target_link_options(fuzz_${reader} PRIVATE -fsanitize=fuzzer,address,undefined)
    add_test(NAME fuzz_${reader} COMMAND fuzz_${reader} -runs=10000 -seed=1 -artifact_prefix=${PROJECT_BINARY_DIR}/
             ${PROJECT_BINARY_DIR}/fuzz-found ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${reader})
  endforeach()

  add_executable(fuzz_object fuzz/object_fuzz.cpp ${PROJECT_SOURCE_DIR}/jit/cpu/object.cpp)
  target_include_directories(fuzz_object PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(fuzz_object PRIVATE ${TILEWRIGHT_FMT})
  target_compile_options(fuzz_object PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
  target_link_options(fuzz_object PRIVATE -fsanitize=fuzzer,address,undefined)
  add_test(NAME fuzz_object COMMAND fuzz_object -runs=10000 -seed=1 -artifact_prefix=${PROJECT_BINARY_DIR}/
           ${PROJECT_BINARY_DIR}/fuzz-found ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/object)

  # Every format's codec. The library is not instrumented unless it is built with TILEWRIGHT_SANITIZE.
  add_executable(fuzz_formats fuzz/format_fuzz.cpp)
  target_link_libraries(fuzz_formats PRIVATE tilewright)
  target_compile_options(fuzz_formats PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_formats PRIVATE -fsanitize=fuzzer)
  add_test(NAME fuzz_formats COMMAND fuzz_formats -runs=10000 -seed=1 -max_len=4096
           -artifact_prefix=${PROJECT_BINARY_DIR}/)
endif()
