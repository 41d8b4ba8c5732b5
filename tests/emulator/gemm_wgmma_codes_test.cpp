// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_1.cuh"
#include "formats/q4_k.cuh"
#include "formats/q5_0.cuh"
#include "formats/q5_1.cuh"
#include "formats/q5_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"
#include "operations/gemm/cuda/wgmma_codes/kernel.cuh"

using namespace gemm_test;
using gemm::WgmmaCodesKnobs;

namespace {

template <class Plan, class X, class W, class Epi>
void check_once(const Size& s, u32 grid, std::uint64_t seed) {
  INFO("m " << s.m << " n " << s.n << " k " << s.k << " ldx +" << s.pad_x << " ldy +" << s.pad_y << " grid " << grid
            << " seed " << seed);
  Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(seed) * 2 + 1);
  const Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) * 2 + 2);
  Output<X, W, Epi> out(s, seed);
  Tiles<W> tiles = pack<W, tile_element<X, W>>(w);
  const gemm::Args args = out.args(x.operand(), {tiles.data.data(), tiles.scales.data(), nullptr});
  const TensorMap map = blocks_map(x, {Plan::kBlockM, 1});
  const u32 places = static_cast<u32>(ceil_div64(s.n, Plan::kBlockN) * ceil_div64(s.m, Plan::kBlockM));
  out.shape.constant_weights = constant_weights(seed);
  if (out.shape.constant_weights)
    emu::written_before({&x.data});
  else
    emu::written_before({&x.data, &tiles.data, &tiles.scales});
  emu::run({{std::min(places, grid), 1, 1}, Plan::kThreads, 1, Plan::kSharedBytes, seed},
           [&] { Plan::run(args, out.shape, &map); });
  CHECK(emu::written());
  out.compare(x.exact, w.exact, out.factor(),
              [&](const float* a, const float* b) { return rounding_of<NothingNarrowed, X, W>(a, b, s.k); });
}

// Few blocks, so that some take several tiles; strips that n lacks, tokens that m lacks, stages more and fewer than the
// ring's.
template <class W, class Epi, gemm::WgmmaCodesKnobs knobs>
void check_codes() {
  using X = fmt::q8_1;
  constexpr int kBlockM = knobs.block_m, kStages = knobs.stages;
  using Plan = gemm::WgmmaCodes<X, W, Epi, Fixed<knobs>::value>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kStage = std::lcm<i64>(Plan::kBlockK, W::kBlock);
  std::uint64_t seed = 0;
  check_once<Plan, X, W, Epi>({1, Plan::kBlockN + 64, kStage * 3}, 8, seed++);
  check_once<Plan, X, W, Epi>({kBlockM - 3, Plan::kBlockN, kStage * (kStages + 2), 128, 3}, 8, seed++);
  check_once<Plan, X, W, Epi>({kBlockM + 5, Plan::kBlockN + 64, kStage, 0, 8}, 4, seed++);
  check_once<Plan, X, W, Epi>({2 * kBlockM + 1, 2 * Plan::kBlockN + 64, kStage * 2}, 1, seed++);
}

}  // namespace

TEST_CASE("wgmma_codes: q8_1 by tiles of codes", "[gemm]") {
  SECTION("q4_0") {
    check_codes<fmt::q4_0, PlainF32, WgmmaCodesKnobs{.stages = 2}>();
    check_codes<fmt::q4_0, Epilogue<f16, float, Act::silu>, WgmmaCodesKnobs{.block_m = 64, .strips = 2, .pieces = 1}>();
    check_codes<fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>,
                WgmmaCodesKnobs{.block_m = 96, .strips = 2, .pieces = 3, .stages = 2}>();
  }
  SECTION("q5_0") {
    check_codes<fmt::q5_0, Epilogue<f16, NoBias, Act::none>,
                WgmmaCodesKnobs{.block_m = 64, .pieces = 1, .stages = 2}>();
  }
  SECTION("q8_0") { check_codes<fmt::q8_0, PlainF32, WgmmaCodesKnobs{.stages = 2}>(); }
  SECTION("q4_1") { check_codes<fmt::q4_1, PlainF32, WgmmaCodesKnobs{.block_m = 64, .strips = 2, .stages = 2}>(); }
  SECTION("q5_1") {
    check_codes<fmt::q5_1, PlainF32, WgmmaCodesKnobs{.block_m = 64, .warpgroups_n = 1, .pieces = 1}>();
  }
  SECTION("q4_k") {
    check_codes<fmt::q4_k, Epilogue<f16, float, Act::none>, WgmmaCodesKnobs{.block_m = 96, .stages = 2}>();
  }
  SECTION("q5_k") {
    check_codes<fmt::q5_k, PlainF32, WgmmaCodesKnobs{.block_m = 160, .warpgroups_n = 1, .pieces = 5, .stages = 2}>();
  }
}

TEST_CASE("wgmma: few tokens of q8_1 by tiles of codes", "[gemm]") {
  using X = fmt::q8_1;
  SECTION("q4_0") {
    check_warpgroups<X, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 8,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.block_m = 16, .strips = 2, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>,
                     WgmmaKnobs{.block_m = 32, .panels = 2, .cluster = 2, .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, PlainF32, WgmmaKnobs{.strips = 2, .panels = 2, .stages = 2, .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
  }
  SECTION("q5_0") {
    check_warpgroups<X, fmt::q5_0, PlainF32,
                     WgmmaKnobs{.block_m = 8,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .warp_mma = true}>();
    check_warpgroups<
        X, fmt::q5_0, Epilogue<f16, NoBias, Act::none>,
        WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .panels = 2, .cluster = 2, .split_k = 2, .warp_mma = true}>();
  }
  SECTION("q8_0") {
    check_warpgroups<X, fmt::q8_0, Epilogue<bf16, bf16, Act::gelu>,
                     WgmmaKnobs{.block_m = 8,
                                .warpgroups_n = 1,
                                .warpgroups_k = 4,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
    check_warpgroups<X, fmt::q8_0, PlainF32,
                     WgmmaKnobs{.warpgroups_n = 1, .panels = 2, .stages = 2, .warp_mma = true}>();
  }
  SECTION("q4_1") {
    check_warpgroups<X, fmt::q4_1, PlainF32,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  }
  SECTION("q5_1") {
    check_warpgroups<X, fmt::q5_1, PlainF32, WgmmaKnobs{.block_m = 8, .panels = 2, .warp_mma = true}>();
  }
  SECTION("q4_k") {
    check_warpgroups<X, fmt::q4_k, PlainF32,
                     WgmmaKnobs{.block_m = 8,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_k, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.warpgroups_n = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
  SECTION("q5_k") {
    check_warpgroups<X, fmt::q5_k, PlainF32,
                     WgmmaKnobs{.block_m = 32, .panels = 4, .stages = 2, .cluster = 2, .warp_mma = true}>();
  }
}

TEST_CASE("wgmma: one token of q8_1 by tiles of codes", "[gemm]") {
  using X = fmt::q8_1;
  SECTION("q4_0") {
    check_warpgroups<X, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.block_m = 1, .strips = 2, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>,
                     WgmmaKnobs{.block_m = 1, .panels = 8, .stages = 2, .warp_mma = true}>();
    check_warpgroups<X, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
    check_warpgroups<X, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .panels = 4,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::queue}>();
  }
  SECTION("q5_0") {
    check_warpgroups<X, fmt::q5_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .warp_mma = true}>();
  }
  SECTION("q8_0") {
    check_warpgroups<
        X, fmt::q8_0, Epilogue<bf16, bf16, Act::gelu>,
        WgmmaKnobs{
            .block_m = 1, .warpgroups_n = 1, .panels = 4, .stages = 2, .cluster = 2, .split_k = 2, .warp_mma = true}>();
  }
  SECTION("q4_1") {
    check_warpgroups<X, fmt::q4_1, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  }
  SECTION("q5_1") {
    check_warpgroups<X, fmt::q5_1, PlainF32, WgmmaKnobs{.block_m = 1, .panels = 4, .warp_mma = true}>();
  }
  SECTION("q4_k") {
    check_warpgroups<X, fmt::q4_k, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  }
  SECTION("q5_k") {
    check_warpgroups<X, fmt::q5_k, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.block_m = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
}

TEST_CASE("wgmma: one token of floats that the kernel quantizes, by tiles of codes", "[gemm]") {
  using F32 = fmt::Quantized<fmt::q8_1, fmt::f32>;
  using F16 = fmt::Quantized<fmt::q8_1, fmt::f16>;
  using Bf16 = fmt::Quantized<fmt::q8_1, fmt::bf16>;
  SECTION("f32, q4_0") {
    check_warpgroups<F32, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
    check_warpgroups<F32, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
    check_warpgroups<F32, fmt::q4_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .panels = 4,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::queue}>();
  }
  SECTION("f16, q4_k") {
    check_warpgroups<F16, fmt::q4_k, Epilogue<f16, float, Act::silu>,
                     WgmmaKnobs{.block_m = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
  SECTION("bf16, q8_0") {
    check_warpgroups<Bf16, fmt::q8_0, PlainF32,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  }
}
