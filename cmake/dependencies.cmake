# SPDX-License-Identifier: Apache-2.0
# Everything comes from find_package. Nothing is downloaded here; ./dev installs what is missing.
find_package(Threads REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(fmt REQUIRED)
if(TILEWRIGHT_CLI OR TILEWRIGHT_TESTS OR TILEWRIGHT_BENCH)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
endif()
if(TILEWRIGHT_TESTS)
  find_package(Catch2 REQUIRED)  # 2 or 3
endif()
if(TILEWRIGHT_STATIC_DEPENDENCIES)
  find_library(TILEWRIGHT_SQLITE_STATIC libsqlite3.a REQUIRED)
endif()
