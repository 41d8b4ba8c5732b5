// SPDX-License-Identifier: Apache-2.0
// The families over columns.h: convolutions of floats and bytes, as the gemms that they are.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "templates/backends/cpu/ir.h"
#include "templates/common/checks.h"
#include "templates/common/knobs.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cpu/conv.h"
#include "templates/operations/conv/cpu/native.h"
#include "templates/operations/conv/params.cuh"
#include "templates/operations/gemm/cpu/gemm.h"
#define TILEWRIGHT_CPU_KERNELS columns_text
#include "templates/operations/conv/cpu/columns.h"

namespace tilewright::cpu {
namespace {

constexpr const char* kEntry = "tilewright_kernel";

struct Knobs {
  int tokens = 1;  // pixels of a tile
  int panels = 1;  // of a tile, side by side
  int tiles = 1;   // of a block, one behind the other
  int turns = 1;   // of a block: times panels
};
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::tokens>("tokens"), knob<&Knobs::panels>("panels"),
                                  knob<&Knobs::tiles>("tiles"), knob<&Knobs::turns>("turns")};

// A convolution's extents as the kernels divide them.
struct Extents {
  std::int64_t m, columns, groups, channels, rows, panels;  // the last three of a group
  explicit Extents(const Conv& c) {
    const Gemm g = conv::as_gemm(c);
    m = g.m, columns = g.k, groups = c.groups, channels = c.c / c.groups, rows = c.k / c.groups;
    panels = (rows + kPanel - 1) / kPanel;
  }
};
std::int64_t blocks_of(std::int64_t extent, std::int64_t each) { return (extent + each - 1) / each; }

std::optional<Type> element_type(Format f) { return f.name() == "int8" ? Type::int8 : float_type(f); }
std::optional<Type> weight_type(Format f) { return f.name() == "int8_row" ? Type::int8 : element_type(f); }

Filter filter_of(const Conv& c) {
  const tw::conv::Shape shape = conv::shape_of(c);
  Filter f;
  f.x = *element_type(c.x), f.w = *weight_type(c.w);
  f.w_has_scales = c.w.name() == "int8_row";
  f.rank = c.in.rank;
  for (int axis = 0; axis < kMostAxes; ++axis)
    f.pad[static_cast<std::size_t>(axis)] = static_cast<PadMode>(shape.axes[axis].pad);
  f.cache = c.cache > 0;
  f.x_channels_first = c.x_layout == TensorLayout::ncdhw, f.y_channels_first = c.y_layout == TensorLayout::ncdhw;
  f.w_channels_first = c.w_layout == FilterLayout::kctrs;
  f.packed = c.packing == Packing::panels;
  f.e = epilogue_of(conv::as_gemm(c));
  return f;
}

// Why no kernel here computes a convolution on a target; empty if some may.
std::string refusal(const Conv& c, const Arch& arch) {
  if (!arch.cpu || arch.cpu->vector_bytes == 0) return without_vectors(arch);
  if (c.packing == Packing::tiles) return "w is packed as tiles, for GPUs";
  if (!element_type(c.x)) return fmt::format("x={} is not f32, f16, bf16 or int8", c.x.name());
  if (!weight_type(c.w)) return fmt::format("w={} is not f32, f16, bf16, int8 or int8_row", c.w.name());
  if (c.quant_act.block) return "quant_act is not supported: x is not rounded on its way";
  return {};
}

class Columns final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return "cpu_columns"; }
  std::string_view title() const override {
    return "CPU, floats and bytes: columns of pixels gathered a part at a time, tiles of sums in registers";
  }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = refusal(*c, arch); !why.empty()) return why;
    const Extents e(*c);
    if (c->packing == Packing::none && e.groups * e.panels > std::numeric_limits<std::int32_t>::max() / e.columns)
      return fmt::format("w as panels of {} x {} numbers is more scratch memory than a launch has", e.groups * e.panels,
                         e.columns * kPanel);
    return {};
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::vector<Candidate> list;
    for (const Knobs& k : legal(Extents(*problem.as<Conv>()), arch)) list.push_back(table().candidate(name(), k));
    return list;
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Filter f = filter_of(*problem.as<Conv>());
    const Knobs k = table().knobs(candidate);
    Ir ir(*arch.cpu);
    if (!f.packed)
      ir.function(fmt::format("{}_first", kEntry),
                  [&](const Ir::Arguments& a) { columns_text::widen_weights(ir, a, f); });
    ir.function(kEntry, [&](const Ir::Arguments& a) {
      columns_text::columns(ir, a, f, f.packed ? f.w : Type::f32, k.tokens * k.tiles, k.tokens, k.panels, k.tiles,
                            k.turns);
    });
    Source s;
    s.name = "conv/cpu_columns";
    s.text = ir.text();
    s.entry = kEntry;
    s.plan = plan(Extents(*problem.as<Conv>()), k, f.packed);
    NativeConvOptions o;
    o.filter = f, o.tokens = k.tokens, o.panels = k.panels, o.tiles = k.tiles, o.turns = k.turns;
    s.host = built_in(o, arch, native_v3_conv, native_v4_conv);
    return s;
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Conv& c = *problem.as<Conv>();
    const Extents e(c);
    const Knobs k = table().knobs(candidate);
    const auto pixels = static_cast<double>(blocks_of(e.m, k.tokens) * k.tokens);
    const auto across = static_cast<double>(blocks_of(e.panels, std::int64_t{k.panels} * k.turns));
    const auto columns = static_cast<double>(e.columns), groups = static_cast<double>(e.groups);
    Traits t;
    t.tile_rows = k.tokens * k.tiles, t.tile_cols = kPanel * k.panels * k.turns, t.threads = 1;
    const bool packed = c.packing == Packing::panels;
    t.blocks = static_cast<double>(plan(e, k, packed).x.blocks(e.m, c.k));
    t.unique_bytes = problem.min_bytes();
    // Panels are read by each block of pixels; the launch writes them first where w is not packed.
    const double reads = pixels / (k.tokens * k.tiles),
                 written = packed ? 0 : groups * static_cast<double>(e.panels * kPanel) * columns;  // numbers
    t.global_bytes = t.unique_bytes + (packed ? (reads - 1) * static_cast<double>(panel_bytes(conv::as_gemm(c)))
                                              : 4 * (reads * columns * static_cast<double>(c.k) + written));
    t.bytes_in_flight = 1e6;
    // What it takes to gather a pixel's tap, and its elements, in operations of products; and to keep sums of a part.
    const auto run = static_cast<double>(std::min<std::int64_t>(e.channels, columns_text::kPart));
    const double gathered =
        pixels * groups * across * columns * (1500 / run + (c.x_layout == TensorLayout::ncdhw ? 80 : 15));
    const auto rows = static_cast<double>(blocks_of(e.panels, k.panels) * k.panels * kPanel);
    const double parts = static_cast<double>(blocks_of(e.columns, columns_text::kPart));
    t.mma_ops = pixels * groups * rows * (2 * columns + 8 * parts) + gathered;
    const double sums = k.tokens * k.panels * 64.0 / arch.cpu->vector_bytes;  // vectors
    t.mma_rate = 0.1 * sums / (sums + 3.0) / (1 + 0.5 / k.tokens);
    t.mma_ops += 2100 * t.mma_rate * written;  // which takes its time whatever the rate of products is
    t.later_wave_cost = 0.02;
    return t;
  }

 private:
  static const KnobTable<Knobs>& table() {
    static const KnobTable<Knobs> table("", kKnobs);
    return table;
  }
  static std::vector<Knobs> legal(const Extents& e, const Arch& arch) {
    constexpr std::pair<int, int> k16[] = {{3, 2}, {6, 1}}, k32[] = {{6, 1}, {6, 4}, {8, 3}, {12, 2}, {24, 1}};
    const bool wide = arch.cpu->vector_bytes == 64;
    std::vector<Knobs> list;
    for (const auto& [tokens, panels] : wide ? std::span<const std::pair<int, int>>(k32) : k16)
      for (const int tiles : {4, 8, 1})
        for (const int turns : {1, 4, 16}) {
          if (panels > 1 && panels >= e.panels + 2) continue;  // half of it would do
          if (tiles > 1 && tiles / 2 * tokens >= e.m) continue;
          if (turns > 1 && turns / 4 * panels >= e.panels) continue;
          if (columns_text::columns_stack(tokens, panels, tiles, turns) > kMostStack) continue;
          list.push_back({tokens, panels, tiles, turns});
        }
    return list;
  }
  static LaunchPlan plan(const Extents& e, const Knobs& k, bool packed) {
    LaunchPlan p;
    CpuLaunch& launch = p.cpu.emplace();
    launch.blocks = {static_cast<std::uint32_t>(e.groups * blocks_of(e.panels, std::int64_t{k.panels} * k.turns)),
                     static_cast<std::uint32_t>(k.tokens * k.tiles), 0};
    if (packed) return p;  // no first phase
    launch.first_blocks = {static_cast<std::uint32_t>(e.groups * e.panels), 0, 0};
    // A unit is a column of a panel.
    launch.scratch = {static_cast<std::uint32_t>(e.groups * e.panels * e.columns), 0, 0};
    return p;
  }
  static constexpr std::int64_t kMostStack = 160 << 10;
};

// ---- depthwise

struct DepthwiseKnobs {
  int pixels = 1;    // of a block
  int together = 1;  // vectors of channels
};
constexpr Knob<DepthwiseKnobs> kDepthwiseKnobs[] = {knob<&DepthwiseKnobs::pixels>("pixels"),
                                                    knob<&DepthwiseKnobs::together>("together")};

class Depthwise final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return "cpu_depthwise"; }
  std::string_view title() const override { return "CPU, depthwise, floats and bytes: channels side by side"; }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = refusal(*c, arch); !why.empty()) return why;
    if (c->groups != c->c || c->k != c->c)
      return "the problem is not a depthwise convolution of as many channels out as in";
    if (c->c % kPanel != 0) return fmt::format("c must be a multiple of {} (got {})", kPanel, c->c);
    if (c->x_layout != TensorLayout::ndhwc) return "x_layout=ncdhw is not supported: channels must be side by side";
    if (c->cache) return "cache";
    if (const std::int64_t taps = conv::as_gemm(*c).k; taps > columns_text::kMostTaps)
      return fmt::format("{} taps are more than {}", taps, columns_text::kMostTaps);
    return {};
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::vector<Candidate> list;
    for (const int pixels : {16, 64, 4})
      for (const int together : {2, 4, 8}) list.push_back(table().candidate(name(), {pixels, together}));
    return list;
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Filter f = filter_of(*problem.as<Conv>());
    const DepthwiseKnobs k = table().knobs(candidate);
    Ir ir(*arch.cpu);
    ir.function(fmt::format("{}_first", kEntry),
                [&](const Ir::Arguments& a) { columns_text::widen_filters(ir, a, f); });
    ir.function(kEntry, [&](const Ir::Arguments& a) { columns_text::depthwise(ir, a, f, k.pixels, k.together); });
    Source s;
    s.name = "conv/cpu_depthwise";
    s.text = ir.text();
    s.entry = kEntry;
    s.plan = plan(*problem.as<Conv>(), k);
    NativeConvOptions o;
    o.depthwise = true, o.filter = f, o.tokens = k.pixels, o.together = k.together;
    s.host = built_in(o, arch, native_v3_conv, native_v4_conv);
    return s;
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Conv& c = *problem.as<Conv>();
    const DepthwiseKnobs k = table().knobs(candidate);
    Traits t;
    t.tile_rows = k.pixels, t.tile_cols = static_cast<int>(c.c), t.threads = 1;
    t.blocks = static_cast<double>(plan(c, k).x.blocks(problem.rows(), problem.cols()));
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 1e6;
    // Besides products, finding a tap of a pixel.
    t.mma_ops = problem.ops() * (1 + 600.0 / static_cast<double>(c.c));
    t.mma_rate = 0.02 * arch.cpu->vector_bytes / 64 * k.together / (k.together + 1.0);
    t.later_wave_cost = 0.02;
    return t;
  }

 private:
  static const KnobTable<DepthwiseKnobs>& table() {
    static const KnobTable<DepthwiseKnobs> table("", kDepthwiseKnobs);
    return table;
  }
  static LaunchPlan plan(const Conv& c, const DepthwiseKnobs& k) {
    LaunchPlan p;
    p.cpu = {{1, static_cast<std::uint32_t>(k.pixels), 0},
             {static_cast<std::uint32_t>(c.c / kPanel), 0, 0},
             {static_cast<std::uint32_t>(c.c / kPanel * conv::as_gemm(c).k), 0, 0}};
    return p;
  }
};

}  // namespace

const Family& conv_depthwise() {
  static const Depthwise family;
  return family;
}

const Family& conv_columns() {
  static const Columns family;
  return family;
}

std::optional<Problem> packed(const Conv& c, const Arch& arch) {
  const Gemm g = conv::as_gemm(c);
  // Each tile widens f16 and bf16 again: of more pixels than these that takes longer than to write w once a launch.
  constexpr std::int64_t kMostPixels = 1024;
  if (c.w.name() != "f32" && g.m > kMostPixels) return {};
  if (c.packing != Packing::none || !is_float(c.w) || c.groups != 1 || c.w_layout != FilterLayout::ktrsc ||
      !have_panels(g.w, g.x, g.n, g.k))
    return {};
  Conv p = c;
  p.packing = Packing::panels;
  Problem problem(p);
  if (!conv_columns().why_not(problem, arch).empty()) return {};
  return problem;
}

}  // namespace tilewright::cpu
