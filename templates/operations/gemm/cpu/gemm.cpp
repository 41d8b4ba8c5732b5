// SPDX-License-Identifier: Apache-2.0
// The families over kernels.h: what is legal, and the text that LLVM compiles.
#include <fmt/format.h>
#include <tilewright/error.h>

#include <algorithm>
#include <memory>

#include "templates/backends/cpu/ir.h"
#include "templates/common/checks.h"
#include "templates/common/knobs.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cpu/gemm.h"
#include "templates/operations/gemm/cpu/grouped.h"
#include "templates/operations/gemm/cpu/native.h"
#define TILEWRIGHT_CPU_KERNELS text
#include "templates/operations/gemm/cpu/kernels.h"

namespace tilewright::cpu {
namespace {

constexpr const char* kEntry = "tilewright_kernel";
constexpr const char* kTilesEntry = "tilewright_kernel_tiles";  // whose loader asks for tiles (jit/cpu/driver.cpp)

struct Knobs {
  int tokens = 1;    // of a tile
  int panels = 1;    // of a block
  int ahead = 0;     // few: bytes of w that are asked for in advance
  int wide = 1;      // many: panels side by side
  int chunk = 1;     // by tiles: blocks of k that are unpacked at a time
  int together = 1;  // many: tokens whose products with them are computed together; by tiles: blocks of k
};
constexpr Knob<Knobs> kFewKnobs[] = {knob<&Knobs::tokens>("tokens"), knob<&Knobs::panels>("panels"),
                                     option<&Knobs::ahead>("ahead")};
constexpr Knob<Knobs> kManyKnobs[] = {knob<&Knobs::tokens>("tokens"), knob<&Knobs::panels>("panels"),
                                      knob<&Knobs::wide>("wide"), knob<&Knobs::together>("together")};
constexpr Knob<Knobs> kTileKnobs[] = {knob<&Knobs::tokens>("tokens"), knob<&Knobs::panels>("panels"),
                                      knob<&Knobs::chunk>("chunk"), knob<&Knobs::together>("together")};

Input input_of(const Gemm& g) {
  const bool rows = g.x.name() == "int8_row";
  if (g.x.name() == "int8") return {Type::int8, false};
  return {g.x_from ? *float_type(*g.x_from) : rows ? Type::int8_row : Type::q8_1, rows};
}

Epilogue epilogue_of_codes(const Gemm& g) {
  Epilogue e = epilogue_of(g);
  e.integers = panel_codes(g.w)->exact();
  return e;
}

// Why the kernels do not compute g; empty if they do.
std::string refusal_of_codes(const Gemm& g, const Arch& arch) {
  if (std::string why = refusal(g, arch); !why.empty()) return why;
  if (!panel_codes(g.w)) return fmt::format("w={} has no panels of codes", g.w.name());
  if (is_float(g.x)) return fmt::format("x={} is not quantized", g.x.name());
  if (panel_codes(g.w)->exact() && g.k > kMostBytes)
    return fmt::format("k={} is too large: a sum of more than {} products of bytes need not fit in 32 bits", g.k,
                       kMostBytes);
  if (g.x_from && !float_type(*g.x_from)) return fmt::format("x_from={} is not f32, f16 or bf16", g.x_from->name());
  return {};
}

class PanelFamily : public EnumeratedFamily {
 public:
  std::string_view op() const final { return "gemm"; }
  std::string why_not(const Problem& problem, const Arch& arch) const final {
    const Gemm* g = problem.as<Gemm>();
    if (!g) return "the problem is not a gemm";
    const std::string why = refusal_of_codes(*g, arch);
    return why.empty() && kernel_text() == KernelText::tiles && !arch.cpu->tiles
               ? fmt::format("{} lacks AMX", arch.name)
               : why;
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const final {
    std::vector<Candidate> list;
    if (why_not(problem, arch).empty())
      for (const Knobs& k : legal(*problem.as<Gemm>(), arch)) list.push_back(table().candidate(name(), k));
    return list;
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const final {
    const Gemm& g = *problem.as<Gemm>();
    const Knobs k = table().knobs(candidate);
    const PanelCodes w = *panel_codes(g.w);
    const std::string entry = kernel_text() == KernelText::tiles ? kTilesEntry : kEntry;
    Ir ir(*arch.cpu);
    ir.function(entry + "_first", [&](const Ir::Arguments& a) { text::quantize(ir, a, input_of(g), of_record(k), w); });
    ir.function(entry, [&](const Ir::Arguments& a) { write(ir, a, w, epilogue_of_codes(g), k); });
    write_parts(ir, entry, g, grid(g, k));
    Source s;
    s.name = fmt::format("gemm/{}", name());
    s.text = ir.text();
    s.entry = entry;
    s.plan = plan(g, k);
    NativeOptions o;
    o.text = kernel_text(), o.w = w, o.x = input_of(g), o.e = epilogue_of_codes(g);
    o.tokens = k.tokens, o.panels = k.panels, o.ahead = k.ahead, o.wide = k.wide, o.chunk = k.chunk;
    o.together = k.together;
    s.host = with_parts(g, built_in(o, arch), grid(g, k));
    return s;
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const final {
    const Gemm& g = *problem.as<Gemm>();
    const Knobs k = table().knobs(candidate);
    const LaunchPlan p = plan(g, k);
    const std::int64_t groups = std::max(g.groups, 1);
    const double tiles = static_cast<double>((std::max<std::int64_t>(g.m, 1) + k.tokens - 1) / k.tokens);
    Traits t;
    t.tile_rows = k.tokens, t.tile_cols = text::kPanelRows * k.panels, t.threads = 1;
    t.blocks = static_cast<double>(p.cpu->blocks.blocks(std::max<std::int64_t>(g.m, 1), g.n));
    t.unique_bytes = problem.min_bytes();
    const auto w_bytes = static_cast<double>(groups * panel_bytes(g));
    t.global_bytes = t.unique_bytes + w_bytes * (tiles - 1);
    t.bytes_in_flight = 1e6;
    t.mma_ops = tiles * k.tokens * 2.0 * static_cast<double>(groups * g.n) * static_cast<double>(g.k);
    t.mma_rate = rate(g, k, arch);
    t.mma_in_flight = 32;  // a core by itself keeps its units busy
    t.later_wave_cost = 0.02;
    return t;
  }

 protected:
  virtual const KnobTable<Knobs>& table() const = 0;
  virtual KernelText kernel_text() const = 0;
  virtual std::vector<Knobs> legal(const Gemm& g, const Arch& arch) const = 0;
  virtual void write(Ir& ir, const Ir::Arguments& a, PanelCodes w, const Epilogue& e, const Knobs& k) const = 0;
  virtual double rate(const Gemm& g, const Knobs& k, const Arch& arch) const = 0;  // of the operations, relative

 private:
  // Tokens whose codes of a block lie side by side.
  int of_record(const Knobs& k) const { return kernel_text() == KernelText::tiles ? text::kTileTokens : k.tokens; }
  LaunchPlan plan(const Gemm& g, const Knobs& k) const {
    const auto tokens = static_cast<std::uint32_t>(k.tokens);
    LaunchPlan p;
    CpuLaunch& launch = p.cpu.emplace();
    launch.blocks = {1, tokens, static_cast<std::uint32_t>(text::kPanelRows * k.panels)};
    launch.first_blocks = {1, 1, 0};
    launch.needs_amx = kernel_text() == KernelText::tiles;
    // A tile's records. Tiles are without gaps, so that these units of 64 bytes are no fewer than are used.
    const std::int64_t bytes = g.k / text::kBlock * k.tokens * text::token_bytes(*panel_codes(g.w));
    launch.scratch = {static_cast<std::uint32_t>((bytes + CpuLaunch::kUnit - 1) / CpuLaunch::kUnit), tokens, 0};
    return with_parts(g, p);
  }
  PartGrid grid(const Gemm& g, const Knobs& k) const {
    return {k.tokens, text::kPanelRows * k.panels, k.tokens, text::kBlock,
            k.tokens * text::token_bytes(*panel_codes(g.w))};
  }
};

class Gemv final : public PanelFamily {
 public:
  std::string_view name() const override { return "cpu_gemv"; }
  std::string_view title() const override { return "CPU, few tokens: sums in registers, weights in panels read once"; }

 protected:
  KernelText kernel_text() const override { return KernelText::few; }
  const KnobTable<Knobs>& table() const override {
    static const KnobTable<Knobs> table("", kFewKnobs);
    return table;
  }
  std::vector<Knobs> legal(const Gemm& g, const Arch& arch) const override {
    std::vector<Knobs> list;
    // A row of sums is as many registers as a panel's rows need; half of all registers are for sums.
    const int most = arch.cpu->registers / 2 * arch.cpu->vector_bytes / (4 * text::kPanelRows);
    for (int tokens = 1; tokens <= std::min(most, text::kMostTokens); tokens *= 2) {
      if (tokens > 1 && tokens >= 2 * g.m) break;  // half of it would do
      if (g.m > 4 * tokens) continue;              // w is read for each tile again
      // The usual winners first: candidates of equal rank are tried in this order.
      for (const int panels : {4, 1, 16})
        for (const int ahead : {2048, 0, 1024, 4096})
          list.push_back({.tokens = tokens, .panels = panels, .ahead = ahead});
    }
    return list;
  }
  void write(Ir& ir, const Ir::Arguments& a, PanelCodes w, const Epilogue& e, const Knobs& k) const override {
    text::few(ir, a, w, e, k.tokens, k.panels, k.ahead);
  }
  // Unpacking is shared by a tile's tokens.
  double rate(const Gemm&, const Knobs& k, const Arch&) const override { return 0.6 * k.tokens / (k.tokens + 2.0); }
};

class Codes final : public PanelFamily {
 public:
  std::string_view name() const override { return "cpu_codes"; }
  std::string_view title() const override {
    return "CPU, many tokens: exact sums of codes, weights in panels unpacked once a tile";
  }

 protected:
  KernelText kernel_text() const override { return KernelText::many; }
  const KnobTable<Knobs>& table() const override {
    static const KnobTable<Knobs> table("", kManyKnobs);
    return table;
  }
  std::vector<Knobs> legal(const Gemm& g, const Arch& arch) const override {
    std::vector<Knobs> list;
    if (g.m < 3) return list;
    const int vectors = 4 * text::kPanelRows / arch.cpu->vector_bytes;
    for (const int tokens : {16, 32, 64, 128}) {
      if (tokens > 16 && tokens > 2 * g.m) break;
      for (const int panels : {4, 16})
        for (const int wide : {1, 2, 4})
          for (const int together : {1, 2, 4, 8}) {
            const int sums = wide * vectors * together;
            if (sums < 2 || sums > arch.cpu->registers / 2) continue;
            list.push_back({.tokens = tokens, .panels = panels, .wide = wide, .together = together});
          }
    }
    return list;
  }
  void write(Ir& ir, const Ir::Arguments& a, PanelCodes w, const Epilogue& e, const Knobs& k) const override {
    text::many(ir, a, w, e, k.tokens, k.panels, k.wide, k.together);
  }
  // Each product of a vector of rows with a token's columns loads a share of either.
  double rate(const Gemm& g, const Knobs& k, const Arch& arch) const override {
    const std::int64_t panels = g.n / text::kPanelRows, computed = (panels + k.wide - 1) / k.wide * k.wide;
    const double rows = k.wide * 4.0 * text::kPanelRows / arch.cpu->vector_bytes, tokens = k.together;
    return 1.4 * static_cast<double>(panels) / static_cast<double>(computed) /
           (1 + 0.5 * (rows + tokens) / (rows * tokens)) * k.tokens / (k.tokens + 12.0) * (k.tokens > 64 ? 0.97 : 1.0);
  }
};

class Tiles final : public PanelFamily {
 public:
  std::string_view name() const override { return "cpu_amx"; }
  std::string_view title() const override { return "CPU, many tokens: exact sums of codes by tiles of 16 by 16 (AMX)"; }

 protected:
  const KnobTable<Knobs>& table() const override {
    static const KnobTable<Knobs> table("", kTileKnobs);
    return table;
  }
  KernelText kernel_text() const override { return KernelText::tiles; }
  std::vector<Knobs> legal(const Gemm& g, const Arch&) const override {
    std::vector<Knobs> list;
    if (g.m < 8) return list;
    for (const int tokens : {16, 32, 64, 128}) {
      if (tokens > 16 && tokens >= 2 * g.m) break;
      for (const int panels : {4, 16})
        for (const int chunk : {16, 8})
          for (const int together : {1, 2, 4}) {
            const int tiles = together * panel_codes(g.w)->scales;
            // The more the better, but for what else is in the way of the pipeline.
            const bool most = tiles == 4 || g.k / text::kBlock % (2 * together) != 0;
            if (tiles > 4 || g.k / text::kBlock % together != 0 || (tiles < 2 && !most)) continue;
            list.push_back({.tokens = tokens, .panels = panels, .chunk = chunk, .together = together});
          }
    }
    return list;
  }
  void write(Ir& ir, const Ir::Arguments& a, PanelCodes w, const Epilogue& e, const Knobs& k) const override {
    text::by_tiles(ir, a, w, e, k.tokens, k.panels, k.chunk, k.together);
  }
  double rate(const Gemm& g, const Knobs& k, const Arch&) const override {
    // Codes of a tile's tokens are read for each panel: from the second cache, if they fit.
    const double x_bytes = static_cast<double>(k.tokens * g.k) * text::token_bytes(*panel_codes(g.w)) / text::kBlock;
    return 1.8 * k.tokens / (k.tokens + 24.0) * (k.together > 1 ? 1.0 : 0.95) * (x_bytes > 1.5e6 ? 0.85 : 1.0);
  }
};

}  // namespace

const Family& gemv() {
  static const Gemv family;
  return family;
}
const Family& codes() {
  static const Codes family;
  return family;
}

const Family& tiles() {
  static const Tiles family;
  return family;
}

std::span<const Family* const> gemm_families() {
  static const Family* const list[] = {&tiles(), &codes(), &gemv(), &bf16_tiles(), &floats(), &reference()};
  return list;
}

std::optional<Problem> packed(const Gemm& g, const Arch& arch) {
  if (g.packing != Packing::none || !have_panels(g.w, g.x, g.n, g.k)) return {};
  Gemm p = g;
  p.packing = Packing::panels;
  const Problem problem(p);
  for (const Family* f : gemm_families())
    if (f != &reference() && f->why_not(problem, arch).empty()) return problem;
  return {};
}

std::optional<Type> float_type(Format f) {
  if (f.name() == "f32") return Type::f32;
  if (f.name() == "f16") return Type::f16;
  if (f.name() == "bf16") return Type::bf16;
  return {};
}
std::optional<Type> output_type(Format f) {
  if (f.name() == "int8") return Type::int8;
  if (f.name() == "e4m3") return Type::e4m3;
  if (f.name() == "e5m2") return Type::e5m2;
  if (f.name() == "int32") return Type::int32;
  return float_type(f);
}
Epilogue epilogue_of(const Gemm& g) {
  Epilogue e;
  e.y = *output_type(g.y);
  e.global = g.global, e.act = g.act;
  if ((e.has_bias = g.bias.has_value())) e.bias = *output_type(*g.bias);
  if ((e.has_c = g.c.has_value())) e.c = *float_type(*g.c);
  return e;
}

std::string without_vectors(const Arch& arch) {
  return fmt::format("{} lacks AVX2, FMA or F16C, or Arm's dot products, which all kernels use", arch.name);
}

namespace {

// Why packing would not help, behind a semicolon.
std::string no_panels(const Gemm& g) {
  if (have_panels(g.w, g.x, g.n, g.k)) return "; ask for pack=panels";
  try {
    check_panels("pack", "panels", g.w, g.x, g.n, g.k);
  } catch (const Error& error) {
    return fmt::format(", and cannot be: {}", error.what());
  }
  return "";
}

}  // namespace

std::string refusal(const Gemm& g, const Arch& arch) {
  if (!arch.cpu || arch.cpu->vector_bytes == 0) return without_vectors(arch);
  if (g.packing != Packing::panels) return "w is not packed in panels" + no_panels(g);
  if (g.k == 0 || g.n == 0) return "k or n is 0: there is nothing to sum up";
  return {};
}

}  // namespace tilewright::cpu
