# SPDX-License-Identifier: Apache-2.0
# libtilewright from its four folders. Each folder is an object library, so that its tests link it alone.
include(templates/embed.cmake)

function(tilewright_folder name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${name}/*.cpp)
  add_library(tilewright_${name} OBJECT ${sources} ${ARGN})
  target_include_directories(tilewright_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(tilewright_${name} PUBLIC fmt::fmt-header-only Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(tilewright_${name} PRIVATE TILEWRIGHT_BUILDING)
  # A format's codec must give the same bits on every host; see templates/core/numeric.cuh.
  target_compile_options(tilewright_${name} PRIVATE -ffp-contract=off)
endfunction()

tilewright_folder(jit)
tilewright_folder(cache)
tilewright_folder(tuner)
tilewright_folder(templates ${TILEWRIGHT_EMBEDDED})
target_include_directories(tilewright_templates PRIVATE ${TILEWRIGHT_GENERATED_DIR} ${PROJECT_SOURCE_DIR}/templates)
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  target_include_directories(tilewright_cache PRIVATE ${SQLite3_INCLUDE_DIRS})
  target_link_libraries(tilewright_cache PUBLIC ${TILEWRIGHT_SQLITE_STATIC})
else()
  target_link_libraries(tilewright_cache PUBLIC SQLite::SQLite3)
endif()

add_library(tilewright
  $<TARGET_OBJECTS:tilewright_jit> $<TARGET_OBJECTS:tilewright_cache>
  $<TARGET_OBJECTS:tilewright_templates> $<TARGET_OBJECTS:tilewright_tuner>)
add_library(tilewright::tilewright ALIAS tilewright)
target_include_directories(tilewright PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_compile_features(tilewright PUBLIC cxx_std_20)
target_link_libraries(tilewright PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  target_link_libraries(tilewright PRIVATE ${TILEWRIGHT_SQLITE_STATIC})
  add_link_options(-static-libstdc++ -static-libgcc)
else()
  target_link_libraries(tilewright PRIVATE SQLite::SQLite3)
endif()
set_target_properties(tilewright PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0.1 EXPORT_NAME tilewright)
