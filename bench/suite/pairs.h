// SPDX-License-Identifier: Apache-2.0
// The pairs of formats that meet in a warpgroup kernel, and its candidates.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/suite/suite.h"

namespace tilewright::bench {

// Formats that meet in a warpgroup kernel.
struct Pair {
  Format x, w;
  bool tiles = false, fast = false;
  static const char* const kWorkspace;  // " workspace=..."
  std::optional<Format> from = {};      // how x arrives, if the kernel quantizes it
  // A problem, whose m is to be replaced. `which` turns through the kinds of output and epilogue.
  std::string text(int which, std::int64_t n, std::int64_t k, bool epilogue) const;
  // Whether codes have a scale per row, which kernels that take them by tiles unpack first.
  bool unpacks() const { return tiles && x.block() > 1 && x.info().streams.back().scope == Scope::row; }
  // Whether kernels write x to a workspace, quantized with a scale per row or unpacked: text() has one.
  bool by_row() const { return (from && x.block() == 1) || unpacks(); }
  int panel() const {  // columns of 128 bytes
    const int block = x.block(), bytes = x.info().streams[0].bytes;
    return bytes < block ? 128 * (block / bytes) : 128 / (bytes / block);
  }
  // Elements that a row of x may be longer than k by multiples of: 16 bytes, of whole blocks.
  std::int64_t step() const {
    const Format stored = from.value_or(x);
    return stored.block() * (16 / std::gcd(16, stored.info().streams[0].bytes));
  }
  std::string name() const {
    return fmt::format("{}{} x {}{}", x.name(), from ? " from " + std::string(from->name()) : "", w.name(),
                       fast ? " fast" : "");
  }
};

constexpr std::int64_t kWholeK = 2048;  // a multiple of every block, of a tile and of a stage

// Every pair, as stored or as tiles, found by asking.
std::vector<Pair> wgmma_pairs(Suite& s);

// Candidates at m of the families whose names begin with `family`, best first.
std::vector<Candidate> legal(Suite& s, const Problem& problem, std::int64_t m, std::string_view family);

// The value of an option; 0 where the candidate does not name it.
std::int64_t option(const Candidate& c, std::string_view name);

// Whether its blocks take tiles from a queue (templates/operations/gemm/cuda/wgmma/schedule.cuh).
bool queued(const Candidate& c);

}  // namespace tilewright::bench
