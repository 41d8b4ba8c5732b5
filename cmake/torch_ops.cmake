# SPDX-License-Identifier: Apache-2.0
# libtilewright_torch: operators of tilewright.torch over PyTorch's stable ABI. The package opens it where it lies beside
# libtilewright_c, and does without it elsewhere.
set(TILEWRIGHT_TORCH "" CACHE PATH "Folder of an installed PyTorch, 2.11 or newer, to build libtilewright_torch against; \
empty: that of TILEWRIGHT_TEST_PYTHON, or it is not built")

set(torch "${TILEWRIGHT_TORCH}")
if(NOT torch AND TILEWRIGHT_TEST_PYTHON)
  execute_process(COMMAND ${TILEWRIGHT_TEST_PYTHON} -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
    OUTPUT_VARIABLE torch)
endif()
# Outside a wheel it has no rule to be installed by.
if(torch AND NOT TILEWRIGHT_SANITIZE)
  if(NOT EXISTS ${torch}/include/torch/csrc/stable/library.h)
    message(FATAL_ERROR "TILEWRIGHT_TORCH = ${torch}: a folder with include/torch/csrc/stable/library.h, that of the Python package torch")
  endif()
  add_library(tilewright_torch MODULE ${PROJECT_SOURCE_DIR}/python/torch_ops/ops.cpp)
  target_include_directories(tilewright_torch PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_include_directories(tilewright_torch SYSTEM PRIVATE ${torch}/include)
  # What it may use of newer headers: what PyTorch 2.11 has.
  target_compile_definitions(tilewright_torch PRIVATE TORCH_TARGET_VERSION=0x020b000000000000)
  target_link_libraries(tilewright_torch PRIVATE ${torch}/lib/libtorch_cpu.so)
  set(exports ${PROJECT_SOURCE_DIR}/python/torch_ops/exports.map)
  # Everything is looked up when it is opened, which fails in a PyTorch that lacks something: no later surprise.
  target_link_options(tilewright_torch PRIVATE -Wl,-z,defs,-z,now -Wl,--version-script=${exports})
  # No rpath: the PyTorch of the process that opens it has libtorch_cpu open.
  set_target_properties(tilewright_torch PROPERTIES SKIP_BUILD_RPATH ON LINK_DEPENDS ${exports})
endif()
