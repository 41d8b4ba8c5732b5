// SPDX-License-Identifier: Apache-2.0
// 4-bit activations: legal, if unusual; any coded format in blocks of 32 without offsets may stand on the left.
#include "emulator/gemm_gemv_test.h"
#include "emulator/gemm_mma_test.h"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"

using namespace gemm_test;

TEST_CASE("gemv and mma: q4_0 activations", "[gemm]") {
  SECTION("gemv q4_k") { check_gemv_knobs<fmt::q4_0, fmt::q4_k, 64, 256>(); }
  SECTION("mma q4_0") { check_mma_codes<fmt::q4_0, fmt::q4_0, 32, 128>(); }
  SECTION("mma nvfp4") { check_mma_codes<fmt::q4_0, fmt::nvfp4, 32, 128>(); }
}
