# SPDX-License-Identifier: Apache-2.0
# The driver double. Its path is paths::fake_cuda(), its controls are support/fake_cuda.h.
add_library(fake_cuda SHARED support/fake_cuda.cpp support/fake_cuda_api.cpp support/fake_cuda_work.cpp
  support/fake_cuda_image.cpp ${PROJECT_SOURCE_DIR}/jit/elf.cpp)
target_include_directories(fake_cuda
  PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(fake_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME fake_libcuda PREFIX "" CXX_VISIBILITY_PRESET default)
