// SPDX-License-Identifier: Apache-2.0
// The mma family's knobs as the tests choose them: every knob at both of its ends.
#pragma once

#include "emulator/gemm.h"

namespace gemm_test {

using gemm::MmaKnobs;

template <class X, class W, class Epi, MmaKnobs knobs>
void check_mma() {
  using Plan = gemm::Mma<X, W, Epi, Fixed<knobs>::value>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kUnit = std::lcm<i64>(W::kCodes || fmt::is_table<W>() ? knobs.unit_w : knobs.unit_x, X::kBlock),
                kStageK = knobs.block_k, kRounds = knobs.stages, kSplit = knobs.split_k;
  const auto k = [](i64 least) { return round_up<W>(least, kUnit); };
  check_sizes<Plan, X, W, Epi>(
      knobs.block_n, k(kStageK + kUnit),
      {k(1), k(3 * kUnit), k(kStageK), k(kStageK * kRounds * kSplit + kUnit), k((2 * kRounds + 1) * kStageK * kSplit)});
  // More tiles along m than walk n together.
  if (knobs.block_m == 16) check<Plan, X, W, Epi>({16 * 9 + 1, 2 * knobs.block_n + 1, k(1)}, 99);
}

// Tiles, and how warps share them.
constexpr MmaKnobs tile(int block_m, int block_n, int block_k, int warps_m, int warps_n) {
  return {.block_m = block_m, .block_n = block_n, .block_k = block_k, .warps_m = warps_m, .warps_n = warps_n};
}
// Plain operands are copied asynchronously if rows are whole `unit`s of 16 bytes, else `unit` elements at a time
// through registers.
constexpr MmaKnobs copied(MmaKnobs k, int stages, int split_k = 1, int unit = 8) {
  k.stages = stages, k.unit_x = unit, k.split_k = split_k;
  return k;
}
constexpr MmaKnobs copied_bytes(MmaKnobs k, int stages, int split_k = 1) { return copied(k, stages, split_k, 16); }
constexpr MmaKnobs loaded(MmaKnobs k, int stages, int unit, int split_k = 1) {
  k.stages = stages, k.async_copy = false, k.unit_x = unit, k.split_k = split_k;
  return k;
}
// Coded weights; `unit` of their elements divides k.
constexpr MmaKnobs coded(MmaKnobs k, int unit, int split_k = 1, bool async_copy = true) {
  k.async_copy = async_copy, k.unit_w = unit, k.split_k = split_k;
  return k;
}

// x and w of one 16-bit type: copied asynchronously where rows allow it, else through registers.
template <class F>
void check_mma_plain() {
  using T = typename F::Element;
  check_mma<F, F, PlainF32, loaded(tile(16, 64, 32, 1, 4), 2, 1)>();
  check_mma<F, F, Epilogue<T, T, Act::relu>, copied(tile(32, 64, 64, 1, 4), 3, 2)>();
  check_mma<F, F, Epilogue<float, float, Act::gelu_tanh>, copied(tile(32, 128, 128, 2, 4), 4, 8)>();
  check_mma<F, F, Epilogue<T, float, Act::silu>, loaded(tile(64, 64, 64, 2, 2), 2, 2, 4)>();
  check_mma<F, F, PlainF32, copied(tile(128, 256, 32, 2, 4), 2)>();
  check_mma<F, F, PlainF32, loaded(tile(256, 128, 32, 4, 2), 3, 4)>();
}

// 16-bit x, coded w. SMALL, LARGE: what divides k, and so how wide the pieces of a row are.
template <class X, class W, int SMALL, int LARGE>
void check_mma_grouped() {
  using T = typename X::Element;
  check_mma<X, W, PlainF32, coded(tile(16, 64, 64, 1, 4), SMALL, 1, false)>();
  check_mma<X, W, Epilogue<T, float, Act::gelu>, coded(tile(64, 128, 64, 2, 2), LARGE, 4)>();
  check_mma<X, W, PlainF32, copied(coded(tile(16, 128, 128, 1, 8), LARGE), 4, 8)>();
  check_mma<X, W, Epilogue<float, T, Act::none>, coded(tile(128, 64, 64, 4, 2), SMALL)>();
}

// Signed bytes.
template <class X, class W, int SMALL, int LARGE>
void check_mma_codes() {
  check_mma<X, W, PlainF32, copied(coded(tile(16, 64, 64, 1, 4), SMALL), 4)>();
  check_mma<X, W, Epilogue<f16, float, Act::silu>, coded(tile(128, 64, 128, 4, 2), LARGE, 2, false)>();
  check_mma<X, W, Epilogue<bf16, bf16, Act::relu>, copied(coded(tile(64, 256, 64, 2, 4), LARGE), 4)>();
  check_mma<X, W, PlainF32, coded(tile(32, 128, 128, 2, 4), SMALL, 8)>();
}

}  // namespace gemm_test
