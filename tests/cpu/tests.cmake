# SPDX-License-Identifier: Apache-2.0
# What the library has for CPUs, in all folders: loader, compiler, threads, kernels, engine.
tilewright_test(cpu tilewright_tuner tilewright_jit tilewright_templates tilewright_cache)
target_include_directories(test_cpu PRIVATE ${PROJECT_SOURCE_DIR}/templates)
add_test(NAME cpu COMMAND test_cpu)
# The same with the oldest libLLVM that is supported, where it is installed beside a newer one.
find_library(TILEWRIGHT_OLDEST_LLVM NAMES libLLVM-15.so.1 NO_CACHE)
if(TILEWRIGHT_OLDEST_LLVM)
  add_test(NAME cpu_llvm_15 COMMAND test_cpu)
  set_tests_properties(cpu_llvm_15 PROPERTIES ENVIRONMENT TILEWRIGHT_LLVM=${TILEWRIGHT_OLDEST_LLVM})
endif()
