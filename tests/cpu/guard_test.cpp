// SPDX-License-Identifier: Apache-2.0
// No kernel for CPUs reads or writes a byte beyond its operands: each family runs every format it serves between pages
// that the process may not touch, with sizes that are no whole tiles.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/family.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gemms.h"
#include "operands.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// What was run: families, with the formats of w (or y of a cast).
using Served = std::map<std::string, std::set<std::string>>;

// Few candidates of each family, at both edges.
void run_all(const std::string& text, const std::string& format, const Device& device, Served& served) {
  INFO(text);
  for (const Edge edge : {Edge::end, Edge::begin}) {
    Operands o(text, edge);
    for (const Family* family : families(o.problem.op(), device.arch())) {
      const auto all = family->candidates(o.problem, device.arch());
      for (std::size_t i = 0; i < all.size(); i += std::max<std::size_t>(1, all.size() / 2)) {
        INFO(all[i].text());
        const Source source = family->source(o.problem, device.arch(), all[i]);
        o.run(device, source.host ? built_in(source, device.arch()) : compile(source, device.arch(), llvm()));
        REQUIRE(o.wrong() == "");
        served[fmt::format("{}/{}", o.problem.op(), family->name())].insert(format);
      }
    }
  }
}

}  // namespace

TEST_CASE("kernels for CPUs touch nothing beyond their operands", "[guard]") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}, .target = {}});
  Served served;
  const auto run = [&](const std::string& text, const std::string& format) { run_all(text, format, device, served); };

  int turn = 0;
  const char* const rest[] = {"x_from=f32", "x_from=f16 bias=f32 act=silu", "x_from=bf16 c=f16 beta=0.5", ""};
  for (const char* w : kWeights)
    for (const std::int64_t m : {1, 3, 17, 34}) {
      if (++turn % 4 != 1 && std::ranges::find(kPanels, w) == kPanels.end()) continue;
      run(gemm(w, m, m % 2 ? 16 : 48, columns(w, turn % 2 ? 1 : 3), rest[(turn + turn / 4) % 4],
               turn % 3 ? "q8_1" : "int8_row"),
          w);
    }
  for (const char* w : kFloats)
    for (const char* x : kFloats)
      for (const auto& [m, n, k] : {std::tuple{1, 16, 1}, {3, 48, 37}, {17, 16, 100}, {33, 64, 128}})
        run(gemm(w, m, n, k, turn++ % 2 ? "bias=f16" : "", x), w);
  for (const int m : {1, 5, 17}) run(gemm("int8", m, 16, 96, "", "int8"), "int8");
  for (const char* w : {"q4_0", "q4_k", "int8_row"}) run(gemm(w, 5, 16, columns(w, 1), "groups=3 x_from=f32"), w);
  // The plain reference serves all.
  for (const Format f : Format::all()) {
    const bool global = f.info().global_for;
    const std::string w(f.name());
    const std::string text =
        fmt::format("gemm x=f32 w={} y=f16 m=3 n=5 k={}{}", w, f.block(), global ? " global=mul" : "");
    try {
      (void)Problem::parse(text);
    } catch (const Error&) {
      continue;  // of outputs alone, or of weights that other products take
    }
    run(text, w);
  }
  for (const Format f : Format::all()) {
    const std::string y(f.name());
    for (const char* x : kFloats) {
      const std::string text = fmt::format("cast x={} y={} rows=3 cols={}", x, y, 3 * f.block());
      try {
        (void)Problem::parse(text);
      } catch (const Error&) {
        continue;
      }
      run(text, y);
    }
  }
  for (const char* types : {"x=f32 w=f32", "x=f16 w=f16", "x=bf16 w=bf16", "x=int8 w=int8"}) {
    const std::string w(std::string_view(types).substr(std::string_view(types).find("w=") + 2));
    run(fmt::format("conv {} y=f32 n=1 c=5 in=7x9 k=16 kernel=3x2 pad=1:0x0:1", types), w);
    run(fmt::format("conv {} y=f32 n=2 c=3 in=11 k=32 kernel=4 stride=3", types), w);
    run(fmt::format("conv {} y=f32 n=1 c=16 in=5x6 k=16 kernel=3 pad=1 groups=16", types), w);
  }
  for (const char* w : kWeights) {
    run(fmt::format("pack w={} x=q8_1 n=16 k={} order=panels", w, columns(w, 1)), w);
    run(fmt::format("pack w={} x=q8_1 n=48 k={} order=panels inverse=1", w, columns(w, 3)), w);
  }

  // Every family was there that this CPU has instructions for, with every format in panels.
  for (const char* op : {"gemm", "conv", "cast", "pack"})
    for (const Family* family : families(op, device.arch())) {
      if (!device.arch().cpu->tiles && family->name().starts_with("cpu_amx")) continue;
      INFO(op << " " << family->name());
      CHECK(served.count(fmt::format("{}/{}", op, family->name())) == 1);
    }
  for (const char* w : kWeights) CHECK(served["gemm/cpu_gemv"].count(w) == 1);
}
