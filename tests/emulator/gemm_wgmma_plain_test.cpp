// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/int8_row.cuh"

using namespace gemm_test;

TEST_CASE("wgmma: plain operands", "[gemm]") {
  SECTION("f16") {
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none>, 64, 1, 2, 1, 1, 3, 1, 1>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<float, float, Act::gelu>, 32, 2, 1, 1, 2, 2, 2, 1>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, f16, Act::relu>, 8, 1, 1, 2, 2, 3, 2, 2>();
  }
  SECTION("bf16") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>, 128, 1, 2, 1, 1, 3, 2, 1>();
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::none>, 80, 1, 3, 1, 1, 3, 1, 1>();
    check_warpgroups<fmt::bf16, fmt::bf16, PlainF32, 16, 1, 1, 1, 4, 2, 4, 4>();
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, NoBias, Act::none>, 16, 1, 1, 2, 2, 2, 1, 1>();
  }
  SECTION("fp8, a scale per row on both sides") {
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 64, 1, 2, 1, 1, 3, 2, 1>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 144, 1, 3, 1, 1, 2, 2, 1, false,
                     true>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, PlainF32, 16, 1, 1, 1, 2, 2, 2, 2>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<f16, NoBias, Act::none>, 32, 2, 1, 2, 2, 2, 1, 1>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 64, 1, 2, 1, 1, 3, 2, 1, false,
                     true>();
  }
  SECTION("fp8, x in groups of 128, w in blocks of 128 x 128") {
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>, 8, 1, 1, 1, 2, 3, 2, 2>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<f16, f16, Act::silu>, 64, 2, 1, 2, 2, 2, 1, 1>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32, 16, 1, 2, 1, 1, 2, 2, 1>();
  }
  SECTION("fp8, scales of blocks and many tokens") {
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, bf16, Act::gelu>, 64, 1, 2, 1, 1, 3, 2, 1, false,
                     false, true>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>, 128, 2, 1, 1, 2, 2, 1, 1, false,
                     false, true>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32, 192, 1, 1, 1, 1, 2, 1, 1, false, false, true>();
  }
  SECTION("fp8, x with a scale per row, w in blocks of 128 x 128") {
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_b128, Epilogue<bf16, float, Act::none>, 32, 1, 1, 1, 2, 2, 1, 1>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_b128, Epilogue<f16, NoBias, Act::none>, 64, 2, 2, 1, 1, 2, 1, 1, false,
                     false, true>();
  }
  SECTION("many tokens, which are the 64-row side") {
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, f16, Act::silu, f16>, 160, 1, 2, 1, 1, 3, 2, 1, false, false,
                     true>();
    check_warpgroups<fmt::bf16, fmt::bf16, PlainF32, 96, 2, 1, 1, 1, 2, 1, 1, false, false, true>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 224, 1, 2, 1, 1, 2, 2, 1, false,
                     true, true>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<f16, float, Act::none>, 96, 1, 3, 1, 1, 2, 1, 1, false,
                     false, true>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<e4m3, NoBias, Act::none>, 160, 1, 2, 1, 1, 3, 2, 1, false,
                     false, true>();
  }
  SECTION("a shelf, from which idle warps store") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>, 192, 1, 2, 1, 1, 3, 2, 1, false, false,
                     false, gemm::kNoTail, true>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none>, 112, 2, 2, 1, 1, 2, 1, 1, false, false,
                     false, gemm::kNoTail, true>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 96, 1, 3, 1, 1, 3, 1, 1, false,
                     true, false, gemm::kNoTail, true>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<e4m3, float, Act::none>, 192, 1, 2, 1, 1, 2, 2, 1, false,
                     true, false, gemm::kNoTail, true>();
    check_warpgroups<fmt::int8_asym_row, fmt::int8_asym_row, Epilogue<f16, NoBias, Act::none>, 192, 1, 2, 1, 1, 3, 2, 1,
                     false, false, false, gemm::kNoTail, true>();
  }
  SECTION("the same, tokens being the 64-row side") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::gelu>, 224, 1, 2, 1, 1, 2, 2, 1, false, false,
                     true, gemm::kNoTail, true>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<i8, NoBias, Act::none>, 96, 2, 2, 1, 1, 3, 1, 1, false,
                     false, true, gemm::kNoTail, true>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>, 128, 1, 2, 1, 1, 3, 2, 1, false,
                     false, true, gemm::kNoTail, true>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none>, 96, 1, 3, 1, 1, 3, 1, 1, false, false, true,
                     gemm::kNoTail, true>();
  }
  SECTION("tiles of the last round, shared by two blocks") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>, 64, 1, 2, 1, 1, 3, 2, 1, false, false,
                     false, kClusterTail>();
    check_warpgroups<fmt::f16, fmt::f16, PlainF32, 16, 2, 2, 1, 2, 3, 2, 1, false, false, false, kClusterTail>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 96, 1, 2, 1, 1, 3, 2, 1, false,
                     false, false, kClusterTail>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::none>, 32, 2, 2, 1, 1, 3, 2, 1, false,
                     false, false, kClusterTail>();
  }
  SECTION("Stream-K: tiles of the last round, shared by all blocks") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu, bf16>, 64, 1, 2, 1, 1, 3, 2, 1, false, false,
                     false, kStreamK>();
    check_warpgroups<fmt::f16, fmt::f16, PlainF32, 16, 2, 1, 1, 2, 3, 1, 1, false, false, false, kStreamK>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, 96, 1, 3, 1, 1, 2, 2, 1, false,
                     false, false, kStreamK>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::none>, 32, 2, 2, 1, 1, 3, 2, 1, false,
                     false, false, kStreamK>();
  }
  SECTION("Stream-K: in many orders, with shares of two tiles and nothing else to do") {
    using Plan = gemm::Warpgroups<fmt::f16, fmt::f16, PlainF32, 16, 1, 1, 1, 1, 2, 1, 1, false, false, false, kStreamK>;
    for (std::uint64_t seed = 100; seed < 160; ++seed)
      check_wgmma<Plan, fmt::f16, fmt::f16, PlainF32>({16, 4 * Plan::BN, 64 * 7, 0, 0}, 6, seed);
    using Few = gemm::Warpgroups<fmt::f16, fmt::f16, PlainF32, 8, 1, 1, 2, 2, 2, 1, 1, false, false, false, kStreamK>;
    for (std::uint64_t seed = 200; seed < 240; ++seed)
      check_wgmma<Few, fmt::f16, fmt::f16, PlainF32>({7, 4 * Few::BN, 128 * 7, 0, 0}, 6, seed);
  }
  SECTION("signed bytes, a scale per row on both sides") {
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::none>, 64, 2, 1, 1, 1, 3, 1, 1>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<f16, NoBias, Act::none>, 32, 1, 1, 2, 2, 2, 2, 2>();
  }
  SECTION("signed bytes, a scale and a zero point per row") {
    using X = fmt::int8_asym_row;
    check_warpgroups<X, X, Epilogue<bf16, float, Act::none>, 64, 2, 1, 1, 1, 3, 1, 1>();
    check_warpgroups<X, X, Epilogue<f16, NoBias, Act::none>, 96, 1, 2, 1, 1, 3, 2, 1>();
    check_warpgroups<X, X, Epilogue<float, NoBias, Act::gelu>, 16, 1, 2, 1, 1, 2, 2, 1>();
    check_warpgroups<X, X, Epilogue<f16, NoBias, Act::none>, 32, 1, 1, 2, 2, 2, 2, 2>();
  }
}
