# SPDX-License-Identifier: Apache-2.0
# libtilewright from its folders. Each folder is an object library, so that its tests link it alone.
include(templates/embed.cmake)

# Of all folders, the sources that compute on the host or rank candidates: the wheel does not build these at -Os.
set(TILEWRIGHT_FAST_SOURCES "formats|fast_path|host|judge|matrix|pieces|stochastic|fill|numerics|hessian|tiles|post_training|rounding|\
round_to_nearest|observer|calibration|panels|family|boxes|layer|operands|mma|awq|gptq|bitnet|bitsandbytes|compressed_tensors")

# With TILEWRIGHT_UNITY a folder's files are one compilation; these define a name twice, or have options or a target
# of their own, or are replaced by a test.
set(TILEWRIGHT_APART "templates/operations|checkpoint/.*|native_v.|llvm|load|maps|reference|gemm/cpu/.*|files/.*|round_to_nearest|panels")

function(tilewright_folder name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  add_library(tilewright_${name} OBJECT ${sources} ${ARGN})
  target_include_directories(tilewright_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(tilewright_${name} PUBLIC ${TILEWRIGHT_FMT} Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(tilewright_${name} PRIVATE TILEWRIGHT_BUILDING)
  # A format's codec must give the same bits on every host; see templates/backends/cuda/numeric.cuh.
  target_compile_options(tilewright_${name} PRIVATE -ffp-contract=off)
  if(TILEWRIGHT_UNITY)
    set_target_properties(tilewright_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    foreach(source ${sources})
      if(NOT source MATCHES "/(${TILEWRIGHT_APART})\\.cpp$")
        cmake_path(GET source PARENT_PATH folder)
        cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE folder)
        string(MAKE_C_IDENTIFIER "${folder}" group)
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
      endif()
    endforeach()
  endif()
  if(SKBUILD)  # of the others size is what counts there
    foreach(source ${sources})
      if(NOT source MATCHES "/(${TILEWRIGHT_FAST_SOURCES})\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS -Os)
      endif()
    endforeach()
  endif()
endfunction()

# Packing is two to three times as fast as at -O2.
set_source_files_properties(${PROJECT_SOURCE_DIR}/templates/backends/cpu/panels.cpp PROPERTIES COMPILE_OPTIONS -O3)

tilewright_folder(jit)
tilewright_folder(cache)
tilewright_folder(tuner)
tilewright_folder(files)
target_link_libraries(tilewright_files PRIVATE nlohmann_json::nlohmann_json)
tilewright_folder(quantize)
target_link_libraries(tilewright_quantize PRIVATE nlohmann_json::nlohmann_json)
tilewright_folder(templates ${TILEWRIGHT_EMBEDDED})
if(NOT TILEWRIGHT_BUILT_IN_KERNELS)
  target_compile_definitions(tilewright_templates PRIVATE TILEWRIGHT_NO_BUILT_IN_KERNELS)
endif()
target_include_directories(tilewright_templates PRIVATE ${TILEWRIGHT_GENERATED_DIR} ${PROJECT_SOURCE_DIR}/templates)
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  target_include_directories(tilewright_cache PRIVATE ${SQLite3_INCLUDE_DIRS})
  target_link_libraries(tilewright_cache PUBLIC ${TILEWRIGHT_SQLITE_STATIC})
else()
  target_link_libraries(tilewright_cache PUBLIC SQLite::SQLite3)
endif()

set(TILEWRIGHT_OBJECTS "")
foreach(folder jit cache templates tuner files quantize)
  list(APPEND TILEWRIGHT_OBJECTS $<TARGET_OBJECTS:tilewright_${folder}>)
endforeach()
add_library(tilewright ${TILEWRIGHT_OBJECTS})
add_library(tilewright::tilewright ALIAS tilewright)
target_include_directories(tilewright PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_compile_features(tilewright PUBLIC cxx_std_20)
target_link_libraries(tilewright PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(TILEWRIGHT_COMPILED_FMT)
  target_link_libraries(tilewright PRIVATE fmt::fmt)
endif()
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  target_link_libraries(tilewright PRIVATE ${TILEWRIGHT_SQLITE_STATIC})
  if(NOT SKBUILD)  # a wheel's tool catches what its library throws, which takes one C++ runtime
    add_link_options(-static-libstdc++ -static-libgcc)
  endif()
else()
  target_link_libraries(tilewright PRIVATE SQLite::SQLite3)
endif()
if(NOT BUILD_SHARED_LIBS)
  # A program that links the archive is anywhere; `./dev install` puts a fetched libnvrtc here.
  target_link_options(tilewright INTERFACE $<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/lib/tilewright>)
endif()
set_target_properties(tilewright PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} EXPORT_NAME tilewright)

# The same for C: a shared library that exports the functions of tilewright_c.h and nothing else.
tilewright_folder(capi)
add_library(tilewright_c SHARED ${TILEWRIGHT_OBJECTS} $<TARGET_OBJECTS:tilewright_capi>)
add_library(tilewright::c ALIAS tilewright_c)
target_include_directories(tilewright_c PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(tilewright_c PRIVATE ${TILEWRIGHT_FMT} Threads::Threads ${CMAKE_DL_LIBS}
  $<IF:$<BOOL:${TILEWRIGHT_STATIC_DEPENDENCIES}>,${TILEWRIGHT_SQLITE_STATIC},SQLite::SQLite3>)
if(SKBUILD)  # a Python wheel has no links, and its tool uses this library too
  set(exports ${PROJECT_SOURCE_DIR}/capi/exports_wheel.map)
else()
  set(exports ${PROJECT_SOURCE_DIR}/capi/exports.map)
  set_target_properties(tilewright_c PROPERTIES VERSION 1.${PROJECT_VERSION} SOVERSION 1)
endif()
target_link_options(tilewright_c PRIVATE -Wl,-z,defs -Wl,--version-script=${exports})
set_target_properties(tilewright_c PROPERTIES EXPORT_NAME c LINK_DEPENDS ${exports})

# The functions of CUDA Quantization Kernels' cuda_kernels.h on top of it.
if(TILEWRIGHT_CUDA_KERNELS OR TILEWRIGHT_TESTS)
  enable_language(C)
  add_library(tilewright_cuda_kernels SHARED ${PROJECT_SOURCE_DIR}/capi/compat/cuda_kernels.c)
  target_include_directories(tilewright_cuda_kernels PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/capi/compat> $<INSTALL_INTERFACE:include/tilewright/compat>)
  target_link_libraries(tilewright_cuda_kernels PUBLIC tilewright_c PRIVATE Threads::Threads m)
  set_target_properties(tilewright_cuda_kernels PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden EXPORT_NAME cuda_kernels)
  target_compile_options(tilewright_cuda_kernels PRIVATE -Wall -Wextra -ffp-contract=off)
  target_link_options(tilewright_cuda_kernels PRIVATE -Wl,-z,defs)
endif()
