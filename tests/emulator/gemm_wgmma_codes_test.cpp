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
#include "gemm/wgmma_codes/kernel.cuh"

using namespace gemm_test;

namespace {

template <class Plan, class X, class W, class Epi>
void check_once(const Size& s, u32 grid, std::uint64_t seed) {
  INFO("m " << s.m << " n " << s.n << " k " << s.k << " ldx +" << s.pad_x << " ldy +" << s.pad_y << " grid " << grid
            << " seed " << seed);
  Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(seed) * 2 + 1);
  const Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) * 2 + 2);
  Output<X, W, Epi> out(s, seed);
  Tiles<W> tiles = pack<W, tile_element<X>>(w);
  const gemm::Args args = out.args(x.operand(), {tiles.data.data(), tiles.scales.data(), nullptr});
  const TensorMap map = blocks_map(x, Plan::kBM, 1);
  const u32 places = static_cast<u32>(ceil_div64(s.n, Plan::BN) * ceil_div64(s.m, Plan::kBM));
  out.shape.constant_weights = constant_weights(seed);
  if (out.shape.constant_weights)
    emu::written_before({&x.data});
  else
    emu::written_before({&x.data, &tiles.data, &tiles.scales});
  emu::run({{std::min(places, grid), 1, 1}, Plan::kThreads, 1, Plan::kSharedBytes, seed},
           [&] { Plan::run(args, out.shape, &map); });
  CHECK(emu::written());
  out.compare(x.exact, w.exact, out.shape.alpha,
              [&](const float* a, const float* b) { return rounding_of<X, W>(a, b, s.k); });
}

// Few blocks, so that some take several tiles; strips that n lacks, tokens that m lacks, stages more and fewer than the
// ring's.
template <class W, class Epi, int BM, int STRIPS, int GROUPS, int PIECES, int STAGES>
void check_codes() {
  using X = fmt::q8_1;
  using Plan = gemm::WarpgroupCodes<X, W, Epi, BM, STRIPS, GROUPS, PIECES, STAGES>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kStage = std::lcm<i64>(Plan::BK, W::kBlock);
  std::uint64_t seed = 0;
  check_once<Plan, X, W, Epi>({1, Plan::BN + 64, kStage * 3}, 8, seed++);
  check_once<Plan, X, W, Epi>({BM - 3, Plan::BN, kStage * (STAGES + 2), 128, 3}, 8, seed++);
  check_once<Plan, X, W, Epi>({BM + 5, Plan::BN + 64, kStage, 0, 8}, 4, seed++);
  check_once<Plan, X, W, Epi>({2 * BM + 1, 2 * Plan::BN + 64, kStage * 2}, 1, seed++);
}

}  // namespace

TEST_CASE("wgmma_codes: q8_1 by tiles of codes", "[gemm]") {
  SECTION("q4_0") {
    check_codes<fmt::q4_0, PlainF32, 128, 1, 2, 2, 2>();
    check_codes<fmt::q4_0, Epilogue<f16, float, Act::silu>, 64, 2, 2, 1, 3>();
    check_codes<fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>, 96, 2, 2, 3, 2>();
  }
  SECTION("q5_0") { check_codes<fmt::q5_0, Epilogue<f16, NoBias, Act::none>, 64, 1, 2, 1, 2>(); }
  SECTION("q8_0") { check_codes<fmt::q8_0, PlainF32, 128, 1, 2, 2, 2>(); }
  SECTION("q4_1") { check_codes<fmt::q4_1, PlainF32, 64, 2, 2, 2, 2>(); }
  SECTION("q5_1") { check_codes<fmt::q5_1, PlainF32, 64, 1, 1, 1, 3>(); }
  SECTION("q4_k") { check_codes<fmt::q4_k, Epilogue<f16, float, Act::none>, 96, 1, 2, 2, 2>(); }
  SECTION("q5_k") { check_codes<fmt::q5_k, PlainF32, 160, 1, 1, 5, 2>(); }
}

TEST_CASE("wgmma: few tokens of q8_1 by tiles of codes", "[gemm]") {
  using X = fmt::q8_1;
  SECTION("q4_0") {
    check_warpgroups<X, fmt::q4_0, PlainF32, 8, 1, 1, 2, 8, 2, 2, 2, true>();
    check_warpgroups<X, fmt::q4_0, Epilogue<f16, float, Act::silu>, 16, 2, 1, 1, 4, 3, 1, 1, true>();
    check_warpgroups<X, fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>, 32, 1, 2, 1, 2, 3, 2, 1, true>();
    check_warpgroups<X, fmt::q4_0, PlainF32, 64, 2, 2, 1, 2, 2, 1, 1, true>();
    check_warpgroups<X, fmt::q4_0, PlainF32, 16, 1, 1, 2, 4, 3, 1, 1, true, false, false, kStreamK>();
  }
  SECTION("q5_0") {
    check_warpgroups<X, fmt::q5_0, PlainF32, 8, 2, 1, 2, 4, 2, 1, 1, true>();
    check_warpgroups<X, fmt::q5_0, Epilogue<f16, NoBias, Act::none>, 32, 1, 1, 1, 2, 3, 2, 2, true>();
  }
  SECTION("q8_0") {
    check_warpgroups<X, fmt::q8_0, Epilogue<bf16, bf16, Act::gelu>, 8, 1, 1, 4, 8, 2, 2, 2, true>();
    check_warpgroups<X, fmt::q8_0, PlainF32, 64, 1, 1, 1, 2, 2, 1, 1, true>();
  }
  SECTION("q4_1") { check_warpgroups<X, fmt::q4_1, PlainF32, 16, 1, 1, 2, 4, 2, 2, 2, true>(); }
  SECTION("q5_1") { check_warpgroups<X, fmt::q5_1, PlainF32, 8, 1, 2, 1, 2, 3, 1, 1, true>(); }
  SECTION("q4_k") {
    check_warpgroups<X, fmt::q4_k, PlainF32, 8, 2, 1, 2, 8, 2, 2, 2, true>();
    check_warpgroups<X, fmt::q4_k, Epilogue<f16, float, Act::silu>, 64, 1, 1, 1, 4, 2, 1, 1, true>();
  }
  SECTION("q5_k") { check_warpgroups<X, fmt::q5_k, PlainF32, 32, 1, 2, 1, 4, 2, 2, 1, true>(); }
}

TEST_CASE("wgmma: one token of q8_1 by tiles of codes", "[gemm]") {
  using X = fmt::q8_1;
  SECTION("q4_0") {
    check_warpgroups<X, fmt::q4_0, PlainF32, 1, 1, 1, 2, 8, 2, 2, 2, true>();
    check_warpgroups<X, fmt::q4_0, Epilogue<f16, float, Act::silu>, 1, 2, 1, 1, 4, 3, 1, 1, true>();
    check_warpgroups<X, fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>, 1, 1, 2, 1, 8, 2, 1, 1, true>();
    check_warpgroups<X, fmt::q4_0, PlainF32, 1, 1, 1, 2, 8, 2, 1, 1, true, false, false, kStreamK>();
    check_warpgroups<X, fmt::q4_0, PlainF32, 1, 2, 1, 1, 4, 2, 1, 1, true, false, false, kQueue>();
  }
  SECTION("q5_0") { check_warpgroups<X, fmt::q5_0, PlainF32, 1, 2, 1, 2, 8, 2, 1, 1, true>(); }
  SECTION("q8_0") { check_warpgroups<X, fmt::q8_0, Epilogue<bf16, bf16, Act::gelu>, 1, 1, 1, 1, 4, 2, 2, 2, true>(); }
  SECTION("q4_1") { check_warpgroups<X, fmt::q4_1, PlainF32, 1, 1, 1, 2, 8, 2, 2, 2, true>(); }
  SECTION("q5_1") { check_warpgroups<X, fmt::q5_1, PlainF32, 1, 1, 2, 1, 4, 3, 1, 1, true>(); }
  SECTION("q4_k") { check_warpgroups<X, fmt::q4_k, PlainF32, 1, 2, 1, 2, 8, 2, 2, 2, true>(); }
  SECTION("q5_k") { check_warpgroups<X, fmt::q5_k, Epilogue<f16, float, Act::silu>, 1, 1, 2, 1, 4, 2, 1, 1, true>(); }
}

TEST_CASE("wgmma: one token of floats that the kernel quantizes, by tiles of codes", "[gemm]") {
  using F32 = fmt::Quantized<fmt::q8_1, fmt::f32>;
  using F16 = fmt::Quantized<fmt::q8_1, fmt::f16>;
  using Bf16 = fmt::Quantized<fmt::q8_1, fmt::bf16>;
  SECTION("f32, q4_0") {
    check_warpgroups<F32, fmt::q4_0, PlainF32, 1, 1, 1, 2, 8, 2, 2, 2, true>();
    check_warpgroups<F32, fmt::q4_0, PlainF32, 1, 1, 1, 2, 8, 2, 1, 1, true, false, false, kStreamK>();
    check_warpgroups<F32, fmt::q4_0, PlainF32, 1, 2, 1, 1, 4, 2, 1, 1, true, false, false, kQueue>();
  }
  SECTION("f16, q4_k") {
    check_warpgroups<F16, fmt::q4_k, Epilogue<f16, float, Act::silu>, 1, 1, 2, 1, 4, 2, 1, 1, true>();
  }
  SECTION("bf16, q8_0") { check_warpgroups<Bf16, fmt::q8_0, PlainF32, 1, 2, 1, 2, 8, 2, 2, 2, true>(); }
}
