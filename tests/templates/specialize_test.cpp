// SPDX-License-Identifier: Apache-2.0
// Tests what every generated source has, whichever family writes it.
#include <tilewright/arch.h>
#include <tilewright/family.h>
#include <tilewright/problem.h>
#include <tilewright/source.h>

#include <algorithm>

#include "support/catch.h"

using namespace tilewright;

TEST_CASE("generated sources need none of the CUDA runtime and are compiled without it", "[specialize]") {
  for (const char* text :
       {"gemm x=f16 w=q4_0 y=f16 m=1 n=256 k=1024", "gemm x=f16 w=q4_0 y=f16 m=64 n=256 k=1024 pack=tiles",
        "cast x=f32 y=q8_1 rows=4 cols=256", "pack w=q4_0 x=f16 n=64 k=64"}) {
    INFO(text);
    const Problem problem = Problem::parse(text);
    int served = 0;
    for (const Family* f : families(problem.op())) {
      const std::vector<Candidate> all = f->candidates(problem, arch("sm_90a"));
      if (all.empty()) continue;
      ++served;
      const std::vector<std::string> options = f->source(problem, arch("sm_90a"), all.front()).options;
      CHECK(std::count(options.begin(), options.end(), kMinimal) == 1);
    }
    CHECK(served > 0);
  }
}
