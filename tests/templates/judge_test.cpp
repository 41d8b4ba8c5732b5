// SPDX-License-Identifier: Apache-2.0
// Tests what counts as a right result, and factors that a kernel cannot hold.
#include <tilewright/error.h>
#include <tilewright/problem.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/catch.h"
#include "templates/gemm/judge.h"

using namespace tilewright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::string refused(const std::string& fields) {
  try {
    Problem::parse("gemm x=f16 w=q4_0 y=f16 m=1 n=64 k=64 " + fields);
  } catch (const Error& e) {
    return e.field();
  }
  return "";
}

}  // namespace

TEST_CASE("an infinity is right only where the bound lets the exact value round to it", "[judge]") {
  const Format f16 = Format::parse("f16"), f32 = Format::parse("f32");
  CHECK(gemm::judge(f16, kInf, 70000, 1).right);
  CHECK_FALSE(gemm::judge(f16, -kInf, 70000, 1).right);  // the other sign
  CHECK_FALSE(gemm::judge(f16, kInf, 60000, 1).right);   // f16 holds it
  CHECK(gemm::judge(f16, kInf, 65500, 100).right);
  CHECK_FALSE(gemm::judge(f32, kInf, 70000, 1).right);
  CHECK_FALSE(gemm::judge(f32, -kInf, 1, 0.5).right);
  CHECK(gemm::judge(f32, kInf, 1e39, 1).right);
  CHECK_FALSE(gemm::judge(f32, std::nanf(""), 1, 0.5).right);
  CHECK(gemm::judge(f32, std::nanf(""), std::nan(""), 0.5).right);
  CHECK(gemm::judge(f32, 1.25f, 1, 0.5).right);
  CHECK_FALSE(gemm::judge(f32, 1.75f, 1, 0.5).right);
}

TEST_CASE("factors are checked in the precision that kernels use, groups in 64 bits", "[judge]") {
  CHECK(refused("alpha=1e39") == "alpha");
  CHECK(refused("alpha=1e-60") == "alpha");
  CHECK(refused("alpha=0").empty());
  CHECK(refused("alpha=1e-30").empty());
  CHECK(refused("c=f16 beta=1e39") == "beta");
  CHECK(refused("group=4294967328") == "group");
  CHECK(refused("group=4294967296") == "group");
  CHECK(refused("group=32").empty());
  CHECK(refused("kk=4") == "kk");
}
