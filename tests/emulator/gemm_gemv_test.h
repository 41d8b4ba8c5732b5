// SPDX-License-Identifier: Apache-2.0
// The gemv family's knobs as the tests choose them: every knob at both of its ends.
#pragma once

#include "emulator/gemm.h"

namespace gemm_test {

// staged_k counts rounds of all threads along k.
template <class X, class W, class Epi, gemm::GemvKnobs rounds>
void check_gemv() {
  constexpr gemm::GemvKnobs knobs = [] {
    gemm::GemvKnobs k = rounds;
    k.staged_k *= k.unit * k.threads_k() * k.depth;
    return k;
  }();
  using Plan = gemm::Gemv<X, W, Epi, Fixed<knobs>::value>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kUnit = std::lcm<i64>(knobs.unit, X::kBlock), kStaged = knobs.staged_k, kSplit = knobs.split_k;
  const auto k = [](i64 least) { return round_up<W>(least, kUnit); };
  check_sizes<Plan, X, W, Epi>(knobs.block_rows(), k(3 * kUnit),
                               {k(1), k(kStaged), k(kStaged * kSplit + 3 * kUnit), k(2 * kStaged * kSplit + kUnit)});
}

// Small: one row, few threads along k, pieces of one round. Large: the widest unit, k over warps and a cluster.
template <class X, class W, int SMALL, int LARGE>
void check_gemv_knobs() {
  check_gemv<X, W, PlainF32, gemm::GemvKnobs{.tokens = 1, .unit = SMALL, .lanes = 4, .staged_k = 1}>();
  check_gemv<X, W, Epilogue<f16, float, Act::silu>,
             gemm::GemvKnobs{.tokens = 2,
                             .unit = LARGE,
                             .lanes = 8,
                             .warps_k = 2,
                             .warps = 8,
                             .rows = 4,
                             .depth = 2,
                             .staged_k = 1,
                             .split_k = 2}>();
  check_gemv<X, W, Epilogue<bf16, bf16, Act::relu>,
             gemm::GemvKnobs{.tokens = 8, .unit = SMALL, .rows = 2, .depth = SMALL <= 16 ? 4 : 1, .staged_k = 2}>();
  check_gemv<X, W, Epilogue<float, f16, Act::gelu>,
             gemm::GemvKnobs{.tokens = 4,
                             .unit = SMALL,
                             .lanes = 4,
                             .warps_k = 8,
                             .warps = 8,
                             .depth = SMALL <= 32 ? 4 : 1,
                             .staged_k = 1,
                             .split_k = 4}>();
}

}  // namespace gemm_test
