// SPDX-License-Identifier: Apache-2.0
// gemv: which of its knobs are legal, and what they cost.
#include <fmt/format.h>

#include <cmath>

#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cuda/family.h"
#include "templates/operations/gemm/cuda/gemv/plan.cuh"

namespace tilewright::gemm {
namespace {

constexpr int kMaxTokens = 8;          // beyond this the matrix units win where they can be used
constexpr double kQuantizing = 8;      // operations for an element of x, in each block
constexpr int kMaxStaged = 96 * 1024;  // bytes of x per block: leaves room for two blocks on large chips

using Knobs = tw::gemm::GemvKnobs;
constexpr Knob<Knobs> kKnobs[] = {
    knob<&Knobs::tokens>("tokens"),   knob<&Knobs::unit>("unit"),         knob<&Knobs::lanes>("lanes"),
    knob<&Knobs::warps_k>("warps_k"), knob<&Knobs::warps>("warps"),       knob<&Knobs::rows>("rows"),
    knob<&Knobs::depth>("depth"),     knob<&Knobs::staged_k>("staged_k"), knob<&Knobs::split_k>("split_k")};

int shared_bytes(const Knobs& k, const FastPath& x, const FastPath& w) {
  return gemv_plan(k, {x.codes ? 1 : is_fp8(x.element) ? 2 : x.element_bytes, x.codes, w.offset}).shared_bytes;
}

int block_tokens(std::int64_t m) { return m <= 1 ? 1 : m <= 2 ? 2 : m <= 4 ? 4 : 8; }

class Gemv final : public KernelFamily<Knobs> {
 public:
  Gemv()
      : KernelFamily({.family = "gemv",
                      .title = "few tokens: 16-byte loads, dp4a or FMA, k split over lanes, warps and clusters",
                      .header = "operations/gemm/cuda/gemv/kernel.cuh",
                      .kernel = "tw::gemm::Gemv"},
                     {"tw::gemm::GemvKnobs", kKnobs}) {}

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    if (const auto bytes = as_bytes(problem)) return why_not(*bytes, arch);
    if (std::string why = not_plain(problem); !why.empty()) return why;
    const Gemm* g = problem.as<Gemm>();
    if (std::string why = has_groups(*g); !why.empty()) return why;
    const FastPath &x = fast_path(g->x), &w = fast_path(g->w);
    if (!x.codes || quantizes_rows(*g))
      if (std::string why = x_comes_as_floats(*g); !why.empty()) return why;
    if (w.group == 0) return fmt::format("w={} has no fast path", g->w.name());
    if (!((x.element_bytes && x.block == 1) || (x.codes && x.unit_ok(32) && x.group == 32 && !x.offset)))
      return fmt::format("x={} is neither elements without scales of blocks nor 8-bit codes in blocks of 32",
                         g->x.name());
    if (x.codes && !w.codes)
      return fmt::format("x={} needs coded weights, and w={} has none", g->x.name(), g->w.name());
    if (g->m > kMaxTokens && mma().why_not(problem, arch).empty())
      return fmt::format("m must be at most {} where the matrix units can be used (got {})", kMaxTokens, g->m);
    if (std::string why = no_sums(*g); !why.empty()) return why;
    if (std::string why = no_sums_of_group(*g); !why.empty()) return why;
    if (unit_sizes(*g).empty()) return fmt::format("k={} is not a multiple of any unit of w={}", g->k, g->w.name());
    return {};
  }

 protected:
  std::vector<Knobs> legal_knobs(const Gemm& g, const Arch& arch) const override {
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    std::vector<Knobs> out;
    const auto add = [&](Knobs k) {
      if (k.warps_k > k.warps || k.threads_k() * k.unit > 2 * g.k) return;  // most threads along k would idle
      if (k.split_k > 1 && (!arch.clusters || g.k / k.split_k < 4ll * k.threads_k() * k.unit)) return;
      if (registers(k, w) > 200) return;
      // Unpacking is unrolled over everything in flight; beyond this a candidate takes longer than 0.4 s to compile.
      if (w.codes && k.unit * k.rows * k.depth > (x.codes ? 1024 : 256)) return;
      if (choose_staged_k(k, g, x, w, arch)) out.push_back(k);
    };
    // Two warps of 16 lanes along k do what one of 32 does, so only whole warps are multiplied.
    for (int unit : unit_sizes(g))
      for (int lanes : lane_counts(w))
        for (int warps_k : {1, 2, 4, 8})
          for (int warps : {4, 8})
            for (int rows : {1, 2, 4})
              for (int depth : depths(w))
                for (int split_k : {1, 2})
                  if (warps_k == 1 || lanes == 32)
                    add({block_tokens(g.m), unit, lanes, warps_k, warps, rows, depth, 0, split_k});
    if (out.empty()) {  // tiny k: one warp's lanes along k, however few have work
      Knobs k{.tokens = block_tokens(g.m), .unit = unit_sizes(g).back(), .lanes = 8};
      if (choose_staged_k(k, g, x, w, arch)) out.push_back(k);
    }
    return out;
  }

  LaunchPlan launch_plan(const Gemm& g, const Arch& arch, const Knobs& k) const override {
    LaunchPlan p;
    p.x = {static_cast<std::uint32_t>(k.split_k), static_cast<std::uint32_t>(k.tokens),
           static_cast<std::uint32_t>(k.block_rows())};
    p.threads = static_cast<std::uint32_t>(k.threads());
    p.cluster = static_cast<std::uint32_t>(k.split_k);
    p.overlap = arch.clusters;  // archs with one have the other
    p.shared_bytes = static_cast<std::uint32_t>(shared_bytes(k, fast_path(g.x), fast_path(g.w)));
    return p;
  }
  Traits traits_of(const Problem& problem, const Arch&, const Knobs& k) const override {
    const Gemm& g = *problem.as<Gemm>();
    const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
    Traits t;
    t.tile_rows = k.tokens, t.tile_cols = k.block_rows(), t.threads = k.threads();
    t.shared_bytes = shared_bytes(k, x, w);
    t.registers = registers(k, w);
    const double row_blocks = static_cast<double>((g.m + k.tokens - 1) / k.tokens);
    const double col_blocks = static_cast<double>((g.n + k.block_rows() - 1) / k.block_rows());
    t.blocks = row_blocks * col_blocks * k.split_k;
    t.unique_bytes = problem.min_bytes();
    const double x_bytes = static_cast<double>(g.x_stored().total_bytes(g.m, g.k));
    t.global_bytes = row_blocks * static_cast<double>(g.w.total_bytes(g.n, g.k)) + col_blocks * x_bytes +
                     4.0 * static_cast<double>(g.m * g.n);
    t.bytes_in_flight = static_cast<double>(w.unit_bytes(k.unit)) * k.rows * k.depth;
    // Per weight: unpacking (about 1 for codes under integer products, 2 under floats), and per row of x a quarter for
    // dp4a or one FMA and, shared by r rows, a conversion; lanes that have no unit in the last round idle.
    // Bytes by bytes need no unpacking; as floats they, and fp8, need more than halves. Of a table's four bytes each is
    // looked up by itself, for four weights together.
    const bool bytes = x.element == Element::i8 && w.element == Element::i8;
    const auto widen = [](const FastPath& f, double none) {
      return f.element_bytes == 1 ? 3.0 : f.element_bytes == 2 ? 1.0 : none;
    };
    const double per_row = x.codes || bytes ? 0.4 : 1.0 + widen(x, 0.5) / k.rows;
    const double unpack = bytes ? 0.25 : w.codes ? (x.codes ? 1.0 : 2.0) : w.table() ? 5.0 : widen(w, 0.25);
    const double lanes_units = static_cast<double>(k.threads_k()) * k.split_k * k.unit;
    const double rounds = static_cast<double>(g.k) / lanes_units;
    const double idle = std::max(1.0, std::ceil(rounds) / rounds);
    t.alu_ops = static_cast<double>(g.n) * static_cast<double>(g.k) * row_blocks * (unpack + per_row * k.tokens) * idle;
    if (g.x_from) t.alu_ops += kQuantizing * col_blocks * static_cast<double>(g.k) * row_blocks * k.tokens;
    t.alu_in_flight = k.tokens * k.rows;
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
    return w.unit_bytes(k.unit) / 4 * k.rows * k.depth + k.tokens * k.rows +
           (w.codes ? k.rows * 8 + 16 : k.rows * k.unit + k.unit) + 36;
  }
  // The staged piece of k: all of a block's k if it fits, else the most that does.
  static bool choose_staged_k(Knobs& k, const Gemm& g, const FastPath& x, const FastPath& w, const Arch& arch) {
    const std::int64_t quantum = static_cast<std::int64_t>(k.unit) * k.threads_k() * k.depth;
    const std::int64_t needed = (g.k + k.split_k - 1) / k.split_k;
    std::int64_t pieces = (needed + quantum - 1) / quantum;
    const int limit = std::min(kMaxStaged, arch.shared_per_block);
    // Rounding up to powers of two keeps the number of distinct binaries small: k itself is not part of a kernel.
    std::int64_t rounded = 1;
    while (rounded < pieces) rounded *= 2;
    for (pieces = rounded; pieces >= 1; pieces /= 2) {
      if (pieces * quantum > (1 << 20)) continue;
      k.staged_k = static_cast<int>(pieces * quantum);
      if (shared_bytes(k, x, w) <= limit) return true;
    }
    return false;
  }
};

}  // namespace

const ReusableFamily& gemv() {
  static const Gemv family;
  return family;
}

}  // namespace tilewright::gemm
