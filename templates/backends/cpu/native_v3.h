// SPDX-License-Identifier: Apache-2.0
// NativeV3: a backend of the CPU's kernels (kernels.h) that computes, in code for AVX2, FMA and F16C. A kernel over it
// is built into the library, for machines without LLVM and for sanitizers. To be included between the pragmas of
// native_v3.cpp: every function here is compiled for more than the rest of the library may use.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "templates/backends/cpu/native_plain.h"

namespace tilewright::cpu {
namespace {

class NativeV3 : public NativePlain {
 public:
  using NativePlain::add, NativePlain::div, NativePlain::mul;
  struct Bytes {
    __m256i v;
  };
  struct Words {
    __m256i v;
  };
  struct Ints {
    __m256i v;
  };
  struct Floats {
    __m256 v;
  };

  static constexpr int lanes() { return 8; }
  static constexpr bool dot4() { return false; }
  static constexpr bool signed_codes() { return false; }

  static Bytes load_bytes(Ptr p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  static void store_bytes(Ptr p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(writable(p)), v.v); }
  static Floats load_floats(Ptr p) { return {_mm256_loadu_ps(reinterpret_cast<const float*>(p))}; }
  static void store_floats(Ptr p, Floats v) { _mm256_storeu_ps(reinterpret_cast<float*>(writable(p)), v.v); }
  static Floats load_halves(Ptr p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
  static Floats load_bf16s(Ptr p) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16))};
  }
  static void store_halves(Ptr p, Floats v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(writable(p)), _mm256_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT));
  }
  static Ints bf16s(Floats v) {
    const __m256i bits = _mm256_castps_si256(v.v), upper = _mm256_srli_epi32(bits, 16);
    const __m256i up = _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(32767));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.v, v.v, _CMP_UNORD_Q));
    return {_mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(64)), nan)};
  }
  static void store_bf16s(Ptr p, Floats v) {
    const __m256i chosen = bf16s(v).v;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(writable(p)),
                     _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1)));
  }
  static void store_apart(Ptr p, Floats v, int step) {
    float lanes[8];
    _mm256_storeu_ps(lanes, v.v);
    for (int i = 0; i < 8; ++i) store(p + i * step, lanes[i]);
  }
  static Floats splat_bf16(Ptr p) {
    return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(std::uint32_t{load<std::uint16_t>(p)} << 16)))};
  }
  static Floats splat_half(Ptr p) { return {_mm256_cvtph_ps(_mm_set1_epi16(load<std::int16_t>(p)))}; }
  static Ints load_codes(Ptr p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))}; }
  static Ints splat_code(Ptr p) { return {_mm256_set1_epi32(load<std::int8_t>(p))}; }
  static void store_codes(Ptr p, Ints v) {
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                           -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i bytes = _mm256_shuffle_epi8(v.v, order);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(writable(p)), both);
  }
  static void store_first(Ptr p, Ints v) { store(p, _mm256_cvtsi256_si32(v.v)); }
  static void store_first(Ptr p, Floats v) { store(p, _mm256_cvtss_f32(v.v)); }
  static Bytes splat_bytes(Ptr p) { return {_mm256_set1_epi32(load<std::int32_t>(p))}; }
  static Ints splat_ints(Ptr p) { return {_mm256_set1_epi32(load<std::int32_t>(p))}; }
  static Floats splat_floats(Ptr p) { return {_mm256_set1_ps(load<float>(p))}; }

  static Bytes field(Bytes v, int from, int count, int to) {
    const __m256i moved = from > to ? _mm256_srli_epi16(v.v, from - to) : _mm256_slli_epi16(v.v, to - from);
    return {_mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(((1 << count) - 1) << to)))};
  }
  static Bytes either(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
  static Bytes level(Bytes v, const PanelLevels& levels) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels.of));
    return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), v.v)};
  }
  static Words pairs(Bytes u, Bytes s) { return {_mm256_maddubs_epi16(u.v, s.v)}; }
  static Words add(Words a, Words b) { return {_mm256_add_epi16(a.v, b.v)}; }
  static Ints pair_sums(Words v) { return {_mm256_madd_epi16(v.v, _mm256_set1_epi16(1))}; }
  static Bytes less_offset(Bytes v, int offset) {
    return {_mm256_sub_epi8(v.v, _mm256_set1_epi8(static_cast<char>(offset)))};
  }
  static Ints load_ints(Ptr p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  // As the instructions of AMX; for tests, since no CPU without VPDPBUSD has them.
  static void begin_tiles(Ptr, int) {}
  static void end_tiles(Ptr) {}
  static void tile_products(int, Ptr x, std::int64_t x_stride, Ptr w, Ptr sums, int columns) {
    for (int token = 0; token < 16; ++token)
      for (int row = 0; row < 16; ++row) {
        std::int32_t sum = 0;
        for (int c = 0; c < columns; ++c)
          sum += static_cast<signed char>(x[token * x_stride + c]) *
                 static_cast<signed char>(w[c / 4 * 64 + 4 * row + c % 4]);
        store(sums + 64 * token + 4 * row, sum);
      }
  }
  static Ints dot4(Ints sum, Bytes, Bytes) { return sum; }  // there is no such instruction: dot4() is false

  static Ints zero_ints() { return {_mm256_setzero_si256()}; }
  static Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v)}; }
  static Ints times(Ints a, int factor) { return {_mm256_mullo_epi32(a.v, _mm256_set1_epi32(factor))}; }
  static Ints shifted(Ints a, int bits) { return {_mm256_slli_epi32(a.v, bits)}; }
  static Ints every(int v) { return {_mm256_set1_epi32(v)}; }
  static Ints right(Ints a, int bits) { return {_mm256_srli_epi32(a.v, bits)}; }  // zeros come in
  static Ints both(Ints a, Ints b) { return {_mm256_and_si256(a.v, b.v)}; }
  static Ints ints(Bytes v) { return {v.v}; }
  static Ints bits(Floats v) { return {_mm256_castps_si256(v.v)}; }
  static Floats of_bits(Ints v) { return {_mm256_castsi256_ps(v.v)}; }
  static Ints sum_of_lanes(Ints v) {
    v = add(v, Ints{_mm256_permute2x128_si256(v.v, v.v, 1)});
    v = add(v, Ints{_mm256_shuffle_epi32(v.v, 0x4e)});
    return add(v, Ints{_mm256_shuffle_epi32(v.v, 0xb1)});
  }

  static Floats zero_floats() { return {_mm256_setzero_ps()}; }
  static Floats splat(float v) { return {_mm256_set1_ps(v)}; }
  static Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
  static Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
  static Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Floats floats(Ints v) { return {_mm256_cvtepi32_ps(v.v)}; }
  static Ints ints(Floats v) { return {_mm256_cvttps_epi32(v.v)}; }
  static Floats magnitude(Floats v) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v.v)}; }
  static Floats with_sign(float size, Floats of) {
    return {_mm256_or_ps(_mm256_set1_ps(size), _mm256_and_ps(_mm256_set1_ps(-0.0f), of.v))};
  }
  static Floats larger(Floats a, Floats b) { return {_mm256_max_ps(b.v, a.v)}; }   // b > a ? b : a
  static Floats smaller(Floats a, Floats b) { return {_mm256_min_ps(b.v, a.v)}; }  // b < a ? b : a
  static Floats if_smaller(Floats a, Floats b, Floats then, Floats otherwise) {
    return {_mm256_blendv_ps(otherwise.v, then.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
  }
  static Floats nearest(Floats v) { return {_mm256_round_ps(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Floats unless_nan(Floats v) { return {_mm256_and_ps(v.v, _mm256_cmp_ps(v.v, v.v, _CMP_ORD_Q))}; }
  static Floats largest_of_lanes(Floats v) {
    v = larger(v, Floats{_mm256_permute2f128_ps(v.v, v.v, 1)});
    v = larger(v, Floats{_mm256_permute_ps(v.v, 0x4e)});
    return larger(v, Floats{_mm256_permute_ps(v.v, 0xb1)});
  }
  static Floats unless_zero(Floats test, Floats v) {
    return {_mm256_and_ps(v.v, _mm256_cmp_ps(test.v, _mm256_setzero_ps(), _CMP_NEQ_UQ))};
  }
  static Floats through_half(Floats v) {
    return {_mm256_cvtph_ps(_mm256_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
  }
};

}  // namespace
}  // namespace tilewright::cpu
