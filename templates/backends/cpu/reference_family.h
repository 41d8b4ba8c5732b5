// SPDX-License-Identifier: Apache-2.0
// What the references of gemm and conv (reference.cpp, conv_reference.cpp) share: the oracle beside one candidate, and
// costs.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "templates/common/knobs.h"

namespace tilewright::cpu {

class ReferenceFamily : public EnumeratedFamily {
 public:
  std::string_view name() const final { return "cpu_reference"; }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const final {
    if (!why_not(problem, arch).empty()) return {};
    return {{std::string(name()), {{"oracle", 0}}}};
  }
  // The oracle is never a candidate to win, but may be asked for by name.
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    if (c == Candidate{std::string(name()), {{"oracle", 1}}}) return why_not(problem, arch);
    return EnumeratedFamily::illegal(problem, arch, c);
  }
  // A tile is a block; where the plan has none across rows, all rows.
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& c) const final {
    const GridAxis blocks = source(problem, arch, c).plan.cpu->blocks;
    const std::int64_t rows = std::max<std::int64_t>(problem.rows(), 1);
    Traits t;
    t.tile_rows = static_cast<int>(blocks.per_rows ? blocks.per_rows : std::min<std::int64_t>(rows, 1 << 20));
    t.tile_cols = static_cast<int>(blocks.per_cols);
    t.threads = 1;
    t.blocks = static_cast<double>(blocks.blocks(rows, problem.cols()));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 1e6;
    t.mma_ops = problem.ops();
    t.mma_rate = 1e-3;
    return t;
  }
};

}  // namespace tilewright::cpu
