// SPDX-License-Identifier: Apache-2.0
// Tests what the warpgroup family offers for many tokens and few: tiles that fill the last round, knobs that have won.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/gemm.h>
#include <tilewright/kernel.h>
#include <tilewright/numerics.h>
#include <tilewright/operation.h>
#include <tilewright/problem.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.h"

using namespace tilewright;

namespace {

const Arch& hopper() { return arch("sm_90a"); }
std::vector<Candidate> offered(const std::string& text) {
  return family("gemm", "wgmma").candidates(Problem::parse("gemm " + text), hopper());
}
bool has(const Candidate& c, const std::string& knob) { return c.text().find(knob) != std::string::npos; }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

TEST_CASE("wgmma: split_last_wave is offered where half a wave holds the last tiles", "[wgmma]") {
  const std::int64_t clusters = hopper().typical_sms / 2;
  bool some = false;
  for (const char* formats : {"x=bf16 w=bf16 y=bf16", "x=f16 w=q4_0 y=f16 pack=tiles", "x=e4m3_row w=e4m3_row y=bf16"})
    for (std::int64_t m : {65, 300, 1024, 4096})
      for (std::int64_t n : {64, 128, 192, 3584, 5120, 6144, 8192, 10240})
        for (const Candidate& c :
             offered(std::string(formats) + " k=4096 m=" + std::to_string(m) + " n=" + std::to_string(n))) {
          INFO(c.text() << " m " << m << " n " << n);
          if (c.at("split_k") > 1) continue;
          if (has(c, "swapped=1")) {
            CHECK_FALSE(has(c, "schedule"));
            continue;
          }
          const std::int64_t bn = 64 * c.at("strips") * c.at("warpgroups_n"), tiles_n = ceil_div(n, bn);
          const std::int64_t left = ceil_div(m, c.at("block_m")) * ceil_div(tiles_n, 2) % clusters;
          const bool fits = c.at("warpgroups_n") == 2 && tiles_n > 1 && left > 0 && 2 * left <= clusters;
          CHECK(has(c, "schedule=1") == fits);
          if (has(c, "schedule=1")) CHECK(c.at("cluster") == 2);
          some |= fits;
        }
  CHECK(some);
}

TEST_CASE("wgmma: split_last_wave launches up to two blocks for each tile", "[wgmma]") {
  const Problem problem = Problem::parse("gemm x=bf16 w=bf16 y=bf16 m=256 n=2048 k=4096");
  for (const Candidate& c : family("gemm", "wgmma").candidates(problem, hopper())) {
    const LaunchPlan plan = family("gemm", "wgmma").source(problem, hopper(), c).plan;
    const std::int64_t bn = 64 * c.at("strips") * c.at("warpgroups_n"),
                       share = c.at("split_k") > 1 ? 1 : c.at("cluster");
    const bool swapped = has(c, "swapped=1");
    const std::int64_t places =
        ceil_div(swapped ? 2048 : 256, c.at("block_m")) * ceil_div(swapped ? 256 : 2048, bn * share) * c.at("cluster");
    INFO(c.text());
    CHECK(plan.x.blocks(256, 2048) == static_cast<std::uint64_t>(places * (has(c, "schedule=1") ? 2 : 1)));
  }
}

TEST_CASE("wgmma: Stream-K is offered where the last wave is not full and the workspace holds its sums", "[wgmma]") {
  const std::int64_t sms = hopper().typical_sms;
  int some = 0;
  for (const char* formats : {"x=bf16 w=bf16 y=bf16", "x=f16 w=q4_0 y=f16 pack=tiles", "x=e4m3_row w=e4m3_row y=bf16"})
    for (std::int64_t m : {1, 40, 64, 300, 1024})
      for (std::int64_t n : {64, 1024, 3584, 5120, 8448, 10240})
        for (std::int64_t workspace : {0ll, 65536ll, 4ll << 20, 32ll << 20}) {
          const std::string text = std::string(formats) + " k=4096 m=" + std::to_string(m) + " n=" + std::to_string(n) +
                                   " workspace=" + std::to_string(workspace);
          const Problem problem = Problem::parse("gemm " + text);
          for (const Candidate& c : offered(text)) {
            if (!has(c, "schedule=2")) continue;
            INFO(c.text() << " of " << text);
            ++some;
            const std::int64_t bn = 64 * c.at("strips") * c.at("warpgroups_n"), share = c.at("cluster");
            const std::int64_t tiles = ceil_div(m, c.at("block_m")) * ceil_div(ceil_div(n, bn), share),
                               left = tiles % (sms / share);
            CHECK(c.at("split_k") == 1);
            CHECK((c.at("warpgroups_k") > 1) == (c.at("block_m") < 32));
            CHECK(left > 0);
            // Words, then a slot for each part: of all clusters, and one more for every tile that begins within a
            // share.
            CHECK(workspace >= 16384 + (left + std::min(sms / share, 2 * left)) * share * c.at("block_m") * bn * 4);
            const LaunchPlan plan = family("gemm", "wgmma").source(problem, hopper(), c).plan;
            CHECK(plan.x.blocks(m, n) >= static_cast<std::uint64_t>(std::min(sms / share * share, 15 * tiles * share)));
          }
        }
  CHECK(some > 100);
}

TEST_CASE("wgmma: tiles of single warps come from a queue where they are more than two waves", "[wgmma]") {
  const std::int64_t sms = hopper().typical_sms;
  int some = 0;
  for (const char* formats :
       {"x=f16 w=q4_0 y=f16 pack=tiles", "x=int8_row w=int4_g128 y=bf16 pack=tiles", "x=f16 w=f16 y=f16"})
    for (std::int64_t m : {1, 16, 64, 200})
      for (std::int64_t n : {64 * 132, 28672, 57344})
        for (std::int64_t workspace : {0, 16383, 16384, 32 << 20}) {
          const std::string text = std::string(formats) + " k=4096 m=" + std::to_string(m) + " n=" + std::to_string(n) +
                                   " workspace=" + std::to_string(workspace);
          for (const Candidate& c : offered(text)) {
            if (has(c, "swapped=1") || c.at("warp_mma") == 0) {
              CHECK_FALSE(has(c, "schedule=3"));
              continue;
            }
            INFO(c.text() << " of " << text);
            const LaunchPlan plan = family("gemm", "wgmma").source(Problem::parse("gemm " + text), hopper(), c).plan;
            const std::int64_t tiles = ceil_div(n, 64 * c.at("strips") * c.at("warpgroups_n"));
            if (has(c, "schedule=3"))
              CHECK((workspace >= 16384 && c.at("cluster") == 1 && tiles > 2 * sms));
            else if (workspace >= 16384 && c.at("cluster") == 1 && !has(c, "schedule"))
              CHECK(tiles <= 2 * sms * static_cast<std::int64_t>(plan.persistent));
            some += has(c, "schedule=3");
          }
        }
  CHECK(some > 20);
}

TEST_CASE("wgmma: few tokens share the last wave where neither whole k nor halves fill the waves", "[wgmma]") {
  const auto shared = [](std::int64_t n) {
    const std::vector<Candidate> all =
        offered("x=f16 w=q4_k y=f16 pack=tiles m=1 k=8192 workspace=33554432 n=" + std::to_string(n));
    return std::any_of(all.begin(), all.end(), [](const Candidate& c) {
      return has(c, "schedule=2") && c.at("strips") * c.at("warpgroups_n") == 1;
    });
  };
  CHECK(shared(5120));         // 80 strips on 132 multiprocessors, or 160 halves
  CHECK_FALSE(shared(8192));   // 128
  CHECK_FALSE(shared(4096));   // 64, or 128 halves
  CHECK_FALSE(shared(10240));  // 160, or 320 halves: 0.81 of three rounds
}

TEST_CASE("wgmma: two blocks share a multiprocessor with two stages each where those are of eight panels", "[wgmma]") {
  bool some = false;
  for (const Candidate& c : offered("x=f16 w=nvfp4 y=f16 pack=tiles m=16 n=8192 k=8192 global=mul")) {
    INFO(c.text());
    const Problem problem = Problem::parse("gemm x=f16 w=nvfp4 y=f16 pack=tiles m=16 n=8192 k=8192 global=mul");
    const LaunchPlan plan = family("gemm", "wgmma").source(problem, hopper(), c).plan;
    if (plan.persistent != 2) continue;
    CHECK(2 * (plan.shared_bytes + 1024) <= static_cast<std::uint32_t>(hopper().shared_per_sm));
    CHECK((c.at("stages") >= 3 || c.at("panels") == 8));
    some |= c.at("stages") == 2;
  }
  CHECK(some);
}

TEST_CASE("wgmma: three blocks share a multiprocessor where a launch has more than two for each", "[wgmma]") {
  const auto three = [](std::int64_t n) {
    const std::string text = "x=f16 w=q4_k y=f16 pack=tiles m=1 k=8192 n=" + std::to_string(n);
    const std::vector<Candidate> all = offered(text);
    return std::any_of(all.begin(), all.end(), [&](const Candidate& c) {
      return family("gemm", "wgmma").source(Problem::parse("gemm " + text), hopper(), c).plan.persistent == 3;
    });
  };
  CHECK_FALSE(three(8192));  // 256 halves of strips on 132 multiprocessors
  CHECK(three(10240));       // 320
}

TEST_CASE("wgmma: one token has one row of x in shared memory", "[wgmma]") {
  for (const char* formats : {"x=f16 w=q4_0 y=f16", "x=int8_row w=int4_g128 y=bf16", "x=e4m3_row w=int4_g128 y=bf16"})
    for (int m : {1, 2}) {
      const std::string text = fmt::format("{} pack=tiles m={} n=4096 k=4096", formats, m);
      const std::vector<Candidate> all = offered(text);
      REQUIRE(!all.empty());
      for (const Candidate& c : all) {
        INFO(text << " by " << c.text());
        const LaunchPlan plan = family("gemm", "wgmma").source(Problem::parse("gemm " + text), hopper(), c).plan;
        const bool one = m == 1 && c.at("warp_mma") == 1;  // warpgroup instructions read whole eights of rows
        CHECK(plan.maps[0].box_rows == (one ? 1u : 8u));
        CHECK(plan.maps[0].tile_boxes == 1);
        CHECK(plan.maps[0].swizzle == (one ? 0u : 128u));
        CHECK(plan.x.per_rows == (one ? 1u : 8u));
      }
    }
}

TEST_CASE("wgmma: E4M3 is widened where tiles are for 16-bit floats", "[wgmma]") {
  for (std::int64_t m : {1, 16, 40, 300, 4096})
    for (const char* formats :
         {"x=e4m3_row w=nvfp4 y=bf16 global=mul", "x=e4m3 w=q4_0 y=f32", "x=e4m3_row w=q8_0 y=f16",
          "x=e4m3_tensor w=mxfp4 y=bf16 global=div", "x=e4m3_row w=q4_k y=bf16"}) {
      const std::string text = fmt::format("{} pack=tiles n=8192 k=8192 m={} workspace=34603008", formats, m);
      const std::vector<Candidate> all = offered(text);
      CHECK(!all.empty());
      bool prologue = false;
      for (const Candidate& c : all) {
        INFO(c.text() << " of " << text);
        const Source source = family("gemm", "wgmma").source(Problem::parse("gemm " + text), hopper(), c);
        const LaunchPlan& plan = source.plan;
        if (has(c, "prologue")) {
          prologue = true;
          CHECK(plan.maps[0].element_bytes == 2);
          CHECK(plan.maps[0].pointer == offsetof(GemmArgs, workspace));
          CHECK(plan.maps[0].behind == 16384);
          CHECK(plan.maps[0].stride_at == TensorMapPlan::kNone);
          CHECK(plan.most_rows == 2096);  // (34603008 - 16384 - 128) / 16384, whole sixteens
          continue;
        }
        CHECK(plan.most_rows == 0);
        const std::int64_t math = 128 * c.at("warpgroups_n") * c.at("warpgroups_k");
        // x as it is stored, all of a tile's rows; a warp or a warpgroup that widens it.
        REQUIRE(plan.map_count == 1);
        CHECK(plan.maps[0].element_bytes == 1);
        CHECK(plan.maps[0].box_inner == 64);
        CHECK(plan.maps[0].box_rows == static_cast<std::uint32_t>(c.at("block_m")));
        CHECK(plan.maps[0].swizzle == 0);
        CHECK(plan.threads == static_cast<std::uint32_t>(math + (c.at("warp_mma") ? 32 : 128)));
        CHECK(plan.shared_bytes <= static_cast<std::uint32_t>(hopper().shared_per_block));
        CHECK(source.text.find("k.async_store = 0;") != std::string::npos);
        // Blocks of a cluster share no loads of x, so they are for splitting k and for sharing the last wave.
        if (c.at("cluster") > 1) CHECK((c.at("split_k") > 1 || has(c, "schedule")));
      }
      CHECK(prologue == (m > 64));
    }
  CHECK(family("gemm", "wgmma").why_not(Problem::parse("gemm x=e4m3 w=q4_0 y=f32 m=64 n=64 k=64"), hopper()) ==
        "w=q4_0 does not go with x=e4m3 unless it is packed as tiles");
  CHECK_THROWS_AS(Problem::parse("gemm x=e4m3_g128 w=q4_0 y=f32 m=64 n=64 k=128 pack=tiles"), Error);
}

TEST_CASE("wgmma: floats get a scale per row in the workspace", "[wgmma]") {
  const Family& wgmma = family("gemm", "wgmma");
  for (std::int64_t m : {1, 16, 40, 300, 4096})
    for (const char* formats :
         {"x=e4m3_row x_from=bf16 w=nvfp4 pack=tiles global=mul", "x=e4m3_row x_from=f16 w=e4m3_row",
          "x=e4m3_row x_from=f32 w=e4m3_b128", "x=int8_row x_from=bf16 w=int4_g128 pack=tiles"}) {
      const Problem problem =
          Problem::parse(fmt::format("gemm {} y=bf16 n=8192 k=8192 m={} workspace=34603008", formats, m));
      INFO(problem.text());
      const std::vector<Candidate> all = wgmma.candidates(problem, hopper());
      REQUIRE(!all.empty());
      const bool wide = problem.as<Gemm>()->w.name() == "nvfp4";
      for (const Candidate& c : all) {
        INFO(c.text());
        REQUIRE(has(c, "prologue"));
        const LaunchPlan plan = wgmma.source(problem, hopper(), c).plan;
        const TensorMapPlan& x = plan.maps[c.knobs.empty() || !has(c, "swapped") ? 0 : 1];
        CHECK(x.pointer == offsetof(GemmArgs, workspace));
        CHECK(x.element_bytes == (wide ? 2u : 1u));
        CHECK(plan.most_rows == (34603008u - 16512) / (wide ? 16388 : 8196) / 16 * 16);
      }
    }
  const auto why = [&](const char* text) { return wgmma.why_not(Problem::parse(text), hopper()); };
  CHECK(why("gemm x=e4m3_row x_from=bf16 w=e4m3_row y=bf16 m=1 n=64 k=1024") ==
        "workspace=0 is too small: x is quantized there, and 32960 bytes hold 16 tokens");
  CHECK(why("gemm x=e4m3_row x_from=bf16 w=e4m3_row y=bf16 m=1000 n=64 k=1024 workspace=32959")
            .starts_with("workspace=32959 is too small: "));
  CHECK(why("gemm x=e4m3_row x_from=bf16 w=e4m3_row y=bf16 m=1000 n=64 k=1024 workspace=32960").empty());
  // No other kernel quantizes rows, but the reference does.
  for (const char* name : {"gemv", "mma", "wgmma_codes"})
    CHECK_FALSE(family("gemm", name)
                    .why_not(Problem::parse("gemm x=e4m3_row x_from=bf16 w=e4m3_row y=bf16 m=1 n=64 k=1024"), hopper())
                    .empty());
}

TEST_CASE("wgmma: codes with a scale per row become bytes in the workspace", "[wgmma]") {
  const Family& wgmma = family("gemm", "wgmma");
  for (std::int64_t m : {1, 16, 40, 300, 4096})
    for (const char* formats : {"x=int4_row w=int4_row", "x=ternary_row w=int4_row", "x=int4_row w=int4_g128"}) {
      const Problem problem =
          Problem::parse(fmt::format("gemm {} pack=tiles y=bf16 n=8192 k=8192 m={} workspace=34603008", formats, m));
      INFO(problem.text());
      const std::vector<Candidate> all = wgmma.candidates(problem, hopper());
      REQUIRE(!all.empty());
      const Gemm& g = *problem.as<Gemm>();
      for (const Candidate& c : all) {
        INFO(c.text());
        REQUIRE(has(c, "prologue"));
        const Source source = wgmma.source(problem, hopper(), c);
        CHECK(source.text.find(fmt::format("UnpackedRow<tw::fmt::{}>", g.x.name())) != std::string::npos);
        const TensorMapPlan& x = source.plan.maps[0];
        CHECK(x.pointer == offsetof(GemmArgs, workspace));
        CHECK(x.stride_at == TensorMapPlan::kNone);
        CHECK(x.element_bytes == 1);
        CHECK(source.plan.map_count == 1);
        CHECK(source.plan.most_rows == 4208);  // (34603008 - 16512) / 8192, whole sixteens
      }
    }
  // A launch is divided at whole bytes of x's rows.
  const Problem divided =
      Problem::parse("gemm x=int4_row w=int4_row y=f16 m=1 n=64 k=128 pack=tiles workspace=1000000");
  const Contract contract = divided.operation().contract(divided);
  const auto moves = [&](std::size_t pointer) {
    for (const RowsRule& rule : contract.row_pointers)
      if (rule.pointer == pointer) return rule;
    return RowsRule{};
  };
  CHECK(moves(offsetof(GemmArgs, x) + offsetof(Operand, data)).bytes == 1);
  CHECK(moves(offsetof(GemmArgs, x) + offsetof(Operand, data)).elements == 2);
  CHECK(moves(offsetof(GemmArgs, x) + offsetof(Operand, scales)).bytes == 4);
  CHECK(moves(offsetof(GemmArgs, y)).bytes == 2);
  for (const StrideRule& rule : contract.strides)
    if (std::string_view(rule.name) == "ldx") CHECK(rule.multiple == 32);  // 16 bytes

  const auto why = [&](const char* text) { return wgmma.why_not(Problem::parse(text), hopper()); };
  CHECK(why("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=1024 workspace=1000000") ==
        "x=int4_row is no operand of a warpgroup matrix instruction unless w is packed as tiles");
  CHECK(why("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=1024 pack=tiles") ==
        "workspace=0 is too small: x is unpacked there, and 32896 bytes hold 16 tokens");
  CHECK(why("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=1024 pack=tiles workspace=32896").empty());
  CHECK(why("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=131072 pack=tiles workspace=34603008") ==
        "k=131072 is too large: 32-bit sums hold 131071 products of bytes");
  CHECK(why("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=128 groups=2 pack=tiles workspace=34603008") ==
        "groups=2 is not supported: kernels of this family have one w, and x=int4_row is unpacked first");
  CHECK_THROWS_AS(Problem::parse("gemm x=sign_row w=int4_row y=f32 m=64 n=64 k=128 pack=tiles"), Error);
  CHECK_THROWS_AS(Problem::parse("gemm x=int4_g128 w=int4_row y=f32 m=64 n=64 k=128 pack=tiles"), Error);
  // Engine::packed() has it where there is a workspace.
  const auto packed = [&](const char* text) {
    const Problem p = Problem::parse(text);
    return p.operation().packed(p, hopper()).has_value();
  };
  CHECK(packed("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=1024 workspace=34603008"));
  CHECK_FALSE(packed("gemm x=int4_row w=int4_row y=f32 m=1 n=64 k=1024"));
  // Which is recommended first, then.
  const auto advice = [&](const char* text) {
    const Problem p = Problem::parse(text);
    std::vector<std::string> fields;
    for (const Recommendation& r : p.operation().recommended(p, hopper())) fields.push_back(r.field);
    return fields;
  };
  CHECK(advice("gemm x=int4_row w=int4_row y=f32 m=512 n=1024 k=1024") ==
        std::vector<std::string>{"workspace=34603008", "pack=tiles", "weights=constant"});
  CHECK(advice("gemm x=int8_row w=int4_row y=f32 m=512 n=1024 k=1024") ==
        std::vector<std::string>{"pack=tiles", "weights=constant", "workspace=34603008"});
  CHECK(advice("gemm x=int4_row w=int4_row y=f32 m=512 n=1024 k=1024 groups=2").empty());
}

TEST_CASE("wgmma: nvfp4 is rounded to E4M3 where accumulation is fast and tokens are many", "[wgmma]") {
  const auto multiplied = [](const std::string& text) {  // what x is, by the copies of it
    const Problem problem = Problem::parse("gemm pack=tiles global=mul y=bf16 n=4096 " + text);
    const std::vector<Candidate> all = family("gemm", "wgmma").candidates(problem, hopper());
    REQUIRE(!all.empty());
    const LaunchPlan plan = family("gemm", "wgmma").source(problem, hopper(), all.front()).plan;
    return plan.maps[0].box_inner == 128 && plan.maps[0].swizzle == 128 && plan.maps[0].element_bytes == 1;
  };
  CHECK(multiplied("x=e4m3_row w=nvfp4 m=1024 k=4096 accum=fast"));
  CHECK(multiplied("x=e4m3 w=nvfp4 m=65 k=4096 accum=fast"));
  CHECK_FALSE(multiplied("x=e4m3_row w=nvfp4 m=1024 k=4096"));
  CHECK_FALSE(multiplied("x=e4m3_row w=nvfp4 m=64 k=4096 accum=fast"));
  CHECK_FALSE(multiplied("x=e4m3_row w=nvfp4 m=1024 k=4160 accum=fast"));  // an odd number of panels of 64
  CHECK_FALSE(multiplied("x=e4m3_tensor w=q4_0 m=1024 k=4096 accum=fast"));
  // A candidate has one kernel for every number of tokens: a table of all of them serves it wherever it is fastest.
  const Problem fast =
      Problem::parse("gemm x=e4m3_row w=nvfp4 y=bf16 m=1 n=4096 k=4096 accum=fast pack=tiles global=mul");
  const Family& wgmma = family("gemm", "wgmma");
  for (const std::int64_t m : {1, 64, 65, 1000})
    for (const Candidate& c : wgmma.candidates(fast.with_rows(m), hopper()))
      CHECK(wgmma.source(fast.with_rows(m), hopper(), c).text ==
            wgmma.source(fast.with_rows(m > 64 ? 16 : 1024), hopper(), c).text);
  // One packed copy, and the bound says what it is unpacked to.
  const auto bound = [](const char* text) {
    GemmSums sums;
    sums.product = sums.magnitude = 1;
    return gemm_expected(*Problem::parse(text).as<Gemm>(), sums).bound;
  };
  const double exact = bound("gemm x=e4m3_row w=nvfp4 y=f32 m=65 n=64 k=4096 pack=tiles global=mul"),
               lossy = bound("gemm x=e4m3_row w=nvfp4 y=f32 m=65 n=64 k=4096 pack=tiles global=mul accum=fast"),
               stored = bound("gemm x=e4m3_row w=nvfp4 y=f32 m=65 n=64 k=4096 global=mul");
  CHECK(exact < 1e-4);
  CHECK(lossy > 0.12);                      // 1.2 (4096 / 32) 2^-10
  CHECK((stored > 4e-3 && stored < 0.01));  // 1.2 4 2^-10: elsewhere matrix units take E4M3 and codes as they are
}

TEST_CASE("constant weights are a constant of the launch: candidates and their texts are the same", "[wgmma]") {
  for (const char* text :
       {"gemm x=f16 w=q4_0 y=f16 m=1 n=4096 k=4096 pack=tiles", "gemm x=f16 w=f16 y=f16 m=1 n=4096 k=4096"}) {
    const Problem variable = Problem::parse(text), constant = Problem::parse(text + std::string(" weights=constant"));
    CHECK_FALSE(variable == constant);
    CHECK(variable.min_bytes() == constant.min_bytes());
    for (const char* name : {"wgmma", "gemv"}) {
      const Family& f = family("gemm", name);
      const std::vector<Candidate> all = f.candidates(variable, hopper());
      CHECK(all == f.candidates(constant, hopper()));
      if (all.empty()) continue;
      const Source a = f.source(variable, hopper(), all.front()), b = f.source(constant, hopper(), all.front());
      CHECK(a.text == b.text);
      CHECK(a.plan == b.plan);
    }
  }
}

TEST_CASE("wgmma: operands are swapped where they are plain and have no zero points", "[wgmma]") {
  const auto swapped = [](const std::string& text) {
    std::vector<Candidate> found = offered(text);
    std::erase_if(found, [](const Candidate& c) { return !has(c, "swapped=1"); });
    return found;
  };
  // 32 x 4 tiles of 160 rows of w and 256 tokens are 0.97 of a round of 132 multiprocessors.
  const std::vector<Candidate> all = swapped("x=f16 w=f16 y=f16 m=1024 n=5120 k=4096");
  CHECK(std::any_of(all.begin(), all.end(), [](const Candidate& c) {
    return c.at("block_m") == 160 && c.at("strips") * c.at("warpgroups_n") == 4;
  }));
  for (const Candidate& c : all) {
    INFO(c.text());
    CHECK(c.at("block_m") % 32 == 0);
    const LaunchPlan plan =
        family("gemm", "wgmma").source(Problem::parse("gemm x=f16 w=f16 y=f16 m=1024 n=5120 k=4096"), hopper(), c).plan;
    CHECK(plan.x.per_cols == static_cast<std::uint32_t>(c.at("block_m")));
    CHECK(plan.maps[1].box_rows ==
          static_cast<std::uint32_t>(std::min<std::int64_t>(256, 64 * c.at("strips") * c.at("warpgroups_n"))));
    CHECK(plan.maps[0].tile_boxes == 0);  // rows of w
    CHECK(plan.maps[1].tile_boxes == 1);
  }
  CHECK_FALSE(swapped("x=e4m3_row w=e4m3_row y=bf16 m=1024 n=5120 k=4096").empty());
  CHECK(swapped("x=int8_asym_row w=int8_asym_row y=bf16 m=1024 n=5120 k=4096").empty());
  CHECK(swapped("x=f16 w=q4_0 y=f16 pack=tiles m=1024 n=5120 k=4096").empty());
  CHECK(swapped("x=f16 w=f16 y=f16 m=64 n=5120 k=4096").empty());
}

TEST_CASE("wgmma: whole tiles wait in shared memory where there is room and warps are idle", "[wgmma]") {
  const auto async_store = [](const std::string& text, const std::string& knobs) {
    for (const Candidate& c : offered(text))
      if (has(c, knobs))
        return family("gemm", "wgmma")
                   .source(Problem::parse("gemm " + text), hopper(), c)
                   .text.find("k.async_store = 1;") != std::string::npos;
    FAIL(text << " has no " << knobs);
    return false;
  };
  const std::string shape = " m=4096 n=8192 k=4096";
  CHECK(async_store("x=e4m3_row w=e4m3_row y=bf16 accum=fast" + shape, "block_m=256 strips=1 warpgroups_n=2"));
  CHECK(async_store("x=bf16 w=int4_g128 y=bf16 pack=tiles" + shape, "block_m=256 strips=1 warpgroups_n=2"));
  CHECK_FALSE(async_store("x=bf16 w=bf16 y=f32" + shape, "block_m=256 strips=1 warpgroups_n=2"));
  CHECK_FALSE(async_store("x=bf16 w=bf16 y=bf16 c=bf16" + shape, "block_m=256 strips=1 warpgroups_n=2"));
  CHECK_FALSE(async_store("x=e4m3_row w=int4_g128 y=bf16 pack=tiles" + shape,
                          "block_m=160 strips=1 warpgroups_n=2"));  // products are promoted
  CHECK_FALSE(async_store("x=bf16 w=bf16 y=bf16 m=1024 n=5120 k=4096",
                          "block_m=160 strips=2 warpgroups_n=2"));  // two stages would remain
  for (const char* formats : {"x=e4m3_row w=e4m3_row y=bf16", "x=bf16 w=bf16 y=bf16", "x=f16 w=q4_k y=f16 pack=tiles",
                              "x=int8_row w=int8_row y=int8 y_scale=0.5"})
    for (const Candidate& c : offered(formats + shape)) {
      INFO(c.text());
      CHECK(
          family("gemm", "wgmma").source(Problem::parse("gemm " + (formats + shape)), hopper(), c).plan.shared_bytes <=
          227 * 1024);
    }
}

TEST_CASE("wgmma: coded weights and few tokens", "[wgmma]") {
  for (std::int64_t m : {1, 16, 17, 64})
    for (const char* formats : {"x=f16 w=q4_k y=f16", "x=int8 w=int4_g128 y=f16", "x=e4m3 w=int4_g128 y=f16"}) {
      const std::vector<Candidate> all =
          offered(std::string(formats) + " pack=tiles n=4096 k=8192 m=" + std::to_string(m));
      CHECK_FALSE(all.empty());
      const bool fp8 = std::string(formats).find("e4m3") != std::string::npos,
                 f16 = std::string(formats).find("x=f16") == 0;
      for (const Candidate& c : all) {
        INFO(c.text() << " " << formats);
        CHECK(c.at("block_m") >= m);
        if (fp8 || m > 16)
          CHECK(c.at("warp_mma") == 0);
        else
          CHECK(c.at("warp_mma") == 1);
        if (f16 && m > 16) CHECK(c.at("warpgroups_k") == 1);
      }
    }
}

TEST_CASE("wgmma: many tokens have tiles in whole waves to choose from, whatever sharing the last is thought to save",
          "[wgmma]") {
  // 112 tiles are one wave of 132, and 240 are two: offered beside more kinds of shared tiles than a selection has room
  // for.
  const struct {
    const char* text;
    const char* tile;
  } problems[] = {
      {"gemm x=e4m3_row w=e2m1_row y=bf16 m=1024 n=3584 k=18944 pack=tiles accum=fast workspace=33554432",
       "block_m=256 strips=1 warpgroups_n=2"},
      {"gemm x=e4m3_row w=int4_row y=bf16 m=1024 n=5120 k=13824 pack=tiles accum=fast workspace=33554432",
       "block_m=176 strips=1 warpgroups_n=2"},
      {"gemm x=f16 w=q4_0 y=f16 m=1024 n=3584 k=18944 pack=tiles workspace=33554432",
       "block_m=128 strips=2 warpgroups_n=2"},
      {"gemm x=f16 w=q4_0 y=f16 m=1024 n=5120 k=13824 pack=tiles workspace=33554432",
       "block_m=176 strips=1 warpgroups_n=2"},
      {"gemm x=bf16 w=bf16 y=bf16 m=1024 n=3584 k=18944 workspace=33554432", "block_m=256 strips=1 warpgroups_n=2"}};
  for (const auto& problem : problems) {
    INFO(problem.text);
    int whole = 0, shared = 0;
    bool there = false;
    for (const Candidate& c : family("gemm", "wgmma").candidates(Problem::parse(problem.text), hopper())) {
      const std::string text = c.text();
      if (has(c, "schedule")) {
        ++shared;
        continue;
      }
      ++whole;
      there |= text.find(problem.tile) != std::string::npos && text.find("split_k=1") != std::string::npos;
    }
    CHECK(whole >= 2);
    CHECK(shared > 0);
    CHECK(there);
  }
}
