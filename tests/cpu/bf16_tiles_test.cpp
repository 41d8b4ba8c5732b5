// SPDX-License-Identifier: Apache-2.0
// bf16 by tiles: over plain C++ everywhere, and by AMX, compiled and built in, where this CPU has it.
#include <tilewright/family.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <random>

#include "cpu_test.h"
#include "operands.h"
#include "templates/common/families.h"
#include "templates/operations/gemm/cpu/gemm.h"
#include "tiles_native.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

const Arch& with_tiles() { return arch("x86-64-v4+vnni+amx"); }
const Family& bf16_tiles() { return family("gemm", "cpu_amx_bf16"); }

// A candidate in plain code, and what this machine has of it besides.
std::vector<Binary> binaries_of(const Problem& problem, const Candidate& c, bool compiled) {
  const Gemm& g = *problem.as<Gemm>();
  const Source source = bf16_tiles().source(problem, with_tiles(), c);
  Binary plain;
  plain.target = host_arch().name;
  plain.entry = "in_plain_code";
  plain.plan = source.plan;
  plain.plan.cpu->needs_amx = false;
  plain.host = std::make_shared<const CpuKernel>(
      bf16_tiles_in_native(*cpu::float_type(g.x_stored()), cpu::epilogue_of(g), static_cast<int>(c.at("tokens")),
                           static_cast<int>(c.at("panels")), static_cast<int>(c.at("chunk"))));
  std::vector<Binary> all = {plain};
  if (!host_arch().cpu->tiles) return all;
  if (source.host) all.push_back(built_in(source, host_arch()));
  if (compiled) all.push_back(compile(source, host_arch(), llvm()));
  return all;
}

// Products in plain code take long: a small problem has one of each kind of block, and of remainder.
std::string random_problem(std::mt19937& random) {
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  static constexpr const char *kX[] = {"", " x_from=f32"}, *kY[] = {"f32", "f16", "bf16"},
                              *kBias[] = {"", " bias=f32", " bias=bf16"},
                              *kRest[] = {"", " act=silu", " c=f32 beta=-0.5", " alpha=0.375"};
  return fmt::format("gemm x=bf16 w=bf16 y={} m={} n={} k={} pack=panels{}{}{}", one_of(kY), 4 + random() % 70,
                     16 * (1 + random() % 5), 32 * (1 + random() % 11), one_of(kX), one_of(kBias), one_of(kRest));
}

}  // namespace

TEST_CASE("bf16 by tiles: all kernels are right and give the same bits, whatever runs them") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(41);
  int kernels = 0;
  for (int i = 0; i < 12; ++i) {
    Operands o(random_problem(random));
    INFO(o.problem.text());
    const Device device = Device::open_cpu({.threads = 1 + static_cast<int>(random() % 4), .parallel_for = {}});
    const std::vector<Candidate> all = bf16_tiles().candidates(o.problem, with_tiles());
    REQUIRE(all.size() >= 6);
    const std::size_t some = random() % all.size();
    SameBits bits;
    for (std::size_t c = 0; c < all.size(); ++c)
      for (const Binary& b : binaries_of(o.problem, all[c], c == some)) {
        INFO(all[c].text() << " " << b.entry);
        bits.require(o, device, b);
        ++kernels;
      }
  }
  CHECK(kernels >= 12 * 6);
}

TEST_CASE("bf16 by tiles: every kind of number, and those below the normal ones as 0") {
  TILEWRIGHT_NEEDS_KERNELS();
  Operands o("gemm x=bf16 w=bf16 y=f32 m=16 n=32 k=64 pack=panels");
  auto* const x = reinterpret_cast<std::uint16_t*>(o.spans[0].data());
  auto* const w = reinterpret_cast<std::uint16_t*>(o.spans[1].data());
  std::mt19937 random(5);
  const auto fill = [&](std::uint16_t* to, std::size_t bytes, auto&& number) {
    for (std::size_t i = 0; i < bytes / 2; ++i) to[i] = static_cast<std::uint16_t>(number());
  };
  const Candidate c = bf16_tiles().candidates(o.problem, with_tiles()).front();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const std::vector<Binary> binaries = binaries_of(o.problem, c, true);
  const auto run = [&] {
    std::vector<std::vector<std::byte>> all;
    for (const Binary& b : binaries) all.push_back(o.run(device, b));
    for (const auto& y : all) CHECK(y == all.front());
    std::vector<float> y(all.front().size() / sizeof(float));
    std::memcpy(y.data(), all.front().data(), all.front().size());
    return y;
  };
  fill(w, o.spans[1].size(), [&] { return 0x3f80; });
  fill(x, o.spans[0].size(), [&] { return 1 + random() % 0x7f; });  // the largest is below 2^-126
  for (const float v : run()) CHECK(v == 0);
  fill(x, o.spans[0].size(), [&] { return (0x0080 + random() % 0x0f00) | (random() % 2) << 15; });  // small ones
  fill(w, o.spans[1].size(), [&] { return (0x3c00 + random() % 0x0400) | (random() % 2) << 15; });
  run();
  fill(x, o.spans[0].size(), [&] { return 0x7e80; });  // 2^126: sums overflow
  fill(w, o.spans[1].size(), [&] { return 0x4000; });
  for (const float v : run()) CHECK(v == std::numeric_limits<float>::infinity());
  fill(x, o.spans[0].size(), [&] { return 0x3f80; });
  for (int token = 0; token < 16; ++token) x[64 * token + token] = 0x7fc0;
  for (const float v : run()) CHECK(std::isnan(v));
}

TEST_CASE("what bf16 by tiles is not for is refused with a reason") {
  const auto why = [](const char* operands, int k, const char* target) {
    return bf16_tiles().why_not(Problem::parse(fmt::format("gemm {} y=f32 m=64 n=32 k={} pack=panels", operands, k)),
                                arch(target));
  };
  CHECK(why("x=bf16 w=bf16", 64, "x86-64-v4+vnni+amx") == "");
  CHECK(why("x=bf16 w=bf16 x_from=f32", 64, "x86-64-v4+vnni+amx") == "");
  CHECK(why("x=bf16 w=bf16", 64, "x86-64-v4+vnni") == "x86-64-v4+vnni lacks AMX");
  CHECK(why("x=f32 w=bf16", 64, "x86-64-v4+vnni+amx") == "x=f32 and w=bf16 are not both bf16");
  CHECK(why("x=bf16 w=bf16", 80, "x86-64-v4+vnni+amx") == "k must be a multiple of 32 (got 80)");
}

TEST_CASE("floats that a kernel rounds first give what rounded floats give") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const Family& floats = family("gemm", "cpu_floats");
  for (const char* x : {"f16", "bf16"})
    for (const char* w : {"f32", "f16", "bf16"}) {
      Operands from(fmt::format("gemm x={} w={} y=f32 m=5 n=32 k=77 pack=panels x_from=f32", x, w));
      Operands as(fmt::format("gemm x={} w={} y=f32 m=5 n=32 k=77 pack=panels", x, w));
      INFO(from.problem.text());
      // The same w, and x as its encoder rounds it.
      std::memcpy(as.spans[1].data(), from.spans[1].data(), from.spans[1].size());
      const auto* const values = reinterpret_cast<const float*>(from.spans[0].data());
      MutableOperand to;
      to.data = as.spans[0].data();
      Format::parse(x).info().encode(values, 5, 77, to, 0);
      int kernels = 0;
      for (const Candidate& c : floats.candidates(from.problem, host_arch())) {
        const Source source = floats.source(from.problem, host_arch(), c),
                     plain = floats.source(as.problem, host_arch(), c);
        if (!source.host) continue;
        const std::vector<std::byte> y = from.run(device, built_in(source, host_arch()));
        CHECK(from.wrong() == "");
        CHECK(y == as.run(device, built_in(plain, host_arch())));
        CHECK(y == from.run(device, compile(source, host_arch(), llvm())));
        ++kernels;
      }
      CHECK(kernels > 0);
    }
}
