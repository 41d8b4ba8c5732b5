// SPDX-License-Identifier: Apache-2.0
// The gemv family's knobs as the tests choose them: every knob at both of its ends.
#pragma once

#include "emulator/gemm.h"

namespace gemm_test {

template <class X, class W, class Epi, int MT, int E, int LANES, int WK, int WARPS, int R, int DEPTH, int PIECES,
          int SPLIT>
void check_gemv() {
  constexpr int kPiece = E * LANES * WK * DEPTH * PIECES;
  using Plan = gemm::Gemv<X, W, Epi, MT, E, LANES, WK, WARPS, R, DEPTH, kPiece, SPLIT>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kUnit = std::lcm<i64>(E, X::kBlock);
  const auto k = [](i64 least) { return round_up<W>(least, kUnit); };
  check_sizes<Plan, X, W, Epi>(Plan::kRowsPerBlock, k(3 * kUnit),
                               {k(1), k(kPiece), k(kPiece * SPLIT + 3 * kUnit), k(2 * kPiece * SPLIT + kUnit)});
}

// Small: one row, few threads along k, pieces of one round. Large: the widest unit, k over warps and a cluster.
template <class X, class W, int SMALL, int LARGE>
void check_gemv_knobs() {
  check_gemv<X, W, PlainF32, 1, SMALL, 4, 1, 4, 1, 1, 1, 1>();
  check_gemv<X, W, Epilogue<f16, float, Act::silu>, 2, LARGE, 8, 2, 8, 4, 2, 1, 2>();
  check_gemv<X, W, Epilogue<bf16, bf16, Act::relu>, 8, SMALL, 32, 1, 4, 2, SMALL <= 16 ? 4 : 1, 2, 1>();
  check_gemv<X, W, Epilogue<float, f16, Act::gelu>, 4, SMALL, 4, 8, 8, 1, SMALL <= 32 ? 4 : 1, 1, 4>();
}

}  // namespace gemm_test
