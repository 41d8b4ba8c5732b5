// SPDX-License-Identifier: Apache-2.0
// The mma family's knobs as the tests choose them: every knob at both of its ends.
#pragma once

#include "emulator/gemm.h"

namespace gemm_test {

template <class X, class W, class Epi, int BM, int BN, int BK, int WM, int WN, int STAGES, bool ASYNC, int EX, int EW,
          int SPLIT>
void check_mma() {
  using Plan = gemm::Mma<X, W, Epi, BM, BN, BK, WM, WN, STAGES, ASYNC, EX, EW, SPLIT>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kUnit = std::lcm<i64>(W::kCodes ? EW : EX, X::kBlock);
  const auto k = [](i64 least) { return round_up<W>(least, kUnit); };
  check_sizes<Plan, X, W, Epi>(
      BN, k(BK + kUnit), {k(1), k(3 * kUnit), k(BK), k(BK * STAGES * SPLIT + kUnit), k((2 * STAGES + 1) * BK * SPLIT)});
  if (BM == 16) check<Plan, X, W, Epi>({16 * 9 + 1, 2 * BN + 1, k(1)}, 99);  // more tiles along m than walk n together
}

// x and w of one 16-bit type: copied asynchronously where rows allow it, else through registers.
template <class F>
void check_mma_plain() {
  using T = typename F::Element;
  check_mma<F, F, PlainF32, 16, 64, 32, 1, 4, 2, false, 1, 0, 1>();
  check_mma<F, F, Epilogue<T, T, Act::relu>, 32, 64, 64, 1, 4, 3, true, 8, 0, 2>();
  check_mma<F, F, Epilogue<float, float, Act::gelu_tanh>, 32, 128, 128, 2, 4, 4, true, 8, 0, 8>();
  check_mma<F, F, Epilogue<T, float, Act::silu>, 64, 64, 64, 2, 2, 2, false, 2, 0, 4>();
  check_mma<F, F, PlainF32, 128, 256, 32, 2, 4, 2, true, 8, 0, 1>();
  check_mma<F, F, PlainF32, 256, 128, 32, 4, 2, 3, false, 4, 0, 1>();
}

// 16-bit x, coded w. SMALL, LARGE: what divides k, and so how wide the pieces of a row are.
template <class X, class W, int SMALL, int LARGE>
void check_mma_grouped() {
  using T = typename X::Element;
  check_mma<X, W, PlainF32, 16, 64, 64, 1, 4, 3, false, 8, SMALL, 1>();
  check_mma<X, W, Epilogue<T, float, Act::gelu>, 64, 128, 64, 2, 2, 3, true, 8, LARGE, 4>();
  check_mma<X, W, PlainF32, 16, 128, 128, 1, 8, 4, true, 8, LARGE, 8>();
  check_mma<X, W, Epilogue<float, T, Act::none>, 128, 64, 64, 4, 2, 3, true, 8, SMALL, 1>();
}

// Signed bytes.
template <class X, class W, int SMALL, int LARGE>
void check_mma_codes() {
  check_mma<X, W, PlainF32, 16, 64, 64, 1, 4, 3, true, 8, SMALL, 1>();
  check_mma<X, W, Epilogue<f16, float, Act::silu>, 128, 64, 128, 4, 2, 3, false, 8, LARGE, 2>();
  check_mma<X, W, Epilogue<bf16, bf16, Act::relu>, 64, 256, 64, 2, 4, 4, true, 8, LARGE, 1>();
  check_mma<X, W, PlainF32, 32, 128, 128, 2, 4, 3, true, 8, SMALL, 8>();
}

}  // namespace gemm_test
