// SPDX-License-Identifier: Apache-2.0
// Knobs of the few-rows kernel (gemv.cuh), their legality and how it is written out.
#include <fmt/format.h>

#include <cmath>

#include "templates/fast_path.h"
#include "templates/gemm/gemm.h"
#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright::gemm {
namespace {

constexpr int kMaxRows = 8;            // beyond this the matrix units win where they can be used
constexpr double kQuantizing = 8;      // operations for an element of x, in each block
constexpr int kMaxStaged = 96 * 1024;  // bytes of x per block: leaves room for two blocks on large chips

struct Knobs {
  int mt, e, lanes, wk, warps, r, depth, kt, split;

  static Knobs of(const Candidate& c) {
    const auto at = [&](const char* name) { return static_cast<int>(c.at(name)); };
    return {at("mt"), at("e"), at("lanes"), at("wk"), at("warps"), at("r"), at("depth"), at("kt"), at("split")};
  }
  Candidate candidate() const {
    return {"gemv",
            {{"mt", mt},
             {"e", e},
             {"lanes", lanes},
             {"wk", wk},
             {"warps", warps},
             {"r", r},
             {"depth", depth},
             {"kt", kt},
             {"split", split}}};
  }
  int step() const { return lanes * wk; }  // threads along k
  int rows_per_block() const { return 32 / lanes * (warps / wk) * r; }
};

// Mirrors Gemv::kSharedBytes; the generated source asserts that they agree.
int shared_bytes(const Knobs& k, const FastPath& x, const FastPath& w) {
  const int element = x.codes ? 1 : is_fp8(x.element) ? 2 : x.element_bytes, units = k.kt / k.e;
  const int unit_bytes = k.e * element >= 16 ? (k.e * element / 16 | 1) * 16 : k.e * element;
  const int x_bytes = (units * unit_bytes + 15) / 16 * 16;
  const int scales = x.codes ? units * (k.e / 32 | 1) : 0, sums = x.codes && w.offset ? scales : 0;
  const int partials = k.wk > 1 || k.split > 1 ? k.mt * k.rows_per_block() * k.wk : 0;
  return k.mt * (x_bytes + 4 * (scales + sums)) + 4 * partials;
}

int rows_tile(std::int64_t m) { return m <= 1 ? 1 : m <= 2 ? 2 : m <= 4 ? 4 : 8; }

class Gemv final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "gemv"; }
  std::string_view title() const override {
    return "few rows: 16-byte loads, dp4a or FMA, k split over lanes, warps and clusters";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    if (std::string why = not_plain(problem); !why.empty()) return why;
    const Gemm* g = problem.gemm();
    const FastPath &x = fast_path(g->x), &w = fast_path(g->w);
    if (w.group == 0) return fmt::format("w={} has no fast path", g->w.name());
    if (!((x.element_bytes && x.block == 1) || (x.codes && x.unit_ok(32) && x.group == 32 && !x.offset)))
      return fmt::format("x={} is neither elements without scales of blocks nor 8-bit codes in blocks of 32",
                         g->x.name());
    if (x.codes && !w.codes)
      return fmt::format("x={} needs coded weights, and w={} has none", g->x.name(), g->w.name());
    if (g->m > kMaxRows && mma().why_not(problem, arch).empty())
      return fmt::format("m = {}: at most {} where the matrix units can be used", g->m, kMaxRows);
    if (std::string why = no_sums(*g); !why.empty()) return why;
    if (std::string why = no_sums_of_group(*g); !why.empty()) return why;
    if (unit_sizes(*g).empty()) return fmt::format("k = {}: no unit of w={} divides it", g->k, g->w.name());
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const Gemm& g = *problem.gemm();
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    std::vector<Candidate> out;
    const auto add = [&](Knobs k) {
      if (k.wk > k.warps || k.step() * k.e > 2 * g.k) return;  // most threads along k would idle
      if (k.split > 1 && (!arch.clusters || g.k / k.split < 4ll * k.step() * k.e)) return;
      if (registers(k, w) > 200) return;
      // Unpacking is unrolled over everything in flight; beyond this a candidate takes longer than 0.4 s to compile.
      if (w.codes && k.e * k.r * k.depth > (x.codes ? 1024 : 256)) return;
      if (!choose_piece(k, g, x, w, arch)) return;
      out.push_back(k.candidate());
    };
    // Two warps of 16 lanes along k do what one of 32 does, so only whole warps are multiplied.
    for (int e : unit_sizes(g))
      for (int lanes : lane_counts(w))
        for (int wk : {1, 2, 4, 8})
          for (int warps : {4, 8})
            for (int r : {1, 2, 4})
              for (int depth : depths(w))
                for (int split : {1, 2})
                  if (wk == 1 || lanes == 32) add({rows_tile(g.m), e, lanes, wk, warps, r, depth, 0, split});
    if (out.empty()) {  // tiny k: one warp's lanes along k, however few have work
      Knobs k{rows_tile(g.m), unit_sizes(g).back(), 8, 1, 4, 1, 1, 0, 1};
      if (choose_piece(k, g, x, w, arch)) out.push_back(k.candidate());
    }
    return out;
  }

  Source source(const Problem& problem, const Arch& arch, const Candidate& c) const override {
    const Gemm& g = *problem.gemm();
    const Knobs k = Knobs::of(c);
    Specialization s;
    s.name = "gemm/gemv";
    s.includes = includes_for(g, "gemm/gemv/kernel.cuh");
    s.plan_type =
        fmt::format("tw::gemm::Gemv<{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}>", x_type(g), format_type(g.w),
                    epilogue_type(g), k.mt, k.e, k.lanes, k.wk, k.warps, k.r, k.depth, k.kt, k.split);
    s.space = "tw::gemm";
    s.plan.x = {static_cast<std::uint32_t>(k.split), 0, static_cast<std::uint32_t>(k.rows_per_block())};
    s.plan.y = {1, static_cast<std::uint32_t>(k.mt), 0};
    s.plan.threads = static_cast<std::uint32_t>(32 * k.warps);
    s.plan.cluster = static_cast<std::uint32_t>(k.split);
    s.plan.overlap = arch.clusters;  // archs with one have the other
    s.plan.shared_bytes = static_cast<std::uint32_t>(shared_bytes(k, fast_path(g.x), fast_path(g.w)));
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch&, const Candidate& c) const override {
    const Gemm& g = *problem.gemm();
    const Knobs k = Knobs::of(c);
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    Traits t;
    t.tile_rows = k.mt, t.tile_cols = k.rows_per_block(), t.threads = 32 * k.warps;
    t.shared_bytes = shared_bytes(k, x, w);
    t.registers = registers(k, w);
    const double row_blocks = static_cast<double>((g.m + k.mt - 1) / k.mt);
    const double col_blocks = static_cast<double>((g.n + k.rows_per_block() - 1) / k.rows_per_block());
    t.blocks = row_blocks * col_blocks * k.split;
    t.unique_bytes = problem.min_bytes();
    const double x_bytes = static_cast<double>(g.x_stored().total_bytes(g.m, g.k));
    t.global_bytes = row_blocks * static_cast<double>(g.w.total_bytes(g.n, g.k)) + col_blocks * x_bytes +
                     4.0 * static_cast<double>(g.m * g.n);
    t.bytes_in_flight = static_cast<double>(w.unit_bytes(k.e)) * k.r * k.depth;
    // Per weight: unpacking (about 1 for codes under integer products, 2 under floats), and per row of x a quarter for
    // dp4a or one FMA and, shared by r rows, a conversion; lanes that have no unit in the last round idle.
    // Bytes by bytes need no unpacking; as floats they, and fp8, need more than halves.
    const bool bytes = x.element == Element::i8 && w.element == Element::i8;
    const auto widen = [](const FastPath& f, double none) {
      return f.element_bytes == 1 ? 3.0 : f.element_bytes == 2 ? 1.0 : none;
    };
    const double per_row = x.codes || bytes ? 0.4 : 1.0 + widen(x, 0.5) / k.r;
    const double unpack = bytes ? 0.25 : w.codes ? (x.codes ? 1.0 : 2.0) : widen(w, 0.25);
    const double lanes_units = static_cast<double>(k.step()) * k.split * k.e;
    const double rounds = static_cast<double>(g.k) / lanes_units;
    const double idle = std::max(1.0, std::ceil(rounds) / rounds);
    t.alu_ops = static_cast<double>(g.n) * static_cast<double>(g.k) * row_blocks * (unpack + per_row * k.mt) * idle;
    if (g.x_from) t.alu_ops += kQuantizing * col_blocks * static_cast<double>(g.k) * row_blocks * k.mt;
    t.alu_in_flight = k.mt * k.r;
    return t;
  }

 private:
  // Elements of w per thread and load, widest first.
  static std::vector<int> unit_sizes(const Gemm& g) {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    std::vector<int> sizes;
    for (int e : {256, 128, 64, 32, 16, 8, 4, 2, 1}) {
      if (g.k % e != 0 || !w.unit_ok(e) || (x.codes && e % 32 != 0)) continue;
      sizes.push_back(e);
      if (!w.codes || sizes.size() == 2) break;  // plain: the widest; coded: the two widest
    }
    return sizes;
  }
  static std::vector<int> lane_counts(const FastPath& w) {
    return w.codes ? std::vector<int>{4, 8, 16, 32} : std::vector<int>{32};
  }
  // Units in flight: a unit of codes is many loads, one of plain elements is a single one.
  static std::vector<int> depths(const FastPath& w) {
    return w.codes ? std::vector<int>{1, 2} : std::vector<int>{2, 4};
  }

  static int registers(const Knobs& k, const FastPath& w) {
    return w.unit_bytes(k.e) / 4 * k.r * k.depth + k.mt * k.r + (w.codes ? k.r * 8 + 16 : k.r * k.e + k.e) + 36;
  }
  // The staged piece of k: all of a block's k if it fits, else the most that does.
  static bool choose_piece(Knobs& k, const Gemm& g, const FastPath& x, const FastPath& w, const Arch& arch) {
    const std::int64_t quantum = static_cast<std::int64_t>(k.e) * k.step() * k.depth;
    const std::int64_t needed = (g.k + k.split - 1) / k.split;
    std::int64_t pieces = (needed + quantum - 1) / quantum;
    const int limit = std::min(kMaxStaged, arch.shared_per_block);
    // Rounding up to powers of two keeps the number of distinct binaries small: k itself is not part of a kernel.
    std::int64_t rounded = 1;
    while (rounded < pieces) rounded *= 2;
    for (pieces = rounded; pieces >= 1; pieces /= 2) {
      if (pieces * quantum > (1 << 20)) continue;
      k.kt = static_cast<int>(pieces * quantum);
      if (shared_bytes(k, x, w) <= limit) return true;
    }
    return false;
  }
};

}  // namespace

const Family& gemv() {
  static const Gemv family;
  return family;
}

}  // namespace tilewright::gemm
