// SPDX-License-Identifier: Apache-2.0
// Launches of plugins on a device: over streams and execution contexts, in CUDA graphs, for random numbers of rows.
#pragma once

#include <cstdint>
#include <string>

#include "hosts/tensorrt/host/session.h"

namespace tilewright::tensorrt::host {

struct Launches {
  std::int64_t launched = 0;  // enqueue()
  std::int64_t replayed = 0;  // graphs
  std::int64_t tactics = 0;   // that were tried
  std::int64_t compared = 0;  // launches whose results were checked in double precision
  double worst = 0;           // error over its bound
};

// `driver`: path of libcuda; empty: the system's. is_double: it is the double of the tests, which computes nothing.
struct Place {
  std::string driver;
  bool is_double = false;
};

// Throws Failure with the first wrong result.
Launches run(const Library& library, Logger& logger, const Case& of, Engine& engine, const Place& place,
             std::int64_t count);

}  // namespace tilewright::tensorrt::host
