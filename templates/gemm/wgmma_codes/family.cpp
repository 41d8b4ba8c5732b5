// SPDX-License-Identifier: Apache-2.0
// Knobs of the warpgroup kernel for codes by codes (wgmma_codes.cuh), their legality and how it is written out.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "templates/fast_path.h"
#include "templates/gemm/gemm.h"
#include "templates/gemm/params.cuh"
#include "templates/gemm/wgmma/instruction.h"
#include "templates/gemm/wgmma/store_staging.cuh"
#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright::gemm {
namespace {

constexpr int kStripRows = 64, kPanels = 2, kStageK = kPieceK, kAtom = 1024, kRawStages = 2;
constexpr int kMaxStages = 8;

struct Knobs {
  int bm, strips, groups, pieces, stages;

  static Knobs of(const Candidate& c) {
    const auto at = [&](const char* name) { return static_cast<int>(c.at(name)); };
    return {at("bm"), at("strips"), at("groups"), at("pieces"), at("stages")};
  }
  Candidate candidate() const {
    return {"wgmma_codes",
            {{"bm", bm}, {"strips", strips}, {"groups", groups}, {"pieces", pieces}, {"stages", stages}}};
  }
  int bn() const { return kStripRows * strips * groups; }
  int math() const { return 128 * groups; }
  int threads() const { return math() + 128; }
};

// Mirror WarpgroupCodes::kStageBytes and kSharedBytes; the generated source asserts the latter.
int stage_bytes(const Knobs& k, const Gemm& g) {
  const TileInfo& tiles = *tile_info(g.w, g.x);
  const int chunks = std::max(1, kStageK / tiles.scale_k);
  const int w = k.strips * k.groups * (kPanels * 512 * tiles.words + chunks * kStripRows * tiles.scale_bytes);
  return kPanels * k.bm * 128 + (w + kAtom - 1) / kAtom * kAtom +
         kStageK / kGroup * k.bm * (fast_path(g.w).offset ? 8 : 4);
}
int shared_bytes(const Knobs& k, const Gemm& g) {
  const int turn =
      k.groups * tw::gemm::outlet_bytes(k.bm, fast_path(g.y).element_bytes, g.c ? fast_path(*g.c).element_bytes : 0);
  return k.stages * stage_bytes(k, g) + kRawStages * k.bm * fast_path(g.x).raw_bytes(kStageK) + turn + 16 * k.stages +
         8 * kRawStages;
}

class WarpgroupCodesFamily final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "wgmma_codes"; }
  std::string_view title() const override {
    return "Hopper's warpgroup matrix units: codes by codes, exact sums of groups, weights as tiles";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "not a gemm";
    if (!arch.wgmma) return fmt::format("{} has no warpgroup matrix instructions", arch.name);
    if (std::string why = x_comes_as_floats(*g); !why.empty()) return why;
    if (!blocks_of_bytes(g->x))
      return fmt::format("x={} is no format of signed bytes in blocks of 32, whose rows the copy engine can read",
                         g->x.name());
    if (g->packing == Packing::none) return fmt::format("w={} is not packed as tiles", g->w.name());
    if (!tile_info(g->w, g->x)) return fmt::format("w={} has no tiles for x={}", g->w.name(), g->x.name());
    if (g->k % kStageK != 0) return fmt::format("k = {}: a multiple of {} is needed", g->k, kStageK);
    if (g->m <= kFewTokens) return fmt::format("m = {}: more than {} are needed", g->m, kFewTokens);
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const Gemm& g = *problem.as<Gemm>();
    std::vector<Candidate> out;
    const auto add = [&](Knobs k) {
      k.stages = kMaxStages;
      while (k.stages > 1 && shared_bytes(k, g) > arch.shared_per_block) --k.stages;
      if (k.stages >= 2) out.push_back(k.candidate());
    };
    for (const auto& [bm, strips, groups, pieces] : kLarge)
      if (!g.c || strips == 1 || bm * strips <= 128) add({bm, strips, groups, pieces, 0});  // the others spill with c
    return out;
  }

  Source source(const Problem& problem, const Arch&, const Candidate& c) const override {
    const Gemm& g = *problem.as<Gemm>();
    const Knobs k = Knobs::of(c);
    Specialization s;
    s.name = "gemm/wgmma_codes";
    s.includes = includes_for(g, "gemm/wgmma_codes/kernel.cuh");
    s.prelude = wgmma_text(tw::WgmmaKind::f16, k.bm / k.pieces);
    s.plan_type = fmt::format("tw::gemm::WarpgroupCodes<{}, {}, {}, {}, {}, {}, {}, {}>", format_type(g.x),
                              format_type(g.w), epilogue_type(g), k.bm, k.strips, k.groups, k.pieces, k.stages);
    s.space = "tw::gemm";
    LaunchPlan& p = s.plan;
    p.x = {1, static_cast<std::uint32_t>(k.bm), static_cast<std::uint32_t>(k.bn())};
    p.threads = static_cast<std::uint32_t>(k.threads());
    p.shared_bytes = static_cast<std::uint32_t>(shared_bytes(k, g));
    p.persistent = 1;
    p.overlap = true;
    p.map_count = 1;
    p.maps[0] = blocks_map(g.x, k.bm, 1);
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch&, const Candidate& c) const override {
    const Gemm& g = *problem.as<Gemm>();
    const Knobs k = Knobs::of(c);
    Traits t;
    t.tile_rows = k.bm, t.tile_cols = k.bn(), t.threads = k.threads();
    t.shared_bytes = shared_bytes(k, g);
    t.registers = 65536 / k.threads();
    const double tiles_m = std::ceil(static_cast<double>(g.m) / k.bm),
                 tiles_n = std::ceil(static_cast<double>(g.n) / k.bn());
    t.blocks = tiles_m * tiles_n;
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = tiles_m * static_cast<double>(g.w.total_bytes(g.n, g.k)) +
                     tiles_n * tiles_m * k.bm * static_cast<double>(g.x.total_bytes(1, g.k)) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    t.bytes_in_flight = static_cast<double>(k.stages - 1) * stage_bytes(k, g) / k.threads();
    const double products = tiles_m * tiles_n * k.bm * k.bn() * static_cast<double>(g.k);
    t.mma_ops = 2.0 * products;
    t.mma_rate = 1.5 * std::min(1.0, k.bm / 64.0 + 0.25);
    t.mma_in_flight = 32;
    // Two operations for a group's result, three with a minimum; three for two weights or two of x's codes.
    t.alu_ops = (fast_path(g.w).offset ? 3.0 : 2.0) * products / kGroup +
                1.5 * tiles_m * tiles_n * static_cast<double>(g.k) * (k.bn() + k.bm);
    t.alu_in_flight = 4;
    return t;
  }

 private:
  // Tiles of many tokens whose sums, products and fragments fit in a thread's registers.
  struct Large {
    int bm, strips, groups, pieces;
  };
  static constexpr Large kLarge[] = {{128, 1, 2, 2}, {192, 1, 2, 4}, {160, 1, 2, 5}, {96, 2, 2, 3},
                                     {64, 2, 2, 1},  {64, 2, 2, 2},  {96, 1, 2, 2}};
};

}  // namespace

const Family& wgmma_codes() {
  static const WarpgroupCodesFamily family;
  return family;
}

}  // namespace tilewright::gemm
