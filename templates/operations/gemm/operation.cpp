// SPDX-License-Identifier: Apache-2.0
// The operation gemm: its fields, what they may be, and its families.
#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cmath>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/operation_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cpu/gemm.h"
#include "templates/operations/gemm/gemm.h"

namespace tilewright::gemm {
namespace {

constexpr const char* kGlobals[] = {"none", "mul", "div"};
constexpr const char* kPackings[] = {"none", "tiles", "panels"};
constexpr const char* kAccumulations[] = {"full", "fast"};
constexpr const char* kWeights[] = {"variable", "constant"};
constexpr const char* kGroupLayouts[] = {"contiguous", "masked"};

struct Fields {
  static Gemm blank(Format any) { return {.x = any, .w = any, .y = any}; }
  template <class G, class V>
  static void visit(G& gemm, V&& visit) {
    auto& [x, w, y, m, n, k, global, packing, x_from, bias, accumulation, act, alpha, c, beta, y_scale, workspace,
           constant_weights, groups, group_layout] = gemm;
    visit(required("x", "activations, [m, k]"), x);
    visit(required("w", "weights, [n, k]"), w);
    visit(required("y", "result, [m, n]: f32 f16 bf16 int8 e4m3 e5m2 int32"), y);
    visit(required("m", "tokens", Role::rows), m);
    visit(required("n", "output features", Role::size), n);
    visit(required("k", "reduction", Role::size), k);
    visit(optional("global", "tensor-wide scale: value = code * scale * global (mul) or / global (div)"), global,
          kGlobals);
    visit(optional("pack", "w was reordered once, at load, for faster kernels"), packing, kPackings);
    visit(optional("x_from", "x arrives as f32, f16 or bf16 and the kernel quantizes it"), x_from);
    visit(optional("bias", "added to each row, [n]: f32 f16 bf16 int32"), bias);
    visit(optional("accum", "fp8: sums by the matrix units alone, with some 14 bits"), accumulation, kAccumulations);
    visit(optional("act", "activation"), act, kActivations);
    visit(optional("alpha", "factor of the product"), alpha);
    visit(optional("c", "a matrix that is added, [m, n]: f32 f16 bf16"), c);
    visit(optional("beta", "factor of c"), beta);
    visit(optional("y_scale", "y of int8, e4m3, e5m2: results are divided by it"), y_scale);
    visit(optional("workspace", "bytes of device memory that a launch may use besides"), workspace);
    visit(optional("weights", "w is complete before any launch is enqueued, for good"), constant_weights, kWeights);
    visit(optional("groups", "matrices of w, each for its own rows of x: a mixture of experts"), groups);
    visit(optional("group_layout", "rows of the groups one behind the other, or m for each, some of them in use"),
          group_layout, kGroupLayouts);
  }
};

void check_x_from(const Gemm& g) {
  if (!g.x_from) return;
  check_float("x_from", *g.x_from);
  const FastPath& x = fast_path(g.x);
  const bool by_row = x.row_bytes > 0 && !x.zero_point && x.element_bytes == 1;
  const bool rounded = is_float(g.x) && g.x_from->name() == "f32" && g.x.name() != "f32";
  if (!x.code_lanes && !by_row && !rounded)
    throw unsupported(
        "x_from", *g.x_from,
        fmt::format("is not supported for x={}; cast x first (kernels make q8_1, e4m3_row and int8_row of floats, "
                    "and f16 and bf16 of f32)",
                    g.x.name()));
  check_matrix("x_from", *g.x_from, g.m, g.k, "k");
}

// y=int32: sums of bytes as they are.
void check_exact(const Gemm& g) {
  for (const auto& [field, f] : {std::pair{"x", g.x}, std::pair{"w", g.w}})
    if (!is_plain(f) || fast_path(f).element != Element::i8)
      throw unsupported(field, f, "must be int8 with y=int32, which holds exact sums of integers");
  if (g.k > kMostBytes)
    throw Error(ErrorCode::too_large, "k", std::to_string(g.k),
                fmt::format("must be at most {}, the products of bytes that y=int32 can sum", kMostBytes));
  if (g.alpha != 1.0) throw must_be("alpha", fmt::format("{}", g.alpha), "1 with y=int32, which is exact");
  if (g.act != Activation::none)
    throw must_be("act", kActivations[static_cast<int>(g.act)], "none with y=int32, which is exact");
  if (g.bias && fast_path(*g.bias).element != Element::i32)
    throw unsupported("bias", *g.bias, "must be int32, as y is");
  if (g.c) throw unsupported("c", *g.c, "is not supported with y=int32, which is exact; leave it out");
}

void check_groups(const Gemm& g) {
  if (g.groups < 0 || g.groups > kMostGroups)
    throw must_be("groups", g.groups, fmt::format("0 (an ordinary gemm) to {}", kMostGroups));
  if (g.groups == 0) {
    if (g.group_layout != GroupLayout::contiguous)
      throw must_be("group_layout", kGroupLayouts[static_cast<int>(g.group_layout)],
                    "left out: the problem has no groups");
    return;
  }
  if (g.c) throw unsupported("c", *g.c, "is not supported with groups; leave it out");
  if (g.x_from && g.packing != Packing::panels)
    throw unsupported("x_from", *g.x_from, "is not supported with groups, except on CPUs (pack=panels); leave it out");
  // Rows of all groups are numbered in one matrix.
  const auto check_rows = [&](const char* field, std::int64_t rows, std::int64_t of_all) {
    if (of_all > kMaxExtent)
      throw Error(ErrorCode::too_large, field, std::to_string(rows),
                  fmt::format("must be at most {}: {} groups can have 2147483647 rows in all", kMaxExtent / g.groups,
                              g.groups));
  };
  check_rows("m", g.m, g.x_rows());
  check_rows("n", g.n, g.n * g.groups);
  if (w_bytes(g) > static_cast<double>(kMaxBytes))
    throw Error(ErrorCode::too_large, "w", fmt::format("{} of {} x {} x {}", g.w.name(), g.groups, g.n, g.k),
                "must have at most 2^47 bytes");
}

class GemmOperation final : public OperationOf<Gemm, Fields> {
 public:
  std::string_view title() const override { return "y = act(alpha x w^T + bias) + beta c, operands quantized"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&wgmma(), &wgmma_codes(), &mma(), &gemv(), &reference()};
    return list;
  }
  std::span<const Family* const> cpu_families() const override { return cpu::gemm_families(); }
  std::optional<Candidate> oracle(const Problem&, const Arch& arch) const override {
    return Candidate{arch.cpu ? "cpu_reference" : "reference", {{"oracle", 1}}};
  }

  std::optional<Problem> packed(const Problem& problem, const Arch& arch) const override {
    if (arch.cpu) return cpu::packed(*problem.as<Gemm>(), arch);
    const std::optional<Gemm> g = packable(*problem.as<Gemm>());
    if (!g) return {};
    const Problem packed(*g);
    for (const std::int64_t rows : kBuckets) {
      const auto serves = [&](const Family* f) { return f->why_not(packed.with_rows(rows), arch).empty(); };
      if (std::none_of(families().begin(), families().end() - 1, serves)) return {};
    }
    return packed;
  }
  std::optional<Repack> repack(const Problem& problem) const override { return gemm::repack(*problem.as<Gemm>()); }
  std::vector<Recommendation> recommended(const Problem& problem, const Arch& arch) const override {
    return gemm::recommended(problem, arch);
  }

 protected:
  void check(const Gemm& g) const override {
    check_extent("m", g.m);
    check_some("n", g.n, "m");
    check_some("k", g.k, "m");
    check_matrix("x", g.x, g.m, g.k, "k");
    check_rows_stand_alone("x", g.x);
    check_x_from(g);
    check_matrix("w", g.w, g.n, g.k, "k");
    for (const auto& [field, f] : {std::pair{"x", g.x}, std::pair{"w", g.w}})
      if (fast_path(f).element == Element::i32)
        throw unsupported(field, f, "is only an output's format; choose another");
    if (!is_plain(g.y)) throw unsupported("y", g.y, "must be f32, f16, bf16, int8, int32, e4m3 or e5m2");
    check_matrix("y", g.y, g.m, g.n, "n");
    check_epilogue(g, "c");
    check_global(g);
    check_accumulation(g);
    check_extent("workspace", g.workspace);
    if (g.packing == Packing::tiles) check_tiles("pack", "tiles", g.w, g.x, g.n, g.k);
    if (g.packing == Packing::panels) cpu::check_panels("pack", "panels", g.w, g.x, g.n, g.k);
    check_groups(g);  // last: it asks how many bytes a packed w has
  }
  Extents extents_of(const Gemm& g) const override { return {g.m, g.n}; }
  void set_rows(Gemm& g, std::int64_t rows) const override { g.m = rows; }
  double bytes_of(const Gemm& g) const override {
    return static_cast<double>(g.x_stored().total_bytes(g.x_rows(), g.k)) + w_bytes(g) +
           static_cast<double>(g.y.total_bytes(g.x_rows(), g.n)) +
           (g.c ? static_cast<double>(g.c->total_bytes(g.m, g.n)) : 0.0);
  }
  double ops_of(const Gemm& g) const override {
    return 2.0 * static_cast<double>(g.x_rows()) * static_cast<double>(g.n) * static_cast<double>(g.k);
  }
  Contract contract_of(const Gemm& g) const override { return gemm::contract(g); }
  void describe_task(const Gemm& g, Task& task) const override { gemm::describe(g, task); }
  void compute(const Gemm& g, const Task& task, HostBuffers buffers) const override {
    gemm::run_on_host(g, task, buffers);
  }
  HostCheck judge(const Gemm& g, const Task& task, HostBuffers buffers) const override {
    return gemm::check_on_host(g, task, buffers);
  }
};

}  // namespace

void check_epilogue(const Gemm& g, const char* addend) {
  if (fast_path(g.y).element == Element::i32) {
    check_exact(g);
  } else {
    if (g.bias) check_float("bias", *g.bias);
    if (g.c) check_float(addend, *g.c);
  }
  check_factor("alpha", g.alpha);
  if (g.c) check_matrix(addend, *g.c, g.m, g.n, "n");
  if (!g.c && g.beta != 1.0)
    throw must_be("beta", fmt::format("{}", g.beta), fmt::format("left out: the problem has no {}", addend));
  check_factor("beta", g.beta);
  if (g.beta == 0.0) throw invalid("beta", "0", fmt::format("must not be 0; leave {} out instead", addend));
  if (g.y_scale != 1.0 && fast_path(g.y).element_bytes != 1)
    throw must_be("y_scale", fmt::format("{}", g.y_scale),
                  fmt::format("left out: y={} is not int8, e4m3 or e5m2", g.y.name()));
  const auto factor = static_cast<float>(1.0 / g.y_scale);
  if (!(g.y_scale > 0) || !std::isfinite(factor) || factor == 0.0f)
    throw must_be("y_scale", fmt::format("{}", g.y_scale), "a positive number that fits single precision");
}

void check_global(const Gemm& g) {
  const bool global = has_global(g.x) || has_global(g.w);
  if (global && g.global == Global::none)
    throw must_be("global", "none",
                  "mul (value = code * scale * global) or div (value = code * scale / global) for " +
                      std::string(has_global(g.w) ? g.w.name() : g.x.name()));
  if (!global && g.global != Global::none)
    throw must_be("global", kGlobals[static_cast<int>(g.global)], "left out: no operand has a tensor-wide scale");
}

void check_accumulation(const Gemm& g) {
  if (g.accumulation == Accumulation::full) return;
  if (!is_fp8(fast_path(g.x).element))
    throw Error(ErrorCode::unsupported, "accum", "fast",
                fmt::format("is only supported for fp8, and x={}", g.x.name()));
  for (const auto& [field, f] : {std::pair{"x", g.x}, std::pair{"w", g.w}})
    if (is_fp8(fast_path(f).element) && f.block() > 1)
      throw Error(ErrorCode::unsupported, "accum", "fast",
                  fmt::format("is only supported for fp8 with one scale per row, and {}={} has one per {} columns",
                              field, f.name(), f.block()));
}

std::optional<Gemm> packable(const Gemm& g) {
  const TileInfo* tiles = tile_info(g.w, g.x);
  if (g.packing != Packing::none || g.x_from || !tiles || g.n % kTileRows || g.k % tiles->panel_k) return {};
  Gemm packed = g;
  packed.packing = Packing::tiles;
  return packed;
}

std::optional<Repack> repack(const Gemm& g) {
  if (g.packing == Packing::none) return {};
  // Tiles are of whole rows, so a stack is packed like one tall matrix: but for its tensor-wide scales, one for each,
  // which are not moved.
  const std::int64_t rows = g.n * std::max(g.groups, 1);
  return Repack{Problem(Pack{g.w, g.x, rows, g.k, false, g.packing}),
                [stack = g.groups > 0](Operand from, MutableOperand to) {
                  const MutableOperand w{const_cast<void*>(from.data), const_cast<void*>(from.scales),
                                         stack ? nullptr : const_cast<float*>(from.global)};
                  return tilewright::bytes_of(PackArgs{w, to});
                }};
}

void check_tiles(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                 const char* n_field, const char* k_field) {
  const TileInfo* tiles = tile_info(w, x);
  if (!tiles)
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("is not supported: w={} has no tiles for x={}", w.name(), x.name()));
  if (n % kTileRows != 0) throw must_be(n_field, n, fmt::format("a multiple of {}, the rows of a tile", kTileRows));
  if (k % tiles->panel_k != 0)
    throw must_be(k_field, k,
                  fmt::format("a multiple of {}, the columns of a tile for x={}", tiles->panel_k, x.name()));
}

double w_bytes(const Gemm& g) {
  return static_cast<double>(packed_bytes(g, StreamName::data) + packed_bytes(g, StreamName::scales) +
                             packed_bytes(g, StreamName::global));
}

const Operation& operation() {
  static const GemmOperation operation;
  return operation;
}

}  // namespace tilewright::gemm
