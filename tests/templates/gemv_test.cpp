// SPDX-License-Identifier: Apache-2.0
// Tests what the family of few rows plans.
#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/gemm.h>
#include <tilewright/problem.h>

#include "support/catch.h"
#include "support/refusal.h"
#include "templates/common/families.h"

using namespace tilewright;

TEST_CASE("gemv: launches overlap the kernel before them where a target can", "[gemv]") {
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=1 n=256 k=1024");
  for (const Arch& target : archs()) {
    INFO(target.name);
    const std::vector<Candidate> all = family("gemm", "gemv").candidates(problem, target);
    REQUIRE_FALSE(all.empty());
    for (const Candidate& c : all)
      CHECK(family("gemm", "gemv").source(problem, target, c).plan.overlap == (target.major >= 9));
  }
}

TEST_CASE("gemv: x may come as floats, which the kernel quantizes", "[gemv]") {
  const std::string text = "gemm x=q8_1 w=q4_0 y=f32 m=1 n=256 k=1024 x_from=f16";
  const Problem problem = Problem::parse(text);
  CHECK(problem.text() == text);
  CHECK(problem.as<Gemm>()->x_stored() == Format::parse("f16"));
  CHECK_FALSE(problem == Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=256 k=1024"));
  CHECK(problem.min_bytes() == Problem::parse("gemm x=f16 w=q4_0 y=f32 m=1 n=256 k=1024").min_bytes());
  for (const Arch& target : archs()) {
    INFO(target.name);
    for (const std::int64_t m : {1, 8, 64}) {
      const Problem p = problem.with_rows(m);
      CHECK(family("gemm", "gemv").why_not(p, target).empty());
      CHECK(family("gemm", "mma").why_not(p, target).find("x_from=f16 is not supported") == 0);
      if (target.wgmma) CHECK(family("gemm", "wgmma").why_not(p, target).find("x_from=f16 is not supported") == 0);
      const std::vector<Candidate> all = family("gemm", "gemv").candidates(p, target);
      REQUIRE_FALSE(all.empty());
      const Source source = family("gemm", "gemv").source(p, target, all.front());
      CHECK(source.text.find("tw::fmt::Quantized<tw::fmt::q8_1, tw::fmt::f16>") != std::string::npos);
    }
  }
  // Rows of floats, read sixteen bytes at a time.
  const Contract contract = contract_for(problem);
  CHECK(std::string(contract.strides.front().name) == "ldx");
  CHECK(contract.strides.front().multiple == 8);
  CHECK(contract_for(Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=256 k=1024 x_from=f32")).strides.front().multiple ==
        4);
}

TEST_CASE("gemv: x that comes as floats, where that cannot be", "[gemv]") {
  const auto refused = [](const std::string& formats) {
    return std::string(refusal("gemm m=1 n=256 k=1024 y=f32 " + formats).what());
  };
  CHECK(refused("x=q8_1 w=q4_0 x_from=q8_0") == "x_from must be f32, f16 or bf16 (got q8_0)");
  CHECK(refused("x=q8_1 w=q4_0 x_from=int8") == "x_from must be f32, f16 or bf16 (got int8)");
  CHECK(refused("x=f16 w=q4_0 x_from=bf16") ==
        "x_from=bf16 is not supported for x=f16; cast x first (kernels make q8_1, e4m3_row and int8_row of floats, and "
        "f16 "
        "and bf16 of f32)");
  CHECK(refused("x=f32 w=f32 x_from=f32").starts_with("x_from=f32 is not supported for x=f32; cast x first"));
  CHECK(
      refused("x=int8_asym_row w=int8_row x_from=f32").starts_with("x_from=f32 is not supported for x=int8_asym_row"));
}

TEST_CASE("gemv: floats that are to be rounded first are for CPUs", "[gemv]") {
  const Problem problem = Problem::parse("gemm x=bf16 w=bf16 y=f32 m=1 n=256 k=1024 x_from=f32");
  for (const char* name : {"gemv", "mma", "wgmma", "wgmma_codes"})
    CHECK(family("gemm", name).why_not(problem, arch("sm_90a")) ==
          "x_from=f32 is not supported: kernels of this family do not quantize");
}
