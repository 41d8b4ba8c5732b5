// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_wgmma.h"
#include "formats/q4_0.cuh"
#include "formats/q5_0.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"
#include "gemm/wgmma_codes.cuh"

using namespace gemm_test;

namespace {

template <class Plan, class X, class W, class Epi>
void check_once(const Size& s, u32 grid, std::uint64_t seed) {
  INFO("m " << s.m << " n " << s.n << " k " << s.k << " ldx +" << s.pad_x << " ldy +" << s.pad_y << " grid " << grid << " seed " << seed);
  Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(seed) * 2 + 1);
  const Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) * 2 + 2);
  Output<X, W, Epi> out(s, seed);
  Tiles<W> tiles = pack<W, tile_element<X>>(w);
  const gemm::Args args = out.args(x.operand(), {tiles.data.data(), tiles.scales.data(), nullptr});
  const auto words = [](i64 columns) { return static_cast<u64>(columns / X::kBlock * X::kDataBytes / 4); };
  const TensorMap map = emu::tensor_map(x.data.data(), 4, words(s.k), static_cast<u64>(s.m), 4 * words(s.k + s.pad_x),
                                        static_cast<u32>(words(Plan::BK)), Plan::kBM, 0, 1);
  const u32 places = static_cast<u32>(ceil_div64(s.n, Plan::BN) * ceil_div64(s.m, Plan::kBM)) * Plan::kSplit;
  out.shape.constant_weights = constant_weights(seed);
  if (out.shape.constant_weights) emu::written_before({&x.data});
  else emu::written_before({&x.data, &tiles.data, &tiles.scales});
  emu::run({{std::min(places, grid / Plan::kSplit * Plan::kSplit), 1, 1}, Plan::kThreads, Plan::kSplit, Plan::kSharedBytes, seed},
           [&] { Plan::run(args, out.shape, &map); });
  CHECK(emu::written());
  out.compare(x.exact, w.exact, out.shape.alpha, [](const float*, const float*) { return 0.0; });
}

// Few blocks, so that some take several tiles; strips that n lacks, tokens that m lacks, stages more and fewer than the ring's.
template <class W, class Epi, int BM, int STRIPS, int GROUPS, int PIECES, int STAGES, int SPLIT>
void check_codes() {
  using X = fmt::q8_1;
  using Plan = gemm::WarpgroupCodes<X, W, Epi, BM, STRIPS, GROUPS, PIECES, STAGES, SPLIT>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kStage = Plan::BK;
  std::uint64_t seed = 0;
  check_once<Plan, X, W, Epi>({1, Plan::BN + 64, kStage * 3}, 8, seed++);
  check_once<Plan, X, W, Epi>({BM - 3, Plan::BN, kStage * (STAGES + 2), 128, 3}, 8, seed++);
  check_once<Plan, X, W, Epi>({BM + 5, Plan::BN + 64, kStage, 0, 8}, 4, seed++);
  check_once<Plan, X, W, Epi>({2 * BM + 1, 2 * Plan::BN + 64, kStage * 2}, Plan::kSplit, seed++);
}

}  // namespace

TEST_CASE("wgmma_codes: q8_1 by tiles of codes", "[gemm]") {
  SECTION("q4_0") {
    check_codes<fmt::q4_0, PlainF32, 128, 1, 2, 2, 2, 1>();
    check_codes<fmt::q4_0, Epilogue<f16, float, Act::silu>, 64, 2, 2, 1, 3, 1>();
    check_codes<fmt::q4_0, Epilogue<bf16, NoBias, Act::none, bf16>, 96, 2, 2, 3, 2, 1>();
    check_codes<fmt::q4_0, PlainF32, 16, 1, 4, 1, 3, 2>();
    check_codes<fmt::q4_0, Epilogue<bf16, bf16, Act::gelu>, 32, 2, 1, 2, 2, 4>();
  }
  SECTION("q5_0") { check_codes<fmt::q5_0, Epilogue<f16, NoBias, Act::none>, 16, 1, 2, 1, 2, 1>(); }
  SECTION("q8_0") {
    check_codes<fmt::q8_0, PlainF32, 128, 1, 2, 2, 2, 1>();
    check_codes<fmt::q8_0, Epilogue<bf16, float, Act::none>, 16, 2, 1, 1, 3, 2>();
  }
}
