// SPDX-License-Identifier: Apache-2.0
// Convolutions on the CPU: every candidate against the oracle on the host, with one thread and with three.
#include <tilewright/conv.h>
#include <tilewright/family.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cpu_test.h"
#include "operands.h"
#include "templates/describe.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// The problem's output by a family's candidate; the test fails where it is wrong or depends on the threads.
std::vector<std::byte> check(Operands& o, const Binary& binary) {
  const std::vector<std::byte> one = o.run(Device::open_cpu({.threads = 1, .parallel_for = {}}), binary);
  CHECK(o.wrong() == "");
  CHECK(o.run(Device::open_cpu({.threads = 3, .parallel_for = {}}), binary) == one);
  return one;
}

void check_reference(const std::string& text) {
  INFO(text);
  Operands o(text);
  const Family& reference = family("conv", "cpu_reference");
  REQUIRE(reference.why_not(o.problem, host_arch()) == "");
  check(o, built_in(reference.source(o.problem, host_arch(), {"cpu_reference", {{"oracle", 0}}}), host_arch()));
}

const Family& columns() { return family("conv", "cpu_columns"); }

// Every candidate's built-in kernel, with one thread, and some compiled ones, with three: right, and the same bits.
// Returns how many kernels ran.
int check_columns(Operands& o, std::mt19937& random, std::vector<const Family*> families = {&columns()}) {
  INFO(o.problem.text());
  std::vector<Candidate> all;
  for (const Family* f : families) {
    REQUIRE(f->why_not(o.problem, host_arch()) == "");
    for (const Candidate& c : f->candidates(o.problem, host_arch())) all.push_back(c);
  }
  REQUIRE(!all.empty());
  const std::size_t some[] = {random() % all.size(), random() % all.size(), 0};
  std::vector<std::byte> bits;
  int kernels = 0, built = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Source source = family("conv", all[i].family).source(o.problem, host_arch(), all[i]);
    std::vector<std::pair<Binary, int>> binaries;
    if (source.host) binaries.emplace_back(built_in(source, host_arch()), 1), ++built;
    if (std::find(std::begin(some), std::end(some), i) < std::end(some))
      binaries.emplace_back(compile(source, host_arch(), llvm()), 3);
    for (const auto& [binary, threads] : binaries) {
      INFO(all[i].text() << ", " << threads << " threads");
      const std::vector<std::byte> y = o.run(Device::open_cpu({.threads = threads, .parallel_for = {}}), binary);
      if (bits.empty()) {
        REQUIRE(o.wrong() == "");
        bits = y;
      }
      REQUIRE(y == bits);
      ++kernels;
    }
  }
  CHECK(built > 0);
  return kernels;
}

// A legal problem of floats: some number of axes, groups, paddings, layouts, and what follows the sums.
std::string random_conv(std::mt19937& random) {
  const auto to = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  static constexpr const char *kFloats[] = {"f32", "f16", "bf16"}, *kX[] = {"f32", "f16", "bf16", "int8"},
                              *kW[] = {"f32", "f16", "bf16", "int8", "int8_row"},
                              *kModes[] = {"zero", "replicate", "reflect"}, *kLayouts[] = {"ndhwc", "ncdhw"},
                              *kActs[] = {"", " act=relu", " act=gelu", " act=silu"},
                              *kY[] = {"f32", "f16", "bf16", "int8", "e4m3"};
  const std::int64_t rank = to(3), groups = random() % 3 ? 1 : to(4), c = groups * to(random() % 2 ? 9 : 90),
                     k = groups * to(random() % 2 ? 70 : 20);
  std::vector<std::string> in, kernel, stride, pad, mode, dilation;
  std::int64_t cache = 0;
  for (std::int64_t axis = 0; axis < rank; ++axis) {
    const std::int64_t taps = to(rank == 3 ? 2 : 4), step = to(2), lo = to(3) - 1, hi = to(3) - 1,
                       extent = std::max<std::int64_t>((taps - 1) * step + 1, 3) + to(rank == 1 ? 40 : 6);
    in.push_back(std::to_string(extent)), kernel.push_back(std::to_string(taps));
    stride.push_back(std::to_string(to(2))), dilation.push_back(std::to_string(step));
    pad.push_back(fmt::format("{}:{}", lo, hi)), mode.push_back(one_of(kModes));
    if (axis == 0 && random() % 3 == 0) cache = std::min((taps - 1) * step, extent - 1);
  }
  const std::string y = one_of(kY);
  std::string text = fmt::format(
      "conv x={} w={} y={} n={} c={} in={} k={} kernel={} stride={} pad={} pad_mode={} dilation={} groups={} "
      "x_layout={} "
      "y_layout={} w_layout={} cache={} alpha={}{}",
      one_of(kX), one_of(kW), y, to(3), c, fmt::join(in, "x"), k, fmt::join(kernel, "x"), fmt::join(stride, "x"),
      fmt::join(pad, "x"), fmt::join(mode, "x"), fmt::join(dilation, "x"), groups, one_of(kLayouts), one_of(kLayouts),
      random() % 2 ? "ktrsc" : "kctrs", cache, random() % 2 ? "1" : "0.375", one_of(kActs));
  if (random() % 2) text += fmt::format(" bias={}", one_of(kFloats));
  if (random() % 2) text += fmt::format(" residual={} beta=0.5", one_of(kFloats));
  if (y == "int8" || y == "e4m3") text += " y_scale=0.25";
  return text;
}

}  // namespace

TEST_CASE("the CPU's reference computes whatever a conv may be") {
  for (const char* text :
       {"conv x=bf16 w=bf16 y=bf16 n=1 c=16 in=4x9x11 k=24 kernel=3 pad=0x1x1",
        "conv x=f32 w=f32 y=f32 n=2 c=6 in=9x7 k=10 kernel=3 stride=2 pad=1 groups=2 bias=f32 act=gelu x_layout=ncdhw "
        "y_layout=ncdhw w_layout=kctrs",
        "conv x=f32 w=f16 y=f32 n=1 c=3 in=40 k=70 kernel=5 dilation=2 pad=3:1 pad_mode=reflect",
        "conv x=f16 w=nvfp4 y=f16 n=1 c=16 in=3x5x5 k=8 kernel=2 cache=1 global=div pad=0:0x1x1 pad_mode=replicate "
        "residual=f16 beta=0.5",
        "conv x=bf16 w=bf16 y=f32 n=2 c=5 in=6x4x4 k=7 kernel=3x1x2 cache=2 x_layout=ncdhw residual=bf16 "
        "y_layout=ncdhw",
        "conv x=sign_row w=signbit_row y=f32 n=1 c=16 in=9 k=8 kernel=3 pad=1",
        "conv x=bf16 w=bf16 y=bf16 n=1 c=20 in=9x9 k=8 kernel=3 pad=1 quant_act=e2m1/16",
        "conv x=f32 w=f32 y=f32 n=1 c=12 in=7x5 k=9 groups=3 kernel=3 pad=1 quant_act=e2m1/32 w_layout=kctrs",
        "conv x=bf16 w=q4_0 y=int8 y_scale=0.2 n=1 c=32 in=9x9 k=8 kernel=3 pad=1 pad_mode=reflect dilation=2 "
        "quant_act=e2m1/16 order=trsc",
        "conv x=e4m3_tensor w=e4m3_row y=e4m3 n=1 c=24 in=17 k=24 groups=24 kernel=5 global=mul",
        "conv x=e4m3_tensor w=e5m2_tensor y=e5m2 n=1 c=4 in=7 k=5 kernel=3 global=div",
        "conv x=int8 w=int8 y=f32 n=3 c=11 in=7x6 k=130 kernel=2 accum=full alpha=0.25",
        "conv x=int8_tensor w=int4_row y=bf16 n=1 c=8 in=20 k=4 kernel=1 stride=3 global=mul"})
    check_reference(text);
}

TEST_CASE("what no CPU computes of a conv is refused with a reason") {
  const Family& reference = family("conv", "cpu_reference");
  const Problem tiles = Problem::parse("conv x=bf16 w=int4_g64 y=bf16 n=1 c=64 in=8x8 k=64 kernel=1 pack=tiles");
  CHECK(reference.why_not(tiles, host_arch()).find("tiles") != std::string::npos);
  CHECK(reference.why_not(Problem::parse("conv x=f32 w=f32 y=f32 n=1 c=4 in=8 k=4 kernel=1"), arch("sm_90a")) ==
        "for CPUs");
  // Weights stay as they are.
  CHECK(!tiles.operation().packed(Problem::parse("conv x=bf16 w=int4_g64 y=bf16 n=1 c=64 in=8x8 k=64 kernel=1"),
                                  host_arch()));
}

TEST_CASE("random convolutions: compiled and built-in kernels are right and give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(31);
  for (int i = 0; i < 120; ++i) {
    Operands o(random_conv(random));
    CHECK(check_columns(o, random) >= 2);
  }
}

TEST_CASE("convolutions of more tiles, panels and parts than a block has") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(37);
  for (const char* text : {"conv x=f32 w=f32 y=f32 n=2 c=64 in=20x20 k=400 kernel=3 pad=1 bias=f32",
                           "conv x=bf16 w=f16 y=bf16 n=1 c=130 in=700 k=33 kernel=3 stride=2 pad=1 y_layout=ncdhw",
                           "conv x=f32 w=f32 y=f32 n=1 c=66 in=9x40 k=66 kernel=3 groups=33 x_layout=ncdhw",
                           "conv x=f16 w=f16 y=f16 n=1 c=300 in=1 k=70 kernel=1"}) {
    Operands o(text);
    check_columns(o, random);
  }
}

TEST_CASE("depthwise convolutions have a kernel of their own, with the bits of the other") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(41);
  const Family& depthwise = family("conv", "cpu_depthwise");
  for (const char* text :
       {"conv x=f32 w=f32 y=f32 n=2 c=32 in=9x8 k=32 groups=32 kernel=3 pad=1 bias=f32 act=relu",
        "conv x=bf16 w=bf16 y=bf16 n=1 c=144 in=11x13 k=144 groups=144 kernel=5 stride=2 pad=2 residual=bf16",
        "conv x=f16 w=f32 y=f32 n=3 c=16 in=50 k=16 groups=16 kernel=7 dilation=2 pad=6:3 pad_mode=reflect",
        "conv x=int8 w=int8_row y=int8 y_scale=8 n=1 c=48 in=3x6x6 k=48 groups=48 kernel=3x3x2 pad=1 "
        "pad_mode=zeroxreplicatexzero",
        "conv x=f32 w=f16 y=f16 n=1 c=208 in=8x8 k=208 groups=208 kernel=8 y_layout=ncdhw w_layout=kctrs"}) {
    Operands o(text);
    CHECK(check_columns(o, random, {&depthwise, &columns()}) > 3);
  }
  const auto why = [&](const char* rest) {
    return depthwise.why_not(Problem::parse(fmt::format("conv x=f32 w=f32 y=f32 n=1 in=9x9 {}", rest)), host_arch());
  };
  CHECK(why("c=32 k=32 kernel=3").find("not a depthwise") == 0);
  CHECK(why("c=32 k=64 groups=32 kernel=3").find("not a depthwise") == 0);
  CHECK(why("c=24 k=24 groups=24 kernel=3") == "c=24 is no multiple of 16");
  CHECK(why("c=32 k=32 groups=32 kernel=3 x_layout=ncdhw").find("x_layout") == 0);
  CHECK(why("c=32 k=32 groups=32 kernel=3 cache=1") == "cache");
  CHECK(why("c=32 k=32 groups=32 kernel=9 ") == "81 taps are more than 64");
}

// What the kernels are to give, bit for bit: columns tap by tap in parts of 64, as a gemm's, zeros for padding.
TEST_CASE("products of a convolution are summed in the stated order") {
  TILEWRIGHT_NEEDS_KERNELS();
  const std::int64_t c = 24, k = 19, in = 11, taps = 5;
  for (const char* layout : {"ktrsc", "kctrs"}) {
    Operands o(
        fmt::format("conv x=f32 w=f16 y=f32 n=1 c={} in={} k={} kernel={} pad=2 w_layout={}", c, in, k, taps, layout));
    const std::vector<float> x = decoded(matrix(o.task, "x"), o.spans), w = decoded(matrix(o.task, "w"), o.spans);
    std::vector<float> wanted;
    for (std::int64_t pixel = 0; pixel < in; ++pixel)
      for (std::int64_t row = 0; row < k; ++row) {
        float all = 0;
        for (std::int64_t first = 0; first < taps * c; first += 64) {
          float part = 0;
          for (std::int64_t i = first; i < std::min(first + 64, taps * c); ++i) {
            const std::int64_t tap = i / c, channel = i % c, at = pixel + tap - 2;
            const auto weight = layout[1] == 't' ? i : channel * taps + tap;
            part = std::fma(w[static_cast<std::size_t>(row * taps * c + weight)],
                            at < 0 || at >= in ? 0.0f : x[static_cast<std::size_t>(at * c + channel)], part);
          }
          all += part;
        }
        wanted.push_back(all);
      }
    const Source source =
        columns().source(o.problem, host_arch(), columns().candidates(o.problem, host_arch()).front());
    const std::vector<std::byte> y =
        o.run(Device::open_cpu({.threads = 2, .parallel_for = {}}), compile(source, host_arch(), llvm()));
    CHECK(std::memcmp(y.data(), wanted.data(), y.size()) == 0);
  }
}

TEST_CASE("every CPU's text of a convolution compiles") {
  for (const Arch& target : cpu_archs()) {
    const Problem problem = Problem::parse(
        "conv x=bf16 w=f16 y=int8 y_scale=2 n=2 c=12 in=3x9x9 k=40 kernel=2x3x3 groups=2 cache=1 pad=0x1x1 "
        "pad_mode=zeroxreplicatexreflect bias=bf16 residual=f16 act=gelu y_layout=ncdhw");
    INFO(target.name);
    if (!target.cpu->vector_bytes) {
      CHECK(columns().why_not(problem, target).find("lacks AVX2") != std::string::npos);
      continue;
    }
    const std::vector<Candidate> all = columns().candidates(problem, target);
    REQUIRE(!all.empty());
    for (std::size_t i = 0; i < all.size(); i += 5) {
      INFO(all[i].text());
      CHECK(!compile(columns().source(problem, target, all[i]), target, llvm()).image.empty());
    }
  }
}

TEST_CASE("what columns are not for is refused with a reason") {
  const auto why = [](const char* rest) {
    return columns().why_not(Problem::parse(fmt::format("conv n=1 c=32 in=8x8 k=4 kernel=3 {}", rest)), host_arch());
  };
  TILEWRIGHT_NEEDS_KERNELS();
  CHECK(why("x=e4m3 w=e4m3 y=f32") == "x=e4m3 is not f32, f16, bf16 or int8");
  CHECK(why("x=f16 w=q4_0 y=f32") == "w=q4_0 is not f32, f16, bf16, int8 or int8_row");
  CHECK(why("x=int8 w=int8_row y=f32") == "");
  CHECK(why("x=f16 w=f16 y=f32 quant_act=e2m1/16").find("quant_act") == 0);
  CHECK(why("x=f16 w=f16 y=f32") == "");
}
