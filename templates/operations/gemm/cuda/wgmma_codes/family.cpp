// SPDX-License-Identifier: Apache-2.0
// wgmma_codes: which of its knobs are legal, and what they cost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cuda/family.h"
#include "templates/operations/gemm/cuda/wgmma/instruction.h"
#include "templates/operations/gemm/cuda/wgmma_codes/plan.cuh"

namespace tilewright::gemm {
namespace {

using tw::gemm::kFewTokens;
using Knobs = tw::gemm::WgmmaCodesKnobs;

constexpr int kMaxStages = 8;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::block_m>("block_m"), knob<&Knobs::strips>("strips"),
                                  knob<&Knobs::warpgroups_n>("warpgroups_n"), knob<&Knobs::pieces>("pieces"),
                                  knob<&Knobs::stages>("stages")};

// Tiles whose sums, products and fragments fit in a thread's registers.
struct Tile {
  int block_m, strips, warpgroups_n, pieces;
};
constexpr Tile kTiles[] = {{128, 1, 2, 2}, {192, 1, 2, 4}, {160, 1, 2, 5}, {96, 2, 2, 3},
                           {64, 2, 2, 1},  {64, 2, 2, 2},  {96, 1, 2, 2}};

tw::gemm::WgmmaCodesPlan plan_of(const Gemm& g, const Knobs& k) {
  const TileInfo& tiles = *tile_info(g.w, g.x);
  return wgmma_codes_plan(k, {tiles.words, tiles.scale_k, tiles.scale_bytes, fast_path(g.w).offset,
                              fast_path(g.x).raw_bytes(tw::gemm::kCodesStageK), fast_path(g.y).element_bytes,
                              g.c ? fast_path(*g.c).element_bytes : 0});
}

class WgmmaCodes final : public KernelFamily<Knobs> {
 public:
  WgmmaCodes()
      : KernelFamily(
            {.family = "wgmma_codes",
             .title = "Hopper's warpgroup matrix units: codes by codes, exact sums of groups, weights as tiles",
             .header = "operations/gemm/cuda/wgmma_codes/kernel.cuh",
             .kernel = "tw::gemm::WgmmaCodes"},
            {"tw::gemm::WgmmaCodesKnobs", kKnobs}) {}

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    if (!arch.wgmma) return fmt::format("{} has no warpgroup matrix instructions", arch.name);
    if (std::string why = has_groups(*g); !why.empty()) return why;
    if (std::string why = x_comes_as_floats(*g); !why.empty()) return why;
    if (!blocks_of_bytes(g->x))
      return fmt::format("x={} is no format of signed bytes in blocks of 32, whose rows the copy engine can read",
                         g->x.name());
    if (g->packing != Packing::tiles) return fmt::format("w={} is not packed as tiles", g->w.name());
    if (!tile_info(g->w, g->x)) return fmt::format("w={} has no tiles for x={}", g->w.name(), g->x.name());
    if (g->k % tw::gemm::kCodesStageK != 0)
      return fmt::format("k must be a multiple of {} (got {})", tw::gemm::kCodesStageK, g->k);
    if (g->m <= kFewTokens) return fmt::format("m must be more than {} (got {})", kFewTokens, g->m);
    return {};
  }

 protected:
  std::vector<Knobs> legal_knobs(const Gemm& g, const Arch& arch) const override {
    std::vector<Knobs> out;
    for (const Tile& t : kTiles) {
      if (g.c && t.strips > 1 && t.block_m * t.strips > 128) continue;  // these spill with c
      Knobs k{t.block_m, t.strips, t.warpgroups_n, t.pieces, kMaxStages};
      while (k.stages > 1 && plan_of(g, k).shared_bytes > arch.shared_per_block) --k.stages;
      if (k.stages >= 2) out.push_back(k);
    }
    return out;
  }

  LaunchPlan launch_plan(const Gemm& g, const Arch&, const Knobs& k) const override {
    LaunchPlan p;
    p.x = {1, static_cast<std::uint32_t>(k.block_m), static_cast<std::uint32_t>(k.block_n())};
    p.threads = static_cast<std::uint32_t>(k.threads());
    p.shared_bytes = static_cast<std::uint32_t>(plan_of(g, k).shared_bytes);
    p.persistent = 1;
    p.overlap = true;
    p.map_count = 1;
    p.maps[0] = blocks_map(g.x, k.block_m, 1);
    return p;
  }
  void extend(const Gemm&, const Arch&, const Knobs& k, Specialization& s) const override {
    s.prelude += wgmma_text(tw::WgmmaKind::f16, k.block_m / k.pieces);
  }

  Traits traits_of(const Problem& problem, const Arch&, const Knobs& k) const override {
    const Gemm& g = *problem.as<Gemm>();
    const tw::gemm::WgmmaCodesPlan plan = plan_of(g, k);
    Traits t;
    t.tile_rows = k.block_m, t.tile_cols = k.block_n(), t.threads = k.threads();
    t.shared_bytes = plan.shared_bytes;
    t.registers = 65536 / k.threads();
    const double tiles_m = std::ceil(static_cast<double>(g.m) / k.block_m),
                 tiles_n = std::ceil(static_cast<double>(g.n) / k.block_n());
    t.blocks = tiles_m * tiles_n;
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = tiles_m * static_cast<double>(g.w.total_bytes(g.n, g.k)) +
                     tiles_n * tiles_m * k.block_m * static_cast<double>(g.x.total_bytes(1, g.k)) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    t.bytes_in_flight = static_cast<double>(k.stages - 1) * (plan.stage_bytes + plan.scale_bytes) / k.threads();
    const double products = tiles_m * tiles_n * k.block_m * k.block_n() * static_cast<double>(g.k);
    t.mma_ops = 2.0 * products;
    t.mma_rate = 1.5 * std::min(1.0, k.block_m / 64.0 + 0.25);
    t.mma_in_flight = 32;
    // Two operations for a group's result, three with a minimum; three for two weights or two of x's codes.
    t.alu_ops = (fast_path(g.w).offset ? 3.0 : 2.0) * products / kGroup +
                1.5 * tiles_m * tiles_n * static_cast<double>(g.k) * (k.block_n() + k.block_m);
    t.alu_in_flight = 4;
    return t;
  }
};

}  // namespace

const Family& wgmma_codes() {
  static const WgmmaCodes family;
  return family;
}

}  // namespace tilewright::gemm
