// SPDX-License-Identifier: Apache-2.0
// Families of a CPU that are one function of the library over blocks of whole rows. Nothing is compiled.
#pragma once

#include <tilewright/source.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "templates/common/knobs.h"

namespace tilewright::cpu {

// P: the operation's struct, with fields rows and cols. Args: what a launch passes, with a field rows.
template <class P, class Args>
class RowsFamily final : public EnumeratedFamily {
 public:
  // Rows first to first + rows - 1. Runs on several threads at once.
  using Run = void(const P& problem, const Args& args, std::int64_t first, std::int64_t rows);
  RowsFamily(std::string_view name, std::string_view title, Run* run) : name_(name), title_(title), run_(run) {}

  std::string_view op() const override { return P::kOperation; }
  std::string_view name() const override { return name_; }
  std::string_view title() const override { return title_; }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    return !problem.as<P>() ? "the problem is not of operation " + std::string(op())
           : !arch.cpu      ? "its kernels are for CPUs"
                            : "";
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return {{std::string(name_), {}}};
  }
  Source source(const Problem& problem, const Arch&, const Candidate&) const override {
    Source s;
    s.name = std::string(op()) + "/" + std::string(name_);
    s.entry = "tilewright_" + std::string(op());
    s.plan = plan(*problem.as<P>());
    const auto run = [p = *problem.as<P>(), run = run_, each = std::int64_t{s.plan.cpu->blocks.per_rows}](
                         const void* args, const void*, void*, std::int64_t block) {
      const Args& a = *static_cast<const Args*>(args);
      run(p, a, block * each, std::min(each, a.rows - block * each));
    };
    s.host = std::make_shared<const CpuKernel>(CpuKernel{{}, run});
    return s;
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    const LaunchPlan p = plan(*problem.as<P>());
    Traits t;
    t.tile_rows = static_cast<int>(p.cpu->blocks.per_rows), t.tile_cols = static_cast<int>(problem.cols()),
    t.threads = 1;
    t.blocks = static_cast<double>(p.cpu->blocks.blocks(std::max<std::int64_t>(problem.rows(), 1), problem.cols()));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 1e6;
    return t;
  }

 private:
  static constexpr std::int64_t kElements = 1 << 14;  // of a block: much more work than claiming it
  static LaunchPlan plan(const P& problem) {
    LaunchPlan p;
    p.cpu = {{1, static_cast<std::uint32_t>(std::max<std::int64_t>(1, kElements / problem.cols)), 0}};
    return p;
  }

  std::string_view name_, title_;
  Run* run_;
};

}  // namespace tilewright::cpu
