// SPDX-License-Identifier: Apache-2.0
// The portable matrix kernel: what it takes on which target, and why not the rest.
#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/kernel.h>

#include <algorithm>
#include <optional>
#include <string>

#include "support/catch.h"
#include "templates/common/families.h"
#include "templates/operations/gemm/gemm.h"

using namespace tilewright;

namespace {

std::string why_not(const std::string& text, const char* target) {
  return family("gemm", "mma").why_not(Problem::parse("gemm " + text), arch(target));
}

}  // namespace

TEST_CASE("mma: operands of different widths", "[mma]") {
  const std::string shape = " y=f32 m=16 n=128 k=256";
  for (const char* w : {"e4m3", "e4m3_row", "e5m2", "int8", "int8_row", "int4_row", "e2m1_row", "q2_k"})
    for (const char* target : {"sm_75", "sm_80", "sm_90a", "sm_120a"}) {
      INFO(w << " " << target);
      CHECK(why_not(std::string("x=f16 w=") + w + shape, target).empty());
    }
  for (const char* w : {"nf4", "ternary_row", "sign_row", "signbit_row"})
    for (const char* x : {"f16", "bf16"}) {
      INFO(x << " " << w);
      CHECK(why_not(std::string("x=") + x + " w=" + w + shape, "sm_80").empty());
    }
  for (const char* x : {"int8", "int8_row", "e4m3_row", "q8_1"}) {
    const std::string why = why_not(std::string("x=") + x + " w=nf4" + shape, "sm_89");
    CHECK(why == "w=nf4 is codes of a table of floats, and x=" + std::string(x) + " is no float of 16 bits");
  }
  for (const char* w :
       {"int4_g128", "int4_row", "e2m1_row", "q4_k", "q2_k", "q3_k", "mxfp4", "ternary_row", "sign_row"})
    for (const char* x : {"int8_row", "e4m3_row"}) {
      INFO(x << " " << w);
      CHECK(why_not(std::string("x=") + x + " w=" + w + shape, "sm_89").empty());
    }
  CHECK(why_not("x=int8_row w=q6_k" + shape, "sm_75").empty());
  CHECK(why_not("x=e4m3_row w=q6_k" + shape, "sm_89") ==
        "w=q6_k is coded and x=e4m3_row is neither floats of 16 bits nor signed bytes, nor E4M3, which codes of 4 bits "
        "at most are too");
  CHECK(why_not("x=e4m3_row w=int4_row" + shape, "sm_80") == "sm_80 has no fp8 mma.sync of its own");
  CHECK(why_not("x=q8_1 w=q2_k" + shape, "sm_80") == "w=q2_k has minima of 16 elements, and x=q8_1 sums of 32");
  CHECK(why_not("x=f16 w=e4m3 y=f32 m=16 n=128 k=255", "sm_80") == "k must be a multiple of 2 (got 255)");
  // Codes of 0 behind a row's end would be -8 by -8.
  CHECK(why_not("x=int4_row w=int4_row" + shape, "sm_80").empty());
  CHECK(why_not("x=int4_row w=ternary_row y=f32 m=16 n=128 k=320", "sm_80") ==
        "k must be a multiple of 128 where both operands are rows of codes (got 320)");
  CHECK(why_not("x=int4_row w=q8_0 y=f32 m=16 n=128 k=320", "sm_80").empty());
}

TEST_CASE("mma: blocks that a target's units scale", "[mma]") {
  const struct {
    const char* format;
    const char* global;
    int unit;
  } kinds[] = {{"nvfp4", " global=mul", 64}, {"mxfp4", "", 128}, {"mxfp8", "", 128}};
  for (const auto& kind : kinds) {
    INFO(kind.format);
    const auto problem = [&](int k) {
      return std::string("x=") + kind.format + " w=" + kind.format + " y=bf16 m=1 n=128 k=" + std::to_string(k) +
             kind.global;
    };
    for (const char* target : {"sm_120a", "sm_121a"}) CHECK(why_not(problem(512), target).empty());
    for (const char* target : {"sm_90a", "sm_120"})
      CHECK(why_not(problem(512), target) == std::string(target) + " has no matrix instruction that scales blocks");
    CHECK(why_not(problem(512 + kind.unit / 2), "sm_120a") == "k must be a multiple of " + std::to_string(kind.unit) +
                                                                  " (got " + std::to_string(512 + kind.unit / 2) + ")");
    // Words of scales: rows of x begin with one.
    const Contract contract = gemm::contract(*Problem::parse("gemm " + problem(512)).as<Gemm>());
    REQUIRE(std::string(contract.strides.front().name) == "ldx");
    CHECK(contract.strides.front().multiple == kind.unit);
  }
}

TEST_CASE("a grid that no device takes is no candidate", "[mma]") {
  for (const char* name : {"reference", "gemv"}) {
    const Family& f = family("gemm", name);
    INFO(name);
    for (const char* text :
         {"gemm x=f32 w=f32 y=f32 m=262144 n=4096 k=64", "gemm x=f32 w=f32 y=f32 m=2147483647 n=64 k=64"}) {
      const Problem p = Problem::parse(text);
      CHECK_FALSE(f.candidates(p, arch("sm_80")).empty());
      for (const Candidate& c : f.candidates(p, arch("sm_80"))) {
        INFO(p.text() << ": " << c.text());
        CHECK(f.source(p, arch("sm_80"), c).plan.x.blocks(p.rows(), p.cols()) <= 0x7fffffff);
      }
    }
    CHECK(f.candidates(Problem::parse("gemm x=f32 w=f32 y=f32 m=8388608 n=2097152 k=1"), arch("sm_80")).empty());
  }
  const Family& reference = family("gemm", "reference");
  const Problem most = Problem::parse("gemm x=f32 w=f32 y=f32 m=8388604 n=131072 k=1"), more = most.with_rows(8388608);
  const Candidate oracle = Candidate::parse("reference oracle=1");
  CHECK(reference.candidates(most, arch("sm_80")).size() == 1);
  CHECK(reference.illegal(most, arch("sm_80"), oracle).empty());
  CHECK(reference.candidates(more, arch("sm_80")).empty());
  CHECK(reference.why_not(more, arch("sm_80")) ==
        "m=8388608 n=131072 needs 2147483648 blocks of 4 x 128 results, and a launch has at most 2147483647");
  CHECK_FALSE(reference.illegal(more, arch("sm_80"), oracle).empty());
}

TEST_CASE("mma: where a family does not refuse a pair of formats, some tile fits", "[mma]") {
  for (const Format x : Format::all())
    for (const Format w : Format::all())
      for (const int m : {1, 200, 512, 4096}) {
        std::optional<Problem> problem;
        try {
          problem = Problem::parse("gemm x=" + std::string(x.name()) + " w=" + std::string(w.name()) +
                                   " y=f32 n=4096 k=4096 m=" + std::to_string(m));
        } catch (const Error&) {
          continue;  // a pair that asks for more fields
        }
        for (const Arch& target : archs())
          for (const char* name : {"mma", "gemv"}) {
            const Family& f = family("gemm", name);
            if (f.why_not(*problem, target).empty() == f.candidates(*problem, target).empty())
              FAIL_CHECK(name << " on " << target.name << ": " << problem->text());
          }
      }
}

TEST_CASE("mma: tiles far smaller than m are offered only where no larger one fits", "[mma]") {
  const auto smallest = [](const char* text, const char* target) {
    int rows = 1 << 20;
    for (const Candidate& c : family("gemm", "mma").candidates(Problem::parse(text), arch(target)))
      rows = std::min(rows, static_cast<int>(c.at("block_m")));
    return rows;
  };
  CHECK(smallest("gemm x=f16 w=uint4_g128 y=f16 m=4096 n=4096 k=4096", "sm_90a") == 64);
  CHECK(smallest("gemm x=f16 w=uint4_g128 y=f16 m=4096 n=4096 k=4096", "sm_86") < 64);
}

TEST_CASE("mma: few tokens are its own where gemv has no kernel", "[mma]") {
  const std::string shape = " y=bf16 m=1 n=128 k=256";
  CHECK(why_not("x=e4m3_g128 w=e4m3_b128" + shape, "sm_89").empty());
  CHECK(why_not("x=bf16 w=bf16" + shape, "sm_89") == "m must be at least 4 (got 1)");
}
