# SPDX-License-Identifier: Apache-2.0
# Everything comes from find_package. Nothing is downloaded here; ./dev installs what is missing. All that is missing is
# named at once, with Debian's and Ubuntu's packages. docs/use/building.md has the list.
set(TILEWRIGHT_MISSING "")
set(TILEWRIGHT_MISSING_PACKAGES "")

# tilewright_need(CMAKE_PACKAGE DEBIAN_PACKAGE WHAT): a macro, since find_package() sets variables of the caller's.
macro(tilewright_need package debian what)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    string(APPEND TILEWRIGHT_MISSING "\n  ${package} (${what}): Debian and Ubuntu have it as ${debian}")
    string(APPEND TILEWRIGHT_MISSING_PACKAGES " ${debian}")
  endif()
endmacro()

tilewright_need(Threads libc6-dev "POSIX threads")
tilewright_need(SQLite3 libsqlite3-dev "the cache file")
tilewright_need(fmt libfmt-dev "text, header-only")
tilewright_need(nlohmann_json nlohmann-json3-dev "headers of safetensors files, header-only")
if(TILEWRIGHT_CLI OR TILEWRIGHT_TESTS OR TILEWRIGHT_BENCH)
  tilewright_need(CLI11 libcli11-dev "the command line tool, header-only; not with -DTILEWRIGHT_CLI=OFF -DTILEWRIGHT_TESTS=OFF -DTILEWRIGHT_BENCH=OFF")
endif()
if(TILEWRIGHT_TESTS)
  tilewright_need(Catch2 catch2 "the tests, version 2 or 3; not with -DTILEWRIGHT_TESTS=OFF")
endif()
if(TILEWRIGHT_MISSING)
  message(FATAL_ERROR "Not found:${TILEWRIGHT_MISSING}\n"
    "Install them (sudo apt-get install${TILEWRIGHT_MISSING_PACKAGES}), or let ./dev build do it, or name their prefix "
    "in -DCMAKE_PREFIX_PATH=DIR.")
endif()
# Header-only, an installed static library asks its users for no fmt. Compiled, each object takes a third less time to make.
if(TILEWRIGHT_COMPILED_FMT)
  set(TILEWRIGHT_FMT fmt::fmt)
else()
  set(TILEWRIGHT_FMT fmt::fmt-header-only)
endif()
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  if(TILEWRIGHT_COMPILED_FMT)
    message(FATAL_ERROR "TILEWRIGHT_STATIC_DEPENDENCIES and TILEWRIGHT_COMPILED_FMT exclude each other: turn one off")
  endif()
  find_library(TILEWRIGHT_SQLITE_STATIC libsqlite3.a)
  if(NOT TILEWRIGHT_SQLITE_STATIC)
    message(FATAL_ERROR "TILEWRIGHT_STATIC_DEPENDENCIES needs libsqlite3.a: Debian and Ubuntu have it in libsqlite3-dev")
  endif()
endif()
