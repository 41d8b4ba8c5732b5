# SPDX-License-Identifier: Apache-2.0
# What find_package(tilewright) and pkg-config need.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(TILEWRIGHT_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tilewright)
install(TARGETS tilewright tilewright_c EXPORT tilewright-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# `cmake --install DIR --strip` strips programs and shared libraries by itself; the archive loses its debug information here.
if(NOT BUILD_SHARED_LIBS AND CMAKE_STRIP)
  install(CODE "
    if(CMAKE_INSTALL_DO_STRIP)
      execute_process(COMMAND ${CMAKE_STRIP} --strip-debug
        \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:tilewright>\" COMMAND_ERROR_IS_FATAL ANY)
    endif()")
endif()
if(TILEWRIGHT_CUDA_KERNELS)
  install(TARGETS tilewright_cuda_kernels EXPORT tilewright-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES capi/compat/cuda_kernels.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tilewright/compat)
endif()
install(DIRECTORY include/tilewright DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tilewright-targets NAMESPACE tilewright:: DESTINATION ${TILEWRIGHT_CMAKE_DIR})
configure_package_config_file(cmake/tilewright-config.cmake.in ${PROJECT_BINARY_DIR}/tilewright-config.cmake
  INSTALL_DESTINATION ${TILEWRIGHT_CMAKE_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tilewright-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tilewright-config.cmake ${PROJECT_BINARY_DIR}/tilewright-config-version.cmake
  DESTINATION ${TILEWRIGHT_CMAKE_DIR})

# pkg-config: what a static library needs goes to Libs.private, unless the library is static anyway.
set(fmt "")
if(TILEWRIGHT_COMPILED_FMT)
  set(fmt " fmt")
endif()
set(TILEWRIGHT_PC_NVRTC "-Wl,-rpath,\${prefix}/lib/tilewright")  # as in library.cmake
if(BUILD_SHARED_LIBS)
  set(TILEWRIGHT_PC_LIBS "")
  set(TILEWRIGHT_PC_REQUIRES_PRIVATE "sqlite3${fmt}")
  set(TILEWRIGHT_PC_REQUIRES "")
else()
  set(TILEWRIGHT_PC_LIBS "-pthread -ldl ${TILEWRIGHT_PC_NVRTC}")
  set(TILEWRIGHT_PC_REQUIRES_PRIVATE "")
  set(TILEWRIGHT_PC_REQUIRES "sqlite3${fmt}")
endif()
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  set(TILEWRIGHT_PC_REQUIRES "")
  set(TILEWRIGHT_PC_REQUIRES_PRIVATE "")
  set(TILEWRIGHT_PC_LIBS "${TILEWRIGHT_SQLITE_STATIC} -pthread -ldl -lm ${TILEWRIGHT_PC_NVRTC}")
endif()
# Relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH TILEWRIGHT_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/tilewright.pc.in ${PROJECT_BINARY_DIR}/tilewright.pc @ONLY)
configure_file(cmake/tilewright-c.pc.in ${PROJECT_BINARY_DIR}/tilewright-c.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tilewright.pc ${PROJECT_BINARY_DIR}/tilewright-c.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# README.md's commands use them: the small model, and the kernel of one's own.
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/tilewright PATTERN "*.py" EXCLUDE PATTERN "build*" EXCLUDE)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tilewright)

# A Python wheel holds the C library, the tool and what it was built with of PyTorch's operators, inside the package.
if(SKBUILD)
  add_custom_target(tilewright_python DEPENDS tilewright_c tilewright_cli)
  if(TARGET tilewright_torch)
    add_dependencies(tilewright_python tilewright_torch)
    install(TARGETS tilewright_torch LIBRARY DESTINATION tilewright/_lib COMPONENT python)
  endif()
  if(TARGET tilewright_ort)
    add_dependencies(tilewright_python tilewright_ort)
    install(TARGETS tilewright_ort LIBRARY DESTINATION tilewright/_lib COMPONENT python)
  endif()
  set_target_properties(tilewright_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../_lib")
  install(TARGETS tilewright_c LIBRARY DESTINATION tilewright/_lib COMPONENT python)
  install(TARGETS tilewright_cli RUNTIME DESTINATION tilewright/_bin COMPONENT python)
elseif(TILEWRIGHT_CLI)
  set_target_properties(tilewright_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS tilewright_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
