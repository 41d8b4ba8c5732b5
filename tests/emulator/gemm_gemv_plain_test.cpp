// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_gemv_test.h"
#include "formats/bf16.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/int8_row.cuh"

using namespace gemm_test;

TEST_CASE("gemv: plain weights", "[gemm]") {
  SECTION("f32 f32") { check_gemv_knobs<fmt::f32, fmt::f32, 1, 4>(); }
  SECTION("f32 f16") { check_gemv_knobs<fmt::f32, fmt::f16, 2, 8>(); }
  SECTION("f32 bf16") { check_gemv_knobs<fmt::f32, fmt::bf16, 4, 8>(); }
  SECTION("f16 f32") { check_gemv_knobs<fmt::f16, fmt::f32, 1, 4>(); }
  SECTION("f16 f16") { check_gemv_knobs<fmt::f16, fmt::f16, 1, 8>(); }
  SECTION("f16 bf16") { check_gemv_knobs<fmt::f16, fmt::bf16, 2, 8>(); }
  SECTION("bf16 f32") { check_gemv_knobs<fmt::bf16, fmt::f32, 2, 4>(); }
  SECTION("bf16 f16") { check_gemv_knobs<fmt::bf16, fmt::f16, 4, 8>(); }
  SECTION("bf16 bf16") { check_gemv_knobs<fmt::bf16, fmt::bf16, 1, 8>(); }
  SECTION("int8_row int8_row") { check_gemv_knobs<fmt::int8_row, fmt::int8_row, 2, 16>(); }
  SECTION("int8_asym_row int8_asym_row") { check_gemv_knobs<fmt::int8_asym_row, fmt::int8_asym_row, 4, 16>(); }
  SECTION("e4m3_row e4m3_row") { check_gemv_knobs<fmt::e4m3_row, fmt::e4m3_row, 2, 16>(); }
  SECTION("f16 int8_row") { check_gemv_knobs<fmt::f16, fmt::int8_row, 2, 16>(); }
}
