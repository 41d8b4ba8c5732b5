// SPDX-License-Identifier: Apache-2.0
// The operation conv: its text, what it refuses, output extents, the contract, and the host's two ways of computing it.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/conv.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/fake_quant.h"
#include "support/refusal.h"
#include "templates/operations/conv/conv.h"

using namespace tilewright;

namespace {

constexpr const char* kSmall = "conv x=bf16 w=bf16 y=bf16 n=1 c=16 in=4x9x11 k=24 kernel=3x3x3";

std::string canonical(const std::string& text) { return Problem::parse(text).text(); }
Axes extents(const std::string& text) { return output_extents(*Problem::parse(text).as<Conv>()); }

}  // namespace

TEST_CASE("conv: one value stands for all axes, defaults are not printed", "[conv]") {
  const std::string base = "conv x=f16 w=f16 y=f32 n=2 c=8 in=5x6x7 k=8 kernel=3x3x3";
  CHECK(canonical("conv x=f16 w=f16 y=f32 n=2 c=8 in=5x6x7 k=8 kernel=3") == base);
  CHECK(canonical(base + " stride=1 pad=0 dilation=1x1x1 pad_mode=zero groups=1 cache=0") == base);
  CHECK(canonical(base + " pad=1") == base + " pad=1x1x1");
  CHECK(canonical(base + " pad=2:0x1x1") == base + " pad=2:0x1x1");
  CHECK(canonical(base + " stride=2") == base + " stride=2x2x2");
  CHECK(canonical(base + " pad=2:0x1x1 pad_mode=replicatexzeroxzero") ==
        base + " pad=2:0x1x1 pad_mode=replicatexzeroxzero");
  CHECK(canonical(base + " pad=0x1x1 pad_mode=reflect") == base + " pad=0x1x1 pad_mode=zeroxreflectxreflect");
  CHECK(canonical(base + " pad_mode=reflect") == base);  // there is no padding
  CHECK(canonical("conv x=f16 w=f16 y=f32 n=2 c=8 in=50 k=8 kernel=3 pad=1") ==
        "conv x=f16 w=f16 y=f32 n=2 c=8 in=50 k=8 kernel=3 pad=1");
  CHECK(Problem::parse(base + " pad=1") == Problem::parse(base + " pad=1:1x1:1x1"));
  CHECK(canonical(base + " order=ctrs quant_act=e2m1/32") == base + " quant_act=e2m1/32");
  CHECK(canonical(base + " order=trsc quant_act=e2m1/256") == base + " quant_act=e2m1/256 order=trsc");
  CHECK(canonical("conv x=f16 w=f16 y=f32 n=2 c=8 in=50 k=8 kernel=1 pad=1 quant_act=e2m1/16 order=trsc") ==
        "conv x=f16 w=f16 y=f32 n=2 c=8 in=50 k=8 kernel=1 pad=1 quant_act=e2m1/16");  // of one tap, both are the same
  // A struct says the same.
  const Format f16 = Format::parse("f16");
  Conv c{.x = f16, .w = f16, .y = Format::parse("f32"), .n = 2, .c = 8, .in = {5, 6, 7}, .k = 8, .kernel = 3};
  c.pad = Pads({2, 1, 1}, {0, 1, 1});
  c.pad_mode = PadMode::replicate;
  CHECK(Problem(c).text() == base + " pad=2:0x1x1 pad_mode=replicatexreplicatexreplicate");
  c.quant_act = {64}, c.order = QuantOrder::trsc;
  CHECK(Problem(c).text() == base + " pad=2:0x1x1 pad_mode=replicatexreplicatexreplicate quant_act=e2m1/64 order=trsc");
  // Problems that differ in n and in are neighbours.
  CHECK(Problem::parse(base).distance(Problem::parse("conv x=f16 w=f16 y=f32 n=4 c=8 in=5x6x14 k=8 kernel=3")) == 2);
  CHECK(Problem::parse(base).distance(Problem::parse("conv x=f16 w=f16 y=f32 n=2 c=16 in=5x6x7 k=8 kernel=3")) < 0);
}

TEST_CASE("conv: output extents", "[conv]") {
  const std::string base = "conv x=f16 w=f16 y=f32 n=1 c=8 k=8 ";
  CHECK(extents(base + "in=5x6x7 kernel=3") == Axes(3, 4, 5));
  CHECK(extents(base + "in=6x480x832 kernel=3 pad=0x1x1") == Axes(4, 480, 832));
  CHECK(extents(base + "in=10x9 kernel=3 stride=2 pad=1") == Axes(5, 5));
  CHECK(extents(base + "in=10x9 kernel=3 stride=2 pad=0:1") == Axes(5, 4));
  CHECK(extents(base + "in=17 kernel=3 dilation=4") == Axes(9));
  CHECK(extents(base + "in=3x3x3 kernel=3x1x1 stride=5") == Axes(1, 1, 1));
  const Problem p = Problem::parse(base + "in=10x9 kernel=3 stride=2 pad=1");
  CHECK(p.rows() == 25);
  CHECK(p.cols() == 8);
  CHECK(p.fixed_rows());
  CHECK(p.ops() == 2.0 * 25 * 8 * 9 * 8);
}

TEST_CASE("conv: sizes with about as many output pixels are in one bucket", "[conv]") {
  const std::string base = "conv x=f16 w=f16 y=f32 c=8 k=8 kernel=3 pad=0x1x1 ";
  const auto of_size = [&](const std::string& size) { return Problem::parse(base + size); };
  const Problem chunk = of_size("n=1 in=6x4x8");
  CHECK(chunk.rows() == 128);
  CHECK(chunk.size_bucket() == 128);
  CHECK(of_size("n=1 in=7x4x8").size_bucket() == 256);
  CHECK(chunk.same_size_bucket(of_size("n=1 in=5x4x8")));
  CHECK(chunk.same_size_bucket(of_size("n=2 in=4x4x8")));
  CHECK_FALSE(chunk.same_size_bucket(of_size("n=1 in=7x4x8")));
  CHECK_FALSE(chunk.same_size_bucket(of_size("n=1 in=4x4x8")));
  CHECK_FALSE(chunk.same_size_bucket(of_size("n=1 in=6x4x8 bias=f32")));
  const Problem gemm = Problem::parse("gemm x=f16 w=f16 y=f16 m=16 n=64 k=64");
  CHECK(gemm.size_bucket() == 0);
  CHECK_FALSE(gemm.same_size_bucket(gemm));
}

TEST_CASE("conv: what it refuses, by name", "[conv]") {
  const std::string base = "conv x=bf16 w=bf16 y=bf16 n=1 c=16 k=24 ";
  const std::string cube = base + "in=4x9x11 kernel=3x3x3 ";
  CHECK_NOTHROW(Problem::parse(kSmall));
  CHECK(refused(base + "kernel=3").starts_with("in is required"));
  CHECK(refused(base + "in=4x9x11x2 kernel=3") ==
        "in must have values for one to three axes, with x between them (got 4x9x11x2)");
  CHECK(refused(base + "in=4x9x11 kernel=3x3") ==
        "kernel must have one value or 3, as many as in has extents (got 3x3)");
  CHECK(refused(cube + "stride=1x2") == "stride must have one value or 3, as many as in has extents (got 1x2)");
  CHECK(refused(cube + "pad=1x1") == "pad must have one value or 3, as many as in has extents (got 1x1)");
  CHECK(refused(cube + "pad_mode=zeroxzero").starts_with("pad_mode must have one value or 3"));
  CHECK(refused(cube + "pad=1x1xa").starts_with("pad must be an integer"));
  CHECK(refused(cube + "pad=-1").starts_with("pad must be 0 to"));
  CHECK(refused(cube + "pad_mode=mirror").starts_with("pad_mode must be "));
  CHECK(refused(cube + "stride=0").starts_with("stride must be 1 to"));
  CHECK(refused(cube + "dilation=0x1x1").starts_with("dilation must be 1 to"));
  CHECK(refused(base + "in=4x0x11 kernel=1").starts_with("in must be 1 to"));
  CHECK(refused(base + "in=4x9x11 kernel=0").starts_with("kernel must be 1 to"));
  CHECK(refused(base + "in=2x9x11 kernel=3") ==
        "kernel must not be longer than the padded input (got 3x3x3): axis 0 of in=2x9x11 has 2 elements with its "
        "padding, and the "
        "kernel spans 3");
  CHECK(refused(base + "in=9 kernel=3 dilation=2147483647").starts_with("kernel must not be longer than"));
  CHECK(refused(cube + "groups=3") == "groups must be a divisor of c=16, which the groups share evenly (got 3)");
  CHECK(refused(cube + "groups=16") == "groups must be a divisor of k=24, which the groups share evenly (got 16)");
  CHECK(refused(cube + "groups=-8").starts_with("groups must be "));
  CHECK(refused(base + "in=4x3x11 kernel=1 pad=0x3x0 pad_mode=reflect") ==
        "pad must be less than the axis' extent with pad_mode=reflect, and in=4x3x11 (got 0x3x0)");
  CHECK(refused(cube + "cache=3").starts_with("cache must be 0 to 2 (got 3): "));
  CHECK_NOTHROW(Problem::parse(cube + "cache=2"));
  CHECK(refused(base + "in=2x9x11 kernel=3x1x1 pad=1x0x0 cache=2").starts_with("cache must be 0 to 1 (got 2): "));
  CHECK(refused("conv x=q8_1 w=bf16 y=bf16 n=1 c=32 in=9 k=24 kernel=3").starts_with("x must be f32, f16"));
  CHECK(refused("conv x=e4m3_row w=e4m3 y=bf16 n=1 c=32 in=9 k=24 kernel=3").starts_with("x must be "));
  CHECK(refused("conv x=bf16 w=e4m3_b128 y=bf16 n=1 c=128 in=9 k=128 kernel=1").starts_with("w must be "));
  CHECK(refused("conv x=int8 w=int8_asym_row y=bf16 n=1 c=128 in=9 k=128 kernel=1").starts_with("w must be "));
  CHECK(refused("conv x=bf16 w=q4_0 y=bf16 n=1 c=24 in=9 k=8 kernel=3") ==
        "c=24 is not supported: 3 kernel elements of 24 channels are a row of w=q4_0, whose blocks have 32 elements");
  CHECK(refused("conv x=bf16 w=q4_0 y=bf16 n=1 c=32 in=9 k=8 kernel=3 w_layout=kctrs") ==
        "w_layout must be ktrsc (got kctrs): w=q4_0 has blocks of 32");
  CHECK(refused(cube + "residual=int8").starts_with("residual must be f32, f16 or bf16"));
  CHECK(refused(cube + "beta=2") == "beta must be left out (got 2): the problem has no residual");
  CHECK(refused(cube + "y_scale=2").starts_with("y_scale must be left out"));
  CHECK(refused(cube + "accum=fast").starts_with("accum=fast is only supported for fp8"));
  CHECK(refused(cube + "global=mul").starts_with("global must be left out"));
  CHECK(refused("conv x=int8_tensor w=int8_row y=bf16 n=1 c=32 in=9 k=8 kernel=3").starts_with("global must be mul"));
  CHECK(refused(cube + "quant_act=e2m1/24") == "quant_act must be e2m1/ and one of 16, 32, 64, 128, 256 (got e2m1/24)");
  CHECK(refused(cube + "quant_act=e2m1/8").starts_with("quant_act must be e2m1/ and one of 16,"));
  CHECK(refused(cube + "quant_act=e2m1/0") == "quant_act must have a block of at least one element (got e2m1/0)");
  CHECK(refused(cube + "quant_act=e2m1/-16") == "quant_act must have a block of at least one element (got e2m1/-16)");
  CHECK(refused(cube + "quant_act=e2m1/x").starts_with("quant_act must be an integer"));
  CHECK(refused(cube + "quant_act=e4m3/16") ==
        "quant_act must be e2m1/ and the elements of a block, as in e2m1/16 (got e4m3/16)");
  CHECK(refused(cube + "quant_act=16").starts_with("quant_act must be e2m1/ and the elements of a block"));
  CHECK(refused(cube + "order=trsc") == "order must be left out (got trsc): the problem has no quant_act");
  CHECK(refused(cube + "quant_act=e2m1/16 order=cthw").starts_with("order must be "));
  CHECK(refused("conv x=int8 w=int8_row y=bf16 n=1 c=32 in=9 k=8 kernel=3 quant_act=e2m1/16") ==
        "quant_act e2m1/16 is only supported for f32, f16 and bf16, and x=int8; leave it out");
  CHECK(refused("conv x=e4m3 w=e4m3 y=bf16 n=1 c=32 in=9 k=8 kernel=3 quant_act=e2m1/16")
            .starts_with("quant_act e2m1/16 is only supported for "));
  CHECK(refused("conv x=int8 w=int8 y=int32 n=1 c=32 in=9 k=8 kernel=3").starts_with("y must be "));
  CHECK(refused("conv x=bf16 w=bf16 y=bf16 n=2147483647 c=2147483647 in=2147483647x2147483647x2147483647 k=8 kernel=1")
            .starts_with("x must have at most 2^47 bytes"));
}

TEST_CASE("conv: a launch is checked by the names of its arguments", "[conv]") {
  const Problem p = Problem::parse(
      "conv x=int8_tensor w=int8_row y=bf16 n=2 c=8 in=5x9 k=8 kernel=2x3 pad=0x1 cache=1 "
      "global=mul bias=f32 residual=bf16 workspace=1024");
  const Contract c = conv::operation().contract(p);
  std::string names;
  for (const PointerRule& rule : c.pointers) names += std::string(rule.name) + " ";
  CHECK(names == "x.data x.global w.data w.scales bias residual cache y workspace ");
  CHECK(c.rows == 2 * 4 * 9);
  CHECK(c.cols == 8);
  CHECK(c.factors[1].only_one == nullptr);
  CHECK(conv::operation().contract(Problem::parse(kSmall)).factors[1].only_one != nullptr);
  const Contract quantized = conv::operation().contract(Problem::parse(std::string(kSmall) + " quant_act=e2m1/16"));
  const PointerRule& amax = quantized.pointers.at(2);
  CHECK(std::string(amax.name) == "amax");
  CHECK(amax.required);
  CHECK(amax.offset == offsetof(ConvArgs, amax));
}

TEST_CASE("conv: which ones are pointwise", "[conv]") {
  const auto why = [](const std::string& text) {
    return conv::not_pointwise(*Problem::parse("conv x=f16 w=f16 y=f16 n=2 c=64 k=64 " + text).as<Conv>());
  };
  CHECK(why("in=5x6x7 kernel=1") == "");
  CHECK(why("in=7 kernel=1 dilation=3 w_layout=kctrs") == "");
  CHECK(why("in=1x1 kernel=1 stride=2") == "");
  CHECK(why("in=5x6 kernel=1x3 pad=0x1") == "kernel must be 1 on every axis (got 3)");
  CHECK(why("in=5x6 kernel=1 stride=1x2") == "stride must be 1, and there must be no padding");
  CHECK(why("in=2 kernel=1 stride=2 pad=0:1") ==
        "stride must be 1, and there must be no padding");  // as many as there were
  CHECK(why("in=2 kernel=1 stride=2 pad=1:0") == "stride must be 1, and there must be no padding");
  CHECK(why("in=5 kernel=1 pad=0:1") == "stride must be 1, and there must be no padding");
  CHECK(why("in=5 kernel=1 groups=2") == "groups must be 1 (got 2)");
  CHECK(why("in=5 kernel=1 x_layout=ncdhw") == "x_layout and y_layout must be ndhwc");
  CHECK(why("in=5 kernel=1 y_layout=ncdhw") == "x_layout and y_layout must be ndhwc");
  // Boxes of pixels are for channels that gemm's wgmma does not take.
  const Problem odd = Problem::parse("conv x=f16 w=f16 y=f16 n=2 c=72 in=33x34 k=64 kernel=1"),
                even = Problem::parse("conv x=f16 w=f16 y=f16 n=2 c=128 in=33x34 k=64 kernel=1");
  CHECK(!conv::wgmma().candidates(odd, arch("sm_90a")).empty());
  CHECK(conv::pointwise_wgmma().candidates(odd, arch("sm_90a")).empty());
  CHECK(conv::wgmma().candidates(even, arch("sm_90a")).empty());
}

// Its bound has room for rounding w to x's element where there is a workspace to write it to.
TEST_CASE("conv: the bound of weights that may be rounded", "[conv]") {
  CHECK(conv::written_rounding(Format::parse("int4_g128"), Format::parse("bf16")).value() > 3.9e-3);
  CHECK(conv::written_rounding(Format::parse("int4_g128"), Format::parse("f16")).value() > 4.8e-4);
  for (const char* w : {"nvfp4", "int4_row", "e4m3", "int8_row", "e5m2_tensor"})
    CHECK(conv::written_rounding(Format::parse(w), Format::parse("bf16")).value() == 0);
  CHECK_FALSE(conv::written_rounding(Format::parse("int4_g128"), Format::parse("e4m3")));
  CHECK_FALSE(conv::written_rounding(Format::parse("bf16"), Format::parse("bf16")));
}

TEST_CASE("conv: the host computes what its own check accepts", "[conv]") {
  std::mt19937 random(25);
  const auto pick = [&](auto list) { return list[random() % list.size()]; };
  int made = 0;
  while (made < 60) {
    const int rank = 1 + static_cast<int>(random() % 3);
    const auto axes = [&](std::vector<int> of) {
      std::string text;
      for (int i = 0; i < rank; ++i) text += (i ? "x" : "") + std::to_string(pick(of));
      return text;
    };
    const int groups = pick(std::vector{1, 1, 2, 4});
    const auto [x, w] = pick(std::vector<std::pair<const char*, const char*>>{{"f32", "f32"},
                                                                              {"bf16", "e4m3_row"},
                                                                              {"e4m3", "e4m3"},
                                                                              {"int8", "int8_row"},
                                                                              {"f16", "int4_row"},
                                                                              {"bf16", "bf16"}});
    std::string modes;
    for (int i = 0; i < rank; ++i)
      modes += (i ? "x" : "") + std::string(pick(std::vector{"zero", "replicate", "reflect"}));
    std::string text = fmt::format(
        "conv x={} w={} y={} n={} c={} in={} k={} kernel={} stride={} pad={} pad_mode={} dilation={} "
        "groups={}{}{}{}{}{}{}{}",
        x, w, pick(std::vector{"f32", "bf16", "f16"}), 1 + random() % 3, 4 * groups, axes({3, 5, 8}), 2 * groups,
        axes({1, 2, 3}), axes({1, 1, 2}), axes({0, 1, 2}), modes, axes({1, 1, 2}), groups,
        random() % 3 ? "" : " x_layout=ncdhw", random() % 3 ? "" : " y_layout=ncdhw",
        random() % 3 || std::string(w) == "int4_row" ? "" : " w_layout=kctrs", random() % 3 ? "" : " cache=1",
        random() % 2 ? "" : " bias=f32", random() % 2 ? "" : " act=silu",
        random() % 2 ? "" : " residual=bf16 beta=-0.5");
    const int quantized = static_cast<int>(random() % 6);
    if (quantized < 2) text += fmt::format(" quant_act=e2m1/{}", pick(std::vector{16, 32, 64, 128, 256}));
    if (quantized == 1) text += " order=trsc";
    std::optional<Problem> problem;
    try {
      problem = Problem::parse(text);
    } catch (const Error&) {
      continue;
    }
    ++made;
    INFO(problem->text());
    Task task;
    conv::operation().describe(*problem, task);
    std::vector<std::vector<std::byte>> memory;
    for (const Buffer& b : task.buffers) {
      memory.emplace_back(b.bytes);
      if (b.fill) b.fill(memory.back(), 7);
    }
    std::vector<std::span<std::byte>> buffers(memory.begin(), memory.end());
    conv::operation().run_on_host(*problem, task, buffers);
    const HostCheck good = conv::operation().check_on_host(*problem, task, buffers);
    CHECK(good.wrong.empty());
    CHECK(good.checked == problem->rows() * problem->cols());
    // One output that is another's is found.
    std::vector<std::byte>& y =
        memory[static_cast<std::size_t>(&*std::find_if(task.buffers.begin(), task.buffers.end(), [](const Buffer& b) {
          return b.output;
        }) - task.buffers.data())];
    y.back() ^= std::byte{0x40};  // the exponent's highest bit
    CHECK_FALSE(conv::operation().check_on_host(*problem, task, buffers).wrong.empty());
  }
}

TEST_CASE("conv: the host fake quantizes as the model says", "[conv]") {
  // A pixel's own channels and those of the pixels beside it, of one group of two; zeros in the padding.
  constexpr int kPixels = 40, kChannels = 30, kTaps = 3, kColumns = kTaps * kChannels, kOut = 4;
  for (const int block : {16, 32, 64, 128, 256})
    for (const bool along_channels : {false, true})
      for (const char* layouts : {"", " x_layout=ncdhw", " w_layout=kctrs", " x_layout=ncdhw w_layout=kctrs"}) {
        const Problem problem = Problem::parse(
            fmt::format("conv x=f32 w=f32 y=f32 n=1 c={} in={} k={} kernel={} pad=1 groups=2{} quant_act=e2m1/{}{}",
                        2 * kChannels, kPixels, 2 * kOut, kTaps, layouts, block, along_channels ? " order=trsc" : ""));
        INFO(problem.text());
        const Conv& conv = *problem.as<Conv>();
        Task task;
        conv::operation().describe(problem, task);
        std::vector<std::vector<std::byte>> memory;
        for (const Buffer& b : task.buffers) memory.emplace_back(b.bytes);
        const std::vector<std::span<std::byte>> buffers(memory.begin(), memory.end());
        const auto floats = [&](const char* name) {
          std::span<float> all;
          for (std::size_t i = 0; i < buffers.size(); ++i)
            if (task.buffers[i].name.starts_with(name))
              all = {reinterpret_cast<float*>(buffers[i].data()), buffers[i].size() / sizeof(float)};
          return all;
        };
        const std::span<float> x = floats("x"), w = floats("w"), y = floats("y"), amax = floats("amax");
        REQUIRE(amax.size() == 1);
        amax[0] = 3;
        std::vector<float> values = fake_quant_model::troubled(static_cast<std::int64_t>(x.size()), block, 3, 9);
        std::copy(values.begin(), values.end(), x.begin());
        std::mt19937 random(1);
        for (float& v : w) v = static_cast<float>(static_cast<int>(random() % 9) - 4);
        conv::operation().run_on_host(problem, task, buffers);
        const auto column = [](bool channels_first, int c, int tap) {
          return static_cast<std::size_t>(channels_first ? c * kTaps + tap : tap * kChannels + c);
        };
        int wrong = 0;
        for (int group = 0; group < 2; ++group)
          for (int pixel = 0; pixel < kPixels; ++pixel) {
            std::vector<float> row(kColumns);
            for (int tap = 0; tap < kTaps; ++tap)
              for (int c = 0; c < kChannels; ++c) {
                const int from = pixel + tap - 1, channel = group * kChannels + c;
                if (from < 0 || from >= kPixels) continue;
                row[column(!along_channels, c, tap)] = x[static_cast<std::size_t>(
                    conv.x_layout == TensorLayout::ncdhw ? channel * kPixels + from : from * 2 * kChannels + channel)];
              }
            row = fake_quant_model::fake_quantized(row, along_channels ? kChannels : kColumns, block, 3);
            for (int k = group * kOut; k < (group + 1) * kOut; ++k) {
              double sum = 0, magnitude = 0;
              for (int tap = 0; tap < kTaps; ++tap)
                for (int c = 0; c < kChannels; ++c) {
                  const double product =
                      static_cast<double>(row[column(!along_channels, c, tap)]) *
                      w[static_cast<std::size_t>(k * kColumns) + column(conv.w_layout == FilterLayout::kctrs, c, tap)];
                  sum += product, magnitude += std::fabs(product);
                }
              wrong += !(std::fabs(y[static_cast<std::size_t>(pixel * 2 * kOut + k)] - sum) <= 1e-6 * magnitude);
            }
          }
        CHECK(wrong == 0);
        CHECK(conv::operation().check_on_host(problem, task, buffers).wrong.empty());
      }
}
