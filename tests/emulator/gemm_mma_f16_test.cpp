// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_mma_test.h"
#include "formats/f16.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"

using namespace gemm_test;

TEST_CASE("mma: f16 activations, coded weights", "[gemm]") {
  SECTION("q4_0") { check_mma_grouped<fmt::f16, fmt::q4_0, 32, 128>(); }
  SECTION("q4_k") { check_mma_grouped<fmt::f16, fmt::q4_k, 64, 128>(); }
  SECTION("q8_0") { check_mma_grouped<fmt::f16, fmt::q8_0, 32, 128>(); }
  SECTION("q8_1") { check_mma_grouped<fmt::f16, fmt::q8_1, 32, 128>(); }
  SECTION("nvfp4") { check_mma_grouped<fmt::f16, fmt::nvfp4, 32, 128>(); }
}
