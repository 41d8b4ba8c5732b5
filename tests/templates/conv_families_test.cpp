// SPDX-License-Identifier: Apache-2.0
// The families of conv: what each takes, the candidates, launches and tensor maps that it plans.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/conv.h>
#include <tilewright/family.h>
#include <tilewright/problem.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/gemm/cuda/wgmma/schedule.cuh"
#include "templates/operations/gemm/gemm.h"

using namespace tilewright;

TEST_CASE("conv: wgmma's candidates are legal for other sizes whose boxes they fit", "[conv]") {
  const std::string base = "conv x=bf16 w=bf16 y=bf16 c=96 k=96 kernel=3 pad=0x1x1 n=1 in=";
  const Family& wgmma = conv::wgmma();
  const Arch& hopper = arch("sm_90a");
  const Problem chunk = Problem::parse(base + "6x480x832"), other = Problem::parse(base + "5x480x832"),
                narrow = Problem::parse(base + "4x2x3");
  const std::vector<Candidate> own = wgmma.candidates(other, hopper);
  int unlisted = 0, refused = 0;
  for (Candidate c : wgmma.candidates(chunk, hopper)) {
    INFO(c.text());
    CHECK(wgmma.illegal(chunk, hopper, c).empty());
    CHECK(wgmma.illegal(other, hopper, c).empty());
    CHECK(wgmma.source(chunk, hopper, c).text == wgmma.source(other, hopper, c).text);
    unlisted += std::find(own.begin(), own.end(), c) == own.end();
    refused += !wgmma.illegal(narrow, hopper, c).empty();
    c.knobs[0].second = 1000;
    CHECK_FALSE(wgmma.illegal(chunk, hopper, c).empty());
    c.knobs.pop_back();
    CHECK_FALSE(wgmma.illegal(chunk, hopper, c).empty());
  }
  CHECK(unlisted > 0);
  CHECK(refused > 0);
}

TEST_CASE("conv: what mma takes, and how it gathers x", "[conv]") {
  const auto why_not = [](const std::string& text, const char* target = "sm_80") {
    return conv::mma().why_not(Problem::parse("conv " + text), arch(target));
  };
  // The constants of a generated source that differ from zero.
  const auto gathers = [](const std::string& text) {
    const Problem p = Problem::parse("conv " + text);
    const Arch& target = arch("sm_80");
    const std::vector<Candidate> candidates = conv::mma().candidates(p, target);
    if (candidates.empty()) return std::string("nothing");
    for (const Candidate& c : candidates) {
      CHECK(conv::mma().illegal(p, target, c).empty());
      const Traits t = conv::mma().traits(p, target, c);
      const Source source = conv::mma().source(p, target, c);
      CHECK(static_cast<std::uint32_t>(t.shared_bytes) == source.plan.shared_bytes);
      CHECK(t.blocks == static_cast<double>(source.plan.x.blocks(p.rows(), p.cols())));
      CHECK(source.plan.y == GridAxis{});
    }
    const std::string source = conv::mma().source(p, target, candidates.front()).text;
    std::string found;
    for (const char* knob :
         {"unit", "taps_innermost", "taps", "places", "cached", "y_channels_first", "grouped", "quant_block"}) {
      const std::string_view text_of = std::string_view(source).substr(source.find("kGather"));
      const std::string name = fmt::format("k.{} = ", knob);
      const std::string_view line = text_of.substr(text_of.find(name) + name.size());
      const std::string_view value = line.substr(0, line.find(';'));
      if (value != "0" && !value.ends_with("(0)"))
        found += fmt::format("{}{}={}", found.empty() ? "" : " ", knob, value);
    }
    return found;
  };
  const std::string bf16 = "x=bf16 w=bf16 y=bf16 n=1 ", torch = " x_layout=ncdhw y_layout=ncdhw w_layout=kctrs";
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3 pad=1 cache=2").empty());
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=1 stride=2 w_layout=kctrs")
            .empty());  // one order of columns is the other
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3 groups=2") == "grouped=1");
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3" + torch) == "unit=1 taps_innermost=1 y_channels_first=1");
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3 pad=1" + torch) ==
        "unit=1 taps_innermost=1 taps=decltype(k.taps)(1) y_channels_first=1");
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3 cache=2" + torch) ==
        "unit=1 taps_innermost=1 taps=decltype(k.taps)(2) places=9 cached=1 y_channels_first=1");
  CHECK(gathers(bf16 + "c=12 in=9x9 k=24 kernel=3 pad=1 pad_mode=reflect") ==
        "unit=4 taps=decltype(k.taps)(2) places=7");
  CHECK(gathers(bf16 + "c=3 in=9x9 k=24 kernel=3") == "unit=1");
  CHECK(gathers(bf16 + "c=6 in=9x9 k=24 kernel=3") == "unit=2");
  CHECK(gathers(bf16 + "c=32 in=9x9 k=32 kernel=3 groups=32") == "unit=1 grouped=1");
  CHECK(gathers("x=int8 w=int8_row y=bf16 n=1 c=24 in=9x9 k=24 kernel=3") == "unit=8");
  CHECK(gathers("x=bf16 w=q4_0 y=bf16 n=1 c=32 in=9x9 k=24 kernel=3 x_layout=ncdhw") == "unit=1");
  // More places than bits, and than a table has.
  CHECK(gathers(bf16 + "c=3 in=900 k=24 kernel=41 pad=20") == "unit=1 taps=decltype(k.taps)(2) places=43");
  CHECK(gathers(bf16 + "c=1 in=9000 k=24 kernel=400 stride=160") == "unit=1");
  CHECK(why_not(bf16 + "c=1 in=9000 k=24 kernel=400 stride=160 pad=200") ==
        "kernel must have at most 64 places on its axes together where channels are not whole pieces of 16 bytes (got "
        "400)");
  CHECK(why_not(bf16 + "c=3 in=1024x1024x1024 k=24 kernel=1 stride=2")
            .starts_with("in must have less than 1073741824 pixels"));
  CHECK(why_not(bf16 + "c=8 in=1024x1024x1023 k=24 kernel=1 stride=2").empty());
  CHECK(gathers("x=f32 w=f32 y=f32 n=1 c=8 in=9x9 k=24 kernel=3").empty());
  CHECK(gathers("x=f32 w=f32 y=f32 n=1 c=3 in=9x9 k=24 kernel=3" + torch) ==
        "unit=1 taps_innermost=1 y_channels_first=1");
  CHECK(why_not("x=f32 w=bf16 y=f32 n=1 c=8 in=9x9 k=24 kernel=3") == "w=bf16 has other elements than x=f32");
  CHECK(why_not("x=f32 w=f32 y=f32 n=1 c=8 in=9x9 k=24 kernel=3", "sm_75") == "sm_75 has no tf32 matrix instruction");
  CHECK(why_not("x=int8 w=int8_row y=f32 n=1 c=3 in=9x9 k=24 kernel=3") == "k must be a multiple of 2 (got 27)");
  CHECK(why_not(bf16 + "c=8 in=9x9 k=24 kernel=3", "sm_75") == "sm_75 has no bf16 matrix instruction");
  CHECK(why_not("x=f16 w=f16 y=f16 n=1 c=3 in=9x9 k=24 kernel=3" + torch, "sm_75").empty());
  // Blocks that are fake quantized lie side by side, and in shared memory together.
  const std::string quant = " quant_act=e2m1/";
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3" + torch + quant + "256") ==
        "unit=1 taps_innermost=1 y_channels_first=1 quant_block=256");
  CHECK(gathers(bf16 + "c=16 in=9x9x9 k=24 kernel=3 w_layout=kctrs" + quant + "32") ==
        "unit=1 taps_innermost=1 quant_block=32");
  CHECK(gathers(bf16 + "c=64 in=9x9x9 k=24 kernel=3 groups=2 order=trsc" + quant + "32") == "grouped=1 quant_block=32");
  CHECK(gathers(bf16 + "c=72 in=9x9 k=24 kernel=1" + quant + "16") == "quant_block=16");
  CHECK(gathers(bf16 + "c=72 in=9x9 k=24 kernel=1 w_layout=kctrs order=trsc" + quant + "16") == "quant_block=16");
  CHECK(gathers("x=f32 w=f32 y=f32 n=1 c=9 in=9x9 k=24 kernel=3" + torch + quant + "128") ==
        "unit=1 taps_innermost=1 y_channels_first=1 quant_block=128");
  CHECK(why_not(bf16 + "c=16 in=9x9 k=24 kernel=3" + quant + "16") ==
        "w_layout must be kctrs with order=ctrs of quant_act (got ktrsc)");
  CHECK(why_not(bf16 + "c=16 in=9x9 k=24 kernel=3 w_layout=kctrs order=trsc" + quant + "16") ==
        "w_layout must be ktrsc with order=trsc of quant_act (got kctrs)");
  CHECK(why_not(bf16 + "c=48 in=9x9 k=24 kernel=3 order=trsc" + quant + "32") ==
        "a group must have whole blocks of 32 channels (got 48)");
  CHECK(why_not("x=f32 w=f32 y=f32 n=1 c=9 in=9x9 k=24 kernel=3 w_layout=kctrs" + quant + "256", "sm_89") ==
        "quant_act=e2m1/256 is not supported: no tile of whole blocks fits into shared memory");
  // More blocks than a grid has.
  CHECK(gathers("x=f16 w=f16 y=f16 n=64 c=1048576 in=500x500 k=1048576 kernel=1 groups=1048576") == "nothing");
}

TEST_CASE("conv: who takes input that is fake quantized", "[conv]") {
  const Arch& hopper = arch("sm_90a");
  const auto why_not = [&](const Family& family, const std::string& text) {
    return family.why_not(Problem::parse("conv y=f32 n=2 k=64 " + text), hopper);
  };
  const std::string room = " workspace=33554432", trsc = " order=trsc", bf16 = "x=bf16 w=bf16 ";
  // Wherever channels are, and however many: it is written once.
  for (const char* layer : {"x=bf16 w=bf16 c=64 in=9x20x30 kernel=3 pad=1 quant_act=e2m1/16",
                            "x=f16 w=f16 c=100 in=20x30 kernel=3 "
                            "x_layout=ncdhw w_layout=kctrs quant_act=e2m1/256",
                            "x=f32 w=f32 c=33 in=300 kernel=3 pad=1 quant_act=e2m1/128",
                            "x=f32 w=f32 c=64 in=300 kernel=3 accum=fast quant_act=e2m1/64"}) {
    INFO(layer);
    const Problem problem = Problem::parse(std::string("conv y=f32 n=2 k=64 ") + layer + trsc + room);
    const std::vector<Candidate> candidates = conv::wgmma().candidates(problem, hopper);
    REQUIRE_FALSE(candidates.empty());
    const std::string source = conv::wgmma().source(problem, hopper, candidates.front()).text;
    CHECK(source.find(fmt::format("k.quant_block = {};", problem.as<Conv>()->quant_act.block)) != source.npos);
    CHECK(why_not(conv::wgmma(), layer + trsc).starts_with("workspace=0 is too small: x "));
  }
  CHECK(why_not(conv::wgmma(), bf16 + "c=64 in=20x30 kernel=1 quant_act=e2m1/16" + room).empty());
  // Along columns a row is written for each output pixel, whatever padding, cache and strides are.
  const Problem columns = Problem::parse("conv y=f32 n=2 k=64 " + bf16 +
                                         "c=33 in=20x30 kernel=3x2 pad=1 stride=9x1 pad_mode=reflect cache=1 "
                                         "quant_act=e2m1/64" +
                                         room);
  const std::vector<Candidate> candidates = conv::wgmma().candidates(columns, hopper);
  REQUIRE_FALSE(candidates.empty());
  for (const Candidate& c : candidates) {
    INFO(c.text());
    const LaunchPlan plan = conv::wgmma().source(columns, hopper, c).plan;
    CHECK(plan.map_count == 2);
    CHECK(plan.maps[0].pointer == offsetof(ConvArgs, workspace));
    CHECK(plan.maps[0].inner == 200);  // 33 channels of 6 taps, in whole pieces
    CHECK(plan.maps[1].inner == 200);
    CHECK(plan.maps[0].steps[0] == 1);
  }
  const tw::conv::Shape shape = conv::shape_of(*columns.as<Conv>());
  CHECK(shape.written_x_map[0].extent == 3 * 31);
  CHECK(shape.written_x_map[3].step == 3 * 31 * 200);
  CHECK(shape.written_w_map[0].step == 200);
  CHECK(why_not(conv::wgmma(), bf16 + "c=64 in=20x90 kernel=3 quant_act=e2m1/64")
            .starts_with("workspace=0 is too small: x and w are written there"));
  CHECK(why_not(conv::mma(), bf16 + "c=64 in=20x30 kernel=1 quant_act=e2m1/16").empty());
  // With weights of another format.
  const std::string coded = "x=bf16 w=int4_g32 c=64 in=20x30 kernel=3 quant_act=e2m1/32", tiles = " pack=tiles";
  CHECK(why_not(conv::wgmma(), coded + room).empty());
  CHECK(why_not(conv::wgmma(), coded).starts_with("workspace=0 is too small: x and w are written there"));
  CHECK(why_not(conv::wgmma(), coded + trsc + room).empty());
  CHECK(why_not(conv::wgmma(), coded + trsc + tiles + room).empty());
  CHECK(why_not(conv::wgmma(), coded + trsc + tiles).starts_with("workspace=0 is too small: x is written there"));
  CHECK(why_not(conv::wgmma(), coded + tiles + room) == "pack=tiles is not supported with order=ctrs of quant_act");
  CHECK(why_not(conv::wgmma(), "x=bf16 w=int4_g32 c=64 in=20x30 kernel=1 quant_act=e2m1/32" + tiles + room).empty());
  CHECK(why_not(conv::mma(), coded + trsc).empty());
  CHECK(why_not(conv::mma(), coded + trsc + tiles) == "w is packed");
  CHECK(why_not(conv::reference(), coded + tiles).empty());
  for (const Family* family : {&conv::pointwise_wgmma(), &conv::pointwise_mma(), &conv::pointwise_gemv()})
    CHECK(why_not(*family, bf16 + "c=64 in=20x30 kernel=1 quant_act=e2m1/16") ==
          "quant_act is not supported: x is fake quantized before it is multiplied");
  CHECK(why_not(conv::direct(), bf16 + "c=64 in=20x30 kernel=3 groups=64 quant_act=e2m1/16") ==
        "quant_act is not supported: x is fake quantized before it is multiplied");
  CHECK(why_not(conv::reference(), bf16 + "c=64 in=20x30 kernel=3 groups=64 quant_act=e2m1/16").empty());
}

TEST_CASE("conv: pointwise ones have the candidates of gemm's families", "[conv]") {
  struct Pair {
    const Family &conv, &gemm;
  };
  const Pair wgmma{conv::pointwise_wgmma(), gemm::wgmma()}, mma{conv::pointwise_mma(), gemm::mma()},
      gemv{conv::pointwise_gemv(), gemm::gemv()};
  const struct {
    const char *conv, *gemm, *arch;
    const Pair& families;
    const char* text;  // in the sources
  } cases[] = {
      {"conv x=bf16 w=bf16 y=bf16 n=2 c=128 in=3x60x106 k=264 kernel=1 bias=f32 residual=bf16 workspace=34603008",
       "gemm x=bf16 w=bf16 y=bf16 m=38160 n=264 k=128 bias=f32 c=bf16 workspace=34603008", "sm_90a", wgmma,
       "Pointwise<tw::gemm::WgmmaKernel<tw::fmt::bf16, tw::fmt::bf16, "},
      {"conv x=int8_tensor w=int8_row y=int8 n=1 c=256 in=9x9 k=64 kernel=1 global=mul y_scale=2 act=relu",
       "gemm x=int8_tensor w=int8_row y=int8 m=81 n=64 k=256 global=mul y_scale=2 act=relu", "sm_90a", wgmma,
       "Pointwise<tw::gemm::WgmmaKernel<"},
      {"conv x=bf16 w=bf16 y=bf16 n=1 c=12 in=9x9 k=7 kernel=1 w_layout=kctrs",
       "gemm x=bf16 w=bf16 y=bf16 m=81 n=7 k=12", "sm_80", mma, "Pointwise<tw::gemm::Mma<"},
      {"conv x=sign_row w=signbit_row y=bf16 n=1 c=1024 in=90 k=64 kernel=1",
       "gemm x=sign_row w=signbit_row y=bf16 m=90 n=64 k=1024", "sm_90a", wgmma,
       "Pointwise<tw::gemm::SignProducts<tw::gemm::WgmmaKernel<"},
      {"conv x=signbit_row w=sign_row y=bf16 n=1 c=48 in=9x9 k=7 kernel=1",
       "gemm x=signbit_row w=sign_row y=bf16 m=81 n=7 k=48", "sm_80", mma,
       "Pointwise<tw::gemm::SignProducts<tw::gemm::Mma<"},
      {"conv x=f16 w=q4_0 y=f16 n=1 c=64 in=90 k=64 kernel=1", "gemm x=f16 w=q4_0 y=f16 m=90 n=64 k=64", "sm_120a", mma,
       "Pointwise<tw::gemm::Mma<"},
      {"conv x=bf16 w=int4_g128 y=bf16 n=1 c=256 in=9x9 k=128 kernel=1 pack=tiles bias=f32",
       "gemm x=bf16 w=int4_g128 y=bf16 m=81 n=128 k=256 pack=tiles bias=f32", "sm_90a", wgmma,
       "Pointwise<tw::gemm::WgmmaKernel<tw::fmt::bf16, tw::fmt::int4_g128, "},
      {"conv x=e4m3 w=nvfp4 y=bf16 n=1 c=256 in=90x90 k=128 kernel=1 global=mul pack=tiles workspace=34603008",
       "gemm x=e4m3 w=nvfp4 y=bf16 m=8100 n=128 k=256 global=mul pack=tiles workspace=34603008", "sm_90a", wgmma,
       "Pointwise<tw::gemm::WgmmaKernel<tw::fmt::e4m3, tw::fmt::nvfp4, "},
      {"conv x=f16 w=f16 y=f16 n=2 c=64 in=1x1 k=64 kernel=1 stride=2", "gemm x=f16 w=f16 y=f16 m=2 n=64 k=64",
       "sm_90a", gemv, "Pointwise<tw::gemm::Gemv<"}};
  for (const auto& test : cases) {
    INFO(test.conv << " on " << test.arch);
    const Problem problem = Problem::parse(test.conv), product = Problem::parse(test.gemm);
    const Arch& target = arch(test.arch);
    const Family &family = test.families.conv, &gemm = test.families.gemm;
    CHECK(conv::mma().candidates(problem, target).empty());
    const std::vector<Candidate> all = family.candidates(problem, target), same = gemm.candidates(product, target);
    CHECK(problem.min_bytes() == product.min_bytes());
    REQUIRE(!all.empty());
    REQUIRE(all.size() == same.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      INFO(all[i].text());
      CHECK(all[i].family == family.name());
      CHECK(all[i].knobs == same[i].knobs);
      CHECK(family.illegal(problem, target, all[i]).empty());
      CHECK(!family.illegal(problem, target, same[i]).empty());  // of another family
      CHECK(family.traits(problem, target, all[i]).blocks == gemm.traits(product, target, same[i]).blocks);
    }
    const auto blocks = [](const Traits& t) { return t.blocks; };
    CHECK(family.cheapest(problem, target, blocks)->candidate.knobs ==
          gemm.cheapest(product, target, blocks)->candidate.knobs);
    CHECK(family.source(problem, target, all.front()).text.find(test.text) != std::string::npos);
  }
}

TEST_CASE("conv: signs by signs have a scale for each pixel", "[conv]") {
  const Problem taps = Problem::parse("conv x=sign_row w=sign_row y=f32 n=2 c=64 in=9x9 k=32 kernel=3 pad=1");
  // Where there are taps, whose sums have no common factor, the reference alone.
  for (const Family* family : conv::operation().families()) {
    INFO(family->name());
    const std::string why = family->why_not(taps, arch("sm_90a"));
    CHECK(why.empty() == (family == &conv::reference()));
    if (family == &conv::mma() || family == &conv::direct() || family == &conv::wgmma())
      CHECK(why == "x=sign_row has a scale for each pixel, and taps are summed before scales are applied");
  }
  // As bytes they go to the matrix units.
  CHECK(conv::mma()
            .why_not(Problem::parse("conv x=int8 w=sign_row y=f32 n=2 c=64 in=9x9 k=32 kernel=3 pad=1"), arch("sm_90a"))
            .empty());
  const Contract contract = conv::operation().contract(taps);
  const auto has = [&](const char* name) {
    return std::any_of(contract.pointers.begin(), contract.pointers.end(),
                       [&](const PointerRule& p) { return p.name == std::string_view(name); });
  };
  CHECK((has("x.data") && has("x.scales") && has("w.scales")));
  // Two maps in signs, by bytes of eight.
  const Problem one = Problem::parse("conv x=sign_row w=sign_row y=f32 n=2 c=2048 in=9x9 k=64 kernel=1");
  for (const Candidate& c : conv::pointwise_wgmma().candidates(one, arch("sm_90a"))) {
    const LaunchPlan plan = conv::pointwise_wgmma().source(one, arch("sm_90a"), c).plan;
    REQUIRE(plan.map_count == 2);
    CHECK((plan.maps[0].block == 8 && plan.maps[1].block == 8));
  }
  const auto field = [](const char* text) { return refusal([&] { Problem::parse(text); }).field(); };
  CHECK(field("conv x=sign_row w=int8_row y=f32 n=1 c=64 in=9x9 k=32 kernel=3") == "w");
  CHECK(field("conv x=sign_row w=sign_row y=f32 n=1 c=12 in=9x9 k=32 kernel=2") == "c");
  CHECK(field("conv x=sign_row w=sign_row y=f32 n=1 c=64 in=9x9 k=32 kernel=3 groups=2") == "groups");
  CHECK(field("conv x=sign_row w=sign_row y=f32 n=1 c=64 in=9x9 k=32 kernel=3 x_layout=ncdhw") == "x_layout");
  CHECK(field("conv x=sign_row w=sign_row y=f32 n=1 c=64 in=9x9 k=32 kernel=3 cache=1") == "cache");
  CHECK(field("conv x=sign_row w=sign_row y=f32 n=1 c=64 in=9x9 k=32 kernel=3 quant_act=e2m1/16") == "quant_act");
  CHECK(field("conv x=int4_row w=int4_row y=f32 n=1 c=64 in=9x9 k=32 kernel=3") == "x");
}

TEST_CASE("conv: tensor maps of pointwise ones read a conv's arguments", "[conv]") {
  const Problem problem =
      Problem::parse("conv x=bf16 w=bf16 y=bf16 n=2 c=128 in=60x106 k=264 kernel=1 residual=bf16 workspace=34603008");
  const Arch& target = arch("sm_90a");
  const Contract contract = conv::operation().contract(problem);
  const auto constant = [&](std::uint32_t at) {
    REQUIRE(at >= TensorMapPlan::kConstants);
    at -= TensorMapPlan::kConstants;
    REQUIRE(at + sizeof(std::int64_t) <= contract.constants.size());
    std::int64_t value = 0;
    std::memcpy(&value, contract.constants.data() + at, sizeof value);
    return value;
  };
  const auto check_map = [&](const TensorMapPlan& map, std::size_t pointer, std::int64_t rows) {
    CHECK(map.pointer == pointer);
    CHECK(constant(map.rows_at) == rows);
    CHECK(map.rows == 0);
    CHECK(constant(map.inner_at) == 128);
    CHECK(map.stride_at == TensorMapPlan::kNone);
  };
  bool swapped = false, plain = false;
  for (const Candidate& c : conv::pointwise_wgmma().candidates(problem, target)) {
    INFO(c.text());
    const LaunchPlan plan = conv::pointwise_wgmma().source(problem, target, c).plan;
    REQUIRE(plan.map_count == 2);
    const bool turned = c.text().find("swapped=1") != std::string::npos;
    (turned ? swapped : plain) = true;
    check_map(plan.maps[turned], offsetof(ConvArgs, x), 2 * 60 * 106);
    check_map(plan.maps[!turned], offsetof(ConvArgs, w), 264);
  }
  CHECK((swapped && plain));
}

TEST_CASE("conv: a launch is not divided where x is widened in the workspace", "[conv]") {
  const auto prologues = [](int workspace) {
    const Problem p = Problem::parse(fmt::format(
        "conv x=e4m3 w=nvfp4 y=bf16 n=1 c=256 in=90x90 k=128 kernel=1 global=mul pack=tiles workspace={}", workspace));
    int count = 0;
    for (const Candidate& c : conv::pointwise_wgmma().candidates(p, arch("sm_90a"))) {
      if (c.text().find("prologue=1") == std::string::npos) continue;
      const LaunchPlan plan = conv::pointwise_wgmma().source(p, arch("sm_90a"), c).plan;
      CHECK(plan.most_rows == 0);
      CHECK(plan.maps[0].pointer == offsetof(ConvArgs, workspace));
      ++count;
    }
    return count;
  };
  CHECK(prologues(8 << 20) > 0);
  CHECK(prologues(4000000) == 0);  // 8100 rows of 512 bytes are more
}

TEST_CASE("conv: weights packed as tiles", "[conv]") {
  const std::string base = "conv x=bf16 y=bf16 n=1 in=9x11 kernel=1 ";
  const Arch &hopper = arch("sm_90a"), &ampere = arch("sm_80");
  const Problem plain = Problem::parse(base + "w=int4_g128 c=256 k=128");
  const std::optional<Problem> packed = conv::operation().packed(plain, hopper);
  REQUIRE(packed);
  CHECK(packed->text() == "conv x=bf16 w=int4_g128 y=bf16 n=1 c=256 in=9x11 k=128 kernel=1x1 pack=tiles");
  CHECK_FALSE(conv::operation().packed(*packed, hopper));
  CHECK_FALSE(conv::operation().packed(plain, ampere));
  CHECK_FALSE(conv::operation().packed(Problem::parse(base + "w=int4_g128 c=256 k=100"), hopper));
  CHECK_FALSE(conv::operation().packed(Problem::parse(base + "w=int4_g32 c=96 k=128"), hopper));
  CHECK_FALSE(conv::operation().packed(Problem::parse(base + "w=bf16 c=256 k=128"), hopper));
  CHECK(conv::operation().recommended(plain, hopper).front().field == "pack=tiles");
  CHECK(conv::operation().repack(*packed)->problem.text() == "pack w=int4_g128 x=bf16 n=128 k=256");
  CHECK_FALSE(conv::operation().repack(plain));
  std::string names;
  for (const PointerRule& rule : conv::operation().contract(*packed).pointers) names += std::string(rule.name) + ", ";
  CHECK(names == "x.data, w.data (tiles), w.scales (tiles), y, ");
  CHECK(conv::mma().why_not(*packed, hopper) == "a pointwise convolution is served by pointwise_mma");
  CHECK(conv::pointwise_mma().why_not(*packed, hopper) == "w is packed");
  CHECK(conv::direct().why_not(*packed, hopper) == "w is packed as tiles");
  const std::string tiles = "conv x=bf16 y=bf16 n=1 in=9x11 pack=tiles ";
  CHECK(refused(tiles + "w=int4_g128 c=256 k=100 kernel=1") ==
        "k must be a multiple of 64, the rows of a tile (got 100)");
  CHECK(refused(tiles + "w=e4m3 c=36 k=64 kernel=3").starts_with("kernel elements times c must be a multiple of 64"));
  CHECK(refused(tiles + "w=bf16 c=64 k=64 kernel=3") == "pack=tiles is not supported: w=bf16 has no tiles for x=bf16");
  CHECK(refused(tiles + "w=e4m3 c=64 k=64 kernel=3 w_layout=kctrs") ==
        "w_layout must be ktrsc (got kctrs): w is packed");
  CHECK(refused(tiles + "w=e4m3 c=64 k=64 kernel=3 groups=2") ==
        "pack=tiles is not supported for channels in groups; leave it out");
}

TEST_CASE("conv: weights in panels are for CPUs", "[conv]") {
  for (const char* text : {"conv x=bf16 w=bf16 y=bf16 n=1 c=64 in=9x11 k=64 kernel=1 pack=panels",
                           "conv x=f16 w=f16 y=f16 n=1 c=64 in=9x11 k=16 kernel=3 pad=1 pack=panels workspace=1000000",
                           "conv x=f32 w=f32 y=f32 n=1 c=64 in=9x9x9 k=64 kernel=3 pack=panels accum=fast"})
    for (const char* target : {"sm_80", "sm_90a"}) {
      const Problem problem = Problem::parse(text);
      for (const Family* family : conv::operation().families()) {
        INFO(text << ", " << target << ": " << family->name());
        CHECK(family->why_not(problem, arch(target)) == "w is packed in panels, for CPUs");
      }
      CHECK_FALSE(conv::operation().packed(problem, arch(target)));
      CHECK(conv::operation().recommended(problem, arch(target)).empty());
    }
}

TEST_CASE("conv: wgmma takes weights in tiles where taps are whole panels", "[conv]") {
  const Arch& hopper = arch("sm_90a");
  const std::string base = "conv y=bf16 n=1 in=3x20x21 k=128 kernel=3 pad=0x1x1 ";
  const auto why = [&](const std::string& text) {
    const Problem p = Problem::parse(base + "pack=tiles " + text);
    const std::vector<Candidate> candidates = conv::wgmma().candidates(p, hopper);
    CHECK(candidates.empty() == !conv::wgmma().why_not(p, hopper).empty());
    for (const Candidate& c : candidates) {
      INFO(p.text() << " " << c.text());
      CHECK(conv::wgmma().illegal(p, hopper, c).empty());
      const Traits t = conv::wgmma().traits(p, hopper, c);
      CHECK(t.shared_bytes <= hopper.shared_per_block);
      const LaunchPlan plan = conv::wgmma().source(p, hopper, c).plan;
      const bool cached = p.as<Conv>()->cache > 0 && p.as<Conv>()->x_layout == TensorLayout::ndhwc;
      CHECK(plan.map_count == 1u + cached);  // none for w
      if (cached) CHECK(plan.maps[1].pointer == offsetof(ConvArgs, cache));
      CHECK(plan.shared_bytes == static_cast<std::uint32_t>(t.shared_bytes));
    }
    return conv::wgmma().why_not(p, hopper);
  };
  for (const char* text :
       {"x=bf16 w=int4_g32 c=64", "x=f16 w=int4_g128 c=128 cache=1", "x=bf16 w=nvfp4 global=mul c=192",
        "x=bf16 w=q4_k c=256", "x=bf16 w=e4m3_row c=64 x_layout=ncdhw y_layout=ncdhw cache=1 workspace=4194304",
        "x=e4m3 w=int4_row c=256", "x=e4m3 w=int4_row c=128 accum=fast", "x=int8 w=int4_g128 c=256",
        "x=int8 w=int4_row c=128", "x=e4m3 w=nvfp4 global=mul c=128 accum=fast"})
    CHECK(why(text) == "");
  CHECK(conv::wgmma()
            .why_not(Problem::parse("conv x=bf16 w=int4_g32 y=bf16 n=1 in=9x9 c=96 k=64 kernel=2 pack=tiles"), hopper)
            .starts_with("c must be a multiple of 64"));
  CHECK(why("x=e4m3 w=int4_row c=128").starts_with("c must be a multiple of 256"));
  CHECK(why("x=e4m3 w=nvfp4 global=mul c=128").find("elements that wgmma has") != std::string::npos);  // x is widened
  CHECK(why("x=bf16 w=int4_g32 c=64 x_layout=ncdhw").starts_with("workspace=0 is too small: x is written there first"));
  // Worth it for few pixels.
  const auto packs = [&](const std::string& in) {
    const Problem p = Problem::parse("conv x=bf16 w=int4_g128 y=bf16 n=1 c=128 k=128 kernel=3 pad=1 in=" + in);
    return conv::operation().packed(p, hopper).has_value();
  };
  CHECK(packs("64x64"));
  CHECK_FALSE(packs("64x65"));
  CHECK_FALSE(conv::operation().packed(Problem::parse("conv x=bf16 w=int4_g128 y=bf16 n=1 c=128 k=128 kernel=3 in=9x9"),
                                       arch("sm_80")));
}

TEST_CASE("conv: what wgmma writes to the workspace first", "[conv]") {
  const Arch& hopper = arch("sm_90a");
  // The bytes that it needs, and whether x is read from there and whether w is.
  const auto writes = [&](const std::string& text) -> std::string {
    const Problem problem = Problem::parse("conv y=f32 n=1 in=80x81 k=64 kernel=3 " + text);
    const std::vector<Recommendation> advice = conv::operation().recommended(problem, hopper);
    const bool lacks = conv::wgmma().why_not(problem, hopper).starts_with("workspace=0 is too small: ");
    CHECK(lacks == !advice.empty());
    const Problem enough = lacks ? advice.front().problem : problem;
    CHECK(conv::operation().recommended(enough, hopper).empty());
    const std::vector<Candidate> candidates = conv::wgmma().candidates(enough, hopper);
    if (candidates.empty()) return conv::wgmma().why_not(enough, hopper);
    Conv less = *enough.as<Conv>();
    if (lacks) {
      less.workspace -= 1;
      CHECK(conv::wgmma().candidates(less, hopper).empty());
    }
    std::string found;
    for (const Candidate& c : candidates) {
      CHECK(conv::wgmma().illegal(enough, hopper, c).empty());
      const LaunchPlan plan = conv::wgmma().source(enough, hopper, c).plan;
      const auto from = [&](int map) { return plan.maps[map].pointer == offsetof(ConvArgs, workspace); };
      const std::string own =
          fmt::format("{}{}{}", enough.as<Conv>()->workspace, from(0) ? " x" : "", from(1) ? " w" : "");
      CHECK((found.empty() || found == own));
      found = own;
    }
    return found;
  };
  constexpr int kWords = tw::gemm::kScheduleBytes, kPixels = 80 * 81, kFilters = 64 * 9;
  const auto bytes = [](int pixels, int weights) { return std::to_string(kWords + pixels + weights); };
  CHECK(writes("x=bf16 w=bf16 c=64") == "0");
  CHECK(writes("x=bf16 w=bf16 c=64 w_layout=kctrs") == bytes(0, kFilters * 64 * 2) + " w");
  CHECK(writes("x=bf16 w=bf16 c=64 x_layout=ncdhw") == bytes(kPixels * 64 * 2, 0) + " x");
  CHECK(writes("x=bf16 w=bf16 c=36") == bytes(kPixels * 40 * 2, kFilters * 40 * 2) + " x w");
  CHECK(writes("x=f32 w=f32 c=64 accum=fast") == bytes(kPixels * 64 * 2, kFilters * 64 * 2) + " x w");
  for (const char* w : {"int4_g32", "uint4_g64", "q4_0", "q5_1", "e4m3", "e5m2", "int8", "e4m3_row", "int8_row",
                        "int4_row", "e2m1_row", "nvfp4 global=mul", "e4m3_tensor global=mul"})
    for (const char* x : {"f16", "bf16"}) {
      INFO(x << " " << w);
      CHECK(writes(fmt::format("x={} w={} c=64", x, w)) == bytes(0, kFilters * 64 * 2) + " w");
    }
  CHECK(writes("x=bf16 w=q4_k c=256") == bytes(0, kFilters * 256 * 2) + " w");
  CHECK(writes("x=bf16 w=mxfp4 c=64") == bytes(0, kFilters * 64 * 2) + " w");
  CHECK(writes("x=e4m3 w=int4_row c=64") == bytes(0, kFilters * 64) + " w");
  CHECK(writes("x=e4m3_tensor w=e2m1_row global=mul c=64") == bytes(0, kFilters * 64) + " w");
  CHECK(writes("x=int8 w=int4_row c=64") == bytes(0, kFilters * 64) + " w");
  // No element of x's is near such a weight, or the scale of its block would be lost.
  for (const char* pair : {"x=f16 w=mxfp4", "x=f16 w=bf16", "x=f32 w=bf16", "x=e4m3 w=nvfp4 global=mul",
                           "x=e5m2 w=int4_row", "x=e4m3 w=int4_g64", "x=int8 w=e4m3"}) {
    INFO(pair);
    CHECK(writes(std::string(pair) + " c=64").find("x must have elements that wgmma has") != std::string::npos);
  }
  CHECK(conv::operation()
            .recommended(Problem::parse("conv y=f32 n=1 in=80x81 k=64 kernel=3 x=bf16 w=nvfp4 global=mul c=64"),
                         arch("sm_80"))
            .empty());
}
