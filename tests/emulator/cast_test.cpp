// SPDX-License-Identifier: Apache-2.0
// Cast kernels from and to every type of plain floats, in every way of encoding. (Every format, once:
// format_test.cpp.in.)
#include "emulator/cast.h"
#include "formats/bf16.cuh"
#include "formats/e2m1_row.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e5m2.cuh"
#include "formats/e5m2_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_g64.cuh"
#include "formats/int8.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"
#include "formats/uint4_g32.cuh"

using namespace cast_test;

TEMPLATE_TEST_CASE("encoding in blocks", "[cast]", fmt::f32, fmt::f16, fmt::bf16) {
  check_encode<TestType, fmt::q4_0>();
  check_encode<TestType, fmt::q8_0>();
  check_encode<TestType, fmt::q8_1>();
  check_encode<TestType, fmt::nvfp4>();
  check_encode<TestType, fmt::q4_k>();
  check_encode<TestType, fmt::f16>();
  check_encode<TestType, fmt::bf16>();
  if constexpr (TestType::kDataBytes == 4) check_encode<TestType, fmt::f32>();
}

TEMPLATE_TEST_CASE("decoding in blocks", "[cast]", fmt::f32, fmt::f16, fmt::bf16) {
  check_decode<fmt::q4_0, TestType>();
  check_decode<fmt::q8_0, TestType>();
  check_decode<fmt::q8_1, TestType>();
  check_decode<fmt::nvfp4, TestType>();
  check_decode<fmt::q4_k, TestType>();
  check_decode<fmt::e4m3_row, TestType>();
  if constexpr (TestType::kDataBytes == 4) {
    check_decode<fmt::f16, TestType>();
    check_decode<fmt::bf16, TestType>();
  }
}

TEMPLATE_TEST_CASE("rows with a scale", "[cast]", fmt::f32, fmt::f16, fmt::bf16) {
  check_rows<TestType, fmt::e4m3_row, 32, 4, 1>();
  check_rows<TestType, fmt::e4m3_row, 64, 2, 2>();
  check_rows<TestType, fmt::e4m3_row, 256, 1, 2>();
  check_rows<TestType, fmt::int8_row, 64, 2, 2>();
  check_rows<TestType, fmt::int8_asym_row, 32, 4, 1>();
  check_rows<TestType, fmt::int8_asym_row, 64, 2, 2>();
}

TEMPLATE_TEST_CASE("formats of weights", "[cast]", fmt::f16, fmt::bf16) {
  check_encode<TestType, fmt::int4_g64>();
  check_encode<TestType, fmt::uint4_g32>();
  check_encode<TestType, fmt::mxfp4>();
  check_decode<fmt::mxfp4, TestType>();
  check_decode<fmt::int8_asym_row, TestType>();
}

TEMPLATE_TEST_CASE("FP8 with scales of blocks", "[cast]", fmt::f32, fmt::f16, fmt::bf16) {
  check_encode<TestType, fmt::e4m3_g128>();
  check_decode<fmt::e4m3_g128, TestType>();
  check_run<cast::Reference<TestType, fmt::e4m3_g128>, TestType, fmt::e4m3_g128>();
  check_run<cast::Reference<fmt::e4m3_b128, TestType>, fmt::e4m3_b128, TestType>();
}

TEMPLATE_TEST_CASE("bytes and integers without a scale, or one for all", "[cast]", fmt::f32, fmt::f16, fmt::bf16) {
  check_encode<TestType, fmt::e4m3>();
  check_encode<TestType, fmt::e5m2_tensor>();
  check_encode<TestType, fmt::int8>();
  check_decode<fmt::e5m2, TestType>();
}

TEMPLATE_TEST_CASE("the reference", "[cast]", fmt::f32, fmt::f16, fmt::bf16) {
  check_run<cast::Reference<TestType, fmt::f32>, TestType, fmt::f32>();
  check_run<cast::Reference<TestType, fmt::q8_1>, TestType, fmt::q8_1>();
  check_run<cast::Reference<TestType, fmt::nvfp4>, TestType, fmt::nvfp4>();
  check_run<cast::Reference<fmt::q4_0, TestType>, fmt::q4_0, TestType>();
  check_run<cast::Reference<fmt::q4_k, TestType>, fmt::q4_k, TestType>();
  check_run<cast::Reference<fmt::e4m3_row, TestType>, fmt::e4m3_row, TestType>();
  check_plan<cast::Reference<TestType, fmt::e4m3_row>, fmt::e4m3_row>(plain<TestType>(131, 33, 5), 2, 0, 1);
  check_plan<cast::Reference<TestType, fmt::int8_asym_row>, fmt::int8_asym_row>(plain<TestType>(131, 33, 5), 2, 0, 1);
  check_run<cast::Reference<fmt::int8_asym_row, TestType>, fmt::int8_asym_row, TestType>();
  check_plan<cast::Reference<TestType, fmt::e2m1_row>, fmt::e2m1_row>(plain<TestType>(131, 34, 5), 2, 0, 1);
  check_plan<cast::Reference<TestType, fmt::q4_0>, fmt::q4_0>(plain<TestType>(3, 96, 5), 1, 1, 1);
  check_plan<cast::Reference<TestType, fmt::q4_k>, fmt::q4_k>(plain<TestType>(3, 768, 5), 1, 0, 1);
}
