# SPDX-License-Identifier: Apache-2.0
# Installs into the build tree, then builds strangers against it: by find_package (with every example), by pkg-config, in C,
# and against a shared library of the same objects. Also: what a project installs that adds this one as a subdirectory,
# what CMake says where a prerequisite is missing, and what --strip leaves.
include(GNUInstallDirs)
if(TILEWRIGHT_INSTALL AND NOT TILEWRIGHT_SANITIZE AND NOT BUILD_SHARED_LIBS AND NOT TILEWRIGHT_STATIC_DEPENDENCIES)
  set(TILEWRIGHT_TEST_PREFIX ${PROJECT_BINARY_DIR}/test-install)
  add_test(NAME install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${TILEWRIGHT_TEST_PREFIX})
  set_tests_properties(install PROPERTIES FIXTURES_SETUP installed)

  add_library(tilewright_shared_check SHARED ${TILEWRIGHT_OBJECTS})
  target_link_libraries(tilewright_shared_check PRIVATE SQLite::SQLite3 ${TILEWRIGHT_FMT} Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(tilewright_shared_check PRIVATE -Wl,-z,defs)
  set_target_properties(tilewright_shared_check PROPERTIES OUTPUT_NAME tilewright
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/shared-check)

  foreach(kind find_package pkg_config c shared subdirectory missing strip)
    add_test(NAME consumer_${kind} COMMAND ${CMAKE_COMMAND} -DKIND=${kind} -DPREFIX=${TILEWRIGHT_TEST_PREFIX}
      -DSOURCE=${PROJECT_SOURCE_DIR} -DBINARY=${PROJECT_BINARY_DIR}/consumer-${kind} -DGENERATOR=${CMAKE_GENERATOR}
      -DBUILD=${PROJECT_BINARY_DIR} -DCXX=${CMAKE_CXX_COMPILER} -DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} -DLIBDIR=${CMAKE_INSTALL_LIBDIR}
      -DSHARED=${PROJECT_BINARY_DIR}/shared-check -P ${CMAKE_CURRENT_SOURCE_DIR}/consumer/run.cmake)
    set_tests_properties(consumer_${kind} PROPERTIES FIXTURES_REQUIRED installed)
  endforeach()
endif()
