// SPDX-License-Identifier: Apache-2.0
// Source: a kernel written out, with everything needed to compile and launch it. LaunchPlan: its launch metadata.
// Values; free-threaded. A Source may be written by hand: that is how a caller's own kernel enters the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tilewright {

// blocks = fixed * ceil(rows / per_rows) * ceil(cols / per_cols); a divisor of 0 leaves its factor out.
struct GridAxis {
  std::uint32_t fixed = 1;
  std::uint32_t per_rows = 0;
  std::uint32_t per_cols = 0;
  std::uint64_t blocks(std::int64_t rows, std::int64_t cols) const {
    std::uint64_t b = fixed;
    if (per_rows) b *= (static_cast<std::uint64_t>(rows) + per_rows - 1) / per_rows;
    if (per_cols) b *= (static_cast<std::uint64_t>(cols) + per_cols - 1) / per_cols;
    return b;
  }
  friend bool operator==(const GridAxis&, const GridAxis&) = default;
};

struct LaunchPlan {
  GridAxis x, y, z;
  std::uint32_t threads = 0;        // per block, one-dimensional
  std::uint32_t cluster = 1;        // blocks per cluster along x
  std::uint32_t shared_bytes = 0;   // dynamic
  friend bool operator==(const LaunchPlan&, const LaunchPlan&) = default;
};

struct Header {
  std::string name;  // as written in #include "..."
  std::string text;
};

struct Source {
  std::string name;                  // for messages: "gemm/mma"
  std::string text;
  std::vector<Header> headers;       // all that `text` may include, in any order; nothing is read from disk
  std::string entry;                 // an extern "C" __global__ function
  std::vector<std::string> options;  // NVRTC options beyond the library's own (architecture, standard, cache off)
  LaunchPlan plan;
};

}  // namespace tilewright
