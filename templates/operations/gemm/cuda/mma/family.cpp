// SPDX-License-Identifier: Apache-2.0
// mma: which of its knobs are legal, and what they cost.
#include <fmt/format.h>

#include <cmath>

#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cuda/family.h"
#include "templates/operations/gemm/cuda/mma/plan.cuh"

namespace tilewright::gemm {
namespace {

constexpr std::int64_t kLargeM = 512;  // from here on, tiles of 64 rows are the smallest that pay
constexpr int kMinTokens = 4;          // below, most of a fragment is padding, and gemv is faster where it has a kernel

constexpr int kWidestStage = 128;  // columns of a stage of coded operands, at most

struct Tile {  // of a block, and how its warps share it
  int block_m, block_n, warps_m, warps_n;
};
constexpr Tile kTiles[] = {{16, 64, 1, 4},  {16, 128, 1, 4},  {16, 128, 1, 8},  {32, 64, 1, 4},   {32, 128, 1, 4},
                           {32, 128, 2, 4}, {64, 64, 2, 2},   {64, 128, 2, 2},  {64, 128, 2, 4},  {64, 256, 2, 4},
                           {128, 64, 4, 2}, {128, 128, 2, 2}, {128, 128, 2, 4}, {128, 256, 2, 4}, {256, 128, 4, 2}};

using Knobs = tw::gemm::MmaKnobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::block_m>("block_m"),       knob<&Knobs::block_n>("block_n"),
                                  knob<&Knobs::block_k>("block_k"),       knob<&Knobs::warps_m>("warps_m"),
                                  knob<&Knobs::warps_n>("warps_n"),       knob<&Knobs::stages>("stages"),
                                  knob<&Knobs::async_copy>("async_copy"), knob<&Knobs::unit_x>("unit_x"),
                                  knob<&Knobs::unit_w>("unit_w"),         knob<&Knobs::split_k>("split_k")};

// Blocks that the matrix units scale themselves: columns of a stage.
int scaled_columns(const FastPath& f) { return tw::gemm::kScaledRowBytes * f.block / f.data_bytes; }

int element_bytes(const FastPath& x) { return x.codes ? 1 : x.element_bytes; }  // in the tile
tw::gemm::MmaPlan plan_of(const Knobs& k, const FastPath& x, const FastPath& w) {
  using tw::gemm::MmaForm;
  const auto operand = [&](const FastPath& f, int group) {
    const MmaForm form = scaled(x, w) ? MmaForm::scaled : f.coded() ? MmaForm::codes : MmaForm::plain;
    return tw::gemm::MmaOperand{
        form,    element_bytes(x), group,         w.offset,
        f.block, f.data_bytes,     f.scale_bytes, form == MmaForm::codes ? f.raw_bytes(k.block_k) : 0};
  };
  return mma_plan(k, operand(x, tw::gemm::kUnitOfCodesX), operand(w, w.group));
}
int shared_bytes(const Knobs& k, const FastPath& x, const FastPath& w) { return plan_of(k, x, w).shared_bytes; }

// Whether a format has elements with scales of 128 columns.
bool block_scaled(const FastPath& f) { return f.element_bytes && f.block > 1; }
bool block_scaled(const FastPath& x, const FastPath& w) { return block_scaled(x) || block_scaled(w); }
// A thread's sums that leave registers for a stage's scales, and for where they are: of w one, or two for each eight
// columns.
int most_sums(const FastPath& x, const FastPath& w) {
  return block_scaled(w) && w.scale_rows == 1 ? 32 : block_scaled(x, w) ? 64 : 128;
}

// Bytes that 16-bit x meets: they go through registers, which widen them.
bool widened(const FastPath& x, const FastPath& w) { return x.element_bytes == 2 && w.element_bytes == 1; }

// An estimate, from what the compiler gave for sm_90a.
int registers(const Knobs& k, const FastPath& x, const FastPath& w) {
  const int mi = k.block_m / k.warps_m / 16, ni = k.block_n / k.warps_n / 8;
  if (scaled(x, w)) return mi * ni * 4 + 100;
  const int a = mi * 4 * (w.coded() && !x.codes ? std::max(1, w.group / 16) : 1);
  const int staged = (x.codes || k.async_copy ? 0 : k.block_m * k.block_k * element_bytes(x)) +
                     (w.coded()       ? 0
                      : widened(x, w) ? k.block_n * k.block_k
                      : k.async_copy  ? 0
                                      : k.block_n * k.block_k * element_bytes(x));
  const int split = x.element_bytes == 4 ? mi * 8 + 16 : 0;  // halves of the operands
  return mi * ni * 4 + a + split + staged / 4 / k.threads() + (w.coded() ? 84 : 64);
}

// Instructions to split an element of a fragment for three products.
constexpr double kSplit = 5;

class Mma final : public KernelFamily<Knobs> {
 public:
  // floats: f32 by f32 instead of all others.
  explicit Mma(bool floats)
      : KernelFamily({.family = "mma",
                      .title = "matrix units through mma.sync: 16-bit floats, fp8, signed bytes, scaled blocks, "
                               "cp.async pipelines",
                      .header = "operations/gemm/cuda/mma/kernel.cuh",
                      .kernel = "tw::gemm::Mma"},
                     {"tw::gemm::MmaKnobs", kKnobs}),
        floats_(floats) {}

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    if (const auto bytes = as_bytes(problem))
      return arch.mma_bf16 ? why_not(*bytes, arch)
                           : fmt::format("{} has no matrix instruction that counts common bits", arch.name);
    if (std::string why = not_plain(problem); !why.empty()) return why;
    const Gemm* g = problem.as<Gemm>();
    if (std::string why = has_groups(*g); !why.empty()) return why;
    if (std::string why = x_comes_as_floats(*g); !why.empty()) return why;
    const FastPath &x = fast_path(g->x), &w = fast_path(g->w);
    if (floats_) {
      if (x.element != Element::f32 || w.element != Element::f32)
        return fmt::format("w={} has other elements than x={}", g->w.name(), g->x.name());
      return arch.mma_bf16 ? std::string() : fmt::format("{} has no tf32 matrix instruction", arch.name);
    }
    if (const int unit = scaled_unit(*g)) {
      if (!arch.mma_scaled) return fmt::format("{} has no matrix instruction that scales blocks", arch.name);
      return g->k % unit == 0 ? std::string() : fmt::format("k must be a multiple of {} (got {})", unit, g->k);
    }
    if (g->m < kMinTokens && g->m > 0 && gemv().why_not(problem, arch).empty())
      return fmt::format("m must be at least {} (got {})", kMinTokens, g->m);
    const bool bytes = x.element_bytes == 1;  // whatever their scales are
    if (!(x.element_bytes == 2 || bytes || (x.codes && x.unit_ok(32) && x.group == 32 && !x.offset)))
      return fmt::format("x={} is no float of 16 or 8 bits, no byte, and no 8-bit codes in blocks of 32", g->x.name());
    if (is_fp8(x.element) && !arch.mma_f8) return fmt::format("{} has no fp8 mma.sync of its own", arch.name);
    if (bytes && w.codes && (x.block > 1 || (x.element != Element::i8 && (x.element != Element::e4m3 || w.bits > 4))))
      return fmt::format(
          "w={} is coded and x={} is neither floats of 16 bits nor signed bytes, nor E4M3, which codes of 4 bits at "
          "most are too",
          g->w.name(), g->x.name());
    if (w.table() && x.element_bytes != 2)
      return fmt::format("w={} is codes of a table of floats, and x={} is no float of 16 bits", g->w.name(),
                         g->x.name());
    if (std::string why = no_sums_of_group(*g); !why.empty()) return why;
    if ((bytes || widened(x, w)) && g->k % 2 != 0) return fmt::format("k must be a multiple of 2 (got {})", g->k);
    if (g->x.name() == "bf16" && !arch.mma_bf16) return fmt::format("{} has no bf16 matrix instruction", arch.name);
    if (!w.coded() && !w.element_bytes) return fmt::format("w={} has no fast path", g->w.name());
    const bool both_fp8 = is_fp8(x.element) && is_fp8(w.element) && x.block == 1 && w.block == 1;
    if (!w.coded() && w.element != x.element && !both_fp8 && !(widened(x, w) && w.block == 1))
      return fmt::format("w={} has other elements than x={}", g->w.name(), g->x.name());
    if (std::string why = no_sums(*g); !why.empty()) return why;
    // A stage is filled up with codes of 0, which stand for other numbers; of blocks, the scale is 0.
    if (x.codes && x.row_bytes && w.codes && w.row_bytes && g->k % kWidestStage != 0)
      return fmt::format("k must be a multiple of {} where both operands are rows of codes (got {})", kWidestStage,
                         g->k);
    if (w.coded() && coded_unit(*g) == 0)
      return fmt::format("k={} is not a multiple of any unit of w={}", g->k, g->w.name());
    return {};
  }

 protected:
  std::vector<Knobs> legal_knobs(const Gemm& g, const Arch& arch) const override {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    const bool native = scaled(x, w);
    Knobs k;
    k.unit_x = plain_unit(g), k.unit_w = w.coded() && !native ? coded_unit(g) : 0;
    k.async_copy = arch.cp_async && (k.unit_x * x.element_bytes == 16 || x.codes || native);
    std::vector<Knobs> out;
    // Tiles far smaller than m are for formats whose larger ones leave no room in shared memory.
    for (std::int64_t least = (std::min<std::int64_t>(g.m, kLargeM) + 7) / 8; out.empty(); least /= 2) {
      add_knobs(out, k, least, g, arch);
      if (least <= 1) break;
    }
    return out;
  }

  LaunchPlan launch_plan(const Gemm& g, const Arch&, const Knobs& k) const override {
    LaunchPlan p;
    p.x = {static_cast<std::uint32_t>(k.split_k), static_cast<std::uint32_t>(k.block_m),
           static_cast<std::uint32_t>(k.block_n)};
    p.threads = static_cast<std::uint32_t>(k.threads());
    p.cluster = static_cast<std::uint32_t>(k.split_k);
    p.shared_bytes = static_cast<std::uint32_t>(shared_bytes(k, fast_path(g.x), fast_path(g.w)));
    return p;
  }

  Traits traits_of(const Problem& problem, const Arch&, const Knobs& k) const override {
    const Gemm& g = *problem.as<Gemm>();
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    Traits t;
    t.tile_rows = k.block_m, t.tile_cols = k.block_n, t.threads = k.threads();
    t.shared_bytes = shared_bytes(k, x, w);
    t.registers = std::max(registers(k, x, w), 96);
    const double tiles_m = static_cast<double>((g.m + k.block_m - 1) / k.block_m),
                 tiles_n = static_cast<double>((g.n + k.block_n - 1) / k.block_n);
    t.blocks = tiles_m * tiles_n * k.split_k;
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = tiles_m * static_cast<double>(g.w.total_bytes(g.n, g.k)) +
                     tiles_n * static_cast<double>(g.x.total_bytes(g.m, g.k)) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    const bool native = scaled(x, w), coded = w.coded() && !native;
    const double element =
        native ? static_cast<double>(plan_of(k, x, w).x.ring_bytes) / k.block_m / k.block_k : element_bytes(x);
    t.bytes_in_flight = static_cast<double>(k.stages - 1) *
                        ((coded ? w.unit_bytes(k.block_k) : element * k.block_k) * k.block_n +
                         (x.codes && !native ? 2.0 : element) * k.block_k * k.block_m) /
                        k.threads();
    const double padded_k = std::ceil(static_cast<double>(g.k) / k.block_k) * k.block_k;
    const double padded = 2.0 * tiles_m * k.block_m * tiles_n * k.block_n * padded_k;
    t.mma_ops = padded;
    // Every warp reads its rows of both tiles; a tile is written once, a coded one also copied and read as stored.
    const double steps = tiles_m * tiles_n * padded_k;
    const double read = k.warps_n * k.block_m + k.warps_m * k.block_n, written = k.block_m + k.block_n;
    t.shared_traffic = steps * element * (read + written + (coded ? k.block_n : 0));
    // Splitting k leaves a tile of sums per block, written here and read, more slowly, by another block.
    if (k.split_k > 1) t.shared_traffic += t.blocks * k.block_m * k.block_n * 4.0 * 4.0;
    t.mma_in_flight = (k.block_m / k.warps_m / 16.0) * (k.block_n / k.warps_n / 8.0);
    t.mma_rate = floats_                                                ? 1.0 / 6  // three products at half the rate
                 : native                                               ? 2.0 / element
                 : element_bytes(x) == 1 && !(w.codes && w.group == 16) ? 2.0
                                                                        : 1.0;
    // Operations to scale a group's sum, for each output, and to unpack a weight, once per tile of m. In instructions
    // they are about half of that: each step of k waits for the one that unpacks it, which the model has no term for.
    // Fitted to the fastest third of 656 measured candidates (bench/results, coded weights as stored): off by 24 %
    // (root mean square of the logarithm), where the bare counts promised two to three times the speed.
    const double per_group = x.codes ? 6.0 : 3.0, unpack = x.codes ? 8.0 : 10.0;
    t.alu_ops =
        coded ? padded / 2 / w.group * per_group + tiles_m * tiles_n * k.block_n * padded_k * unpack : padded / 2 / 256;
    if (floats_) t.alu_ops += steps * read * kSplit;
    t.alu_in_flight = 4;  // of one fragment
    return t;
  }

 private:
  // Every legal setting of tiles of at least `least` rows. `k` has the knobs that the problem decides.
  static void add_knobs(std::vector<Knobs>& out, Knobs k, std::int64_t least, const Gemm& g, const Arch& arch) {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    const bool native = scaled(x, w);
    for (const Tile& t : kTiles) {
      if (t.block_m < least || !suits(t, g, x, w)) continue;
      k.block_m = t.block_m, k.block_n = t.block_n, k.warps_m = t.warps_m, k.warps_n = t.warps_n;
      for (int block_k : native ? std::vector<int>{scaled_columns(x)} : std::vector<int>{32, 64, 128}) {
        k.block_k = block_k;
        if (!suits(k, x, w, native)) continue;
        for (int stages : {2, 3, 4})
          for (int split_k : {1, 2, 4, 8}) {
            k.stages = stages, k.split_k = split_k;
            if (pays(k, g, arch, native) && fits(k, g, arch)) out.push_back(k);
          }
      }
    }
  }
  // Not more than half of a tile is padding, and its sums leave registers for scales.
  static bool suits(const Tile& t, const Gemm& g, const FastPath& x, const FastPath& w) {
    if (t.block_m * t.block_n / (32 * t.warps_m * t.warps_n) > most_sums(x, w)) return false;
    return t.block_m <= 16 || t.block_m / 2 < std::max<std::int64_t>(g.m, 1);
  }
  // Whether a tile's stages may have so many columns.
  static bool suits(const Knobs& k, const FastPath& x, const FastPath& w, bool native) {
    if (block_scaled(x, w) && k.block_k != 128) return false;  // a stage has one scale
    const int steps = native                 ? 4               // of the matrix instruction
                      : x.element_bytes == 1 ? k.block_k / 32
                      : x.element_bytes == 4 ? k.block_k / 8
                                             : k.block_k / 16;
    const int results = k.block_m * k.block_n;
    if (steps == 1) return false;                                                     // rows of 64 bytes at least
    if (steps == 2 && ((w.coded() && !native) || results < 128 * 128)) return false;  // small tiles want long ones
    // Four warps of 64 x 64 spill with two more fragments of k in flight, and take half a second to compile.
    if (steps == 4 && results == 128 * 128 && k.warps_m * k.warps_n == 4) return false;
    return steps < 8 || x.codes || (steps == 8 && results <= 64 * 128);
  }
  static bool pays(const Knobs& k, const Gemm& g, const Arch& arch, bool native) {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    const std::int64_t tiles = (g.m + k.block_m - 1) / k.block_m * ((g.n + k.block_n - 1) / k.block_n);
    // Splitting k is for grids that leave the chip idle, and its sums have to fit in shared memory.
    if (k.split_k > 1 && (k.block_m * k.block_n > 64 * 256 || tiles * k.split_k > 8 * arch.typical_sms)) return false;
    // Copies want two stages under way, coded tiles are unpacked one ahead; registers hold what they need.
    const int least = (k.async_copy && !native) || (w.coded() && !native) ? 3 : 2;
    if (k.stages < least || k.stages > (k.async_copy ? 4 : 3)) return false;
    // Where two blocks share an SM with four stages as well, three alone are not offered.
    Knobs four = k;
    four.stages = 4;
    return k.stages != 3 || !k.async_copy || 2 * (shared_bytes(four, x, w) + kReservedShared) > arch.shared_per_sm;
  }
  static bool fits(const Knobs& k, const Gemm& g, const Arch& arch) {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    if (shared_bytes(k, x, w) > arch.shared_per_block || registers(k, x, w) > 250) return false;
    return k.split_k == 1 || (arch.clusters && g.k / k.block_k >= 4ll * k.split_k);
  }

  // The largest power of two, at most 128, that divides k and is whole blocks of w (a larger block divides k anyway),
  // at least 32; 0 if there is none.
  static int coded_unit(const Gemm& g) {
    const FastPath& w = fast_path(g.w);
    for (int e : {128, 64, 32})
      if (g.k % e == 0 && (e % w.block == 0 || w.block > 128)) return e;
    return 0;
  }
  // Elements of plain rows per access: as many as their alignment allows.
  static int plain_unit(const Gemm& g) {
    if (fast_path(g.x).element_bytes == 4) return g.k % 4 == 0 ? 4 : g.k % 2 == 0 ? 2 : 1;
    if (fast_path(g.x).element_bytes == 1 && g.k % 16 == 0) return 16;
    return g.k % 8 == 0 ? 8 : g.k % 4 == 0 ? 4 : g.k % 2 == 0 ? 2 : 1;
  }

  bool floats_;
};

}  // namespace

const ReusableFamily& mma() {
  static const Mma family(false);
  return family;
}
const ReusableFamily& mma_floats() {
  static const Mma family(true);
  return family;
}

}  // namespace tilewright::gemm
