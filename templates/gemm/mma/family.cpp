// SPDX-License-Identifier: Apache-2.0
// Knobs of the matrix-unit kernel (mma.cuh), their legality and how it is written out.
#include <fmt/format.h>

#include <cmath>

#include "templates/fast_path.h"
#include "templates/gemm/gemm.h"
#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright::gemm {
namespace {

constexpr int kMinRows = 4;  // below, most of a fragment is padding

struct Shape {  // of a block and of its warps
  int bm, bn, warps_m, warps_n;
};
constexpr Shape kShapes[] = {{16, 64, 1, 4},  {16, 128, 1, 4},  {16, 128, 1, 8},  {32, 64, 1, 4},   {32, 128, 1, 4},
                             {32, 128, 2, 4}, {64, 64, 2, 2},   {64, 128, 2, 2},  {64, 128, 2, 4},  {64, 256, 2, 4},
                             {128, 64, 4, 2}, {128, 128, 2, 2}, {128, 128, 2, 4}, {128, 256, 2, 4}, {256, 128, 4, 2}};

struct Knobs {
  int bm, bn, bk, warps_m, warps_n, stages, async, ex, ew, split;

  static Knobs of(const Candidate& c) {
    const auto at = [&](const char* name) { return static_cast<int>(c.at(name)); };
    return {at("bm"),     at("bn"),    at("bk"), at("wm"), at("wn"),
            at("stages"), at("async"), at("ex"), at("ew"), at("split")};
  }
  Candidate candidate() const {
    return {"mma",
            {{"bm", bm},
             {"bn", bn},
             {"bk", bk},
             {"wm", warps_m},
             {"wn", warps_n},
             {"stages", stages},
             {"async", async},
             {"ex", ex},
             {"ew", ew},
             {"split", split}}};
  }
  int threads() const { return 32 * warps_m * warps_n; }
};

int run_alignment(int bytes) { return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : 2; }

// Blocks that the matrix units scale themselves.
constexpr int kScaledRow = 128;  // bytes of codes of a row and stage
int scaled_columns(const FastPath& f) { return kScaledRow * f.block / f.data_bytes; }
int scaled_row(const FastPath& f) {
  return kScaledRow + scaled_columns(f) / f.block * f.scale_bytes;
}  // with its scales

// Mirrors Mma::kSharedBytes; the generated source asserts that they agree.
int raw_bytes(const FastPath& f, int rows, int bk, int e) {
  const int bytes = f.raw_bytes(bk);
  const int piece = std::min(f.block > bk ? 16 : run_alignment(e * f.data_bytes / f.block), run_alignment(bytes));
  const int pitch = piece == 16 ? (bytes / 16 | 1) * 16 : bytes;
  return (rows * (pitch + bk / f.block * f.scale_bytes) + 15) / 16 * 16;
}
int element_bytes(const FastPath& x) { return x.codes ? 1 : x.element_bytes; }  // in the tile
int shared_bytes(const Knobs& k, const FastPath& x, const FastPath& w) {
  const int row = k.bk * element_bytes(x), terms = w.offset ? 2 : 1;
  const int reduce = k.split > 1 ? k.bm * (k.bn + 4) * 4 : 0;
  if (scaled(x, w)) return std::max(k.stages * (k.bm + k.bn) * scaled_row(x), reduce);
  const int ring =
      (x.codes ? raw_bytes(x, k.bm, k.bk, 32) : k.bm * row) + (w.codes ? raw_bytes(w, k.bn, k.bk, k.ew) : k.bn * row);
  const int unpacked = (x.codes ? k.bm * row + 4 * (k.bk / 32 * k.bm) * terms : 0) +
                       (w.codes ? k.bn * row + 4 * (k.bk / w.group * k.bn) * terms : 0);
  return std::max(k.stages * ring + 2 * unpacked, reduce);
}

// Of elements with scales of 128 columns.
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
  const int mi = k.bm / k.warps_m / 16, ni = k.bn / k.warps_n / 8;
  if (scaled(x, w)) return mi * ni * 4 + 100;
  const int a = mi * 4 * (w.codes && !x.codes ? std::max(1, w.group / 16) : 1);
  const int staged =
      (x.codes || k.async ? 0 : k.bm * k.bk * element_bytes(x)) + (w.codes         ? 0
                                                                   : widened(x, w) ? k.bn * k.bk
                                                                   : k.async       ? 0
                                                                                   : k.bn * k.bk * element_bytes(x));
  return mi * ni * 4 + a + staged / 4 / k.threads() + (w.codes ? 84 : 64);
}

class Mma final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "mma"; }
  std::string_view title() const override {
    return "matrix units through mma.sync: 16-bit floats, fp8, signed bytes, scaled blocks, cp.async pipelines";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    if (std::string why = not_plain(problem); !why.empty()) return why;
    const Gemm* g = problem.gemm();
    if (std::string why = x_comes_as_floats(*g); !why.empty()) return why;
    const FastPath &x = fast_path(g->x), &w = fast_path(g->w);
    if (const int unit = scaled_unit(*g)) {
      if (!arch.mma_scaled) return fmt::format("{} has no matrix instruction that scales blocks", arch.name);
      return g->k % unit == 0 ? std::string() : fmt::format("k = {}: a multiple of {} is needed", g->k, unit);
    }
    if (g->m < kMinRows && g->m > 0) return fmt::format("m = {}: at least {}", g->m, kMinRows);
    const bool bytes = x.element_bytes == 1;  // whatever their scales are
    if (!(x.element_bytes == 2 || bytes || (x.codes && x.unit_ok(32) && x.group == 32 && !x.offset)))
      return fmt::format("x={} is no float of 16 or 8 bits, no byte, and no 8-bit codes in blocks of 32", g->x.name());
    if (is_fp8(x.element) && !arch.mma_f8) return fmt::format("{} has no fp8 mma.sync of its own", arch.name);
    if (bytes && w.codes && (x.block > 1 || (x.element != Element::i8 && (x.element != Element::e4m3 || w.bits > 4))))
      return fmt::format(
          "w={} is coded and x={} is neither floats of 16 bits nor signed bytes, nor E4M3, which codes of 4 bits at "
          "most are too",
          g->w.name(), g->x.name());
    if (std::string why = no_sums_of_group(*g); !why.empty()) return why;
    if ((bytes || widened(x, w)) && g->k % 2 != 0) return fmt::format("k = {}: a multiple of 2 is needed", g->k);
    if (g->x.name() == "bf16" && !arch.mma_bf16) return fmt::format("{} has no bf16 matrix instruction", arch.name);
    if (!w.codes && !w.element_bytes) return fmt::format("w={} has no fast path", g->w.name());
    const bool both_fp8 = is_fp8(x.element) && is_fp8(w.element) && x.block == 1 && w.block == 1;
    if (!w.codes && w.element != x.element && !both_fp8 && !(widened(x, w) && w.block == 1))
      return fmt::format("w={} has other elements than x={}", g->w.name(), g->x.name());
    if (std::string why = no_sums(*g); !why.empty()) return why;
    if (w.codes && coded_unit(*g) == 0) return fmt::format("k = {}: no unit of w={} divides it", g->k, g->w.name());
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const Gemm& g = *problem.gemm();
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    const bool native = scaled(x, w), coded = w.codes && !native;
    const int ex = plain_unit(g), async = arch.cp_async && (ex * x.element_bytes == 16 || x.codes || native) ? 1 : 0;
    const int ew = coded ? coded_unit(g) : 0;
    std::vector<Candidate> out;
    const auto add = [&](const Knobs& k) {
      if (shared_bytes(k, x, w) > arch.shared_per_block || registers(k, x, w) > 250) return;
      if (k.split > 1 && (!arch.clusters || g.k / k.bk < 4ll * k.split)) return;
      out.push_back(k.candidate());
    };
    for (const Shape& s : kShapes) {
      if (s.bm * s.bn / (32 * s.warps_m * s.warps_n) > most_sums(x, w)) continue;
      if (s.bm > 16 && s.bm / 2 >= std::max<std::int64_t>(g.m, 1))
        continue;                                                 // more than half of the tile would be padding
      if (s.bm * 8 < std::min<std::int64_t>(g.m, 512)) continue;  // far too small
      const std::int64_t tiles = ((g.m + s.bm - 1) / s.bm) * ((g.n + s.bn - 1) / s.bn);
      for (int bk : native ? std::vector<int>{scaled_columns(x)} : std::vector<int>{32, 64, 128}) {
        if (block_scaled(x, w) && bk != 128) continue;                            // a stage has one scale
        const int steps = native ? 4 : x.element_bytes == 1 ? bk / 32 : bk / 16;  // of the matrix instruction
        if (steps == 1) continue;                                                 // rows of 64 bytes at least
        if (steps == 2 && (coded || s.bm * s.bn < 128 * 128)) continue;           // small tiles want long ones
        // Four warps of 64 x 64 spill with two more fragments of k in flight, and take half a second to compile.
        if (steps == 4 && s.bm * s.bn == 128 * 128 && s.warps_m * s.warps_n == 4) continue;
        if (steps == 8 && !x.codes && s.bm * s.bn > 64 * 128) continue;
        for (int stages : {2, 3, 4})
          for (int split : {1, 2, 4, 8}) {
            // Splitting k is for grids that leave the chip idle, and its sums have to fit in shared memory.
            if (split > 1 && (s.bm * s.bn > 64 * 256 || tiles * split > 8 * arch.typical_sms)) continue;
            // Copies want two stages under way, coded tiles are unpacked one ahead; registers hold what they need.
            if (stages < ((async && !native) || coded ? 3 : 2) || stages > (async ? 4 : 3)) continue;
            // The fourth stage costs nothing where two blocks still share an SM, so the third alone is not offered
            // there.
            const Knobs four{s.bm, s.bn, bk, s.warps_m, s.warps_n, 4, async, ex, ew, split};
            if (stages == 3 && async && 2 * (shared_bytes(four, x, w) + 1024) <= arch.shared_per_sm) continue;
            add({s.bm, s.bn, bk, s.warps_m, s.warps_n, stages, async, ex, ew, split});
          }
      }
    }
    return out;
  }

  Source source(const Problem& problem, const Arch&, const Candidate& c) const override {
    const Gemm& g = *problem.gemm();
    const Knobs k = Knobs::of(c);
    Specialization s;
    s.name = "gemm/mma";
    s.includes = includes_for(g, "gemm/mma/kernel.cuh");
    s.plan_type = fmt::format("tw::gemm::Mma<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>", format_type(g.x),
                              format_type(g.w), epilogue_type(g), k.bm, k.bn, k.bk, k.warps_m, k.warps_n, k.stages,
                              k.async ? "true" : "false", k.ex, k.ew, k.split);
    s.space = "tw::gemm";
    s.plan.x = {static_cast<std::uint32_t>(k.split), static_cast<std::uint32_t>(k.bm),
                static_cast<std::uint32_t>(k.bn)};
    s.plan.threads = static_cast<std::uint32_t>(k.threads());
    s.plan.cluster = static_cast<std::uint32_t>(k.split);
    s.plan.shared_bytes = static_cast<std::uint32_t>(shared_bytes(k, fast_path(g.x), fast_path(g.w)));
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch&, const Candidate& c) const override {
    const Gemm& g = *problem.gemm();
    const Knobs k = Knobs::of(c);
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    Traits t;
    t.tile_rows = k.bm, t.tile_cols = k.bn, t.threads = k.threads();
    t.shared_bytes = shared_bytes(k, x, w);
    t.registers = std::max(registers(k, x, w), 96);
    const double tiles_m = static_cast<double>((g.m + k.bm - 1) / k.bm),
                 tiles_n = static_cast<double>((g.n + k.bn - 1) / k.bn);
    t.blocks = tiles_m * tiles_n * k.split;
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = tiles_m * static_cast<double>(g.w.total_bytes(g.n, g.k)) +
                     tiles_n * static_cast<double>(g.x.total_bytes(g.m, g.k)) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    const bool native = scaled(x, w), coded = w.codes && !native;
    const double element = native ? static_cast<double>(scaled_row(x)) / k.bk : element_bytes(x);
    t.bytes_in_flight =
        static_cast<double>(k.stages - 1) *
        ((coded ? w.unit_bytes(k.bk) : element * k.bk) * k.bn + (x.codes && !native ? 2.0 : element) * k.bk * k.bm) /
        k.threads();
    const double padded_k = std::ceil(static_cast<double>(g.k) / k.bk) * k.bk;
    const double padded = 2.0 * tiles_m * k.bm * tiles_n * k.bn * padded_k;
    t.mma_ops = padded;
    // Every warp reads its rows of both tiles; a tile is written once, a coded one also copied and read as stored.
    const double steps = tiles_m * tiles_n * padded_k;
    const double read = k.warps_n * k.bm + k.warps_m * k.bn, written = k.bm + k.bn;
    t.shared_traffic = steps * element * (read + written + (coded ? k.bn : 0));
    // Splitting k leaves a tile of sums per block, written here and read, more slowly, by another block.
    if (k.split > 1) t.shared_traffic += t.blocks * k.bm * k.bn * 4.0 * 4.0;
    t.mma_in_flight = (k.bm / k.warps_m / 16.0) * (k.bn / k.warps_n / 8.0);
    t.mma_rate = native ? 2.0 / element : element_bytes(x) == 1 && !(w.codes && w.group == 16) ? 2.0 : 1.0;
    // Scaling each group's sums takes three operations per output under integers, one under floats; unpacking a weight
    // about two, once per tile of m.
    const double per_group = x.codes ? 3.0 : 1.0;
    t.alu_ops = coded ? padded / 2 / w.group * per_group + tiles_m * tiles_n * k.bn * padded_k * 2.0 : padded / 2 / 256;
    t.alu_in_flight = 4;  // of one fragment
    return t;
  }

 private:
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
    if (fast_path(g.x).element_bytes == 1 && g.k % 16 == 0) return 16;
    return g.k % 8 == 0 ? 8 : g.k % 4 == 0 ? 4 : g.k % 2 == 0 ? 2 : 1;
  }
};

}  // namespace

const Family& mma() {
  static const Mma family;
  return family;
}

}  // namespace tilewright::gemm
