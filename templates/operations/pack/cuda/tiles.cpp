// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/pack/pack.h"

#include <fmt/format.h>
#include <tilewright/pack.h>

#include "templates/common/knobs.h"
#include "templates/common/specialize.h"
#include "templates/formats/shared/fast_path.h"

namespace tilewright::pack {
namespace {

constexpr int kThreads = 128;

class Tiles final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "pack"; }
  std::string_view name() const override { return "tiles"; }
  std::string_view title() const override {
    return "weights to tiles of 64 rows and back, bit for bit; once per weight, at load";
  }
  std::string why_not(const Problem& problem, const Arch&) const override {
    const Pack* p = problem.as<Pack>();
    return !p ? "the problem is not a pack" : p->order == Packing::tiles ? "" : "panels are for CPUs";
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return {{"tiles", {}}};
  }
  Source source(const Problem& problem, const Arch&, const Candidate&) const override {
    const Pack& p = *problem.as<Pack>();
    Specialization s;
    s.name = "pack/tiles";
    s.includes = {"operations/pack/cuda/tiles.cuh", fmt::format("formats/{}.cuh", p.w.name()),
                  fmt::format("formats/{}.cuh", p.x.name())};
    s.plan_type = fmt::format("tw::pack::Tiles<tw::fmt::{0}, tw::tile_element<tw::fmt::{1}, tw::fmt::{0}>, {2}>",
                              p.w.name(), p.x.name(), p.inverse);
    s.space = "tw::pack";
    s.plan.x = {1, kTileRows, static_cast<std::uint32_t>(tile_info(p.w, p.x)->panel_k)};
    s.plan.threads = kThreads;
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    const Pack& p = *problem.as<Pack>();
    Traits t;
    t.tile_rows = kTileRows, t.tile_cols = tile_info(p.w, p.x)->panel_k, t.threads = kThreads, t.registers = 40;
    t.blocks = static_cast<double>(p.n) / t.tile_rows * (static_cast<double>(p.k) / t.tile_cols);
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 16;
    t.alu_ops = static_cast<double>(p.n) * static_cast<double>(p.k) * 20;
    return t;
  }
};

}  // namespace

const Family& tiles() {
  static const Tiles family;
  return family;
}

}  // namespace tilewright::pack
