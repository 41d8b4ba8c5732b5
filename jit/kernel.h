// SPDX-License-Identifier: Apache-2.0
// Inside of a Kernel (tilewright/kernel.h): its functions and the table from numbers of rows to functions. Immutable
// after construction except for one flag, so that launching needs no lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tilewright/kernel.h>
#include <tilewright/problem.h>

#include "jit/driver.h"
#include "jit/modules.h"
#include "jit/nvtx.h"

namespace tilewright {
namespace jit {

inline constexpr std::size_t kMaxArgumentBytes = 4096;  // of all parameters of one kernel, as every GPU accepts
// Parts of a divided launch have a multiple of so many rows (LaunchPlan::most_rows).
inline constexpr std::uint32_t kPartRows = 16;

inline constexpr std::size_t kMaxMaps = std::tuple_size_v<decltype(LaunchPlan::maps)>;

// A function of a module, with what launching it takes.
struct Loaded {
  Loaded(const std::shared_ptr<Device::Impl>& device, const BinaryPtr& binary);

  std::shared_ptr<const Module> module;
  CUfunction function = nullptr;
  std::string entry;
  LaunchPlan plan;
  Resources resources;
  unsigned most_blocks = 0;  // of a persistent kernel of clusters: what the chip holds at a time; 0: not known
};

// The time of a launch over more rows than there are steps: tiles in waves. It tells a kernel's binaries apart there.
struct WaveCost {
  int entry = 0;                  // of the kernel
  std::int64_t tile_rows = 1;     // rows of a tile
  std::int64_t tiles_across = 1;  // tiles side by side
  std::int64_t concurrent = 1;    // tiles at a time
  double last_wave = 1;           // share of a wave that the last one takes at least; 0: all blocks share its work
  double microseconds = 0;        // of a wave

  // Of any rows >= 1. No launch has as many as kMost, where products would overflow.
  double at(std::int64_t rows) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    const std::int64_t tiles = ((std::min(rows, kMost) - 1) / tile_rows + 1) * tiles_across, left = tiles % concurrent;
    const double share = static_cast<double>(left) / static_cast<double>(concurrent);
    const double last = left == 0 ? 0 : last_wave == 0 ? share : share <= last_wave ? last_wave : 1;
    return (static_cast<double>(tiles / concurrent) + last) * microseconds;
  }
};

// Which binary serves which number of rows.
struct Serving {
  std::vector<BinaryPtr> binaries;            // one for each entry
  std::vector<Candidate> candidates;          // what they were made from; empty: a caller's own
  std::array<std::uint8_t, kRowSteps> steps;  // the entry of each row step
  std::vector<WaveCost> beyond;               // the fastest serves what is above kMostStepRows; empty: the last step's
};
// Who follows launches. By default nobody, which costs a launch one comparison.
struct Watch {
  // Told of each launch and its microseconds, 0 where they cannot be known. Empty: nothing is timed.
  std::function<void(const Candidate& candidate, std::int64_t rows, double microseconds)> launched = {};
  Nvtx nvtx = {};  // without functions: no ranges
  std::function<std::string(const Candidate& candidate, std::int64_t rows)> range_name = {};
  bool on() const { return launched || nvtx.push; }
};
Kernel make_kernel(const Device& device, Serving serving, Contract contract, Watch watch = {});

// Why the device cannot use the binary, whatever a launch's contract is; empty if it can. Loads it.
std::string load_refusal(const Device& device, const BinaryPtr& binary);

}  // namespace jit

struct Kernel::Impl {
  static constexpr std::size_t kUnknown = ~std::size_t{0};

  std::shared_ptr<Device::Impl> device;
  std::vector<std::unique_ptr<jit::Loaded>> loaded;
  std::vector<Candidate> candidates;  // of `loaded`; without a family where that is a caller's own
  std::array<std::uint8_t, kRowSteps> steps{};
  std::vector<jit::WaveCost> beyond;
  Contract contract;
  std::size_t params_bytes = kUnknown;  // of the first parameter
  std::atomic<bool> ask_pointers{false};
  jit::Watch watch = {};
  bool watched = false;

  // Index into `loaded`.
  std::size_t entry(std::int64_t rows) const {
    std::size_t best = steps[static_cast<std::size_t>(row_step(rows))];
    if (rows <= kMostStepRows || beyond.empty()) return best;
    double least = 0;
    for (const jit::WaveCost& cost : beyond)
      if (const double us = cost.at(rows); least == 0 || us < least)
        best = static_cast<std::size_t>(cost.entry), least = us;
    return best;
  }
};

}  // namespace tilewright
