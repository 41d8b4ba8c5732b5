// SPDX-License-Identifier: Apache-2.0
// Codes by codes on Hopper: what is refused and why, what is offered, how x's rows are described to the copy engine.
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/family.h>
#include <tilewright/kernel.h>
#include <tilewright/pack.h>

#include <string>
#include <tuple>
#include <vector>

#include "support/catch.h"
#include "templates/common/families.h"

using namespace tilewright;

namespace {

const Arch& hopper() { return arch("sm_90a"); }
std::string why_not(const std::string& text, const Arch& target = hopper()) {
  return family("gemm", "wgmma_codes").why_not(Problem::parse("gemm " + text), target);
}

}  // namespace

TEST_CASE("wgmma_codes: what it takes, and why not the rest", "[codes]") {
  const std::string shape = " y=f32 m=65 n=128 k=256";
  for (const char* w : {"q4_0", "q5_0", "q8_0", "q4_1", "q5_1", "q4_k", "q5_k"})
    CHECK(why_not(std::string("x=q8_1 pack=tiles w=") + w + shape).empty());
  CHECK(why_not("x=q8_1 w=q4_0 pack=tiles" + shape, arch("sm_100a")) == "sm_100a has no warpgroup matrix instructions");
  CHECK(why_not("x=q8_1 w=q4_0" + shape) == "w=q4_0 is not packed as tiles");
  CHECK(why_not("x=f16 w=q4_0 pack=tiles" + shape) ==
        "x=f16 is no format of signed bytes in blocks of 32, whose rows the copy engine can read");
  CHECK(why_not("x=q8_0 w=q4_0" + shape) ==
        "x=q8_0 is no format of signed bytes in blocks of 32, whose rows the copy engine can read");
  CHECK(why_not("x=q8_1 w=q4_0 pack=tiles y=f32 m=65 n=128 k=192") == "k must be a multiple of 128 (got 192)");
  // Few tokens are the other's.
  const auto others = [](const std::string& text) {
    return family("gemm", "wgmma").why_not(Problem::parse("gemm " + text), hopper());
  };
  CHECK(why_not("x=q8_1 w=q4_0 pack=tiles y=f32 m=64 n=128 k=256") == "m must be more than 64 (got 64)");
  CHECK(others("x=q8_1 w=q4_0 pack=tiles y=f32 m=64 n=128 k=256").empty());
  CHECK(others("x=q8_1 w=q4_0 pack=tiles" + shape) == "m must be at most 64 for x=q8_1 (got 65)");
  CHECK(others("x=q8_1 w=q4_0 pack=tiles y=f32 m=64 n=128 k=192") == "k must be a multiple of 128 (got 192)");
  CHECK(others("x=q8_1 w=q4_0 y=f32 m=64 n=128 k=256") ==
        "w=q4_0 does not go with x=q8_1 unless it is packed as tiles");
  // Blocks of fp8 with scales are not codes.
  CHECK(others("x=e4m3_g128 w=e4m3_b128 y=bf16 m=64 n=128 k=256").empty());
  CHECK(others("x=q8_0 w=q4_0 y=f32 m=64 n=128 k=256") == "x=q8_0 is no operand of a warpgroup matrix instruction");
}

TEST_CASE("wgmma: one token of q8_1 takes k by eight groups where it can", "[codes]") {
  for (const auto& [m, k, bm] : {std::tuple{1, 4096, 1}, {1, 4096 + 128, 8}, {2, 4096, 8}}) {
    const Problem problem = Problem::parse(fmt::format("gemm x=q8_1 w=q4_0 y=f32 pack=tiles m={} n=4096 k={}", m, k));
    const std::vector<Candidate> all = family("gemm", "wgmma").candidates(problem, hopper());
    REQUIRE(!all.empty());
    for (const Candidate& c : all) {
      INFO(problem.text() << " " << c.text());
      CHECK(c.at("block_m") == bm);
      if (bm == 1) CHECK(c.at("panels") / c.at("warpgroups_k") % 4 == 0);
    }
  }
}

TEST_CASE("wgmma: floats that the kernel quantizes, by tiles of codes", "[codes]") {
  const Family& wgmma = family("gemm", "wgmma");
  const auto of = [](const std::string& more) {
    return Problem::parse("gemm x=q8_1 w=q4_0 y=f32 pack=tiles x_from=f16 n=4096 " + more);
  };
  // One token at a time, whatever m is: the row lies in shared memory, whose copies no map describes.
  for (const char* sizes : {"m=1 k=4096", "m=7 k=4096", "m=200 k=28672"}) {
    const Problem problem = of(sizes);
    const std::vector<Candidate> all = wgmma.candidates(problem, hopper());
    REQUIRE(!all.empty());
    for (const Candidate& c : all) {
      INFO(problem.text() << " " << c.text());
      CHECK(c.at("block_m") == 1);
      const Source source = wgmma.source(problem, hopper(), c);
      CHECK(source.plan.map_count == 0);
      CHECK(source.plan.shared_bytes <= static_cast<std::uint32_t>(hopper().shared_per_block));
      CHECK(source.text.find("tw::gemm::WgmmaKernel<tw::fmt::Quantized<tw::fmt::q8_1, tw::fmt::f16>") !=
            std::string::npos);
    }
  }
  // A block's part of k: blocks of 36 bytes for 32 elements, in whole stages.
  const Problem problem = of("m=1 k=4096");
  for (const Candidate& c : wgmma.candidates(problem, hopper())) {
    const std::int64_t stages = 4096 / 64 / c.at("panels"), own = (stages + c.at("split_k") - 1) / c.at("split_k");
    INFO(c.text());
    CHECK(wgmma.source(problem, hopper(), c)
              .text.find(fmt::format("k.quantized_bytes = {};", own * c.at("panels") * 72)) != std::string::npos);
  }
  CHECK(wgmma.why_not(of("m=1 k=4224"), hopper()) == "k must be a multiple of 256 with x_from (got 4224)");
  CHECK(wgmma.why_not(Problem::parse("gemm x=q8_1 w=q4_0 y=f32 x_from=f16 m=1 n=4096 k=4096"), hopper())
            .find("x_from=f16 is not supported") == 0);
  CHECK(family("gemm", "wgmma_codes").why_not(of("m=200 k=4096"), hopper()).find("x_from=f16 is not supported") == 0);
}

TEST_CASE("wgmma_codes: every m has candidates that fit", "[codes]") {
  for (const char* y : {"f32", "bf16"})
    for (const char* w : {"q4_0", "q8_0", "q4_k"})
      for (std::int64_t m : {1, 16, 17, 64, 65, 1000, 4096})
        for (std::int64_t k : {128, 256, 384, 8192}) {
          if (k % Format::parse(w).block() != 0) continue;
          const Problem problem = Problem::parse(std::string("gemm x=q8_1 pack=tiles m=1 n=4096 w=") + w + " y=" + y +
                                                 " k=" + std::to_string(k))
                                      .with_rows(m);
          const Family& codes = family("gemm", m > 64 ? "wgmma_codes" : "wgmma");
          const std::vector<Candidate> all = codes.candidates(problem, hopper());
          CHECK_FALSE(all.empty());
          for (const Candidate& c : all) {
            INFO(problem.text() << " " << c.text());
            CHECK(codes.illegal(problem, hopper(), c).empty());
            const LaunchPlan plan = codes.source(problem, hopper(), c).plan;
            CHECK(plan.shared_bytes <= static_cast<std::uint32_t>(hopper().shared_per_block));
            CHECK(plan.maps[0].box_inner * plan.maps[0].element_bytes == 144);  // four blocks
            const bool shared = m <= 64 && c.at("cluster") > c.at("split_k");
            CHECK(plan.maps[0].box_rows == static_cast<std::uint32_t>(c.at("block_m")) / (shared ? 2 : 1));
            CHECK(plan.maps[0].tile_boxes == (m > 64 ? 0u : shared ? 2u : 1u));
          }
        }
}

TEST_CASE("tiles for q8_1 are those for f16", "[codes]") {
  Gemm g{.x = Format::parse("f16"), .w = Format::parse("q4_0"), .y = Format::parse("f32"), .bias = {}};
  g.m = 1, g.n = 64, g.k = 128, g.packing = Packing::tiles;
  std::vector<std::uint32_t> rows(64 * 72 / 4), data[2], scales[2];
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint32_t>(i) * 2654435761u;
  for (int i = 0; i < 2; ++i, g.x = Format::parse("q8_1")) {
    data[i].resize(static_cast<std::size_t>(packed_bytes(g, StreamName::data) / 4));
    scales[i].resize(static_cast<std::size_t>(packed_bytes(g, StreamName::scales) / 4));
    pack_weights(g, {rows.data(), nullptr, nullptr}, {data[i].data(), scales[i].data(), nullptr});
  }
  CHECK(data[0] == data[1]);
  CHECK(scales[0] == scales[1]);
}

TEST_CASE("rows of x that the copy engine reads are steps of 16 bytes apart", "[codes]") {
  const auto multiple = [](const std::string& text) { return contract_for(Problem::parse(text)).strides[0].multiple; };
  CHECK(multiple("gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256 pack=tiles") == 128);
  CHECK(multiple("gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256") == 32);
  CHECK(multiple("gemm x=f16 w=q4_0 y=f32 m=2 n=128 k=256 pack=tiles") == 8);
}
