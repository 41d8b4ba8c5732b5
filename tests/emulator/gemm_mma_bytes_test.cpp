// SPDX-License-Identifier: Apache-2.0
// Operands of different widths: coded w by bytes of x, and bytes of w by 16-bit x.
#include "emulator/gemm_mma_test.h"
#include "formats/bf16.cuh"
#include "formats/e2m1_row.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e5m2.cuh"
#include "formats/f16.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q2_k.cuh"
#include "formats/q4_k.cuh"
#include "formats/q6_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/sign_row.cuh"
#include "formats/signbit_row.cuh"
#include "formats/ternary_row.cuh"

using namespace gemm_test;

namespace {

template <class X, class W, int SMALL>
void check_mma_bytes() {
  check_mma<X, W, PlainF32, coded(tile(16, 64, 128, 1, 4), SMALL, 1, false)>();
  check_mma<X, W, Epilogue<bf16, float, Act::silu>, coded(tile(64, 128, 128, 2, 4), 128, 2)>();
}
template <class X, class W>
void check_mma_widened() {
  check_mma<X, W, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
  check_mma<X, W, Epilogue<f16, float, Act::relu>, copied(tile(64, 128, 64, 2, 4), 3, 2)>();
  check_mma<X, W, PlainF32, loaded(tile(32, 64, 128, 1, 4), 2, 4)>();
}

}  // namespace

TEST_CASE("mma: bytes of x, coded weights", "[gemm]") {
  SECTION("signed bytes") {
    check_mma_bytes<fmt::int8_row, fmt::int4_g128, 128>();
    check_mma_bytes<fmt::int8, fmt::int4_row, 32>();
    check_mma_bytes<fmt::int8_row, fmt::q8_0, 32>();
    check_mma_bytes<fmt::int8_row, fmt::ternary_row, 32>();
    check_mma_bytes<fmt::int8, fmt::sign_row, 32>();
    check_mma_bytes<fmt::int8_row, fmt::q4_k, 128>();  // minima
    check_mma_bytes<fmt::int8_row, fmt::q6_k, 128>();  // groups of 16
    check_mma_bytes<fmt::int8_row, fmt::q2_k, 128>();  // both
  }
  SECTION("codes of 4 bits on both sides") {
    using Plan =
        gemm::Mma<fmt::int4_row, fmt::int4_row, PlainF32, Fixed<coded(tile(32, 64, 128, 1, 4), 128, 2)>::value>;
    for (const i64 k : {128, 256, 1152})  // whole stages
      check<Plan, fmt::int4_row, fmt::int4_row, PlainF32>({37, 67, k}, static_cast<std::uint64_t>(k));
  }
  SECTION("fp8") {
    check_mma_bytes<fmt::e4m3_row, fmt::int4_g128, 128>();
    check_mma_bytes<fmt::e4m3_row, fmt::int4_row, 32>();
    check_mma_bytes<fmt::e4m3, fmt::e2m1_row, 32>();
    check_mma_bytes<fmt::e4m3_row, fmt::q4_k, 128>();
    check_mma_bytes<fmt::e4m3_row, fmt::nvfp4, 32>();
    check_mma_bytes<fmt::e4m3_row, fmt::ternary_row, 32>();
    check_mma_bytes<fmt::e4m3, fmt::signbit_row, 32>();
    check_mma_bytes<fmt::e4m3_row, fmt::q2_k, 128>();
  }
}

TEST_CASE("mma: 16-bit x, weights of bytes and a scale per row", "[gemm]") {
  SECTION("signed bytes") {
    check_mma_widened<fmt::f16, fmt::int8_row>();
    check_mma_widened<fmt::bf16, fmt::int8>();
  }
  SECTION("fp8") {
    check_mma_widened<fmt::f16, fmt::e4m3_row>();
    check_mma_widened<fmt::bf16, fmt::e4m3>();
    check_mma_widened<fmt::f16, fmt::e5m2>();
    check_mma_widened<fmt::bf16, fmt::e5m2>();
  }
}
