// SPDX-License-Identifier: Apache-2.0
// The library's version; the build reads it from here. Before 1.0 a minor version may change the interface.
#pragma once

#define TILEWRIGHT_VERSION_MAJOR 0
#define TILEWRIGHT_VERSION_MINOR 1
#define TILEWRIGHT_VERSION_PATCH 0
#define TILEWRIGHT_VERSION_STRING "0.1.0"
// Comparable: TILEWRIGHT_VERSION >= 100 means 0.1.0 or later.
#define TILEWRIGHT_VERSION \
  (TILEWRIGHT_VERSION_MAJOR * 10000 + TILEWRIGHT_VERSION_MINOR * 100 + TILEWRIGHT_VERSION_PATCH)
