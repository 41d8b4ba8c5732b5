// SPDX-License-Identifier: Apache-2.0
// conv's families of pixel tiles, which share no gemm's candidates: kn2row, depthwise, direct.
#include <tilewright/arch.h>
#include <tilewright/conv.h>
#include <tilewright/family.h>
#include <tilewright/problem.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/catch.h"
#include "templates/operations/conv/conv.h"

using namespace tilewright;

TEST_CASE("conv: kn2row serves few output channels, and says what it does not", "[conv]") {
  const Family& kn2row = conv::kn2row();
  const std::string last = "conv x=bf16 w=bf16 y=bf16 n=1 ";
  for (const std::string& text :
       {last + "c=96 in=6x480x832 k=3 kernel=3 pad=0x1x1 cache=2",
        last + "c=128 in=512x512 k=3 kernel=3 pad=1 act=silu", last + "c=8 in=3000 k=1 kernel=9 pad=4 pad_mode=reflect",
        last + "c=40 in=5x6 k=2 kernel=5 y_layout=ncdhw",
        std::string("conv x=f16 w=f16 y=f32 n=7 c=128 in=17x33x20 k=2 kernel=3 pad=1 w_layout=kctrs bias=f32")}) {
    const Problem problem = Problem::parse(text);
    for (const Arch& arch : archs()) {
      INFO(arch.name << " " << text);
      if (!arch.cp_async) {
        CHECK(kn2row.why_not(problem, arch) == std::string(arch.name) + " has no asynchronous copies");
        continue;
      }
      CHECK(kn2row.why_not(problem, arch).empty());
      const std::vector<Candidate> candidates = kn2row.candidates(problem, arch);
      REQUIRE_FALSE(candidates.empty());
      for (const Candidate& c : candidates) {
        const Traits t = kn2row.traits(problem, arch, c);
        CHECK(t.shared_bytes <= arch.shared_per_block);
        CHECK(t.threads * std::min(t.registers, 255) <= 65536);
        CHECK(t.blocks * t.tile_rows >= static_cast<double>(problem.rows()));
        const std::int64_t pixels = c.at("tile_h") * c.at("tile_w");
        CHECK((pixels % t.threads == 0 && pixels >= t.threads));
      }
      const Source source = kn2row.source(problem, arch, candidates.front());
      CHECK(source.plan.persistent > 0);
      CHECK(source.plan.shared_bytes ==
            static_cast<std::uint32_t>(kn2row.traits(problem, arch, candidates.front()).shared_bytes));
      // Chunks of a video share a kernel.
      Conv larger = *problem.as<Conv>();
      larger.n += 3;
      CHECK(kn2row.source(Problem(larger), arch, candidates.front()).text == source.text);
      CHECK(kn2row.source(Problem(larger), arch, candidates.front()).plan == source.plan);
      CHECK(kn2row.illegal(problem, arch, candidates.back()).empty());
      CHECK_FALSE(kn2row.illegal(problem, arch, {"kn2row", {{"tile_w", 3}}}).empty());
    }
  }
  const auto refuses = [&](const std::string& text) {
    const Problem problem = Problem::parse(text);
    CHECK(kn2row.candidates(problem, arch("sm_90a")).empty());
    return kn2row.why_not(problem, arch("sm_90a"));
  };
  CHECK(refuses(last + "c=96 in=9x9 k=5 kernel=3") == "k must be at most 4 (got 5)");
  CHECK(refuses(last + "c=9 in=9x9 k=3 kernel=3") == "c must be a multiple of 8, at most 4096 (got 9)");
  CHECK(refuses(last + "c=96 in=9x9 k=3 kernel=3 stride=2") == "stride must be 1 (got 2)");
  CHECK(refuses(last + "c=96 in=9x9 k=3 kernel=3 x_layout=ncdhw") == "x_layout must be ndhwc");
  CHECK(refuses(last + "c=96 in=9x9 k=3 kernel=1") == "a pointwise convolution is served by pointwise_mma");
  CHECK(refuses(last + "c=96 in=9x9 k=3 kernel=3 cache=1") == "cache needs frames of three axes");
  CHECK(refuses(last + "c=96 in=9x9 k=4 kernel=6") == "taps times output channels must be at most 128 (got 36 x 4)");
  CHECK(refuses(last + "c=96 in=9x9x9 k=1 kernel=3 dilation=2") == "dilation from frame to frame must be 1 (got 2)");
  CHECK(refuses(last + "c=4096 in=9x9 k=3 kernel=3") ==
        "no tile of the kernel's taps fits into registers and shared memory");
  CHECK(refuses("conv x=e4m3 w=e4m3 y=bf16 n=1 c=96 in=9x9 k=3 kernel=3") ==
        "x=e4m3 w=e4m3 is not supported: they must be 16-bit floats of one type");
}

TEST_CASE("conv: depthwise serves 16-bit filters of few columns, and says what it does not", "[conv]") {
  const Family& depthwise = conv::depthwise();
  const std::string f16 = "conv x=f16 w=f16 y=f16 n=8 c=96 k=96 groups=96 ";
  for (const std::string& text :
       {f16 + "in=56x56 kernel=7 pad=3", f16 + "in=7x7 kernel=7 pad=3 bias=f32 act=silu", f16 + "in=4096 kernel=9",
        f16 + "in=5x20x20 kernel=1x3x3 pad=0x1x1 pad_mode=zeroxreflectxreplicate", f16 + "in=30x2 kernel=16x1 pad=8x0",
        f16 + "in=33x33 kernel=3 dilation=4"}) {
    const Problem problem = Problem::parse(text);
    for (const Arch& arch : archs()) {
      INFO(arch.name << " " << text);
      CHECK(depthwise.why_not(problem, arch).empty());
      const std::vector<Candidate> candidates = depthwise.candidates(problem, arch);
      REQUIRE_FALSE(candidates.empty());
      for (const Candidate& c : candidates) {
        const Traits t = depthwise.traits(problem, arch, c);
        CHECK(t.shared_bytes <= arch.shared_per_block);
        CHECK(t.threads * std::min(t.registers, 255) <= 65536);
        CHECK(t.blocks * t.tile_rows * t.tile_cols >= static_cast<double>(problem.rows() * problem.cols()));
        CHECK(c.at("tile_w") % 8 == 0);
      }
      // Sizes share a kernel.
      Conv larger = *problem.as<Conv>();
      larger.n += 3;
      const Source source = depthwise.source(problem, arch, candidates.front());
      CHECK(depthwise.source(Problem(larger), arch, candidates.front()).text == source.text);
      CHECK(depthwise.source(Problem(larger), arch, candidates.front()).plan == source.plan);
      CHECK(source.plan.persistent > 0);
      CHECK(depthwise.illegal(problem, arch, candidates.back()).empty());
      CHECK_FALSE(depthwise.illegal(problem, arch, {"depthwise", {{"tile_w", 8}}}).empty());
    }
  }
  const auto refuses = [&](const std::string& text, const char* target = "sm_90a") {
    const Problem problem = Problem::parse(text);
    CHECK(depthwise.candidates(problem, arch(target)).empty());
    return depthwise.why_not(problem, arch(target));
  };
  const std::string bf16 = "conv x=bf16 w=bf16 y=bf16 n=8 c=96 k=96 groups=96 in=20x20 ";
  CHECK(refuses(bf16 + "kernel=3", "sm_75") == "sm_75 has no matrix units of bf16");
  CHECK(refuses(bf16 + "kernel=3 stride=2") == "stride must be 1 (got 2)");
  CHECK(refuses(bf16 + "kernel=3 residual=bf16") == "residual is not supported");
  CHECK(refuses(bf16 + "kernel=3 x_layout=ncdhw y_layout=ncdhw") == "x_layout and y_layout must be ndhwc");
  CHECK(refuses(bf16 + "kernel=3 cache=1") == "cache is not supported");
  CHECK(refuses(bf16 + "kernel=3 dilation=5") == "kernel must span at most 9 columns (got 11)");
  CHECK(refuses(bf16 + "kernel=17x3") == "kernel must have at most 16 rows (got 17)");
  CHECK(refuses("conv x=bf16 w=bf16 y=bf16 n=1 c=96 k=96 groups=96 in=9x9x9 kernel=3") ==
        "kernel must have one frame, without padding (got 3)");
  CHECK(refuses("conv x=bf16 w=bf16 y=bf16 n=1 c=96 k=192 groups=96 in=9x9 kernel=3") ==
        "c=96 k=192 groups=96 must be one and the same multiple of 8");
  CHECK(refuses("conv x=bf16 w=bf16 y=f32 n=1 c=96 k=96 groups=96 in=9x9 kernel=3") ==
        "x=bf16 w=bf16 y=f32 must be 16-bit floats, x and w of one type");
}

TEST_CASE("conv: direct serves few channels a group on every target, and says what it does not", "[conv]") {
  const Family& direct = conv::direct();
  const std::string depthwise = "conv x=bf16 w=bf16 y=bf16 n=8 c=96 k=96 groups=96 ";
  for (const std::string& text :
       {depthwise + "in=56x56 kernel=7 pad=3", depthwise + "in=224x224 kernel=3 pad=1 x_layout=ncdhw y_layout=ncdhw",
        depthwise + "in=4096 kernel=4 pad=3:0 cache=3", depthwise + "in=7x7 kernel=31 pad=15",
        depthwise + "in=9x20x20 kernel=3 pad=1 pad_mode=reflect",
        std::string("conv x=f32 w=f32 y=f32 n=1 c=1 in=1 k=1 kernel=1"),
        std::string("conv x=f16 w=e4m3_row y=f16 n=1 c=128 in=30x30 k=128 kernel=3 groups=32"),
        std::string("conv x=int8 w=int8_row y=bf16 n=8 c=3 in=224x224 k=64 kernel=7 stride=2 pad=3"),
        depthwise + "in=33x33 kernel=5 stride=3 dilation=2"}) {
    const Problem problem = Problem::parse(text);
    for (const Arch& arch : archs()) {
      INFO(arch.name << " " << text);
      CHECK(direct.why_not(problem, arch).empty());
      const std::vector<Candidate> candidates = direct.candidates(problem, arch);
      REQUIRE_FALSE(candidates.empty());
      for (const Candidate& c : candidates) {
        const Traits t = direct.traits(problem, arch, c);
        CHECK(t.shared_bytes <= arch.shared_per_block);
        CHECK(t.threads * std::min(t.registers, 255) <= 65536);
        CHECK(t.blocks * t.tile_rows * t.tile_cols >= static_cast<double>(problem.rows() * problem.cols()));
      }
      const Source source = direct.source(problem, arch, candidates.front());
      const Traits t = direct.traits(problem, arch, candidates.front());
      CHECK(source.plan.x.blocks(problem.rows(), problem.cols()) == static_cast<std::uint64_t>(t.blocks));
      CHECK(source.plan.shared_bytes == static_cast<std::uint32_t>(t.shared_bytes));
      CHECK(direct.illegal(problem, arch, candidates.back()).empty());
      CHECK_FALSE(direct.illegal(problem, arch, {"direct", {{"tile_w", 3}}}).empty());
    }
  }
  const auto refuses = [&](const std::string& text) {
    const Problem problem = Problem::parse(text);
    CHECK(direct.candidates(problem, arch("sm_90a")).empty());
    return direct.why_not(problem, arch("sm_90a"));
  };
  CHECK(refuses("conv x=bf16 w=bf16 y=bf16 n=1 c=64 in=9x9 k=64 kernel=3 groups=2") ==
        "a group must have at most 16 input channels (got 32)");
  CHECK(refuses(depthwise + "in=9x9 kernel=3 y_layout=ncdhw") == "x_layout and y_layout must be the same");
  CHECK(refuses("conv x=bf16 w=bf16 y=bf16 n=1 c=32 in=9x9 k=64 kernel=3") ==
        "a group must have at most 16 input channels (got 32)");
  const Problem one_group = Problem::parse("conv x=bf16 w=bf16 y=bf16 n=1 c=16 in=9x9 k=64 kernel=3");
  CHECK_FALSE(direct.candidates(one_group, arch("sm_90a")).empty());
  CHECK(refuses(depthwise + "in=9x2000 kernel=1x3 dilation=1x300") ==
        "kernel must span at most 513 elements (got 601)");
  CHECK(refuses(depthwise + "in=9x2000 kernel=1 stride=600") == "stride must be at most 512 (got 600)");
  CHECK(refuses(depthwise + "in=2000 kernel=500") ==
        "no tile of the kernel's taps fits into registers and shared memory");
}
