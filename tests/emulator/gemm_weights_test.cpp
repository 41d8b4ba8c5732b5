// SPDX-License-Identifier: Apache-2.0
// Two kinds of weights that reach the kernels by ways of their own: rows of 4-bit codes, and minima of 16 elements.
// (Every format, once: format_test.cpp.in.)
#include "emulator/gemm_gemv_test.h"
#include "emulator/gemm_mma_test.h"
#include "formats/bf16.cuh"
#include "formats/e2m1_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/q2_k.cuh"

using namespace gemm_test;

// Minima of 16: blocks of codes have sums of 32.
TEMPLATE_TEST_CASE("gemv: weights that blocks of codes do not take", "[gemm]", fmt::f32, fmt::int8_row) {
  check_gemv<TestType, fmt::q2_k, PlainF32, gemm::GemvKnobs{.tokens = 1, .unit = 64, .lanes = 4, .staged_k = 1}>();
  check_gemv<
      TestType, fmt::q2_k, Epilogue<f16, float, Act::silu>,
      gemm::GemvKnobs{
          .tokens = 2, .unit = 256, .lanes = 32, .warps_k = 2, .warps = 8, .rows = 2, .staged_k = 1, .split_k = 2}>();
}

TEMPLATE_TEST_CASE("mma: 4-bit rows and minima of 16 by 16-bit x", "[gemm]", fmt::f16, fmt::bf16) {
  SECTION("int4_row") { check_mma_grouped<TestType, fmt::int4_row, 32, 128>(); }
  SECTION("e2m1_row") { check_mma_grouped<TestType, fmt::e2m1_row, 32, 128>(); }
  SECTION("q2_k") { check_mma_grouped<TestType, fmt::q2_k, 64, 128>(); }
}
