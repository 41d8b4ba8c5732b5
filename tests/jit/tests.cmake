# SPDX-License-Identifier: Apache-2.0
tilewright_test(jit tilewright_jit tilewright_templates fake_cuda)
add_test(NAME jit COMMAND test_jit ~[archs])
if(TILEWRIGHT_TEST_ALL)
  add_test(NAME jit_archs COMMAND test_jit "every family*,kernels of GPTQ*")  # apart, so that they run side by side
  add_test(NAME jit_tiles COMMAND test_jit "Hopper's largest*")
  set_tests_properties(jit_archs jit_tiles PROPERTIES COST 200)  # seconds: the longest start first
else()
  tilewright_left_out(jit_archs "kernels of every family compiled for every target")
  tilewright_left_out(jit_tiles "the largest kernels of Hopper compiled")
endif()

# Compilers that nobody has installed: an old one with its builtins, and one beside the builtins of another version.
function(fake_nvrtc name major minor builtins)
  set(directory ${CMAKE_CURRENT_BINARY_DIR}/nvrtc_${name})
  add_library(fake_nvrtc_${name} SHARED support/fake_nvrtc.cpp support/fake_cuda_image.cpp
    ${PROJECT_SOURCE_DIR}/jit/elf.cpp)
  target_include_directories(fake_nvrtc_${name} PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(fake_nvrtc_${name} PRIVATE FAKE_NVRTC_MAJOR=${major} FAKE_NVRTC_MINOR=${minor})
  set_target_properties(fake_nvrtc_${name} PROPERTIES PREFIX "" SUFFIX "" OUTPUT_NAME libnvrtc.so.12 NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY ${directory})
  # No soname, so that a search by name never takes it for the real one. What is in the builtins nobody asks; that they can be loaded is enough.
  add_library(fake_nvrtc_builtins_${name} SHARED support/empty.cpp)
  set_target_properties(fake_nvrtc_builtins_${name} PROPERTIES PREFIX "" SUFFIX ""
    OUTPUT_NAME libnvrtc-builtins.so.${builtins} LIBRARY_OUTPUT_DIRECTORY ${directory})
  add_dependencies(test_jit fake_nvrtc_${name} fake_nvrtc_builtins_${name})
endfunction()
fake_nvrtc(old 12 0 12.0)
fake_nvrtc(mixed 12 4 12.3)
