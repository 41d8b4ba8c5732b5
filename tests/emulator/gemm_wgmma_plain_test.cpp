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
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none>, WgmmaKnobs{}>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<float, float, Act::gelu>,
                     WgmmaKnobs{
                         .block_m = 32, .strips = 2, .warpgroups_n = 1, .panels = 2, .stages = 2, .cluster = 2}>();
    check_warpgroups<
        fmt::f16, fmt::f16, Epilogue<f16, f16, Act::relu>,
        WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 2, .cluster = 2, .split_k = 2}>();
  }
  SECTION("bf16") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>, WgmmaKnobs{.block_m = 128, .cluster = 2}>();
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::none>,
                     WgmmaKnobs{.block_m = 80, .warpgroups_n = 3}>();
    check_warpgroups<fmt::bf16, fmt::bf16, PlainF32,
                     WgmmaKnobs{
                         .block_m = 16, .warpgroups_n = 1, .panels = 4, .stages = 2, .cluster = 4, .split_k = 4}>();
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 2, .stages = 2}>();
  }
  SECTION("odd eights of tokens, one warpgroup alone") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 40, .panels = 2, .cluster = 2, .split_k = 2}>();
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu, bf16>,
                     WgmmaKnobs{.block_m = 72, .warpgroups_n = 1}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<e4m3, float, Act::none>,
                     WgmmaKnobs{.block_m = 200, .stages = 2, .fast_accumulation = true, .async_store = true}>();
    check_warpgroups<fmt::f16, fmt::f16, PlainF32,
                     WgmmaKnobs{.block_m = 96, .warpgroups_n = 1, .stages = 2, .cluster = 2, .swapped = true}>();
  }
  SECTION("fp8, a scale per row on both sides") {
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, WgmmaKnobs{.cluster = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{
                         .block_m = 144, .warpgroups_n = 3, .stages = 2, .cluster = 2, .fast_accumulation = true}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, PlainF32,
                     WgmmaKnobs{
                         .block_m = 16, .warpgroups_n = 1, .panels = 2, .stages = 2, .cluster = 2, .split_k = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{
                         .block_m = 32, .strips = 2, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 2, .stages = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.cluster = 2, .fast_accumulation = true}>();
  }
  SECTION("fp8, x in groups of 128, w in blocks of 128 x 128") {
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .panels = 2, .cluster = 2, .split_k = 2}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<f16, f16, Act::silu>,
                     WgmmaKnobs{.strips = 2, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 2, .stages = 2}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32, WgmmaKnobs{.block_m = 16, .stages = 2, .cluster = 2}>();
  }
  SECTION("fp8, scales of blocks and many tokens") {
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, bf16, Act::gelu>,
                     WgmmaKnobs{.cluster = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{
                         .block_m = 128, .strips = 2, .warpgroups_n = 1, .panels = 2, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32,
                     WgmmaKnobs{.block_m = 192, .warpgroups_n = 1, .stages = 2, .swapped = true}>();
  }
  SECTION("fp8, x with a scale per row, w in blocks of 128 x 128") {
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_b128, Epilogue<bf16, float, Act::none>,
                     WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .panels = 2, .stages = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_b128, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.strips = 2, .stages = 2, .swapped = true}>();
  }
  SECTION("many tokens, which are the 64-row side") {
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, f16, Act::silu, f16>,
                     WgmmaKnobs{.block_m = 160, .cluster = 2, .swapped = true}>();
    check_warpgroups<fmt::bf16, fmt::bf16, PlainF32,
                     WgmmaKnobs{.block_m = 96, .strips = 2, .warpgroups_n = 1, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{
                         .block_m = 224, .stages = 2, .cluster = 2, .swapped = true, .fast_accumulation = true}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<f16, float, Act::none>,
                     WgmmaKnobs{.block_m = 96, .warpgroups_n = 3, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<e4m3, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 160, .cluster = 2, .swapped = true}>();
  }
  SECTION("asynchronous stores by idle warps") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>,
                     WgmmaKnobs{.block_m = 192, .cluster = 2, .async_store = true}>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 112, .strips = 2, .stages = 2, .async_store = true}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 96, .warpgroups_n = 3, .fast_accumulation = true, .async_store = true}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<e4m3, float, Act::none>,
                     WgmmaKnobs{
                         .block_m = 192, .stages = 2, .cluster = 2, .fast_accumulation = true, .async_store = true}>();
    check_warpgroups<fmt::int8_asym_row, fmt::int8_asym_row, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 192, .cluster = 2, .async_store = true}>();
  }
  SECTION("the same, tokens being the 64-row side") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::gelu>,
                     WgmmaKnobs{.block_m = 224, .stages = 2, .cluster = 2, .swapped = true, .async_store = true}>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<i8, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 96, .strips = 2, .swapped = true, .async_store = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 128, .cluster = 2, .swapped = true, .async_store = true}>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 96, .warpgroups_n = 3, .swapped = true, .async_store = true}>();
  }
  SECTION("tiles of the last round, shared by two blocks") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>,
                     WgmmaKnobs{.cluster = 2, .schedule = Schedule::split_last_wave}>();
    check_warpgroups<
        fmt::f16, fmt::f16, PlainF32,
        WgmmaKnobs{.block_m = 16, .strips = 2, .panels = 2, .cluster = 2, .schedule = Schedule::split_last_wave}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 96, .cluster = 2, .schedule = Schedule::split_last_wave}>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::none>,
                     WgmmaKnobs{.block_m = 32, .strips = 2, .cluster = 2, .schedule = Schedule::split_last_wave}>();
  }
  SECTION("Stream-K: tiles of the last round, shared by all blocks") {
    check_warpgroups<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu, bf16>,
                     WgmmaKnobs{.cluster = 2, .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::f16, fmt::f16, PlainF32,
                     WgmmaKnobs{
                         .block_m = 16, .strips = 2, .warpgroups_n = 1, .panels = 2, .schedule = Schedule::stream_k}>();
    check_warpgroups<
        fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>,
        WgmmaKnobs{.block_m = 96, .warpgroups_n = 3, .stages = 2, .cluster = 2, .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::none>,
                     WgmmaKnobs{.block_m = 32, .strips = 2, .cluster = 2, .schedule = Schedule::stream_k}>();
  }
  SECTION("Stream-K: in many orders, with shares of two tiles and nothing else to do") {
    using Plan = gemm::WgmmaKernel<
        fmt::f16, fmt::f16, PlainF32,
        Fixed<WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .stages = 2, .schedule = Schedule::stream_k}>::value>;
    for (std::uint64_t seed = 100; seed < 160; ++seed)
      check_wgmma<Plan, fmt::f16, fmt::f16, PlainF32>({16, 4 * Plan::kBlockN, 64 * 7, 0, 0}, 6, seed);
    using Few = gemm::WgmmaKernel<fmt::f16, fmt::f16, PlainF32,
                                  Fixed<WgmmaKnobs{.block_m = 8,
                                                   .warpgroups_n = 1,
                                                   .warpgroups_k = 2,
                                                   .panels = 2,
                                                   .stages = 2,
                                                   .schedule = Schedule::stream_k}>::value>;
    for (std::uint64_t seed = 200; seed < 240; ++seed)
      check_wgmma<Few, fmt::f16, fmt::f16, PlainF32>({7, 4 * Few::kBlockN, 128 * 7, 0, 0}, 6, seed);
  }
  SECTION("signed bytes, a scale per row on both sides") {
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<bf16, float, Act::none>,
                     WgmmaKnobs{.strips = 2, .warpgroups_n = 1}>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 32,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 2,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2}>();
  }
  SECTION("signed bytes, a scale and a zero point per row") {
    using X = fmt::int8_asym_row;
    check_warpgroups<X, X, Epilogue<bf16, float, Act::none>, WgmmaKnobs{.strips = 2, .warpgroups_n = 1}>();
    check_warpgroups<X, X, Epilogue<f16, NoBias, Act::none>, WgmmaKnobs{.block_m = 96, .cluster = 2}>();
    check_warpgroups<X, X, Epilogue<float, NoBias, Act::gelu>, WgmmaKnobs{.block_m = 16, .stages = 2, .cluster = 2}>();
    check_warpgroups<X, X, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 32,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 2,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2}>();
  }
}
