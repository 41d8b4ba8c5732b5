// SPDX-License-Identifier: Apache-2.0
// Which knobs of the warpgroup kernel are legal for a problem, and worth a try.
#include <algorithm>
#include <utility>

#include "templates/operations/gemm/cuda/family.h"
#include "templates/operations/gemm/cuda/wgmma/instruction.h"
#include "templates/operations/gemm/cuda/wgmma/operands.h"

namespace tilewright::gemm {
namespace {

using tw::gemm::kFewTokens;
using tw::gemm::kRowPanels;
using tw::gemm::kScheduleBytes;
using tw::gemm::kStripRows;
using tw::gemm::Schedule;

constexpr int kMaxStages = 8;

// Accumulators that do not spill.
int most_accumulators(const WgmmaKnobs& k, const WgmmaProblem& p) {
  if (k.math_warpgroups() == 3)
    return p.tiles ? 64 : p.operands.x_item_bytes > 4 ? 0 : p.operands.x_item_bytes ? 72 : 88;
  if (p.tiles) return !p.promotes() ? 128 : p.kind == tw::WgmmaKind::s8 ? 160 : 176;
  return p.promotes() || k.swapped ? 192 : 176;
}
bool accumulators_fit(const WgmmaKnobs& k, const WgmmaProblem& p) {
  return p.plan(k).accumulators <= most_accumulators(k, p);
}

// Whether a stage is whole chunks of scales, or a chunk whole stages.
bool scales_fit(const WgmmaKnobs& k, const WgmmaProblem& p) {
  if (!p.tiles || !p.tiles->scale_bytes) return true;
  const int block_k = k.panels * p.panel_k();
  return block_k % p.tiles->scale_k == 0 || p.tiles->scale_k % block_k == 0;
}

constexpr double kFilled = 0.8;  // a wave that is this full needs no sharing of tiles
// The share of its waves that `tiles` tiles fill.
double fill(std::int64_t tiles, std::int64_t blocks) {
  return static_cast<double>(tiles) / static_cast<double>(ceil_div(tiles, blocks) * blocks);
}
// Whether the workspace has room for the partial sums of `left` tiles that `clusters` clusters share.
bool has_slots(const Gemm& g, const WgmmaProblem& p, const WgmmaKnobs& k, std::int64_t left, std::int64_t clusters) {
  const std::int64_t slot = tw::gemm::stream_k_slot_bytes(k.cluster, k.block_m, k.block_n());
  return left > 0 && g.workspace >= p.slots_at(g) + (left + std::min(clusters, 2 * left)) * slot;
}

// Collects legal knobs; the ring is as deep as shared memory allows for one block per multiprocessor, or for more.
class Collector {
 public:
  Collector(const Gemm& g, const WgmmaProblem& p, const Arch& arch)
      : g_(g), p_(p), arch_(arch), panels_of_k_(g.k / p.panel_k()) {}

  // `k` without its stages. False if it has no legal ring.
  bool add(const WgmmaKnobs& k) {
    if (!legal(k)) return false;
    const std::size_t before = out_.size();
    const std::int64_t tiles = ceil_div(g_.m, k.block_m) * ceil_div(g_.n, k.block_n()) * k.split_k;
    int last = 0;  // stages that were added
    for (int blocks = 1; blocks <= most_blocks(k); ++blocks) {
      const int limit = std::min(arch_.shared_per_block, arch_.shared_per_sm / blocks - kReservedShared);
      WgmmaKnobs deep = deepest(k, limit);
      // With more than two waves, some multiprocessor's blocks may all get one tile more than another's, which a queue
      // avoids. (Warpgroup instructions with one block per multiprocessor gained nothing.)
      if (may_queue(k) && tiles > 2ll * p_.blocks_per_sm(deep, arch_) * arch_.typical_sms) {
        deep.schedule = Schedule::queue;
        deep = deepest(deep, limit);
      }
      if (deep.stages < 2 || deep.stages == last || p_.shared_bytes(deep) > limit) continue;
      // Too few independent instructions in flight.
      if (k.warp_mma && blocks * k.math_warpgroups() * k.strips < 2) continue;
      // Room for three where a launch has work for two.
      if (blocks > 2 && tiles <= 2ll * arch_.typical_sms) continue;
      if (blocks > 1 && !several_blocks(k, deep, blocks)) continue;
      last = deep.stages;
      out_.push_back(deep);
    }
    return out_.size() > before;
  }
  std::vector<WgmmaKnobs> take() { return std::move(out_); }

 private:
  bool legal(const WgmmaKnobs& k) const {
    if (p_.tiles && panels_of_k_ % k.panels != 0) return false;  // coded stages are whole
    if (!p_.tiles && k.panels > 1 && panels_of_k_ < k.panels) return false;
    if (!scales_fit(k, p_) || !wgmma_legal(p_.kind, k.columns()) || !accumulators_fit(k, p_)) return false;
    // Promoted register fragments alternate between two sets.
    if (p_.promotes() && p_.tiles && !k.warp_mma && (k.strips > 1 || k.panels / k.warpgroups_k % 2 != 0)) return false;
    if (k.split_k > 1 && panels_of_k_ / k.panels < 2ll * k.split_k) return false;
    return k.columns() % (8 * p_.multicast(k)) == 0 && (p_.tiles || k.block_n() <= 256 || k.panels == 1);
  }
  bool may_queue(const WgmmaKnobs& k) const {
    return k.warp_mma && k.cluster == 1 && k.schedule == Schedule::whole_tiles && g_.workspace >= kScheduleBytes;
  }
  WgmmaKnobs deepest(WgmmaKnobs k, int limit) const {
    k.stages = kMaxStages;
    while (k.stages > 1 && p_.shared_bytes(k) > limit) --k.stages;
    return k;
  }
  bool several_blocks(const WgmmaKnobs& k, const WgmmaKnobs& deep, int blocks) const {
    // Two stages of eight panels hold as much as four of four.
    const int least = k.panels < 8 || k.schedule != Schedule::whole_tiles ? 3 : 2;
    const tw::gemm::WgmmaPlan plan = p_.plan(k);
    return deep.stages >= least && blocks * plan.threads <= 1024 && !plan.reallocates_registers &&
           k.block_m <= kFewTokens && !k.swapped;
  }

  const Gemm& g_;
  const WgmmaProblem& p_;
  const Arch& arch_;
  std::int64_t panels_of_k_;
  std::vector<WgmmaKnobs> out_;
};

// ---- many tokens
// The number of tiles is rarely a multiple of the chip's multiprocessors, and the idle part of the last wave is most of
// what can be lost. So block_m is what divides m (swapped: n, where operands are plain) into about equal tiles, for the
// numbers of tiles that fill the waves best. A tile's fixed cost counts as that of kTileCost results.
struct Tile {
  WgmmaKnobs knobs;  // without panels, stages and cluster
  double cost;       // of all tiles, in results of one multiprocessor
};
constexpr std::size_t kWholeOffered = 4;                          // tiles that are not shared, at least
constexpr std::size_t kTilesOffered = 20, kPromotedOffered = 24;  // tiles at most; promoting kernels differ more

WgmmaKnobs tile_knobs(int block_m, int strips, int warpgroups_n, bool swapped) {
  WgmmaKnobs k;
  k.block_m = block_m, k.strips = strips, k.warpgroups_n = warpgroups_n, k.swapped = swapped;
  k.panels = 1, k.stages = 2, k.cluster = 2;
  return k;
}

// Tiles of one shape of warpgroups: block_m in steps of `step`.
void add_tiles(const Gemm& g, const WgmmaProblem& p, const Arch& arch, int strips, int warpgroups_n, bool swapped,
               int step, std::vector<Tile>& all) {
  const std::int64_t along = swapped ? g.n : g.m, across = swapped ? g.m : g.n;  // of block_m and of block_n
  for (int block_m = 256; block_m > kFewTokens; block_m -= step) {
    WgmmaKnobs k = tile_knobs(block_m, strips, warpgroups_n, swapped);
    const std::int64_t tiles_m = ceil_div(along, block_m), tiles_n = ceil_div(across, k.block_n());
    const bool smallest =
        block_m - step <= kFewTokens || ceil_div(along, block_m - step) > tiles_m;  // for as few tiles
    if (!smallest || !wgmma_legal(p.kind, block_m) || !accumulators_fit(k, p)) continue;
    const std::int64_t clusters = arch.typical_sms / 2, pairs = tiles_m * ceil_div(tiles_n, 2), left = pairs % clusters;
    const auto add = [&](Schedule schedule, double waves) {
      k.schedule = schedule;
      all.push_back({k, waves * (block_m * k.block_n() + kTileCost)});
    };
    const bool pairable = warpgroups_n == 2 && tiles_n > 1 && !swapped, half = left > 0 && 2 * left <= clusters;
    const double waves = static_cast<double>(ceil_div(tiles_m * tiles_n, arch.typical_sms));
    // (ptxas orders the code of this schedule better by some 5 % for promoting coded kernels, shared wave or not.)
    if (pairable && (half || (p.tiles && p.promotes())))
      add(Schedule::split_last_wave, half ? static_cast<double>(pairs / clusters) + 0.5 : waves);
    if (!pairable || !half) add(Schedule::whole_tiles, waves);
    if (pairable && has_slots(g, p, k, left, clusters))
      add(Schedule::stream_k, static_cast<double>(pairs) / static_cast<double>(clusters) + stream_k_cost(p));
  }
}

std::vector<Tile> large_tiles(const Gemm& g, const WgmmaProblem& p, const Arch& arch) {
  std::vector<Tile> all;
  // One warpgroup alone: with some hundred tokens, tiles of 64 rows fill the chip where wider ones leave half of it
  // idle.
  for (const auto& [strips, warpgroups_n] : {std::pair{1, 2}, {2, 2}, {1, 3}, {1, 1}}) {
    add_tiles(g, p, arch, strips, warpgroups_n, false, 8, all);
    // 32 columns of bytes are stored at a time.
    if (!p.tiles && p.operands.x_item_bytes <= 4) add_tiles(g, p, arch, strips, warpgroups_n, true, 32, all);
  }
  std::stable_sort(all.begin(), all.end(), [](const Tile& a, const Tile& b) { return a.cost < b.cost; });
  // The cost of sharing a wave is known least, so the cheapest tiles that share none are offered whatever they cost.
  std::size_t whole = 0, at = 0;
  const std::size_t offered = p.tiles && p.promotes() ? kPromotedOffered : kTilesOffered;
  std::erase_if(all, [&](const Tile& t) {
    const bool cheap = t.knobs.schedule == Schedule::whole_tiles && whole++ < kWholeOffered;
    return at++ >= offered && !cheap;
  });
  return all;
}

// Scales per block of rows, swapped: block_m counts rows of w.
void add_block_scaled(const Gemm& g, Collector& out) {
  for (int block_m : {128, 192, 64})
    for (int strips : {1, 2})
      for (int cluster : {1, 2}) {
        if ((strips > 1 && block_m > 128) || (cluster > 1 && g.m <= 128)) continue;
        WgmmaKnobs k = tile_knobs(block_m, strips, 2, true);
        k.cluster = cluster;
        out.add(k);
      }
}

// A large tile with blocks by themselves and in pairs.
void add_tile(const Gemm& g, const WgmmaProblem& p, const Arch& arch, const Tile& t, Collector& out) {
  for (int cluster : {1, 2}) {
    WgmmaKnobs k = t.knobs;
    k.cluster = cluster;
    const bool neighbours = (k.swapped ? g.m : g.n) > k.block_n();
    if (k.schedule != Schedule::whole_tiles ? cluster == 1 : cluster == 2 && (!neighbours || p.widens)) continue;
    const auto add = [&](int panels) {
      k.panels = panels;
      return out.add(k);
    };
    // Two panels per stage need fewer instructions around each. That pays off where codes are unpacked or products
    // promoted, unless only two stages fit.
    WgmmaKnobs three = k;
    three.panels = 2, three.stages = 3;
    const bool two_panels = (p.tiles || p.promotes()) && p.shared_bytes(three) <= arch.shared_per_block;
    if (!(two_panels && add(2)) && !add(1)) add(2);
  }
}

void add_many(const Gemm& g, const WgmmaProblem& p, const Arch& arch, Collector& out) {
  for (const Tile& t : large_tiles(g, p, arch)) add_tile(g, p, arch, t, out);
  for (int block_m : {64, 128})  // few tiles: k is split
    for (int warpgroups_k : {1, 2}) {
      WgmmaKnobs k = tile_knobs(block_m, 1, 2 / warpgroups_k, false);
      k.warpgroups_k = warpgroups_k, k.panels = 2 * warpgroups_k, k.cluster = k.split_k = 2;
      if (ceil_div(g.m, block_m) * ceil_div(g.n, k.block_n()) <= arch.typical_sms) out.add(k);
    }
}

// ---- few tokens: one tile has them all
// As few columns above m as the instruction allows, since rows of a box beyond the matrix cost more than others. A
// single token's only row is read by single warps for all columns.
int few_columns(std::int64_t m, bool single_row, const WgmmaProblem& p) {
  if (m == 1 && single_row) return 1;
  int block_m = 8;
  while (block_m < m) block_m = p.codes ? 2 * block_m : block_m + 8;
  while (!wgmma_legal(p.kind, block_m)) block_m += 8;
  return block_m;
}

class FewTokens {
 public:
  FewTokens(const Gemm& g, const WgmmaProblem& p, const Arch& arch, Collector& out)
      : g_(g), p_(p), arch_(arch), out_(out), panels_of_k_(g.k / p.panel_k()) {}

  void add_all() {
    // Single warps multiply codes, and then several panels at a time; with more tokens warpgroups side by side do,
    // unless they promote.
    const bool warps = p_.codes || (p_.tiles && !is_fp8(p_.kind) && g_.m <= 16);
    const int block_m =
        few_columns(p_.quantized ? 1 : g_.m, warps && (!p_.codes || panels_of_k_ % kRowPanels == 0), p_);
    const bool odd = panels_of_k_ % 2 != 0;
    const int least_panels = odd ? 1 : warps && panels_of_k_ % 4 == 0 ? 4 : 2, most_panels = odd ? 1 : 8;
    const int most_warpgroups_k = !p_.tiles || (warps && p_.element_bytes == 2) ? 2 : warps || p_.promotes() ? 4 : 1;
    for (int warpgroups_n : {1, 2})
      for (int warpgroups_k = 1; warpgroups_k <= most_warpgroups_k; warpgroups_k *= 2)
        for (int strips : {1, 2})
          for (int panels = least_panels; panels <= most_panels; panels *= 2)
            // Clusters of four leave multiprocessors without one, and never won. What does not split k may share x.
            for (const auto& [cluster, split_k] : {std::pair{1, 1}, {2, 2}, {2, 1}}) {
              WgmmaKnobs k;
              k.block_m = block_m, k.strips = strips, k.warpgroups_n = warpgroups_n, k.warpgroups_k = warpgroups_k;
              k.panels = panels, k.cluster = cluster, k.split_k = split_k, k.warp_mma = warps, k.stages = 0;
              if (sensible(k)) add(k);
            }
  }

 private:
  bool sensible(const WgmmaKnobs& k) const {
    if (k.neighbours() > 1 && (p_.widens || k.block_m < 32 || g_.n <= k.block_n())) return false;
    if (k.math_warpgroups() > 4 || k.panels % k.warpgroups_k != 0) return false;
    const int items = k.panels / k.warpgroups_k;  // panels of a warpgroup
    // Batches of unpacked panels come in twos.
    if (p_.tiles && !k.warp_mma && items * k.strips % 2 != 0) return false;
    if (p_.codes && items % (k.block_m == 1 ? kRowPanels : tw::gemm::kPanelsPerCodeBox) != 0) return false;
    if (k.split_k > 1 && ceil_div(g_.n, k.block_n()) * k.split_k > 8ll * arch_.typical_sms) return false;
    if (wgmma_registers(k, p_) * k.math_threads() > 60 * 1024) return false;
    // With groups along x's rows each column has its own scale.
    return g_.x.block() == 1 || k.math_threads() <= 256 || k.block_m <= 16;
  }

  void add(WgmmaKnobs k) {
    out_.add(k);
    // Stream-K: partial sums of warpgroups, or so few that a block adds its own first, which pays off if neither whole
    // tiles nor halves of their k fill the waves.
    const std::int64_t tiles = ceil_div(g_.n, k.block_n()), blocks = arch_.typical_sms;
    if (k.cluster > 1 || !has_slots(g_, p_, k, tiles % blocks, blocks)) return;
    const bool few =
        k.block_m < 32 && k.warpgroups_k == 2 && std::max(fill(tiles, blocks), fill(2 * tiles, blocks)) < kFilled;
    if (!few && (k.block_m < 32 || k.warpgroups_k > 1)) return;
    k.schedule = Schedule::stream_k;
    out_.add(k);
  }

  const Gemm& g_;
  const WgmmaProblem& p_;
  const Arch& arch_;
  Collector& out_;
  std::int64_t panels_of_k_;
};

// ---- groups
// How many rows a group has is not known, so tiles need not divide any number evenly: those are offered that waste
// least if all groups have the average, and twice that, since the largest groups take longest. Tiles are many, so what
// counts is how much they compute in all, and none are shared.
constexpr std::size_t kGroupedOffered = 12;

std::vector<Tile> grouped_tiles(const Gemm& average, const WgmmaProblem& p) {
  std::vector<Tile> all;
  const auto add = [&](int block_m, int strips, int warpgroups_n, bool swapped) {
    const WgmmaKnobs k = tile_knobs(block_m, strips, warpgroups_n, swapped);
    const int rows = swapped ? k.block_n() : block_m, cols = swapped ? block_m : k.block_n();
    if (!wgmma_legal(p.kind, block_m) || !accumulators_fit(k, p)) return;
    all.push_back(
        {k, static_cast<double>(ceil_div(average.m, rows) * ceil_div(average.n, cols)) * (rows * cols + kTileCost)});
  };
  for (const auto& [strips, warpgroups_n] : {std::pair{1, 2}, {2, 2}, {1, 3}, {1, 1}})
    for (int block_m = 256; block_m > kFewTokens; block_m -= 32) {
      add(block_m, strips, warpgroups_n, false);
      if (!p.tiles && p.operands.x_item_bytes <= 4) add(block_m, strips, warpgroups_n, true);
    }
  std::stable_sort(all.begin(), all.end(), [](const Tile& a, const Tile& b) { return a.cost < b.cost; });
  if (all.size() > kGroupedOffered) all.resize(kGroupedOffered);
  return all;
}

std::vector<WgmmaKnobs> grouped_knobs(const Gemm& g, const WgmmaProblem& p, const Arch& arch) {
  std::vector<WgmmaKnobs> knobs;
  Gemm average = one_group(g);
  average.workspace = 0;
  const std::int64_t rows = average.m;
  int last = 0;  // columns that were offered
  for (const std::int64_t m : {rows, 2 * rows}) {
    // Not one, whose kernels take one row at a time. Codes by codes take few.
    average.m = std::max<std::int64_t>(p.codes ? std::min<std::int64_t>(m, kFewTokens) : m, 2);
    const bool few = average.m <= kFewTokens;
    const int columns = few ? few_columns(average.m, false, p) : kFewTokens + 1;
    if (columns == last) continue;
    last = columns;
    Collector out(average, p, arch);
    if (few)
      FewTokens(average, p, arch, out).add_all();
    else if (p.block_scales)
      add_block_scaled(average, out);
    else
      for (const Tile& t : grouped_tiles(average, p)) add_tile(average, p, arch, t, out);
    for (const WgmmaKnobs& k : out.take()) knobs.push_back(k);
  }
  return knobs;
}

}  // namespace

std::vector<WgmmaKnobs> wgmma_knobs(const Gemm& g, const WgmmaProblem& p, const Arch& arch) {
  if (g.groups) return grouped_knobs(g, p, arch);
  Collector out(g, p, arch);
  if (g.m > kFewTokens && p.block_scales)
    add_block_scaled(g, out);
  else if (g.m > kFewTokens && !p.quantized)
    add_many(g, p, arch, out);
  else
    FewTokens(g, p, arch, out).add_all();
  std::vector<WgmmaKnobs> knobs = out.take();
  for (WgmmaKnobs& k : knobs) k.prologue = p.prologue;
  return knobs;
}

}  // namespace tilewright::gemm
