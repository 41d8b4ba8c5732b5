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
constexpr Shape kShapes[] = {{16, 64, 1, 4},  {16, 128, 1, 4}, {16, 128, 1, 8}, {32, 64, 1, 4},  {32, 128, 1, 4},
                             {32, 128, 2, 4}, {64, 64, 2, 2},  {64, 128, 2, 2}, {64, 128, 2, 4}, {64, 256, 2, 4},
                             {128, 64, 4, 2}, {128, 128, 2, 2}, {128, 128, 2, 4}, {128, 256, 2, 4}, {256, 128, 4, 2}};

struct Knobs {
  int bm, bn, bk, warps_m, warps_n, stages, async, ex, ew, split;

  static Knobs of(const Candidate& c) {
    const auto at = [&](const char* name) { return static_cast<int>(c.at(name)); };
    return {at("bm"), at("bn"), at("bk"), at("wm"), at("wn"), at("stages"), at("async"), at("ex"), at("ew"), at("split")};
  }
  Candidate candidate() const {
    return {"mma", {{"bm", bm}, {"bn", bn}, {"bk", bk}, {"wm", warps_m}, {"wn", warps_n}, {"stages", stages}, {"async", async}, {"ex", ex}, {"ew", ew}, {"split", split}}};
  }
  int threads() const { return 32 * warps_m * warps_n; }
};

// Mirrors Mma::kSharedBytes; the generated source asserts that they agree.
int shared_bytes(const Knobs& k, const FastPath& x, const FastPath& w) {
  const int element = x.codes ? 1 : 2;
  const int w_floats = w.codes ? k.bk / w.group * k.bn : 0, x_floats = x.codes ? k.bk / 32 * k.bm : 0;
  const int stage = (k.bm + k.bn) * k.bk * element + 4 * (w_floats + x_floats) * (w.offset ? 2 : 1);
  const int reduce = k.split > 1 ? k.bm * (k.bn + 4) * 4 : 0;
  return std::max(k.stages * stage, reduce);
}

int registers(const Knobs& k, const FastPath& x, const FastPath& w) {
  const int mi = k.bm / k.warps_m / 16, ni = k.bn / k.warps_n / 8;
  const int accumulators = mi * ni * 4;
  const int a = mi * 4 * (w.codes && !x.codes ? std::max(1, w.group / 16) : 1);
  const int w_staged = w.codes ? (k.bn * k.bk / k.ew + k.threads() - 1) / k.threads() * (w.unit_bytes(k.ew) / 4 + 2)
                               : (k.async ? 0 : k.bn * k.bk * 2 / 4 / k.threads());
  const int x_staged = x.codes ? (k.bm * k.bk / 32 + k.threads() - 1) / k.threads() * 10 : (k.async ? 0 : k.bm * k.bk * 2 / 4 / k.threads());
  return accumulators + a + w_staged + x_staged + 56;
}

class Mma final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "mma"; }
  std::string_view title() const override { return "matrix units through mma.sync: 16-bit floats or signed bytes, cp.async pipelines"; }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.gemm();
    if (!g) return "not a gemm";
    const FastPath &x = fast_path(g->x), &w = fast_path(g->w);
    if (g->m < kMinRows && g->m > 0) return fmt::format("m = {}: at least {}", g->m, kMinRows);
    if (!(x.element_bytes == 2 || (x.codes && x.unit_ok(32) && x.group == 32 && !x.offset)))
      return fmt::format("x={} is neither a 16-bit float nor 8-bit codes in blocks of 32", g->x.name());
    if (g->x.name() == "bf16" && !arch.mma_bf16) return fmt::format("{} has no bf16 matrix instruction", arch.name);
    if (w.group == 0) return fmt::format("w={} has no fast path", g->w.name());
    if (!w.codes && !(g->w == g->x)) return fmt::format("w={} is plain and differs from x={}", g->w.name(), g->x.name());
    if (w.codes && coded_unit(*g) == 0) return fmt::format("k = {}: no unit of w={} divides it", g->k, g->w.name());
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const Gemm& g = *problem.gemm();
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    const int ex = plain_unit(g), async = arch.cp_async && ex == 8 && (!x.codes || !w.codes) ? 1 : 0;
    std::vector<Candidate> out;
    const auto add = [&](const Knobs& k) {
      if (shared_bytes(k, x, w) > arch.shared_per_block || registers(k, x, w) > 250) return;
      if (k.split > 1 && (!arch.clusters || g.k / k.bk < 4ll * k.split)) return;
      out.push_back(k.candidate());
    };
    for (const Shape& s : kShapes) {
      if (s.bm > 16 && s.bm / 2 >= std::max<std::int64_t>(g.m, 1)) continue;  // more than half of the tile would be padding
      if (s.bm * 8 < std::min<std::int64_t>(g.m, 512)) continue;              // far too small
      for (int bk : {32, 64, 128}) {
        if (bk == 32 && x.codes) continue;                                  // rows of 64 bytes at least
        if (w.codes && (bk % coded_unit(g) != 0)) continue;
        if (bk == 128 && !x.codes && s.bm * s.bn > 64 * 128) continue;
        for (int stages : {2, 3, 4})
          for (int split : {1, 2, 4, 8}) {
            if (split > 1 && s.bm * s.bn > 64 * 256) continue;
            add({s.bm, s.bn, bk, s.warps_m, s.warps_n, stages, async, ex, w.codes ? coded_unit(g) : 0, split});
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
    s.includes = includes_for(g, "gemm/mma.cuh");
    s.plan_type = fmt::format("tw::gemm::Mma<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>", format_type(g.x), format_type(g.w),
                              epilogue_type(g), k.bm, k.bn, k.bk, k.warps_m, k.warps_n, k.stages, k.async ? "true" : "false", k.ex,
                              k.ew, k.split);
    s.space = "tw::gemm";
    s.plan.x = {static_cast<std::uint32_t>(k.split), static_cast<std::uint32_t>(k.bm), static_cast<std::uint32_t>(k.bn)};
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
    const double tiles_m = static_cast<double>((g.m + k.bm - 1) / k.bm), tiles_n = static_cast<double>((g.n + k.bn - 1) / k.bn);
    t.blocks = tiles_m * tiles_n * k.split;
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = tiles_m * static_cast<double>(g.w.total_bytes(g.n, g.k)) + tiles_n * static_cast<double>(g.x.total_bytes(g.m, g.k)) +
                     static_cast<double>(g.y.total_bytes(g.m, g.n));
    t.bytes_in_flight = static_cast<double>(k.stages - 1) * (static_cast<double>(w.codes ? w.unit_bytes(k.bk) : 2 * k.bk) * k.bn + 2.0 * k.bk * k.bm) / k.threads();
    const double padded_k = std::ceil(static_cast<double>(g.k) / k.bk) * k.bk;
    const double padded = 2.0 * tiles_m * k.bm * tiles_n * k.bn * padded_k;
    t.mma_ops = padded;
    t.mma_rate = x.codes ? (w.group == 16 ? 1.0 : 2.0) : 1.0;
    // Scaling each group's sums takes three operations per output under integers, one under floats; unpacking a weight
    // about two, once per tile of m.
    const double per_group = x.codes ? 3.0 : 1.0;
    t.alu_ops = w.codes ? padded / 2 / w.group * per_group + tiles_m * tiles_n * k.bn * padded_k * 2.0 : padded / 2 / 256;
    return t;
  }

 private:
  static int coded_unit(const Gemm& g) {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    constexpr int kSizes[] = {64, 32, 16};
    const int e = largest_unit(w, kSizes, g.k);
    return x.codes && e < 32 ? 0 : e;
  }
  // Elements of plain rows per access: as many as their alignment allows.
  static int plain_unit(const Gemm& g) { return g.k % 8 == 0 ? 8 : g.k % 4 == 0 ? 4 : g.k % 2 == 0 ? 2 : 1; }
};

}  // namespace

const Family& mma() {
  static const Mma family;
  return family;
}

}  // namespace tilewright::gemm
