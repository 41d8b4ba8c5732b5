// SPDX-License-Identifier: Apache-2.0
// Checks every format's kernels in the emulator; format_test.cpp.in makes a translation unit for each file of
// templates/formats. Each family reads or writes the format with two choices of knobs: the narrowest and the widest
// pieces that its layout allows, which x multiplies as floats and, if it can, as codes. Every value of every knob is
// tried on a few formats, in gemm_*_test.cpp.
#pragma once

#include "emulator/cast.h"
#include "emulator/gemm_gemv_test.h"
#include "emulator/gemm_mma_test.h"
#include "emulator/gemm_tiles.h"
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8_row.cuh"
#include "formats/q8_1.cuh"

namespace format_test {

using namespace gemm_test;

// x in blocks of codes has sums of 32, which minima of fewer cannot use.
template <class W>
constexpr bool by_blocks = W::kCodes && (!W::kOffset || W::kGroup >= 32);

template <class W>
constexpr int unit(bool widest, int least) {
  int found = 0;
  for (int e = 1; e <= 256; e *= 2)
    if (e >= least && W::unit_ok(e) && (widest || !found)) found = e;
  return found;
}

template <class X, class W>
void gemv_narrow() {
  constexpr int kSmall = unit<W>(false, W::kCodes ? 32 : 2);
  check_gemv<X, W, PlainF32, gemm::GemvKnobs{.tokens = 1, .unit = kSmall, .lanes = 4, .staged_k = 1}>();
}
template <class X, class W>
void gemv_wide() {
  constexpr int kLarge = unit<W>(true, 1);
  check_gemv<
      X, W, Epilogue<f16, float, Act::silu>,
      gemm::GemvKnobs{
          .tokens = 2, .unit = kLarge, .lanes = 8, .warps_k = 2, .warps = 8, .rows = 2, .staged_k = 1, .split_k = 2}>();
}
// The widest pieces against x in blocks of codes, if there are kernels for that, else against the same x.
template <class W>
void gemv() {
  if constexpr (W::kGroup == 0) {
    SUCCEED("no fast path");
  } else {
    using X = tw::select<fmt::has_zero_point<W>(), W, fmt::f16>;
    gemv_narrow<X, W>();
    gemv_wide<tw::select<by_blocks<W>, fmt::q8_1, X>, W>();
  }
}

template <class X, class W>
void mma_narrow() {
  constexpr int kSmall = std::clamp(W::kBlock > 128 ? 64 : W::kBlock, 32, 128);
  constexpr int kColumns = W::template raw_bytes<64>() < 1 << 15 ? 64 : 128;
  check_mma<X, W, PlainF32, coded(tile(16, 64, kColumns, 1, 4), kSmall)>();
}
template <class X, class W>
void mma_wide() {
  check_mma<X, W, Epilogue<f16, float, Act::silu>, coded(tile(32, 128, 128, 2, 4), 128, 2, false)>();
}
template <class W>
void mma() {
  using T = typename W::Element;
  if constexpr (W::kCodes) {
    mma_narrow<fmt::f16, W>();
    mma_wide<tw::select<by_blocks<W>, fmt::q8_1, fmt::f16>, W>();
  } else if constexpr (fmt::is_table<W>()) {
    mma_narrow<fmt::f16, W>();
    mma_wide<fmt::bf16, W>();
  } else if constexpr (fmt::has_zero_point<W>()) {
    check_mma<W, W, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
  } else if constexpr (W::kBlock == 128 && same<T, e4m3>()) {
    check_mma<fmt::e4m3_g128, W, PlainF32, copied_bytes(tile(16, 64, 128, 1, 4), 3)>();
  } else if constexpr (W::kBlock == 1 && (same<T, f16>() || same<T, bf16>())) {
    check_mma<W, W, PlainF32, loaded(tile(16, 64, 32, 1, 4), 2, 1)>();
  } else if constexpr (W::kBlock == 1 && (same<T, i8>() || is_fp8_type<T>())) {
    check_mma<fmt::f16, W, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
  } else {
    SUCCEED("no matrix instruction takes it, or one that scales it (gemm_mma_scaled_test.cpp)");
  }
}

// Tiles for every kind of x: unpacked with their scales, and with scales after the products (AfterMma).
template <class W>
void tiles() {
  using Half = Epilogue<f16, NoBias, Act::none>;
  using Brain = Epilogue<bf16, NoBias, Act::none>;
  if constexpr (has_tile<W, f16>()) check_warpgroups<fmt::f16, W, Half, WgmmaKnobs{.warpgroups_n = 1}>();
  if constexpr (has_tile<W, bf16>())
    check_warpgroups<fmt::bf16, W, Brain,
                     WgmmaKnobs{.block_m = 8,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 4,
                                .panels = 4,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  if constexpr (has_tile<W, e4m3>())
    check_warpgroups<fmt::e4m3_row, W, Brain, WgmmaKnobs{.panels = 2, .fast_accumulation = W::kRowScale}>();
  else if constexpr (has_tile<W, tile_element<fmt::e4m3_row, W>>())  // for a wider element
    check_warpgroups<fmt::e4m3_row, W, Brain,
                     WgmmaKnobs{
                         .block_m = 16, .warpgroups_n = 1, .panels = 4, .stages = 2, .cluster = 2, .split_k = 2}>();
  if constexpr (has_tile<W, i8>())
    check_warpgroups<
        fmt::int8_row, W, Brain,
        WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .warpgroups_k = 4, .panels = 4, .stages = 2, .warp_mma = true}>();
  if constexpr (has_tile<W, Codes>())
    check_warpgroups<fmt::q8_1, W, PlainF32,
                     WgmmaKnobs{.block_m = 8,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  SUCCEED("those that it has");
}

template <class W>
void reference() {
  using X = tw::select<fmt::has_zero_point<W>(), fmt::f16, fmt::f32>;
  using Epi = Epilogue<float, float, Act::silu>;
  std::uint64_t seed = 0;
  for (const i64 m : kRagged)
    check<gemm::Reference<X, W, Epi, false>, X, W, Epi>({m, m % 2 ? 130 : 1, W::kBlock * (m % 3 + 1)}, seed++);
}

template <class X, class W>
void reference_tiles() {
  using Element = tile_element<X, W>;
  if constexpr (has_tile<W, Element>())
    check_tile_values<X, W, PlainF32>({3, 128, std::lcm<i64>(W::kBlock, 128) * 2}, sizeof(Element));
}
template <class W>
void reference_tiles() {
  reference_tiles<fmt::f16, W>();
  reference_tiles<fmt::bf16, W>();
  reference_tiles<fmt::e4m3_row, W>();
  reference_tiles<fmt::int8_row, W>();
  SUCCEED("those that it has");
}

template <class F>
void casts() {
  using namespace cast_test;
  check_encode<fmt::f32, F>();
  if constexpr (F::kRowScale && F::kBlock == 1) check_rows<fmt::f32, F, 64, 2, 2>();
  if constexpr (F::kRowScale)
    check_plan<cast::Reference<fmt::f32, F>, F>(plain<fmt::f32>(131, ceil_div(34, F::kBlock) * F::kBlock, 5), 2, 0, 1);
  else if constexpr (F::kScaleRows == 1)
    check_run<cast::Reference<fmt::f32, F>, fmt::f32, F>();
  check_run<cast::Reference<F, fmt::f16>, F, fmt::f16>();
  if constexpr (F::kScaleRows == 1 && (!F::kRowScale || F::kBlock == 1) && !same<F, fmt::f32>())
    check_decode<F, fmt::f32>();
}

}  // namespace format_test
