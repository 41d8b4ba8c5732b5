// SPDX-License-Identifier: Apache-2.0
// The reference kernel on weights in tiles, with what an epilogue adds. (Every format's tiles, once:
// format_test.cpp.in.)
#include "emulator/gemm_tiles.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q2_k.cuh"
#include "formats/q4_0.cuh"

using namespace gemm_test;

TEST_CASE("reference: weights in tiles", "[gemm]") {
  check_tile_values<fmt::f16, fmt::q4_0, Epilogue<f16, float, Act::silu>>({1, 64, 320, 8}, 2);
  check_tile_values<fmt::f16, fmt::nvfp4, Epilogue<float, f16, Act::gelu>>({8, 64, 64}, 4);
  check_tile_values<fmt::bf16, fmt::q2_k, Epilogue<bf16, float, Act::relu>>({3, 64, 512}, 11);
}
