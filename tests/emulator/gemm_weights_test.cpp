// SPDX-License-Identifier: Apache-2.0
// Formats of weights that share their way into the kernels with those of the other tests: each is read by both
// families, for integer and for float activations, with the narrowest and the widest pieces that its layout allows.
#include "emulator/gemm_gemv_test.h"
#include "emulator/gemm_mma_test.h"
#include "formats/bf16.cuh"
#include "formats/e2m1_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_g32.cuh"
#include "formats/int4_g64.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp4.cuh"
#include "formats/q2_k.cuh"
#include "formats/q3_k.cuh"
#include "formats/q4_1.cuh"
#include "formats/q5_0.cuh"
#include "formats/q5_1.cuh"
#include "formats/q5_k.cuh"
#include "formats/q6_k.cuh"
#include "formats/q8_1.cuh"
#include "formats/uint4_g128.cuh"
#include "formats/uint4_g32.cuh"
#include "formats/uint4_g64.cuh"

using namespace gemm_test;

namespace {

template <class X, class W, int SMALL, int LARGE>
void check_gemv_weights() {
  check_gemv<X, W, PlainF32, gemm::GemvKnobs{.unit = SMALL, .lanes = 4, .staged_k = 1}>();
  check_gemv<
      X, W, Epilogue<f16, float, Act::silu>,
      gemm::GemvKnobs{
          .tokens = 2, .unit = LARGE, .lanes = 8, .warps_k = 2, .warps = 8, .rows = 2, .staged_k = 1, .split_k = 2}>();
}
// SMALL, LARGE: of k. BK: of the narrow tile.
template <class X, class W, int SMALL, int LARGE, int BK = 64>
void check_mma_weights() {
  check_mma<X, W, PlainF32, coded(tile(16, 64, BK, 1, 4), SMALL)>();
  check_mma<X, W, Epilogue<f16, float, Act::silu>, coded(tile(32, 128, 128, 2, 4), LARGE, 2, false)>();
}
template <class W>
void check_reference() {
  using Epi = Epilogue<float, float, Act::silu>;
  using Plan = gemm::Reference<fmt::f32, W, Epi, false>;
  std::uint64_t seed = 0;
  for (const i64 m : kRagged) check<Plan, fmt::f32, W, Epi>({m, m % 2 ? 130 : 1, W::kBlock * (m % 3 + 1)}, seed++);
}

}  // namespace

TEMPLATE_TEST_CASE("gemv: formats of weights", "[gemm]", fmt::q8_1, fmt::f16) {
  SECTION("int4_g32") { check_gemv_weights<TestType, fmt::int4_g32, 32, 256>(); }
  SECTION("int4_g64") { check_gemv_weights<TestType, fmt::int4_g64, 64, 256>(); }
  SECTION("int4_g128") { check_gemv_weights<TestType, fmt::int4_g128, 64, 256>(); }
  SECTION("uint4_g32") { check_gemv_weights<TestType, fmt::uint4_g32, 32, 256>(); }
  SECTION("uint4_g64") { check_gemv_weights<TestType, fmt::uint4_g64, 64, 128>(); }
  SECTION("uint4_g128") { check_gemv_weights<TestType, fmt::uint4_g128, 128, 256>(); }
  SECTION("mxfp4") { check_gemv_weights<TestType, fmt::mxfp4, 64, 256>(); }
  SECTION("q4_1") { check_gemv_weights<TestType, fmt::q4_1, 32, 256>(); }
  SECTION("q5_0") { check_gemv_weights<TestType, fmt::q5_0, 32, 128>(); }
  SECTION("q5_1") { check_gemv_weights<TestType, fmt::q5_1, 32, 256>(); }
  SECTION("q5_k") { check_gemv_weights<TestType, fmt::q5_k, 64, 256>(); }
  SECTION("q6_k") { check_gemv_weights<TestType, fmt::q6_k, 128, 256>(); }
  SECTION("q3_k") { check_gemv_weights<TestType, fmt::q3_k, 128, 256>(); }
  SECTION("int4_row") { check_gemv_weights<TestType, fmt::int4_row, 32, 256>(); }
  SECTION("e2m1_row") { check_gemv_weights<TestType, fmt::e2m1_row, 64, 128>(); }
}

// Minima of 16: blocks of codes have sums of 32.
TEMPLATE_TEST_CASE("gemv: weights that blocks of codes do not take", "[gemm]", fmt::f32, fmt::f16, fmt::int8_row) {
  check_gemv_weights<TestType, fmt::q2_k, 64, 128>();
  check_gemv<TestType, fmt::q2_k, Epilogue<f16, float, Act::silu>,
             gemm::GemvKnobs{
                 .tokens = 2, .unit = 256, .warps_k = 2, .warps = 8, .rows = 2, .staged_k = 1, .split_k = 2}>();
}

TEMPLATE_TEST_CASE("mma: formats of weights", "[gemm]", fmt::q8_1, fmt::f16) {
  SECTION("int4_g32") { check_mma_weights<TestType, fmt::int4_g32, 32, 128>(); }
  SECTION("int4_g64") { check_mma_weights<TestType, fmt::int4_g64, 64, 128>(); }
  SECTION("int4_g128") { check_mma_weights<TestType, fmt::int4_g128, 128, 128, 128>(); }
  SECTION("uint4_g32") { check_mma_weights<TestType, fmt::uint4_g32, 32, 128>(); }
  SECTION("uint4_g64") { check_mma_weights<TestType, fmt::uint4_g64, 64, 64>(); }
  SECTION("uint4_g128") { check_mma_weights<TestType, fmt::uint4_g128, 128, 128, 128>(); }
  SECTION("mxfp4") { check_mma_weights<TestType, fmt::mxfp4, 64, 128>(); }
  SECTION("q4_1") { check_mma_weights<TestType, fmt::q4_1, 32, 128>(); }
  SECTION("q5_0") { check_mma_weights<TestType, fmt::q5_0, 32, 128>(); }
  SECTION("q5_1") { check_mma_weights<TestType, fmt::q5_1, 32, 128>(); }
  SECTION("q5_k") { check_mma_weights<TestType, fmt::q5_k, 64, 128>(); }
  SECTION("q6_k") { check_mma_weights<TestType, fmt::q6_k, 64, 128>(); }
  SECTION("q3_k") { check_mma_weights<TestType, fmt::q3_k, 64, 128>(); }
  SECTION("int4_row") { check_mma_weights<TestType, fmt::int4_row, 32, 128>(); }
  SECTION("e2m1_row") { check_mma_weights<TestType, fmt::e2m1_row, 64, 128>(); }
}

TEMPLATE_TEST_CASE("mma: 4-bit rows and minima of 16 by 16-bit x", "[gemm]", fmt::f16, fmt::bf16) {
  SECTION("int4_row") { check_mma_grouped<TestType, fmt::int4_row, 32, 128>(); }
  SECTION("e2m1_row") { check_mma_grouped<TestType, fmt::e2m1_row, 32, 128>(); }
  SECTION("q2_k") { check_mma_grouped<TestType, fmt::q2_k, 64, 128>(); }
}

TEMPLATE_TEST_CASE("reference: formats of weights", "[gemm]", fmt::e2m1_row, fmt::int4_g128, fmt::int4_g32,
                   fmt::int4_g64, fmt::int4_row, fmt::int8_row, fmt::mxfp4, fmt::q2_k, fmt::q3_k, fmt::q4_1, fmt::q5_0,
                   fmt::q5_1, fmt::q5_k, fmt::q6_k, fmt::uint4_g128, fmt::uint4_g32, fmt::uint4_g64) {
  check_reference<TestType>();
}
