// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_mma_test.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"

using namespace gemm_test;

TEST_CASE("mma: plain operands", "[gemm]") {
  SECTION("f16") { check_mma_plain<fmt::f16>(); }
  SECTION("bf16") { check_mma_plain<fmt::bf16>(); }
}
