// SPDX-License-Identifier: Apache-2.0
// The warpgroup kernel on weights in tiles: its knobs on a few formats. (Every format's tiles, once:
// format_test.cpp.in.)
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e2m1_row.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"

using namespace gemm_test;

namespace {

using Half = Epilogue<f16, NoBias, Act::none>;
using Brain = Epilogue<bf16, NoBias, Act::none>;

// A step at a time, as with many tokens; whole panels; warpgroups and blocks along k.
template <class X, class W, class Epi>
void check_tiles() {
  constexpr bool kFp8 = same<typename X::Element, e4m3>();
  check_warpgroups<X, W, Epi, WgmmaKnobs{.warpgroups_n = 1, .fast_accumulation = kFp8}>();
  check_warpgroups<
      X, W, PlainF32,
      WgmmaKnobs{
          .block_m = 16, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 4, .stages = 2, .cluster = 2, .split_k = 2}>();
  if constexpr (!kFp8)
    check_warpgroups<X, W, Epi,
                     WgmmaKnobs{.block_m = 8,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 4,
                                .panels = 4,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
}

}  // namespace

TEST_CASE("wgmma: tiles", "[gemm]") {
  SECTION("q4_0") {
    check_tiles<fmt::f16, fmt::q4_0, Half>();
    check_warpgroups<fmt::bf16, fmt::q4_0, Brain,
                     WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .warpgroups_k = 4, .panels = 8, .stages = 2}>();
    check_warpgroups<
        fmt::f16, fmt::q4_0, Half,
        WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2, .warp_mma = true}>();  // eight panels, begun early,
                                                                                         // are more than the ring
    check_warpgroups<fmt::f16, fmt::q4_0, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.block_m = 32, .strips = 2, .cluster = 2}>();
  }
  SECTION("asynchronous stores by idle warps") {
    check_warpgroups<fmt::bf16, fmt::int4_g128, Brain, WgmmaKnobs{.block_m = 176, .cluster = 2, .async_store = true}>();
    check_warpgroups<fmt::f16, fmt::q4_0, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.block_m = 96, .strips = 2, .async_store = true}>();
  }
  SECTION("nvfp4") {
    check_tiles<fmt::f16, fmt::nvfp4, Half>();
    check_tiles<fmt::bf16, fmt::nvfp4, Brain>();
  }
  SECTION("int4 in groups against signed bytes") {
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Brain, WgmmaKnobs{.panels = 2}>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, PlainF32,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2}>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Brain,
                     WgmmaKnobs{.block_m = 128, .warpgroups_n = 1, .panels = 2, .stages = 2, .cluster = 2}>();
    check_warpgroups<
        fmt::int8_row, fmt::int4_g128, Brain,
        WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .warpgroups_k = 4, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
  SECTION("int4 in groups against E4M3") {
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, Brain, WgmmaKnobs{.panels = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, PlainF32,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2}>();
    check_warpgroups<
        fmt::e4m3_row, fmt::int4_g128, Brain,
        WgmmaKnobs{
            .block_m = 128, .warpgroups_n = 1, .panels = 2, .stages = 2, .cluster = 2, .fast_accumulation = true}>();
    check_warpgroups<
        fmt::e4m3_row, fmt::int4_g128, Brain,
        WgmmaKnobs{
            .block_m = 176, .panels = 2, .stages = 2, .cluster = 2, .schedule = Schedule::stream_k}>();  // fragments
                                                                                                         // ahead
  }
  SECTION("Stream-K") {
    check_warpgroups<fmt::f16, fmt::q4_k, Half, WgmmaKnobs{.panels = 2, .stages = 2, .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::bf16, fmt::int4_g128, Brain,
                     WgmmaKnobs{
                         .block_m = 128, .panels = 2, .stages = 2, .cluster = 2, .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, Brain, WgmmaKnobs{.panels = 2, .schedule = Schedule::stream_k}>();
    // A block's few sums.
    check_warpgroups<fmt::f16, fmt::q4_k, Half,
                     WgmmaKnobs{.block_m = 8,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::bf16, fmt::int4_g128, PlainF32,
                     WgmmaKnobs{.block_m = 16,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Brain,
                     WgmmaKnobs{
                         .block_m = 8, .warpgroups_k = 2, .panels = 2, .stages = 2, .schedule = Schedule::stream_k}>();
  }
  SECTION("tiles from a queue") {
    check_warpgroups<
        fmt::f16, fmt::q4_0, Half,
        WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 4, .warp_mma = true, .schedule = Schedule::queue}>();
    check_warpgroups<fmt::bf16, fmt::mxfp4, Brain,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::queue}>();
    check_warpgroups<
        fmt::int8_row, fmt::int4_g128, Epilogue<bf16, float, Act::silu>,
        WgmmaKnobs{
            .block_m = 8, .strips = 2, .panels = 4, .stages = 2, .warp_mma = true, .schedule = Schedule::queue}>();
  }
  SECTION("tiles from a queue, in many orders") {
    using Plan = gemm::WgmmaKernel<
        fmt::f16, fmt::q4_0, Half,
        Fixed<WgmmaKnobs{
            .block_m = 8, .warpgroups_n = 1, .panels = 4, .stages = 2, .warp_mma = true, .schedule = Schedule::queue}>::
            value>;
    for (std::uint64_t seed = 300; seed < 340; ++seed)
      check_wgmma<Plan, fmt::f16, fmt::q4_0, Half>({7, 9 * Plan::kBlockN, 256 * static_cast<i64>(1 + seed % 3), 0, 0},
                                                   4, seed);
  }
  SECTION("one token") {
    check_warpgroups<fmt::f16, fmt::q4_0, Half,
                     WgmmaKnobs{.block_m = 1, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
    check_warpgroups<fmt::bf16, fmt::mxfp4, Brain,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .warp_mma = true}>();
    check_warpgroups<fmt::f16, fmt::int4_g128, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{
                         .block_m = 1, .panels = 4, .stages = 2, .cluster = 2, .split_k = 2, .warp_mma = true}>();
    check_warpgroups<
        fmt::int8_row, fmt::int4_g128, Brain,
        WgmmaKnobs{.block_m = 1, .warpgroups_n = 1, .warpgroups_k = 4, .panels = 8, .stages = 2, .warp_mma = true}>();
    check_warpgroups<fmt::int8_row, fmt::int4_row, PlainF32,
                     WgmmaKnobs{.block_m = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
    check_warpgroups<fmt::f16, fmt::q4_k, Half,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
  }
  SECTION("a scale per row") {
    check_tiles<fmt::int8_row, fmt::int4_row, Brain>();
    check_tiles<fmt::e4m3_row, fmt::int4_row, Brain>();
    check_tiles<fmt::e4m3_row, fmt::e2m1_row, Brain>();
  }
}
