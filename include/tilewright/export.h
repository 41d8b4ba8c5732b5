// SPDX-License-Identifier: Apache-2.0
// Everything else in libtilewright.so is hidden. Types that are thrown, or have virtual functions, need it too.
#pragma once

#if defined(_WIN32)
#error "Tilewright has been built on Linux only"
#endif
#define TILEWRIGHT_EXPORT __attribute__((visibility("default")))
