# SPDX-License-Identifier: Apache-2.0
# What the library has for CPUs, in all folders: loader, compiler, threads, kernels, engine.
tilewright_test(cpu tilewright_tuner tilewright_jit tilewright_templates tilewright_cache)
target_compile_options(test_cpu PRIVATE ${TILEWRIGHT_TEST_COMPUTES})
target_include_directories(test_cpu PRIVATE ${PROJECT_SOURCE_DIR}/templates ${TILEWRIGHT_GENERATED_DIR})  # the list of formats
add_test(NAME cpu COMMAND test_cpu)
set_tests_properties(cpu PROPERTIES COST 200)
add_library(fake_nvtx SHARED support/fake_nvtx.cpp)
set_target_properties(fake_nvtx PROPERTIES CXX_VISIBILITY_PRESET default)
add_dependencies(test_cpu fake_nvtx)
target_compile_definitions(test_cpu PRIVATE TILEWRIGHT_FAKE_NVTX="$<TARGET_FILE:fake_nvtx>")
# The texts again with the oldest libLLVM that is supported, where it is installed beside a newer one.
find_library(TILEWRIGHT_OLDEST_LLVM NAMES libLLVM-15.so.1 NO_CACHE)
if(TILEWRIGHT_OLDEST_LLVM AND NOT TILEWRIGHT_TEST_ALL)
  tilewright_left_out(cpu_llvm_15 "kernels for CPUs compiled by the oldest libLLVM")
elseif(TILEWRIGHT_OLDEST_LLVM)
  add_test(NAME cpu_llvm_15 COMMAND test_cpu "every target*,IR becomes*,threads compile*,an instruction*,FP8: compiled*,products of floats*")
  set_tests_properties(cpu_llvm_15 PROPERTIES ENVIRONMENT TILEWRIGHT_LLVM=${TILEWRIGHT_OLDEST_LLVM})
endif()

# Kernels for AArch64, where a cross compiler and qemu are installed: a program of its own loads and runs them.
find_program(TILEWRIGHT_ARM_CXX aarch64-linux-gnu-g++ NO_CACHE)
find_program(TILEWRIGHT_QEMU_ARM qemu-aarch64-static NO_CACHE)
if(TILEWRIGHT_ARM_CXX AND TILEWRIGHT_QEMU_ARM)
  set(runner ${CMAKE_CURRENT_BINARY_DIR}/arm_runner)
  set(sources ${CMAKE_CURRENT_SOURCE_DIR}/cpu/arm/runner.cpp ${PROJECT_SOURCE_DIR}/jit/cpu/object.cpp)
  add_custom_command(
    OUTPUT ${runner}
    COMMAND ${TILEWRIGHT_ARM_CXX} -std=c++20 -O1 -static -DFMT_HEADER_ONLY -I${PROJECT_SOURCE_DIR}
            -I${PROJECT_SOURCE_DIR}/include
            "-idirafter$<JOIN:$<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>,;-idirafter>"
            ${sources} -o ${runner}
    DEPENDS ${sources} ${PROJECT_SOURCE_DIR}/jit/cpu/object.h
    COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(build_arm_runner DEPENDS ${runner})
  add_dependencies(test_cpu build_arm_runner)
  target_compile_definitions(test_cpu PRIVATE TILEWRIGHT_ARM_RUNNER="${runner}"
                                              TILEWRIGHT_QEMU_ARM="${TILEWRIGHT_QEMU_ARM}")
endif()

# Launches within launches of a host whose threads are oneTBB's, where that is installed.
find_package(TBB QUIET NO_CMAKE_PACKAGE_REGISTRY)
if(TBB_FOUND)
  add_executable(test_cpu_tbb cpu/tbb/nested_test.cpp $<TARGET_OBJECTS:tests_main>)
  target_link_libraries(test_cpu_tbb PRIVATE tests_main tilewright_tuner tilewright_jit tilewright_templates
    tilewright_cache TBB::tbb)
  target_include_directories(test_cpu_tbb PRIVATE ${PROJECT_SOURCE_DIR}/templates ${CMAKE_CURRENT_SOURCE_DIR}/cpu)
  add_test(NAME cpu_tbb COMMAND test_cpu_tbb)
else()
  add_test(NAME cpu_tbb COMMAND ${CMAKE_COMMAND} -E echo "skipped: oneTBB (Debian's libtbb-dev) is not installed")
  set_tests_properties(cpu_tbb PROPERTIES SKIP_REGULAR_EXPRESSION "skipped:")
endif()
