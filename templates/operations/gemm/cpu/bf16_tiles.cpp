// SPDX-License-Identifier: Apache-2.0
// The family over bf16_tiles.h: x and w of bf16, w in panels, for CPUs with AMX.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "templates/backends/cpu/ir.h"
#include "templates/common/knobs.h"
#include "templates/operations/gemm/cpu/gemm.h"
#include "templates/operations/gemm/cpu/grouped.h"
#include "templates/operations/gemm/cpu/native.h"
#define TILEWRIGHT_CPU_KERNELS bf16_text
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::cpu {
namespace {

constexpr const char* kEntry = "tilewright_kernel_tiles";  // whose loader asks for tiles (jit/cpu/driver.cpp)

struct Bf16Knobs {
  int tokens = 32;  // of a block
  int panels = 2;   // of a block
  int chunk = 16;   // blocks of k whose products are added up in tiles
};
constexpr Knob<Bf16Knobs> kBf16Knobs[] = {knob<&Bf16Knobs::tokens>("tokens"), knob<&Bf16Knobs::panels>("panels"),
                                          knob<&Bf16Knobs::chunk>("chunk")};

class Bf16Family final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "gemm"; }
  std::string_view name() const override { return "cpu_amx_bf16"; }
  std::string_view title() const override { return "CPU, bf16 by bf16: sums in tiles of 16 by 16 (AMX), w in panels"; }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    if (std::string why = refusal(*g, arch); !why.empty()) return why;
    if (!arch.cpu->tiles) return fmt::format("{} lacks AMX", arch.name);
    if (g->x.name() != "bf16" || g->w.name() != "bf16")
      return fmt::format("x={} and w={} are not both bf16", g->x.name(), g->w.name());
    if (g->k % bf16_text::kBlock != 0)
      return fmt::format("k must be a multiple of {} (got {})", bf16_text::kBlock, g->k);
    return {};
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    std::vector<Candidate> list;
    for (const Bf16Knobs& k : legal(problem.as<Gemm>()->m)) list.push_back(table().candidate(name(), k));
    return list;
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Gemm& g = *problem.as<Gemm>();
    const Bf16Knobs k = table().knobs(candidate);
    const Type x = *float_type(g.x_stored());
    Ir ir(*arch.cpu);
    ir.function(fmt::format("{}_first", kEntry),
                [&](const Ir::Arguments& a) { bf16_text::narrow(ir, a, x, k.tokens, k.chunk); });
    ir.function(kEntry, [&](const Ir::Arguments& a) {
      bf16_text::bf16_tiles(ir, a, epilogue_of(g), k.tokens, k.panels, k.chunk);
    });
    write_parts(ir, kEntry, g, grid(k));
    Source s;
    s.name = "gemm/cpu_amx_bf16";
    s.text = ir.text();
    s.entry = kEntry;
    s.plan = plan(g, k);
    NativeOptions o;
    o.text = KernelText::bf16_tiles, o.x.type = x, o.e = epilogue_of(g);
    o.tokens = k.tokens, o.panels = k.panels, o.chunk = k.chunk;
    s.host = with_parts(g, built_in(o, arch), grid(k));
    return s;
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    const Gemm& g = *problem.as<Gemm>();
    const Bf16Knobs k = table().knobs(candidate);
    const std::int64_t m = std::max<std::int64_t>(g.m, 1);
    const double groups = std::max(g.groups, 1);
    const auto tiles = static_cast<double>((m + k.tokens - 1) / k.tokens);
    Traits t;
    t.tile_rows = k.tokens, t.tile_cols = kPanel * k.panels, t.threads = 1;
    t.blocks = static_cast<double>(plan(g, k).cpu->blocks.blocks(m, g.n));
    t.unique_bytes = problem.min_bytes();
    t.global_bytes = t.unique_bytes + groups * static_cast<double>(panel_bytes(g)) * (tiles - 1);
    t.bytes_in_flight = 1e6;
    t.mma_ops =
        groups * static_cast<double>((m + 31) / 32 * 32) * 2.0 * static_cast<double>(g.n) * static_cast<double>(g.k);
    // A tile of x is read for each pair of panels, and one of w for each pair of tiles of x. Eight blocks of four tiles
    // are what the nearest cache holds; the fewer, the more often sums are moved.
    t.mma_rate = 6.0 / (1 + 12.0 / k.tokens + 0.5 / k.panels) * (k.chunk == 8 ? 1.0 : 0.98);
    t.later_wave_cost = 0.02;
    return t;
  }

 private:
  static const KnobTable<Bf16Knobs>& table() {
    static const KnobTable<Bf16Knobs> table("", kBf16Knobs);
    return table;
  }
  static std::vector<Bf16Knobs> legal(std::int64_t m) {
    std::vector<Bf16Knobs> list;
    if (m < 4) return list;
    for (const int tokens : {32, 64, 128, 256}) {
      if (tokens > 32 && tokens >= 2 * m) break;
      for (const int panels : {2, 4, 8})
        for (const int chunk : {4, 8})
          if (tokens * panels <= 1024) list.push_back({tokens, panels, chunk});
    }
    return list;
  }
  static LaunchPlan plan(const Gemm& g, const Bf16Knobs& k) {
    const auto tokens = static_cast<std::uint32_t>(k.tokens);
    LaunchPlan p;
    CpuLaunch& launch = p.cpu.emplace();
    launch.blocks = {1, tokens, static_cast<std::uint32_t>(kPanel * k.panels)};
    launch.first_blocks = {1, 1, 0};
    launch.needs_amx = true;
    // Whole chunks of a line for each token and block.
    const std::int64_t blocks = g.k / bf16_text::kBlock, chunks = (blocks + k.chunk - 1) / k.chunk;
    launch.scratch = {static_cast<std::uint32_t>(chunks * k.chunk * k.tokens), tokens, 0};
    return with_parts(g, p);
  }
  static PartGrid grid(const Bf16Knobs& k) {
    return {k.tokens, kPanel * k.panels, k.tokens, bf16_text::kBlock * k.chunk,
            k.chunk * k.tokens * bf16_text::kBf16Bytes};
  }
};

}  // namespace

const Family& bf16_tiles() {
  static const Bf16Family family;
  return family;
}

}  // namespace tilewright::cpu
