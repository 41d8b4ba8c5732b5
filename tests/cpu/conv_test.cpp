// SPDX-License-Identifier: Apache-2.0
// Convolutions on the CPU: every candidate against the oracle on the host, with one thread and with three.
#include <tilewright/conv.h>
#include <tilewright/family.h>
#include <tilewright/pack.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cpu_test.h"
#include "operands.h"
#include "templates/common/describe.h"
#include "templates/operations/conv/conv.h"

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

// Every candidate's built-in kernel and some compiled ones, with one to four threads: right, and the same bits, which
// are those of `bits` if it has any, and are there in the end. Returns how many kernels ran.
int check_columns(Operands& o, std::mt19937& random, const std::vector<const Family*>& families,
                  std::vector<std::byte>& bits) {
  INFO(o.problem.text());
  std::vector<Candidate> all;
  for (const Family* f : families) {
    REQUIRE(f->why_not(o.problem, host_arch()) == "");
    for (const Candidate& c : f->candidates(o.problem, host_arch())) all.push_back(c);
  }
  REQUIRE(!all.empty());
  const std::size_t some[] = {random() % all.size(), random() % all.size(), 0};
  int kernels = 0, built = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Source source = family("conv", all[i].family).source(o.problem, host_arch(), all[i]);
    std::vector<Binary> binaries;
    if (source.host) binaries.push_back(built_in(source, host_arch())), ++built;
    if (std::find(std::begin(some), std::end(some), i) < std::end(some))
      binaries.push_back(compile(source, host_arch(), llvm()));
    for (const Binary& binary : binaries) {
      const int threads = 1 + kernels % 4;
      INFO(all[i].text() << ", " << threads << " threads" << (binary.host ? ", built in" : ""));
      const std::vector<std::byte> y = o.run(Device::open_cpu({.threads = threads, .parallel_for = {}}), binary);
      if (kernels++ == 0) REQUIRE(o.wrong() == "");
      if (bits.empty()) bits = y;
      REQUIRE(y == bits);
    }
  }
  CHECK(built > 0);
  return kernels;
}
int check_columns(Operands& o, std::mt19937& random, const std::vector<const Family*>& families = {&columns()}) {
  std::vector<std::byte> bits;
  return check_columns(o, random, families, bits);
}

// The same operands, but for w, which is packed in panels.
void pack(const Operands& plain, Operands& packed) {
  REQUIRE(plain.spans.size() == packed.spans.size());
  const Gemm g = conv::as_gemm(*packed.problem.as<Conv>());
  for (std::size_t i = 0; i < plain.spans.size(); ++i) {
    const Buffer& b = packed.task.buffers[i];
    REQUIRE(plain.task.buffers[i].name == b.name);
    if (b.name == "w.data")
      pack_weights(g, {plain.spans[i].data(), nullptr, nullptr}, {packed.spans[i].data(), nullptr, nullptr});
    else if (!b.output)
      std::copy(plain.spans[i].begin(), plain.spans[i].end(), packed.spans[i].begin());
  }
}

// A problem with w in panels has the bits of w as it is.
int check_packed(const std::string& text, std::mt19937& random) {
  Operands plain(text), packed(text + " pack=panels");
  INFO(packed.problem.text());
  CHECK(plain.problem.operation().packed(plain.problem, host_arch()) == packed.problem);
  pack(plain, packed);
  std::vector<std::byte> bits;
  return check_columns(plain, random, {&columns()}, bits) + check_columns(packed, random, {&columns()}, bits);
}

// A legal problem: some number of axes, groups, paddings, layouts, and what follows the sums. packable: of floats that
// have panels.
std::string random_conv(std::mt19937& random, bool packable = false) {
  const auto to = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  const auto element = [&](auto&& list) { return list[random() % (packable ? 3 : std::size(list))]; };
  static constexpr const char *kFloats[] = {"f32", "f16", "bf16"}, *kX[] = {"f32", "f16", "bf16", "int8"},
                              *kW[] = {"f32", "f16", "bf16", "int8", "int8_row"},
                              *kModes[] = {"zero", "replicate", "reflect"}, *kLayouts[] = {"ndhwc", "ncdhw"},
                              *kActs[] = {"", " act=relu", " act=gelu", " act=silu"},
                              *kY[] = {"f32", "f16", "bf16", "int8", "e4m3"};
  const std::int64_t rank = to(3), groups = packable || random() % 3 ? 1 : to(4),
                     c = groups * to(random() % 2 ? 9 : 90),
                     k = packable ? 16 * to(6) : groups * to(random() % 2 ? 70 : 20);
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
      element(kX), element(kW), y, to(3), c, fmt::join(in, "x"), k, fmt::join(kernel, "x"), fmt::join(stride, "x"),
      fmt::join(pad, "x"), fmt::join(mode, "x"), fmt::join(dilation, "x"), groups, one_of(kLayouts), one_of(kLayouts),
      packable || random() % 2 ? "ktrsc" : "kctrs", cache, random() % 2 ? "1" : "0.375", one_of(kActs));
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
        "conv x=int8_tensor w=int4_row y=bf16 n=1 c=8 in=20 k=4 kernel=1 stride=3 global=mul",
        "conv x=f16 w=f32 y=f32 n=1 c=7 in=9x8 k=80 kernel=3 pad=1 pack=panels",
        "conv x=f32 w=f16 y=f16 n=2 c=5 in=40 k=16 kernel=5 dilation=2 pack=panels y_layout=ncdhw",
        "conv x=bf16 w=bf16 y=bf16 n=1 c=21 in=9x9 k=32 kernel=3 pad=1 quant_act=e2m1/16 pack=panels"})
    check_reference(text);
}

TEST_CASE("what no CPU computes of a conv is refused with a reason") {
  const Family& reference = family("conv", "cpu_reference");
  const Problem tiles = Problem::parse("conv x=bf16 w=int4_g64 y=bf16 n=1 c=64 in=8x8 k=64 kernel=1 pack=tiles");
  CHECK(reference.why_not(tiles, host_arch()).find("tiles") != std::string::npos);
  CHECK(reference.why_not(Problem::parse("conv x=f32 w=f32 y=f32 n=1 c=4 in=8 k=4 kernel=1"), arch("sm_90a")) ==
        "its kernels are for CPUs");
  CHECK(family("conv", "cpu_columns").why_not(tiles, host_arch()).find("tiles") != std::string::npos);
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

TEST_CASE("random convolutions of weights in panels: the same bits as of weights as they are") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(43);
  for (int i = 0; i < 60; ++i) CHECK(check_packed(random_conv(random, true), random) >= 4);
}

// Of bf16, whose panels have pairs: the last one alone in its part or not, for more tiles and panels than a block has.
TEST_CASE("odd numbers of columns of weights in panels") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(47);
  for (const char* w : {"f32", "f16", "bf16"})
    for (const char* rest : {"c=1 in=9 k=16 kernel=1", "c=5 in=9x9 k=48 kernel=3 pad=1", "c=65 in=50 k=80 kernel=1",
                             "c=127 in=13x11 k=400 kernel=3 stride=2 pad=1 pad_mode=reflectxreplicate",
                             "c=129 in=30 k=32 kernel=3 cache=2 x_layout=ncdhw y_layout=ncdhw bias=f32"})
      check_packed(fmt::format("conv x={} w={} y=f32 n=2 {}", random() % 2 ? "f32" : "bf16", w, rest), random);
}

// What stood in the place of the zero behind an odd number of columns is multiplied by nothing: here an infinity of the
// part before.
TEST_CASE("a zero stands behind an odd number of columns") {
  TILEWRIGHT_NEEDS_KERNELS();
  const std::string text = "conv x=f32 w=bf16 y=f32 n=1 c=129 in=30 k=32 kernel=1";
  Operands plain(text), packed(text + " pack=panels");
  for (std::size_t pixel = 0; pixel < 30; ++pixel)
    reinterpret_cast<float*>(plain.spans[0].data())[129 * pixel + 65] = std::numeric_limits<float>::infinity();
  pack(plain, packed);
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  const auto source = [&](const Operands& o, const Candidate& c) {
    return columns().source(o.problem, host_arch(), c);
  };
  std::vector<std::byte> bits;
  for (const Candidate& c : columns().candidates(plain.problem, host_arch())) {
    INFO(c.text());
    if (bits.empty()) bits = plain.run(device, compile(source(plain, c), host_arch(), llvm()));
    if (const Source s = source(packed, c); s.host) CHECK(packed.run(device, built_in(s, host_arch())) == bits);
    if (c.at("tiles") == 1) CHECK(packed.run(device, compile(source(packed, c), host_arch(), llvm())) == bits);
  }
  const float* const y = reinterpret_cast<const float*>(bits.data());
  CHECK(std::all_of(y, y + 30 * 32, [](float v) { return std::isinf(v); }));
}

TEST_CASE("weights in panels are for one group of floats, whole panels, on CPUs with kernels") {
  const std::string base = "conv n=1 c=32 in=8x8 kernel=3 pack=panels y=f32 ";
  CHECK(refused(base + "x=f16 w=f16 k=32 groups=2") ==
        "pack=panels is not supported for channels in groups; leave it out");
  CHECK(refused(base + "x=f16 w=f16 k=32 w_layout=kctrs") == "w_layout must be ktrsc (got kctrs): w is packed");
  CHECK(refused(base + "x=f16 w=f16 k=40") == "k must be a multiple of 16, the rows of a panel (got 40)");
  CHECK(refused(base + "x=f16 w=q4_0 k=32") == "w must be f32, f16 or bf16 with pack=panels (got q4_0)");
  CHECK(refused(base + "x=int8 w=int8 k=32") == "w must be f32, f16 or bf16 with pack=panels (got int8)");
  CHECK(refused(base + "x=int8 w=f32 k=32") ==
        "pack=panels is not supported: panels of w=f32 are for x=f32, f16 or bf16, not x=int8");
  const Operation& op = Problem::parse(base + "x=f16 w=f16 k=32").operation();
  const auto packed = [&](const char* rest, const Arch& target) {
    return op.packed(Problem::parse(fmt::format("conv n=1 c=32 in=8x8 kernel=3 y=f32 {}", rest)), target);
  };
  CHECK(!packed("x=f16 w=f16 k=32", cpu_archs().front()));
  TILEWRIGHT_NEEDS_KERNELS();
  REQUIRE(packed("x=bf16 w=f16 k=32", host_arch()));
  // Of many pixels, widening w once a launch takes less time than once a tile.
  const auto many = [&](const char* w) {
    return op.packed(Problem::parse(fmt::format("conv x=f32 w={} y=f32 n=1 c=32 in=40x40 k=32 kernel=3", w)),
                     host_arch());
  };
  CHECK(many("f32"));
  CHECK(!many("f16"));
  const Problem problem = *packed("x=bf16 w=f16 k=32", host_arch());
  CHECK(problem.text() == "conv x=bf16 w=f16 y=f32 n=1 c=32 in=8x8 k=32 kernel=3x3 pack=panels");
  CHECK(!op.packed(problem, host_arch()));
  for (const char* rest :
       {"x=f16 w=f16 k=32 groups=32", "x=f16 w=f16 k=32 w_layout=kctrs", "x=f16 w=f16 k=40", "x=f16 w=q4_0 k=32",
        "x=int8 w=f32 k=32", "x=f16 w=int8_row k=32", "x=f16 w=f16 k=32 quant_act=e2m1/16"}) {
    INFO(rest);
    CHECK(!packed(rest, host_arch()));
  }
  const Problem plain = Problem::parse("conv n=1 c=32 in=8x8 kernel=3 y=f32 x=bf16 w=f16 k=32");
  CHECK(op.recommended(plain, host_arch()).front().field == "pack=panels");
  CHECK(op.recommended(problem, host_arch()).empty());
  CHECK(op.repack(problem)->problem.text() == "pack w=f16 x=bf16 n=32 k=288 order=panels");
  // No first phase, no scratch memory, and less to move.
  for (const Candidate& c : columns().candidates(problem, host_arch())) {
    const Source source = columns().source(problem, host_arch(), c);
    CHECK(source.plan.cpu->first_blocks.blocks(64, 32) == 0);
    CHECK(source.plan.cpu->scratch.blocks(64, 32) == 0);
    CHECK(source.text.find("_first") == std::string::npos);
    CHECK((!source.host || !source.host->first));
    CHECK(columns().traits(problem, host_arch(), c).global_bytes <
          columns().traits(plain, host_arch(), c).global_bytes);
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
  CHECK(why("c=32 k=32 kernel=3").find("the problem is not a depthwise") == 0);
  CHECK(why("c=32 k=64 groups=32 kernel=3").find("the problem is not a depthwise") == 0);
  CHECK(why("c=24 k=24 groups=24 kernel=3") == "c must be a multiple of 16 (got 24)");
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
  for (const Arch& target : cpu_archs())
    for (const char* text :
         {"conv x=bf16 w=f16 y=int8 y_scale=2 n=2 c=12 in=3x9x9 k=40 kernel=2x3x3 groups=2 cache=1 pad=0x1x1 "
          "pad_mode=zeroxreplicatexreflect bias=bf16 residual=f16 act=gelu y_layout=ncdhw",
          "conv x=f16 w=f16 y=f32 n=1 c=12 in=20x9 k=80 kernel=3 pack=panels",
          "conv x=f32 w=bf16 y=f32 n=1 c=13 in=20x9 k=80 kernel=3 pack=panels"}) {
      const Problem problem = Problem::parse(text);
      INFO(target.name << ": " << text);
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
