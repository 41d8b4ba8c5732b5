// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_mma_test.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/int8.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/int8_row.cuh"

using namespace gemm_test;

TEST_CASE("mma: plain operands", "[gemm]") {
  SECTION("f16") { check_mma_plain<fmt::f16>(); }
  SECTION("bf16") { check_mma_plain<fmt::bf16>(); }
  SECTION("signed bytes, a scale per row") {
    check_mma<fmt::int8_row, fmt::int8_row, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
    check_mma<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::relu>,
              copied_bytes(tile(64, 128, 128, 2, 4), 3, 2)>();
    check_mma<fmt::int8, fmt::int8_row, Epilogue<f16, NoBias, Act::none>, loaded(tile(32, 64, 64, 1, 4), 3, 8)>();
  }
  SECTION("signed bytes, a scale and a zero point per row") {
    check_mma<fmt::int8_asym_row, fmt::int8_asym_row, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
    check_mma<fmt::int8_asym_row, fmt::int8_asym_row, Epilogue<bf16, float, Act::silu>,
              copied_bytes(tile(64, 64, 128, 2, 2), 3, 2)>();
  }
  SECTION("fp8, a scale per row") {
    check_mma<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, f16, Act::gelu>,
              copied_bytes(tile(32, 128, 128, 2, 4), 3, 4)>();
    check_mma<fmt::e4m3_row, fmt::e4m3, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 4)>();
  }
  SECTION("fp8, scales of 128 columns") {
    check_mma<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32, copied_bytes(tile(16, 64, 128, 1, 4), 3)>();
    check_mma<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, bf16, Act::silu>,
              loaded(tile(128, 256, 128, 2, 4), 2, 16)>();
    check_mma<fmt::e4m3_g128, fmt::e4m3_g128, Epilogue<f16, NoBias, Act::none>,
              copied_bytes(tile(64, 64, 128, 2, 2), 3, 4)>();
    check_mma<fmt::e4m3_row, fmt::e4m3_b128, PlainF32, copied_bytes(tile(32, 128, 128, 1, 4), 3, 2)>();
    check_mma<fmt::e4m3_g128, fmt::e4m3_row, PlainF32, copied_bytes(tile(16, 128, 128, 1, 8), 2)>();
  }
}
