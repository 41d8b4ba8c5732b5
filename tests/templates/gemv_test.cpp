// SPDX-License-Identifier: Apache-2.0
// What the family of few rows plans.
#include <tilewright/arch.h>
#include <tilewright/family.h>

#include "support/catch.h"

using namespace tilewright;

TEST_CASE("gemv: launches overlap the kernel before them where a target can", "[gemv]") {
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=1 n=256 k=1024");
  for (const Arch& target : archs()) {
    INFO(target.name);
    const std::vector<Candidate> all = family("gemm", "gemv").candidates(problem, target);
    REQUIRE_FALSE(all.empty());
    for (const Candidate& c : all) CHECK(family("gemm", "gemv").source(problem, target, c).plan.overlap == (target.major >= 9));
  }
}
