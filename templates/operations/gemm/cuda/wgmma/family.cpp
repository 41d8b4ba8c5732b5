// SPDX-License-Identifier: Apache-2.0
// wgmma: which problems it serves, how it is launched and what it costs.
#include <fmt/format.h>

#include <cmath>
#include <cstddef>

#include "templates/operations/gemm/cuda/family.h"
#include "templates/operations/gemm/cuda/wgmma/instruction.h"
#include "templates/operations/gemm/cuda/wgmma/operands.h"
#include "templates/operations/gemm/params.cuh"

namespace tilewright::gemm {
namespace {

using tw::gemm::kFewTokens;
using tw::gemm::kRowPanels;
using tw::gemm::Schedule;
using Knobs = WgmmaKnobs;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::block_m>("block_m"),
                                  knob<&Knobs::strips>("strips"),
                                  knob<&Knobs::warpgroups_n>("warpgroups_n"),
                                  knob<&Knobs::warpgroups_k>("warpgroups_k"),
                                  knob<&Knobs::panels>("panels"),
                                  knob<&Knobs::stages>("stages"),
                                  knob<&Knobs::cluster>("cluster"),
                                  knob<&Knobs::split_k>("split_k"),
                                  knob<&Knobs::warp_mma>("warp_mma"),
                                  option<&Knobs::swapped>("swapped"),
                                  option<&Knobs::schedule>("schedule"),
                                  option<&Knobs::prologue>("prologue")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::fast_accumulation>("fast_accumulation"),
                                    knob<&Knobs::async_store>("async_store"),
                                    knob<&Knobs::quantized_bytes>("quantized_bytes"), knob<&Knobs::groups>("groups")};

class Wgmma final : public KernelFamily<Knobs> {
 public:
  Wgmma()
      : KernelFamily(
            {.family = "wgmma",
             .title = "Hopper's warpgroup matrix units: tensor copies, persistent blocks, coded weights as tiles",
             .header = "operations/gemm/cuda/wgmma/kernel.cuh",
             .kernel = "tw::gemm::WgmmaKernel"},
            {"tw::gemm::WgmmaKnobs", kKnobs, kDerived}) {}

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    if (const auto bytes = as_bytes(problem)) return why_not(*bytes, arch);
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    if (!arch.wgmma) return fmt::format("{} has no warpgroup matrix instructions", arch.name);
    if (g->packing == Packing::panels) return "w is packed in panels, for CPUs";
    const bool codes_on_tiles = g->packing == Packing::tiles && fast_path(g->x).codes;
    if (std::string why = x_comes_as_floats(*g); !why.empty() && !codes_on_tiles && !quantizes_rows(*g)) return why;
    if (!wgmma_kind(g->x) && !unpacks_rows(*g))
      return fmt::format("x={} is no operand of a warpgroup matrix instruction{}", g->x.name(),
                         tile_info(g->w, g->x) ? " unless w is packed as tiles" : "");
    if (unpacks_rows(*g) && g->groups)
      return fmt::format("{}, and x={} is unpacked first", has_groups(*g), g->x.name());
    const std::optional<WgmmaProblem> p = wgmma_problem(*g, g->m, needs_prologue(*g));
    if (!p && g->packing == Packing::none)
      return fmt::format("w={} does not go with x={} unless it is packed as tiles", g->w.name(), g->x.name());
    if (!p) return fmt::format("w={} has no tiles for x={}", g->w.name(), g->x.name());
    if (g->k % p->panel_k() != 0) return fmt::format("k must be a multiple of {} (got {})", p->panel_k(), g->k);
    if (p->quantized && g->k % (kRowPanels * p->panel_k()) != 0)
      return fmt::format("k must be a multiple of {} with x_from (got {})", kRowPanels * p->panel_k(), g->k);
    if (p->codes && g->m > kFewTokens && !p->quantized && !g->groups)
      return fmt::format("m must be at most {} for x={} (got {})", kFewTokens, g->x.name(), g->m);
    if (p->promotes() && p->tiles && g->k / p->panel_k() % 2 != 0)
      return fmt::format("k must be a multiple of {} (got {})", 2 * p->panel_k(), g->k);
    if (std::string why = no_prologue(*g); !why.empty()) return why;
    if (std::string why = no_sums(*g); !why.empty()) return why;
    if (g->n % 8 != 0) return fmt::format("n must be a multiple of 8 (got {})", g->n);
    return {};
  }

 protected:
  std::vector<Knobs> legal_knobs(const Gemm& g, const Arch& arch) const override {
    std::vector<Knobs> list;
    for (const bool prologue : {false, true}) {
      const std::optional<WgmmaProblem> p = wgmma_problem(g, g.m, prologue);
      if (!p || !offers(g, *p)) continue;
      for (const Knobs& k : wgmma_knobs(g, *p, arch))
        if (wgmma_problem(g, k).narrows == p->narrows) list.push_back(k);
    }
    return list;
  }
  void derive(const Gemm& g, Knobs& k) const override { k = wgmma_problem(g, k).complete(k); }

  // Swapped, the kernel calls x w, and w x.
  std::string kernel_types(const Gemm& g, const Knobs& k) const override {
    return fmt::format("{}, {}, {}", k.swapped ? multiplied_w(g) : multiplied_x(g),
                       k.swapped ? multiplied_x(g) : multiplied_w(g), epilogue_type(g));
  }
  void extend(const Gemm& g, const Arch& arch, const Knobs& k, Specialization& s) const override {
    const WgmmaProblem p = wgmma_problem(as_bytes(g), k);
    if (!k.warp_mma)
      s.prelude += wgmma_text(p.tiles     ? p.kind
                              : signs(g)  ? tw::WgmmaKind::b1
                              : k.swapped ? wgmma_kind(g.x, g.w)
                                          : wgmma_kind(g.w, g.x),
                              k.block_m);
    if (p.quantized) s.includes.push_back("operations/gemm/cuda/wgmma/quantized_row.cuh");
    s.blocks_per_sm = p.blocks_per_sm(k, arch);
  }

  LaunchPlan launch_plan(const Gemm& g, const Arch& arch, const Knobs& k) const override {
    const WgmmaProblem o = wgmma_problem(g, k);
    const tw::gemm::WgmmaPlan plan = o.plan(k);
    LaunchPlan p;
    // At most as many blocks as have a part of a tile.
    const int parts = k.schedule == Schedule::stream_k          ? tw::gemm::kMaxParts
                      : k.schedule == Schedule::split_last_wave ? 2
                                                                : 1;
    // The room for groups, not their number, so that problems share kernels.
    p.x = {static_cast<std::uint32_t>(k.cluster * parts * std::max(o.groups, 1)), static_cast<std::uint32_t>(k.block_m),
           static_cast<std::uint32_t>(k.block_n() * k.neighbours())};
    if (k.swapped) std::swap(p.x.per_rows, p.x.per_cols);
    p.threads = static_cast<std::uint32_t>(plan.threads);
    p.cluster = static_cast<std::uint32_t>(k.cluster);
    p.shared_bytes = static_cast<std::uint32_t>(plan.shared_bytes);
    p.persistent = static_cast<std::uint32_t>(o.blocks_per_sm(k, arch));
    p.overlap = true;
    if (o.prologue) p.most_rows = static_cast<std::uint32_t>(o.most_tokens(g));
    set_maps(g, o, k, p);
    return p;
  }

  Traits traits_of(const Problem& problem, const Arch& arch, const Knobs& k) const override {
    const Gemm& g = *problem.as<Gemm>();
    Traits t = traits_of(one_group(g), wgmma_problem(g, k), arch, k);
    t.unique_bytes = problem.min_bytes() + read_again(g, arch, k);
    for (double Traits::*of_launch : {&Traits::blocks, &Traits::global_bytes, &Traits::copied_rows,
                                      &Traits::padding_rows, &Traits::mma_ops, &Traits::alu_ops})
      t.*of_launch *= std::max(g.groups, 1);
    return t;
  }

 private:
  // Where nothing else needs a prologue, it is worth its while with many tokens, if the workspace holds them.
  static bool offers(const Gemm& g, const WgmmaProblem& p) {
    if (needs_prologue(g)) return p.prologue;
    return !p.prologue || (g.m > kFewTokens && p.most_tokens(g) >= std::min(g.m, kManyTokens));
  }
  static constexpr std::int64_t kManyTokens = 1024;

  // Of one group; without unique_bytes.
  static Traits traits_of(const Gemm& g, const WgmmaProblem& p, const Arch& arch, const Knobs& k) {
    const tw::gemm::WgmmaPlan plan = p.plan(k);
    Traits t;
    t.tile_rows = k.block_m, t.tile_cols = k.block_n(), t.threads = plan.threads;
    if (k.swapped) std::swap(t.tile_rows, t.tile_cols);
    t.shared_bytes = plan.shared_bytes;
    t.registers = plan.reallocates_registers ? 65536 / plan.threads : wgmma_registers(k, p);
    const double tiles_m = std::ceil(static_cast<double>(g.m) / t.tile_rows),
                 tiles_n = std::ceil(static_cast<double>(g.n) / t.tile_cols);
    // A block whose cluster has no tile left for it computes its neighbour's again.
    const double neighbours = k.neighbours(), along = k.swapped ? tiles_m : tiles_n,
                 whole_clusters = std::ceil(along / neighbours) * neighbours / along;
    t.blocks = tiles_m * tiles_n * whole_clusters * k.split_k;
    if (k.schedule == Schedule::split_last_wave) t.blocks *= 2;  // halves of tiles, at most
    if (k.schedule == Schedule::stream_k)
      t.blocks = std::ceil(t.blocks / arch.typical_sms) * arch.typical_sms;  // equal shares
    const double w_bytes = static_cast<double>(g.w.total_bytes(g.n, g.k)),
                 x_bytes = static_cast<double>(g.x_stored().total_bytes(g.m, g.k));
    t.global_bytes = tiles_m * w_bytes / (k.swapped ? p.multicast(k) : 1) +
                     tiles_n * x_bytes *
                         (box_rows(g, p, k, tiles_m) / static_cast<double>(std::max<std::int64_t>(g.m, 1))) /
                         (k.swapped ? 1 : p.multicast(k)) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    // Neighbouring tiles ask for the same boxes at about the same time, which costs half as much as reads apart would;
    // those that share loads already gain less by that. Fitted to 2000 times (bench/LOG.md).
    const bool few = k.block_m <= kFewTokens && !k.swapped;
    if (!few) t.global_bytes *= p.multicast(k) > 1 ? 0.65 : 0.43;
    // Rows beyond the matrix: of every tile's box if tokens are few, unless one tile has them all
    // (WgmmaTraits::kShifts, kClips).
    const double m = static_cast<double>(g.m),
                 panels = tiles_n * static_cast<double>(g.k) / p.panel_k() / p.multicast(k);
    t.copied_rows = panels * (box_rows(g, p, k, tiles_m) + (p.tiles ? 0 : tiles_m * t.tile_cols * p.multicast(k)));
    t.padding_rows = p.codes || k.block_m == 1 ? 0
                     : few || tiles_m == 1     ? panels * (box_rows(g, p, k, tiles_m) - m)
                                               : 0;
    t.bytes_in_flight = static_cast<double>(k.stages - 1) * plan.stage_bytes / plan.threads;
    t.mma_ops = 2.0 * tiles_m * tiles_n * k.columns() * k.block_n() * static_cast<double>(g.k);
    t.mma_rate = (p.element_bytes == 1 ? 2.75 : 1.5) * std::min(1.0, k.columns() / 64.0 + 0.25);
    // Stages of one panel, where tiles have no registers left to unpack the next one beside its products. Of layers
    // tuned for many tokens hardly one takes them (bench/LOG.md).
    if (p.tiles && k.panels == 1 && k.block_m > kFewTokens) t.mma_rate *= 0.96;
    t.mma_in_flight = 32;
    t.later_wave_cost = 0.6;  // persistent blocks load the next tile while one is stored (bench/LOG.md)
    t.last_wave = k.schedule == Schedule::stream_k ? 0 : k.schedule == Schedule::split_last_wave ? 0.5 : 1;
    const bool shares = k.schedule == Schedule::stream_k && k.block_m > kFewTokens;
    const double parts = shares ? 1 + stream_k_cost(p) * arch.typical_sms / (tiles_m * tiles_n) : 1;
    t.mma_ops *= parts;
    if (p.tiles) {
      t.alu_ops = tiles_m * static_cast<double>(g.n) * static_cast<double>(g.k) * unpacking(g, p, k) * parts;
      t.alu_in_flight = 4;
    }
    if (p.prologue)  // read and written, then read as it was written
      t.global_bytes += x_bytes + static_cast<double>(g.m) * static_cast<double>(g.k) * 2 * p.element_bytes;
    if (p.widens) add_widening(g, p, k, tiles_m * tiles_n * parts, t);
    for (double Traits::*of_blocks : {&Traits::copied_rows, &Traits::padding_rows, &Traits::mma_ops, &Traits::alu_ops})
      t.*of_blocks *= whole_clusters;
    return t;
  }

  // Bytes of w that shared tiles read from device memory again. Tiles of the same rows of w read them at once if they
  // are computed whole, but clusters that share tiles are at different places of k.
  static double read_again(const Gemm& g, const Arch& arch, const Knobs& k) {
    if (k.schedule != Schedule::stream_k || k.block_m <= kFewTokens) return 0;
    const double tiles_m = std::ceil(static_cast<double>(g.m) / k.block_m),
                 tiles = tiles_m * std::ceil(static_cast<double>(g.n) / (k.block_n() * k.neighbours())),
                 shared = std::fmod(tiles, std::floor(arch.typical_sms / static_cast<double>(k.cluster)));
    constexpr double kAtHalfRate = 2;  // as measured
    return kAtHalfRate * shared / tiles * (tiles_m - 1) * static_cast<double>(g.w.total_bytes(g.n, g.k));
  }

  // Rows of all boxes of x, of tiles across one column of them.
  static double box_rows(const Gemm& g, const WgmmaProblem& p, const Knobs& k, double tiles_m) {
    const int rows = k.swapped ? k.block_n() : k.block_m, boxes = k.swapped ? (rows + 255) / 256 : p.multicast(k);
    return tiles_m == 1 && clips(p) ? boxes * tw::gemm::clipped_rows(g.m, rows / boxes, boxes) : tiles_m * rows;
  }

  // Instructions per weight: about a dozen for eight, and the loop's own per panel. Few warps and short stages wait
  // longer, which counts as more instructions.
  static double unpacking(const Gemm& g, const WgmmaProblem& p, const Knobs& k) {
    if (p.narrows) return 5.0;
    const double loop = k.warp_mma ? 0.9 : 1.3;
    double waits = 1;
    if (k.block_m <= kFewTokens) {
      const double along_k = k.warpgroups_k == 4 ? 1.1 : k.warpgroups_k == 1 && !k.warp_mma ? 1.25 : 1.0;
      const double schedule = !k.warp_mma                        ? 1.0
                              : k.schedule == Schedule::stream_k ? 1.5
                              : k.schedule == Schedule::queue    ? 0.9
                                                                 : 1.0;
      waits = along_k * (k.panels == 2 ? 1.2 : k.panels == 4 ? 1.05 : 1.0) * schedule;
    }
    // Single warps read x themselves, once for all their strips. Codes by codes need as many instructions for eight
    // tokens as for eight weights, and half of those for one token.
    const double eights = k.columns() / 8.0;  // of tokens
    const bool offset = fast_path(g.w).offset;
    const double each = p.codes && k.block_m == 1 ? (offset ? 1.2 : 1.0)
                        : p.codes                 ? 0.7 + eights * (offset ? 1.0 : 0.6) + eights * 0.5 / k.strips
                        : k.warp_mma              ? 1.7 + loop + (eights - 1) * 0.8 / k.strips
                                                  : 1.7 + loop;
    return each * waits;
  }

  // An operation for an element of x in each tile; and what passes through shared memory: x as it is stored, twice, as
  // it is multiplied, once and for every strip, and weights twice. The widest tiles are bound by that.
  static void add_widening(const Gemm& g, const WgmmaProblem& p, const Knobs& k, double tiles, Traits& t) {
    const double elements = tiles * k.block_m * static_cast<double>(g.k), strips = k.strips * k.warpgroups_n;
    t.alu_ops += elements;
    t.shared_traffic = elements * (2.0 * p.operands.x_raw_bytes / p.panel_k() + (1 + strips) * p.element_bytes) +
                       tiles * k.block_n() * 2.0 * w_bytes(g) / static_cast<double>(g.n);
  }

  static void set_maps(const Gemm& g, const WgmmaProblem& o, const Knobs& k, LaunchPlan& p) {
    p.map_count = o.quantized ? 0 : o.tiles ? 1 : 2;
    if (o.quantized) return;
    const int rows = k.block_m / o.multicast(k);
    if (o.codes) {
      p.maps[0] = blocks_map(g.x, rows, o.multicast(k) > 1 ? 1 : k.panels / tw::gemm::kPanelsPerCodeBox);
      if (clips(o)) p.maps[0].tile_boxes = static_cast<std::uint32_t>(o.multicast(k));
      if (g.group_layout == GroupLayout::masked) p.maps[0].rows = static_cast<std::uint64_t>(g.groups);
      return;
    }
    p.maps[0] = panel_map(o, rows, o.multicast(k) > 1 ? 1 : k.panels);
    if (o.widens) p.maps[0].element_bytes = static_cast<std::uint32_t>(fast_path(g.x).element_bytes);
    if (k.block_m == 1 || o.widens) p.maps[0].swizzle = 0;
    if (!o.tiles) p.maps[1] = panel_map(o, std::min(k.block_n(), 256), k.panels);
    TensorMapPlan &x = p.maps[k.swapped ? 1 : 0], &w = p.maps[k.swapped ? 0 : 1];
    x.rows_at = offsetof(GemmArgs, m);
    if (clips(o)) x.tile_boxes = (k.swapped ? static_cast<std::uint32_t>(k.block_n()) : p.x.per_rows) / x.box_rows;
    if (o.prologue)
      x.pointer = offsetof(GemmArgs, workspace), x.behind = tw::gemm::kScheduleBytes;
    else
      x.pointer = offsetof(GemmArgs, x), x.stride_at = offsetof(GemmArgs, ldx);
    if (g.group_layout == GroupLayout::masked) x.rows = static_cast<std::uint64_t>(g.groups);
    if (o.tiles) return;
    w.pointer = offsetof(GemmArgs, w);
    w.rows_at =
        TensorMapPlan::kConstants + (g.groups ? offsetof(tw::gemm::Shape, w_rows) : offsetof(tw::gemm::Shape, n));
  }
  // Whether boxes of tokens end where x does (WgmmaTraits::kClips).
  static bool clips(const WgmmaProblem& o) { return !o.widens && !o.groups; }
  static TensorMapPlan panel_map(const WgmmaProblem& o, int rows, int panels) {
    TensorMapPlan m;
    m.inner_at = TensorMapPlan::kConstants + offsetof(tw::gemm::Shape, k);
    m.element_bytes = static_cast<std::uint32_t>(o.element_bytes);
    m.box_inner = static_cast<std::uint32_t>(o.panel_k());
    m.box_rows = static_cast<std::uint32_t>(rows);
    m.box_panels = static_cast<std::uint32_t>(panels);
    m.swizzle = tw::gemm::kPanelBytes;
    return m;
  }
};

}  // namespace

const ReusableFamily& wgmma() {
  static const Wgmma family;
  return family;
}

}  // namespace tilewright::gemm
