// SPDX-License-Identifier: Apache-2.0
// A cast on the CPU: its formats' scalar codecs, by rows. Nothing is compiled; what it writes is what codecs define.
#include "templates/cpu/cast.h"

#include <tilewright/cast.h>
#include <tilewright/source.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "templates/cast/stochastic.h"
#include "templates/cpu/rows.h"
#include "templates/knobs.h"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kElements = 1 << 14;  // of a block, but whole rows: much more work than claiming it

void cast_rows(const Cast& c, const CastArgs& a, std::int64_t first, std::int64_t rows) {
  thread_local std::vector<float> values;
  values.resize(static_cast<std::size_t>(rows * c.cols));
  for (std::int64_t i = 0; i < rows; ++i)  // one by one: where rows share a scale, a range may begin among them
    c.x.info().decode(from_row(c.x, a.x, first + i, c.cols), 1, c.cols, values.data() + i * c.cols);
  const MutableOperand y = from_row(c.y, a.y, first, c.cols);
  c.y.info().encode(values.data(), rows, c.cols, y, c.encoder);
  if (c.rounding == Rounding::stochastic)
    cast::round_stochastically(c.y, values.data(), first, rows, c.cols, y, c.encoder, a.seed);
}

class CastFamily final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "cast"; }
  std::string_view name() const override { return "cpu_cast"; }
  std::string_view title() const override { return "CPU, any pair of formats by their scalar codecs, by rows"; }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    return !problem.as<Cast>() ? "not a cast" : !arch.cpu ? "for CPUs" : "";
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return {{std::string(name()), {}}};
  }
  Source source(const Problem& problem, const Arch&, const Candidate&) const override {
    Source s;
    s.name = "cast/cpu_cast";
    s.entry = "tilewright_cast";
    s.plan = plan(*problem.as<Cast>());
    const auto run = [c = *problem.as<Cast>(), each = std::int64_t{s.plan.cpu->blocks.per_rows}](
                         const void* args, const void*, void*, std::int64_t block) {
      const CastArgs& a = *static_cast<const CastArgs*>(args);
      cast_rows(c, a, block * each, std::min(each, a.rows - block * each));
    };
    s.host = std::make_shared<const CpuKernel>(CpuKernel{{}, run});
    return s;
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    const LaunchPlan p = plan(*problem.as<Cast>());
    Traits t;
    t.tile_rows = static_cast<int>(p.cpu->blocks.per_rows), t.tile_cols = static_cast<int>(problem.cols()),
    t.threads = 1;
    t.blocks = static_cast<double>(p.cpu->blocks.blocks(std::max<std::int64_t>(problem.rows(), 1), problem.cols()));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 1e6;
    return t;
  }

 private:
  static LaunchPlan plan(const Cast& c) {
    LaunchPlan p;
    p.cpu = {{1, static_cast<std::uint32_t>(std::max<std::int64_t>(1, kElements / c.cols)), 0}};
    return p;
  }
};

}  // namespace

std::span<const Family* const> cast_families() {
  static const CastFamily family;
  static const Family* const list[] = {&family};
  return list;
}

}  // namespace tilewright::cpu
