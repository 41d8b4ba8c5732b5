// SPDX-License-Identifier: Apache-2.0
// The family over floats.h: x of f32, f16 and bf16, or of FP8 as floats with scales, w in panels of floats or of codes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "templates/backends/cpu/ir.h"
#include "templates/common/checks.h"
#include "templates/common/knobs.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cpu/gemm.h"
#include "templates/operations/gemm/cpu/grouped.h"
#include "templates/operations/gemm/cpu/native.h"
#define TILEWRIGHT_CPU_KERNELS floats_text
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::cpu {
namespace {

constexpr const char* kFloatsEntry = "tilewright_kernel";

struct FloatKnobs {
  int tokens = 1;  // of a tile
  int panels = 1;  // side by side
  int tiles = 1;   // of a block
};
constexpr Knob<FloatKnobs> kFloatKnobs[] = {knob<&FloatKnobs::tokens>("tokens"), knob<&FloatKnobs::panels>("panels"),
                                            knob<&FloatKnobs::tiles>("tiles")};

class FloatFamily final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "cpu_floats"; }
  std::string_view title() const override {
    return "CPU, x in floats: tiles of sums in registers, w in panels, decoded";
  }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    if (std::string why = refusal(*g, arch); !why.empty()) return why;
    if (!panel_floats(g->w) && !is_float(g->x)) return fmt::format("x={} and w={} are codes", g->x.name(), g->w.name());
    if (g->groups && input_of(*g).columns)  // parts of x begin where its rows' scales do
      return fmt::format("groups={} is not supported: x={} has several scales a row", g->groups, g->x.name());
    return {};
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::vector<Candidate> list;
    for (const FloatKnobs& k : legal(problem.as<Gemm>()->m, arch)) list.push_back(table().candidate(name(), k));
    return list;
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Gemm& g = *problem.as<Gemm>();
    const FloatKnobs k = table().knobs(candidate);
    Ir ir(*arch.cpu);
    ir.function(fmt::format("{}_first", kFloatsEntry),
                [&](const Ir::Arguments& a) { floats_text::widen(ir, a, input_of(g), k.tokens); });
    ir.function(kFloatsEntry, [&](const Ir::Arguments& a) {
      floats_text::floats(ir, a, in_panels(g.w), scales_of(g.w), epilogue_of(g), k.tokens, k.panels, k.tiles,
                          panel_codes(g.w));
    });
    write_parts(ir, kFloatsEntry, g, grid(k));
    Source s;
    s.name = "gemm/cpu_floats";
    s.text = ir.text();
    s.entry = kFloatsEntry;
    s.plan = plan(g, k);
    if (panel_codes(g.w)) return s;  // none of them is built in
    NativeOptions o;
    o.text = KernelText::floats, o.x = input_of(g), o.floats = in_panels(g.w), o.e = epilogue_of(g);
    o.float_scales = scales_of(g.w);
    o.tokens = k.tokens, o.panels = k.panels, o.tiles = k.tiles;
    s.host = with_parts(g, built_in(o, arch), grid(k));
    return s;
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Gemm& g = *problem.as<Gemm>();
    const FloatKnobs k = table().knobs(candidate);
    const LaunchPlan p = plan(g, k);
    const std::int64_t m = std::max<std::int64_t>(g.m, 1), rows = k.tokens * k.tiles;
    const double groups = std::max(g.groups, 1);
    const auto blocks_of_rows = static_cast<double>((m + rows - 1) / rows),
               tiles = static_cast<double>((m + k.tokens - 1) / k.tokens);
    Traits t;
    t.tile_rows = static_cast<int>(rows), t.tile_cols = kPanel * k.panels, t.threads = 1;
    t.blocks = static_cast<double>(p.cpu->blocks.blocks(m, g.n));
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = t.unique_bytes + groups * static_cast<double>(panel_bytes(g)) * (blocks_of_rows - 1);
    t.bytes_in_flight = 1e6;
    t.mma_ops = groups * tiles * k.tokens * 2.0 * static_cast<double>(g.n) * static_cast<double>(g.k);
    // Products wait for each other where they are few; loads are shared by a tile's tokens and by its panels.
    const double sums = k.tokens * k.panels * 64.0 / arch.cpu->vector_bytes;  // vectors
    const double loads = (k.tokens + 2.0 * k.panels) / (k.tokens * k.panels);
    // w is read for each block of rows again, and not all of it behind products.
    const double wait = static_cast<double>(g.k) / 5000 / static_cast<double>(rows);
    t.mma_rate = 0.15 * sums / (sums + 3.0) / (1 + 0.5 * loads) / (1 + wait);
    if (panel_codes(g.w)) t.mma_rate /= 1 + 3.0 / static_cast<double>(rows);  // to decode takes as long as three tokens
    t.later_wave_cost = 0.02;
    return t;
  }

 private:
  static const KnobTable<FloatKnobs>& table() {
    static const KnobTable<FloatKnobs> table("", kFloatKnobs);
    return table;
  }
  // Of a tile, what fits in registers: its sums, a vector for each row of w, and what is multiplied with them.
  static std::vector<FloatKnobs> legal(std::int64_t m, const Arch& arch) {
    constexpr std::pair<int, int> k16[] = {{1, 1}, {1, 2}, {1, 4}, {2, 2}, {3, 2}, {4, 1}, {5, 1}, {6, 1}},
                                  k32[] = {{1, 2}, {1, 4}, {1, 8}, {2, 4},  {4, 4},
                                           {6, 1}, {6, 4}, {8, 3}, {12, 2}, {24, 1}};
    const bool wide = arch.cpu->vector_bytes == 64;
    std::vector<FloatKnobs> list;
    for (const auto& [tokens, panels] : wide ? std::span<const std::pair<int, int>>(k32) : k16) {
      if (tokens > 1 && tokens >= 2 * m) continue;      // half of it would do
      if (m > 16 && tokens < (wide ? 6 : 4)) continue;  // w is read too often
      for (const int tiles : {1, 4, 16}) {
        if (tiles * tokens * panels > floats_text::kMostInBlock) break;
        if (tiles > 1 && tiles / 4 * tokens >= m) break;
        list.push_back({tokens, panels, tiles});
      }
    }
    return list;
  }
  static Type in_panels(Format w) { return float_type(w).value_or(panel_codes(w) ? Type::f32 : Type::bf16); }
  static FloatScales scales_of(Format w) { return panel_codes(w) ? FloatScales::none : panel_floats(w)->scales; }
  // x is of floats, or of E4M3 (check_panels()).
  static Input input_of(const Gemm& g) {
    const FastPath& x = fast_path(g.x);
    const Type type = float_type(g.x).value_or(Type::e4m3);
    return {.type = g.x_from ? *float_type(*g.x_from) : type,
            .rows = x.row_bytes > 0,
            .as = g.x_from ? type : Type::f32,
            .columns = x.scale_bytes > 0 ? x.block : 0};
  }
  static LaunchPlan plan(const Gemm& g, const FloatKnobs& k) {
    const auto tokens = static_cast<std::uint32_t>(k.tokens);
    LaunchPlan p;
    const std::int64_t bytes = (g.k + g.k % 2) * k.tokens * 4;  // of a tile; tiles are without gaps
    p.cpu = {{1, tokens * static_cast<std::uint32_t>(k.tiles), static_cast<std::uint32_t>(kPanel * k.panels)},
             {1, 1, 0},
             {static_cast<std::uint32_t>((bytes + CpuLaunch::kUnit - 1) / CpuLaunch::kUnit), tokens, 0}};
    // x takes some 32 MiB in single precision; more rows are several launches. A multiple of 16 (LaunchPlan). A
    // contract cannot say where the scales of a row are that has several.
    if (input_of(g).columns == 0)
      p.most_rows = static_cast<std::uint32_t>(std::max<std::int64_t>(1, (std::int64_t{1} << 19) / g.k)) * 16;
    return with_parts(g, p);
  }
  static PartGrid grid(const FloatKnobs& k) {
    return {k.tokens * k.tiles, kPanel * k.panels, k.tokens, 2, 2 * 4 * k.tokens};
  }
};

}  // namespace

const Family& floats() {
  static const FloatFamily family;
  return family;
}

}  // namespace tilewright::cpu
