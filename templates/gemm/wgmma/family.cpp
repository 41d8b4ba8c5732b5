// SPDX-License-Identifier: Apache-2.0
// Knobs of the warpgroup kernel (wgmma.cuh), their legality and how it is written out.
#include <fmt/format.h>
#include <tilewright/arch.h>

#include <cmath>
#include <cstddef>
#include <optional>

#include "templates/fast_path.h"
#include "templates/gemm/gemm.h"
#include "templates/gemm/params.cuh"
#include "templates/gemm/wgmma/instruction.h"
#include "templates/gemm/wgmma/schedule.cuh"
#include "templates/gemm/wgmma/store_staging.cuh"
#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright::gemm {
namespace {

using tw::WgmmaKind;

constexpr int kStripRows = 64, kPanelBytes = 128, kAtom = 1024;
constexpr int kBlockShared = 1024;  // of shared memory, reserved per block by the hardware
constexpr int kMaxStages = 8, kShelfStages = 3;
constexpr int kTogether = 2;  // panels of x's blocks that are a piece
constexpr int kTaken = 4;     // panels of one token's that are multiplied at a time

struct Knobs {
  int bm, strips, groups, kgroups, panels, stages, cluster, split, warps;
  // Written only where they are 1:
  int turned = 0;  // the two sides change places: bm is then of w's rows and bn of tokens
  int tail = 0;    // what becomes of the last round's tiles (gemm/wgmma/schedule.cuh)

  static Knobs of(const Candidate& c) {
    const auto at = [&](const char* name) { return static_cast<int>(c.at(name)); };
    const auto& [last, value] = c.knobs.back();
    return {at("bm"),
            at("strips"),
            at("groups"),
            at("kgroups"),
            at("panels"),
            at("stages"),
            at("cluster"),
            at("split"),
            at("warps"),
            last == "turned",
            last == "tail" ? static_cast<int>(value) : 0};
  }
  Candidate candidate() const {
    Candidate c{"wgmma",
                {{"bm", bm},
                 {"strips", strips},
                 {"groups", groups},
                 {"kgroups", kgroups},
                 {"panels", panels},
                 {"stages", stages},
                 {"cluster", cluster},
                 {"split", split},
                 {"warps", warps}}};
    if (turned) c.knobs.emplace_back("turned", 1);
    if (tail) c.knobs.emplace_back("tail", tail);
    return c;
  }
  int bn() const { return kStripRows * strips * groups; }
  int columns() const { return std::max(bm, 8); }  // of the matrix instruction
  int share() const { return split > 1 ? 1 : cluster; }
  int parts() const { return split * kgroups; }
  int math_groups() const { return groups * kgroups; }
  int math() const { return 128 * math_groups(); }
};

struct Operands {  // what the kernel needs to know of a problem's formats
  WgmmaKind kind;
  int element;            // bytes of x's
  int row_bytes;          // of what x has for each row; 0: nothing
  const TileInfo* tiles;  // of w; null: plain
  int y_bytes, c_bytes;   // of elements; 0: no c
  bool fast;
  bool blocks;             // w has scales of blocks, and x may (gemm/block_scales.cuh)
  bool codes;              // x is blocks of bytes with scales
  int row_panel;           // bytes of a row of x and a panel, in shared memory
  std::int64_t quantized;  // columns of x that arrive as floats; 0: none

  int panel_k() const { return tiles ? tiles->panel_k : kPanelBytes / element; }
  // Scales that the operand cannot hold: a panel's products and the sums are kept apart (Tile::kScaleAfterMma).
  // The same for fp8, whose matrix units sum a panel's products only, unless accum=fast.
  bool deferred() const { return (element == 1 && tiles && tiles->scale_bytes > 0) || (is_fp8(kind) && !fast); }
};

// Accumulators of a thread; where they are many, the producer is a warpgroup that hands registers over.
int accumulators(const Knobs& k, const Operands& o) {
  return (k.strips + (o.deferred() && !k.warps ? 1 : 0)) * k.columns() / 2;
}
bool uneven(const Knobs& k, const Operands& o) {
  return k.math_groups() == 3 || (k.math_groups() == 2 && accumulators(k, o) >= (o.tiles ? 80 : 96));
}
int threads(const Knobs& k, const Operands& o) { return k.math() + (uneven(k, o) ? 128 : 32); }
// As many as do not spill.
int most_accumulators(const Knobs& k, const Operands& o) {
  if (k.math_groups() == 3) return o.tiles ? 64 : o.row_bytes > 4 ? 0 : o.row_bytes ? 72 : 88;
  if (o.tiles) return !o.deferred() ? 128 : o.kind == WgmmaKind::s8 ? 160 : 176;
  return o.deferred() || k.turned ? 192 : 176;
}

std::optional<WgmmaKind> kind_of(Format x) {
  switch (fast_path(x).element) {
    case Element::f16: return WgmmaKind::f16;
    case Element::bf16: return WgmmaKind::bf16;
    case Element::e4m3: return WgmmaKind::e4m3;
    case Element::e5m2: return WgmmaKind::e5m2;
    case Element::i8: return WgmmaKind::s8;
    default: return blocks_of_bytes(x) ? std::optional(WgmmaKind::s8) : std::nullopt;
  }
}
// Scales of blocks of rows: one factor for a strip. (In groups along each row they would cost one for each product.)
bool blocks(Format w) { return is_fp8(fast_path(w).element) && fast_path(w).scale_rows > 1; }
// w is rows of x's elements, or of the other kind of FP8; either may have a scale per row beside them.
bool plain(const Gemm& g) {
  const Element x = fast_path(g.x).element, w = fast_path(g.w).element;
  const bool no_blocks = g.x.block() == 1 && g.w.block() == 1;
  return g.packing == Packing::none && (x == w ? blocks(g.w) || no_blocks : is_fp8(x) && is_fp8(w) && no_blocks);
}
// The instruction that has `strips` as its 64-row side.
WgmmaKind kind_of(Format strips, Format columns) {
  const Element a = fast_path(strips).element;
  const WgmmaKind b = *kind_of(columns);
  if (a == Element::e4m3 && b == WgmmaKind::e5m2) return WgmmaKind::e4m3_e5m2;
  if (a == Element::e5m2 && b == WgmmaKind::e4m3) return WgmmaKind::e5m2_e4m3;
  return b;
}

std::optional<Operands> operands(const Gemm& g) {
  const std::optional<WgmmaKind> kind = kind_of(g.x);
  const TileInfo* tiles = g.packing == Packing::tiles ? tile_info(g.w, g.x) : nullptr;
  const bool codes = blocks_of_bytes(g.x);
  if (!kind || !(tiles ? g.x.block() == 1 || codes : plain(g))) return std::nullopt;
  const int element = *kind == WgmmaKind::f16 || *kind == WgmmaKind::bf16 ? 2 : 1;
  return Operands{*kind,
                  element,
                  fast_path(g.x).row_bytes,
                  tiles,
                  fast_path(g.y).element_bytes,
                  g.c ? fast_path(*g.c).element_bytes : 0,
                  g.accumulation == Accumulation::fast,
                  !tiles && blocks(g.w),
                  codes,
                  codes ? fast_path(g.x).raw_bytes(kPieceK) / kTogether : kPanelBytes,
                  g.x_from ? g.k : 0};
}

// Mirror Warpgroups::kStageBytes and kSharedBytes; the generated source asserts the latter.
int stage_bytes(const Knobs& k, const Operands& o) {
  const int x = o.quantized ? 0 : (k.panels * k.bm * o.row_panel + 127) / 128 * 128;
  if (!o.tiles) return x + k.panels * k.bn() * kPanelBytes;
  const int bk = k.panels * o.panel_k();
  const int chunks = o.tiles->scale_bytes ? std::max(1, bk / o.tiles->scale_k) : 0;
  const int strips = k.strips * k.groups;
  const int w = strips * (k.panels * 512 * o.tiles->words + chunks * kStripRows * o.tiles->scale_bytes);
  return x + (w + kAtom - 1) / kAtom * kAtom;
}
// Of x, where the kernel encodes it: a block's part of the row.
int quantized_bytes(const Knobs& k, const Operands& o) {
  const std::int64_t bk = static_cast<std::int64_t>(k.panels) * o.panel_k(), stages = (o.quantized + bk - 1) / bk;
  return static_cast<int>(((stages + k.split - 1) / k.split * k.panels * o.row_panel + 15) / 16 * 16);
}
int shared_bytes(const Knobs& k, const Operands& o, bool shelf) {
  const int slot = k.parts() * k.columns() * (k.bn() / k.split) * 4;
  const int turn = shelf           ? tw::gemm::shelf_bytes(k.bm, k.bn(), k.turned, o.y_bytes)
                   : k.parts() > 1 ? 2 * slot
                   : k.turned      ? 4 * k.groups * tw::gemm::turned_outlet_bytes(o.y_bytes, o.c_bytes)
                                   : k.groups * tw::gemm::outlet_bytes(k.columns(), o.y_bytes, o.c_bytes);
  return k.stages * stage_bytes(k, o) + turn + quantized_bytes(k, o) +
         (k.turned ? 0 : k.math_groups() * k.columns() * o.row_bytes) + 16 * k.stages +
         (k.tail == tw::gemm::kStreamK || shelf               ? 16 * k.groups
          : k.parts() > 1 || k.tail == tw::gemm::kClusterTail ? 16
                                                              : 0) +
         (k.tail == tw::gemm::kQueue ? 4 * k.stages : 0);
}
// Whether whole tiles wait for being stored: where warps are idle, and a ring deep enough remains. (Coded weights with
// two strips would lose the fourth stage. Warpgroups that keep products apart are not in step, so that one multiplies
// while the other stores anyway.)
bool has_shelf(const Knobs& k, const Operands& o) {
  if (!uneven(k, o) || o.deferred() || k.parts() > 1 || k.tail || o.c_bytes || o.y_bytes > 2 ||
      (o.tiles && k.strips > 1))
    return false;
  Knobs least = k;
  least.stages = kShelfStages;
  static const int limit = arch("sm_90a").shared_per_block;  // as on every chip with these instructions
  return shared_bytes(least, o, true) <= limit;
}
int shared_bytes(const Knobs& k, const Operands& o) { return shared_bytes(k, o, has_shelf(k, o)); }

// Of blocks with one warpgroup of single warps, three win where tokens are 9 to 16 or numbers of tiles are odd; four
// never did.
int most_blocks(const Knobs& k) { return k.warps && k.math_groups() == 1 ? 3 : 2; }
int blocks_per_sm(const Knobs& k, const Operands& o, const Arch& arch) {
  if (uneven(k, o)) return 1;
  return std::max(
      1, std::min({arch.shared_per_sm / (shared_bytes(k, o) + kBlockShared), 1024 / threads(k, o), most_blocks(k)}));
}

// Tokens per tile where they are few: what the instruction takes, as close above m as possible (a box with rows beyond
// the matrix costs more than one without); of one token single warps read the only row for all columns.
int few_rows(std::int64_t m, bool one) {
  if (m == 1 && one) return 1;
  int bm = 8;
  while (bm < m) bm *= 2;
  return bm;
}

// Tiles of many tokens. Their number is rarely a multiple of the chip's multiprocessors, and what the last wave leaves
// idle is most of what can be lost; so bm is what divides m (turned: n, where operands are plain) into about equal
// tiles, for those counts of tiles that fill the waves best. What a tile costs besides its products counts as that of
// kTileCost results.
struct Tile {
  int bm, strips, groups, turned;
  int tail;     // of gemm/wgmma/schedule.cuh
  double cost;  // of all, in results of one multiprocessor
};
constexpr double kTileCost = 3000;
// What sharing tiles among all blocks costs, in rounds, by what kernels of either took: putting down and adding up
// weigh more where products take half the time.
double parts_cost(const Operands& o) { return o.element == 1 ? 0.3 : 0.1; }
constexpr double kFilled = 0.8;  // of rounds
double fill(std::int64_t tiles, std::int64_t blocks) {
  return static_cast<double>(tiles) / static_cast<double>((tiles + blocks - 1) / blocks * blocks);
}
// Whether the workspace has room for the sums of `left` tiles that `clusters` clusters share.
bool has_slots(const Gemm& g, const Knobs& k, std::int64_t left, std::int64_t clusters) {
  const std::int64_t slot = tw::gemm::stream_k_slot_bytes(k.cluster, k.bm, k.bn());
  return left > 0 && g.workspace >= tw::gemm::kTailWordBytes + (left + std::min(clusters, 2 * left)) * slot;
}
constexpr std::size_t kWholeOffered = 2;  // of tiles in whole rounds, at least
constexpr std::size_t kTilesOffered = 8,
                      kApartOffered = 12;  // of products kept apart, whose tiles have more ways to end

std::vector<Tile> large_tiles(const Gemm& g, const Operands& o, const Arch& arch) {
  const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  std::vector<Tile> all;
  const auto tiles = [&](int strips, int groups, int turned, int step) {
    const std::int64_t along = turned ? g.n : g.m, across = turned ? g.m : g.n;  // of bm and of bn
    for (int bm = 256; bm > kFewTokens; bm -= step) {
      const Knobs k{bm, strips, groups, 1, 1, 2, 2, 1, 0, turned};
      const std::int64_t tiles_m = ceil_div(along, bm), tiles_n = ceil_div(across, k.bn());
      const bool least = bm - step <= kFewTokens || ceil_div(along, bm - step) > tiles_m;  // with which as few tiles do
      if (!least || !wgmma_legal(o.kind, bm) || accumulators(k, o) > most_accumulators(k, o)) continue;
      const std::int64_t clusters = arch.typical_sms / 2, pairs = tiles_m * ceil_div(tiles_n, 2),
                         left = pairs % clusters;
      const auto add = [&](int tail, double waves) {
        all.push_back({bm, strips, groups, turned, tail, waves * (bm * k.bn() + kTileCost)});
      };
      const bool two = groups == 2 && tiles_n > 1 && !turned, half = left > 0 && 2 * left <= clusters;
      const double rounds = static_cast<double>(ceil_div(tiles_m * tiles_n, arch.typical_sms));
      // (Of products kept apart its code is what ptxas orders better, by some 5 %, whether or not a round is shared.)
      if (two && (half || (o.tiles && o.deferred())))
        add(tw::gemm::kClusterTail, half ? static_cast<double>(pairs / clusters) + 0.5 : rounds);
      if (!two || !half) add(tw::gemm::kNoTail, rounds);
      if (two && has_slots(g, k, left, clusters))
        add(tw::gemm::kStreamK, static_cast<double>(pairs) / static_cast<double>(clusters) + parts_cost(o));
    }
  };
  for (const auto& [strips, groups] : {std::pair{1, 2}, {2, 2}, {1, 3}}) {
    tiles(strips, groups, 0, 16);
    if (!o.tiles && o.row_bytes <= 4) tiles(strips, groups, 1, 32);  // 32 columns of bytes leave at a time
  }
  std::stable_sort(all.begin(), all.end(), [](const Tile& a, const Tile& b) { return a.cost < b.cost; });
  // What sharing a round costs is known least: of what shares none, the cheapest are offered whatever they cost.
  std::size_t whole = 0, at = 0;
  const std::size_t offered = o.tiles && o.deferred() ? kApartOffered : kTilesOffered;
  std::erase_if(all, [&](const Tile& t) {
    const bool cheap = t.tail == tw::gemm::kNoTail && whole++ < kWholeOffered;
    return at++ >= offered && !cheap;
  });
  return all;
}

class WarpgroupFamily final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "wgmma"; }
  std::string_view title() const override {
    return "Hopper's warpgroup matrix units: tensor copies, persistent blocks, coded weights as tiles";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "not a gemm";
    if (!arch.wgmma) return fmt::format("{} has no warpgroup matrix instructions", arch.name);
    if (std::string why = x_comes_as_floats(*g); !why.empty() && g->packing == Packing::none) return why;
    if (!kind_of(g->x)) return fmt::format("x={} is no operand of a warpgroup matrix instruction", g->x.name());
    const std::optional<Operands> o = operands(*g);
    if (!o && g->packing == Packing::none)
      return fmt::format("w={} does not go with x={} unless it is packed as tiles", g->w.name(), g->x.name());
    if (!o) return fmt::format("w={} has no tiles for x={}", g->w.name(), g->x.name());
    if (g->k % o->panel_k() != 0) return fmt::format("k = {}: a multiple of {} is needed", g->k, o->panel_k());
    if (o->quantized && g->k % (kTaken * o->panel_k()) != 0)
      return fmt::format("k = {}: with x_from a multiple of {} is needed", g->k, kTaken * o->panel_k());
    if (o->codes && g->m > kFewTokens && !o->quantized)
      return fmt::format("m = {}: of x={} {} tokens at most", g->m, g->x.name(), kFewTokens);
    if (o->deferred() && o->tiles && g->k / o->panel_k() % 2 != 0)
      return fmt::format("k = {}: a multiple of {} is needed", g->k, 2 * o->panel_k());
    if (std::string why = no_sums(*g); !why.empty()) return why;
    if (g->n % 8 != 0) return fmt::format("n = {}: a multiple of 8 is needed", g->n);
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const Gemm& g = *problem.as<Gemm>();
    const Operands o = *operands(g);
    const std::int64_t panels_of_k = g.k / o.panel_k();
    std::vector<Candidate> out;
    // The ring as deep as shared memory allows, for one block per SM or for more.
    const auto add = [&](const Knobs& k) {
      const std::size_t before = out.size();
      if (o.tiles && panels_of_k % k.panels != 0) return false;  // coded stages are whole
      if (!o.tiles && k.panels > 1 && panels_of_k < k.panels) return false;
      if (!scales_fit(k, o) || !wgmma_legal(o.kind, k.columns()) || accumulators(k, o) > most_accumulators(k, o))
        return false;
      if (o.deferred() && o.tiles && !k.warps && (k.strips > 1 || k.panels / k.kgroups % 2 != 0)) return false;
      if (k.split > 1 && panels_of_k / k.panels < 2ll * k.split) return false;
      if (k.columns() % (8 * k.share()) != 0 || (o.tiles == nullptr && k.bn() > 256 && k.panels > 1)) return false;
      const std::int64_t blocks_at_all = (g.m + k.bm - 1) / k.bm * ((g.n + k.bn() - 1) / k.bn()) * k.split;
      const bool may_queue = k.warps && k.cluster == 1 && !k.tail && g.workspace >= tw::gemm::kTailWordBytes;
      int last = 0;
      for (int blocks = 1; blocks <= most_blocks(k); ++blocks) {
        const int limit = std::min(arch.shared_per_block, arch.shared_per_sm / blocks - kBlockShared);
        const auto deepest = [&](int tail) {
          Knobs deep = k;
          deep.tail = tail, deep.stages = kMaxStages;
          while (deep.stages > 1 && shared_bytes(deep, o) > limit) --deep.stages;
          return deep;
        };
        Knobs deep = deepest(k.tail);
        // With more than two rounds it tells that a multiprocessor's blocks may all have had one tile more than
        // another's. (Warpgroup instructions, one block to a multiprocessor, won nothing.)
        if (may_queue && blocks_at_all > 2ll * blocks_per_sm(deep, o, arch) * arch.typical_sms)
          deep = deepest(tw::gemm::kQueue);
        if (deep.stages < 2 || deep.stages == last || shared_bytes(deep, o) > limit) continue;
        if (k.warps && blocks * k.math_groups() * k.strips < 2)
          continue;  // too few instructions that do not wait for each other
        if (blocks > 2 && blocks_at_all <= 2ll * arch.typical_sms)
          continue;                                        // room for three where two of a launch are enough
        const int least = k.panels < 8 || k.tail ? 3 : 2;  // two of eight panels hold as much as four of four
        if (blocks > 1 &&
            (deep.stages < least || blocks * threads(k, o) > 1024 || uneven(k, o) || k.bm > kFewTokens || k.turned))
          continue;
        last = deep.stages;
        out.push_back(deep.candidate());
      }
      return out.size() > before;
    };
    if (g.m > kFewTokens && o.blocks) {  // turned: bm of w's rows
      for (int bm : {128, 192, 64})
        for (int strips : {1, 2})
          for (int cluster : {1, 2})
            if ((strips == 1 || bm <= 128) && (cluster == 1 || g.m > 128))
              add({bm, strips, 2, 1, 1, 0, cluster, 1, 0, 1});
      return out;
    }
    if (g.m > kFewTokens && !o.quantized) {
      for (const Tile& t : large_tiles(g, o, arch))
        for (int cluster : {1, 2}) {
          if (t.tail ? cluster == 1 : cluster == 2 && (t.turned ? g.m : g.n) <= kStripRows * t.strips * t.groups)
            continue;
          const auto with = [&](int panels) {
            return Knobs{t.bm, t.strips, t.groups, 1, panels, 0, cluster, 1, 0, t.turned, t.tail};
          };
          // Two panels a stage are fewer instructions around each. That tells where codes are unpacked or products kept
          // apart, but two stages are too few.
          Knobs three = with(2);
          three.stages = 3;
          const bool two_panels = (o.tiles || o.deferred()) && shared_bytes(three, o) <= arch.shared_per_block;
          if (!(two_panels && add(with(2))) && !add(with(1))) add(with(2));
        }
      for (int bm : {64, 128})
        for (int kgroups : {1, 2}) {  // few tiles: k is split
          const Knobs k{bm, 1, 2 / kgroups, kgroups, 2 * kgroups, 0, 2, 2, 0};
          if ((g.m + bm - 1) / bm * ((g.n + k.bn() - 1) / k.bn()) <= arch.typical_sms) add(k);
        }
      return out;
    }
    // Codes are multiplied by single warps where those may, and then several panels at a time; with more tokens by
    // warpgroups side by side, unless their products are kept apart.
    const int warps = o.codes || (o.tiles && !is_fp8(o.kind) && g.m <= 16);
    const int bm = few_rows(o.quantized ? 1 : g.m, warps && (!o.codes || panels_of_k % kTaken == 0));
    const int least_panels = panels_of_k % 2 != 0 ? 1 : warps && panels_of_k % 4 == 0 ? 4 : 2;
    const int most_panels = panels_of_k % 2 != 0 ? 1 : 8;
    const int most_kgroups = !o.tiles || (warps && o.element == 2) ? 2 : warps || o.deferred() ? 4 : 1;
    for (int groups : {1, 2})
      for (int kgroups = 1; kgroups <= most_kgroups; kgroups *= 2)
        for (int strips : {1, 2})
          for (int panels = least_panels; panels <= most_panels; panels *= 2)
            // Clusters of four leave multiprocessors without one, and never won. What has no k split may share x.
            for (const auto& [cluster, split] : {std::pair{1, 1}, {2, 2}, {2, 1}}) {
              const Knobs k{bm, strips, groups, kgroups, panels, 0, cluster, split, warps};
              if (cluster > split && (bm < 32 || g.n <= k.bn())) continue;
              if (groups * kgroups > 4 || panels % kgroups != 0) continue;
              // Batches of unpacked panels come in twos.
              if (o.tiles && !warps && panels / kgroups * strips % 2 != 0) continue;
              if (o.codes && panels / kgroups % (bm == 1 ? kTaken : kTogether) != 0) continue;
              const std::int64_t tiles = (g.n + k.bn() - 1) / k.bn();
              if (split > 1 && tiles * split > 8ll * arch.typical_sms) continue;
              if (registers_of(k, o) * k.math() > 60 * 1024) continue;
              if (g.x.block() > 1 && k.math() > 256 && bm > 16) continue;  // each column has its own scale
              add(k);
              const std::int64_t blocks = arch.typical_sms;
              if (cluster > 1 || !has_slots(g, k, tiles % blocks, blocks)) continue;
              // Sums in parts are those of warpgroups; or few enough for a block to add its own up first, which pays
              // where neither one part of k nor two fill the rounds.
              const bool few =
                  bm < 32 && kgroups == 2 && std::max(fill(tiles, blocks), fill(2 * tiles, blocks)) < kFilled;
              if (!few && (bm < 32 || kgroups > 1)) continue;
              Knobs shared = k;
              shared.tail = tw::gemm::kStreamK;
              add(shared);
            }
    return out;
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& c) const override {
    const Gemm& g = *problem.as<Gemm>();
    const Operands o = *operands(g);
    const Knobs k = Knobs::of(c);
    Specialization s;
    s.name = "gemm/wgmma";
    s.includes = includes_for(g, "gemm/wgmma/kernel.cuh");
    if (!k.warps) s.prelude = wgmma_text(k.turned ? kind_of(g.x, g.w) : kind_of(g.w, g.x), k.bm);
    if (g.x_from) s.includes.push_back("gemm/wgmma/quantized_row.cuh");
    const std::string row = !g.x_from ? ""
                                      : fmt::format(", tw::gemm::QuantizedRow<{}, {}, {}>", format_type(g.x),
                                                    format_type(*g.x_from), quantized_bytes(k, o));
    s.plan_type = fmt::format("tw::gemm::Warpgroups<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}{}>",
                              format_type(k.turned ? g.w : g.x), format_type(k.turned ? g.x : g.w), epilogue_type(g),
                              k.bm, k.strips, k.groups, k.kgroups, k.panels, k.stages, k.cluster, k.split, k.warps != 0,
                              o.fast, k.turned != 0, k.tail, has_shelf(k, o), row);
    s.space = "tw::gemm";
    s.blocks_per_sm = blocks_per_sm(k, o, arch);
    LaunchPlan& p = s.plan;
    // Of as many blocks as have a part of it.
    const int parts = k.tail == tw::gemm::kStreamK ? tw::gemm::kMostParts : k.tail == tw::gemm::kClusterTail ? 2 : 1;
    p.x = {static_cast<std::uint32_t>(k.cluster * parts), static_cast<std::uint32_t>(k.bm),
           static_cast<std::uint32_t>(k.bn() * k.share())};
    if (k.turned) std::swap(p.x.per_rows, p.x.per_cols);
    p.threads = static_cast<std::uint32_t>(threads(k, o));
    p.cluster = static_cast<std::uint32_t>(k.cluster);
    p.shared_bytes = static_cast<std::uint32_t>(shared_bytes(k, o));
    p.persistent = static_cast<std::uint32_t>(s.blocks_per_sm);
    p.overlap = true;
    p.map_count = o.quantized ? 0 : o.tiles ? 1 : 2;
    if (o.quantized) return specialize(s);
    if (o.codes) {
      p.maps[0] = blocks_map(g.x, k.bm / k.share(), k.share() > 1 ? 1 : k.panels / kTogether);
      return specialize(s);
    }
    p.maps[0] = map(o, k.bm / k.share(), k.share() > 1 ? 1 : k.panels);
    if (k.bm == 1) p.maps[0].swizzle = 0;
    if (!o.tiles) p.maps[1] = map(o, std::min(k.bn(), 256), k.panels);
    TensorMapPlan &x = p.maps[k.turned ? 1 : 0], &w = p.maps[k.turned ? 0 : 1];
    x.pointer = offsetof(GemmArgs, x), x.rows_at = offsetof(GemmArgs, m), x.stride_at = offsetof(GemmArgs, ldx);
    if (!o.tiles)
      w.pointer = offsetof(GemmArgs, w), w.rows_at = TensorMapPlan::kConstants + offsetof(tw::gemm::Shape, n);
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch& arch, const Candidate& c) const override {
    const Gemm& g = *problem.as<Gemm>();
    const Operands o = *operands(g);
    const Knobs k = Knobs::of(c);
    Traits t;
    t.tile_rows = k.bm, t.tile_cols = k.bn(), t.threads = threads(k, o);
    if (k.turned) std::swap(t.tile_rows, t.tile_cols);
    t.shared_bytes = shared_bytes(k, o);
    t.registers = uneven(k, o) ? 65536 / threads(k, o) : registers_of(k, o);
    const double tiles_m = std::ceil(static_cast<double>(g.m) / t.tile_rows),
                 tiles_n = std::ceil(static_cast<double>(g.n) / t.tile_cols);
    t.blocks = tiles_m * tiles_n * k.split;
    if (k.tail == tw::gemm::kClusterTail) t.blocks *= 2;  // halves of tiles, if need be
    if (k.tail == tw::gemm::kStreamK)
      t.blocks = std::ceil(t.blocks / arch.typical_sms) * arch.typical_sms;  // equal shares
    t.unique_bytes = problem.min_bytes();
    const double w_bytes = static_cast<double>(g.w.total_bytes(g.n, g.k)),
                 x_bytes = static_cast<double>(g.x_stored().total_bytes(g.m, g.k));
    t.global_bytes = tiles_m * w_bytes / (k.turned ? k.share() : 1) +
                     tiles_n * x_bytes * (tiles_m * t.tile_rows / static_cast<double>(std::max<std::int64_t>(g.m, 1))) /
                         (k.turned ? 1 : k.share()) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    t.bytes_in_flight = static_cast<double>(k.stages - 1) * stage_bytes(k, o) / threads(k, o);
    t.mma_ops = 2.0 * tiles_m * tiles_n * k.columns() * k.bn() * static_cast<double>(g.k);
    t.mma_rate = (o.element == 1 ? 2.75 : 1.5) * std::min(1.0, k.columns() / 64.0 + 0.25);
    t.mma_in_flight = 32;
    t.later_waves = 0.6;  // blocks stay, and fetch the next tile while one is stored (docs/measurement-log.md)
    const bool shares = k.tail == tw::gemm::kStreamK && k.bm > kFewTokens;
    const double parts = shares ? 1 + parts_cost(o) * arch.typical_sms / (tiles_m * tiles_n) : 1;
    t.mma_ops *= parts;
    if (o.tiles) {
      // About a dozen instructions for eight weights, and the loop's own per panel; few warps and short stages wait
      // more.
      const double loop = k.warps ? 0.9 : 1.3;
      double waits = 1;
      if (k.bm <= kFewTokens) {
        const double along_k = k.kgroups == 4 ? 1.1 : k.kgroups == 1 && !k.warps ? 1.25 : 1.0;
        const double tail = !k.warps                       ? 1.0
                            : k.tail == tw::gemm::kStreamK ? 1.5
                            : k.tail == tw::gemm::kQueue   ? 0.9
                                                           : 1.0;
        waits = along_k * (k.panels == 2 ? 1.2 : k.panels == 4 ? 1.05 : 1.0) * tail;
      }
      // Single warps read x themselves, for all their strips at once. Codes by codes: as many instructions for eight
      // tokens as for weights; of one token half of those.
      const double eights = k.columns() / 8.0;  // of tokens
      const double each = o.codes && k.bm == 1 ? (fast_path(g.w).offset ? 1.2 : 1.0)
                          : o.codes ? 0.7 + eights * (fast_path(g.w).offset ? 1.0 : 0.6) + eights * 0.5 / k.strips
                          : k.warps ? 1.7 + loop + (eights - 1) * 0.8 / k.strips
                                    : 1.7 + loop;
      t.alu_ops = tiles_m * static_cast<double>(g.n) * static_cast<double>(g.k) * each * waits * parts;
      t.alu_in_flight = 4;
    }
    return t;
  }

 private:
  static TensorMapPlan map(const Operands& o, int rows, int panels) {
    TensorMapPlan m;
    m.inner_at = TensorMapPlan::kConstants + offsetof(tw::gemm::Shape, k);
    m.element_bytes = static_cast<std::uint32_t>(o.element);
    m.box_inner = static_cast<std::uint32_t>(o.panel_k());
    m.box_rows = static_cast<std::uint32_t>(rows);
    m.box_panels = static_cast<std::uint32_t>(panels);
    m.swizzle = kPanelBytes;
    return m;
  }
  // A stage's columns are whole chunks of scales, or a chunk whole stages.
  static bool scales_fit(const Knobs& k, const Operands& o) {
    if (!o.tiles || !o.tiles->scale_bytes) return true;
    const int bk = k.panels * o.panel_k();
    return bk % o.tiles->scale_k == 0 || o.tiles->scale_k % bk == 0;
  }
  static int registers_of(const Knobs& k, const Operands& o) { return accumulators(k, o) + (o.tiles ? 32 : 0) + 56; }
};

}  // namespace

const Family& wgmma() {
  static const WarpgroupFamily family;
  return family;
}

}  // namespace tilewright::gemm
