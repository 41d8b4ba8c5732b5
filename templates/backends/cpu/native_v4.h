// SPDX-License-Identifier: Apache-2.0
// NativeV4: as NativeV3, for AVX-512 with VNNI and, in kernels that use tiles, AMX. To be included between the
// pragmas of native_v4.cpp.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "templates/backends/cpu/native_plain.h"

namespace tilewright::cpu {
namespace {

class NativeV4 : public NativePlain {
 public:
  using NativePlain::add, NativePlain::div, NativePlain::mul;
  struct Bytes {
    __m512i v;
  };
  struct Words {
    __m512i v;
  };
  struct Ints {
    __m512i v;
  };
  struct Floats {
    __m512 v;
  };

  static constexpr int lanes() { return 16; }
  static constexpr bool dot4() { return true; }
  static constexpr bool signed_codes() { return false; }

  static Bytes load_bytes(Ptr p) { return {_mm512_loadu_si512(p)}; }
  static void store_bytes(Ptr p, Bytes v) { _mm512_storeu_si512(writable(p), v.v); }
  static Floats load_floats(Ptr p) { return {_mm512_loadu_ps(p)}; }
  static void store_floats(Ptr p, Floats v) { _mm512_storeu_ps(writable(p), v.v); }
  static Floats load_halves(Ptr p) { return {_mm512_cvtph_ps(load_256(p))}; }
  static Floats load_bf16s(Ptr p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_256(p)), 16))};
  }
  static void store_halves(Ptr p, Floats v) { store_256(p, _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT)); }
  static Ints bf16s(Floats v) {
    const __m512i bits = _mm512_castps_si512(v.v), upper = _mm512_srli_epi32(bits, 16);
    const __m512i up = _mm512_add_epi32(_mm512_and_si512(upper, _mm512_set1_epi32(1)), _mm512_set1_epi32(32767));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v.v, v.v, _CMP_UNORD_Q);
    return {_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(64))};
  }
  static void store_bf16s(Ptr p, Floats v) { store_256(p, _mm512_cvtepi32_epi16(bf16s(v).v)); }
  static void store_apart(Ptr p, Floats v, int step) {
    float lanes[16];
    _mm512_storeu_ps(lanes, v.v);
    for (int i = 0; i < 16; ++i) store(p + i * step, lanes[i]);
  }
  static Floats splat_bf16(Ptr p) {
    return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(std::uint32_t{load<std::uint16_t>(p)} << 16)))};
  }
  static Floats splat_half(Ptr p) { return {_mm512_cvtph_ps(_mm256_set1_epi16(load<std::int16_t>(p)))}; }
  static Ints load_codes(Ptr p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
  static Ints splat_code(Ptr p) { return {_mm512_set1_epi32(load<std::int8_t>(p))}; }
  static void store_codes(Ptr p, Ints v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(writable(p)), _mm512_cvtepi32_epi8(v.v));
  }
  static void store_first(Ptr p, Ints v) { store(p, _mm_cvtsi128_si32(_mm512_castsi512_si128(v.v))); }
  static void store_first(Ptr p, Floats v) { store(p, _mm_cvtss_f32(_mm512_castps512_ps128(v.v))); }
  static Bytes splat_bytes(Ptr p) { return {_mm512_set1_epi32(load<std::int32_t>(p))}; }
  static Ints splat_ints(Ptr p) { return {_mm512_set1_epi32(load<std::int32_t>(p))}; }
  static Floats splat_floats(Ptr p) { return {_mm512_set1_ps(load<float>(p))}; }

  static Bytes field(Bytes v, int from, int count, int to) {
    const auto bits = static_cast<unsigned>(from > to ? from - to : to - from);
    const __m512i moved = from > to ? _mm512_srli_epi16(v.v, bits) : _mm512_slli_epi16(v.v, bits);
    return {_mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(((1 << count) - 1) << to)))};
  }
  static Bytes either(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
  static Bytes level(Bytes v, const PanelLevels& levels) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels.of));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v.v)};
  }
  static Words pairs(Bytes u, Bytes s) { return {_mm512_maddubs_epi16(u.v, s.v)}; }
  static Words add(Words a, Words b) { return {_mm512_add_epi16(a.v, b.v)}; }
  static Ints pair_sums(Words v) { return {_mm512_madd_epi16(v.v, _mm512_set1_epi16(1))}; }
  static Bytes less_offset(Bytes v, int offset) {
    return {_mm512_sub_epi8(v.v, _mm512_set1_epi8(static_cast<char>(offset)))};
  }
  static Ints load_ints(Ptr p) { return {_mm512_loadu_si512(p)}; }
  static Ints dot4(Ints sum, Bytes u, Bytes s) { return {_mm512_dpbusd_epi32(sum.v, u.v, s.v)}; }

  // ---- tiles. Compilers do not know that their instructions read and write memory; hence assembly.
  static void begin_tiles(Ptr memory, int columns) {
    struct alignas(64) Config {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = static_cast<std::uint16_t>(tile == 4 || tile == 5 ? columns : 64);
      config.rows[tile] = static_cast<std::uint8_t>(tile > 5 ? columns / 4 : 16);
    }
    __asm__ volatile("sttilecfg %0" : "=m"(*reinterpret_cast<char(*)[64]>(writable(memory))));
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  static void end_tiles(Ptr memory) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*reinterpret_cast<const char(*)[64]>(memory)));
  }
  static void tile_products(int unit, Ptr x, std::int64_t x_stride, Ptr w, Ptr sums, int) {
#define TW_PRODUCTS(sums_tile, x_tile, w_tile)                                                            \
  __asm__ volatile("tilezero %%tmm" #sums_tile "\n\ttileloadd (%0,%1,1), %%tmm" #x_tile                   \
                   "\n\ttileloadd (%2,%3,1), %%tmm" #w_tile "\n\ttdpbssd %%tmm" #w_tile ", %%tmm" #x_tile \
                   ", %%tmm" #sums_tile "\n\ttilestored %%tmm" #sums_tile ", (%4,%3,1)"                   \
                   :                                                                                      \
                   : "r"(x), "r"(x_stride), "r"(w), "r"(std::int64_t{64}), "r"(sums)                      \
                   : "memory")
    switch (unit) {
      case 0: TW_PRODUCTS(0, 4, 6); break;
      case 1: TW_PRODUCTS(1, 5, 7); break;
      case 2: TW_PRODUCTS(2, 4, 6); break;
      default: TW_PRODUCTS(3, 5, 7); break;
    }
#undef TW_PRODUCTS
  }
#define TW_EACH_TILE(case_of) case_of(0) case_of(1) case_of(2) case_of(3) case_of(4) case_of(5) case_of(6) case_of(7)
  static void load_tile(int tile, Ptr p, std::int64_t stride) {
#define TW_LOAD(n) \
  case n: __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n : : "r"(p), "r"(stride) : "memory"); break;
    switch (tile) { TW_EACH_TILE(TW_LOAD) }
#undef TW_LOAD
  }
  static void store_tile(int tile, Ptr p, std::int64_t stride) {
#define TW_STORE(n) \
  case n: __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" : : "r"(p), "r"(stride) : "memory"); break;
    switch (tile) { TW_EACH_TILE(TW_STORE) }
#undef TW_STORE
  }
#undef TW_EACH_TILE
  static void add_bf16_products(int sums, int x, int w) {
#define TW_PRODUCTS(n, x_tile, w_tile)         \
  if (sums == n && x == x_tile && w == w_tile) \
  __asm__ volatile("tdpbf16ps %%tmm" #w_tile ", %%tmm" #x_tile ", %%tmm" #n : :)
    TW_PRODUCTS(0, 4, 6);
    TW_PRODUCTS(1, 4, 7);
    TW_PRODUCTS(2, 5, 6);
    TW_PRODUCTS(3, 5, 7);
#undef TW_PRODUCTS
  }

  static Ints zero_ints() { return {_mm512_setzero_si512()}; }
  static Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
  static Ints times(Ints a, int factor) { return {_mm512_mullo_epi32(a.v, _mm512_set1_epi32(factor))}; }
  static Ints shifted(Ints a, int bits) { return {_mm512_slli_epi32(a.v, static_cast<unsigned>(bits))}; }
  static Ints every(int v) { return {_mm512_set1_epi32(v)}; }
  static Ints right(Ints a, int bits) { return {_mm512_srli_epi32(a.v, static_cast<unsigned>(bits))}; }
  static Ints both(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
  static Ints ints(Bytes v) { return {v.v}; }
  static Ints bits(Floats v) { return {_mm512_castps_si512(v.v)}; }
  static Floats of_bits(Ints v) { return {_mm512_castsi512_ps(v.v)}; }
  static Ints sum_of_lanes(Ints v) { return every(_mm512_reduce_add_epi32(v.v)); }

  static Floats zero_floats() { return {_mm512_setzero_ps()}; }
  static Floats splat(float v) { return {_mm512_set1_ps(v)}; }
  static Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Floats mul(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Floats div(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Floats floats(Ints v) { return {_mm512_cvtepi32_ps(v.v)}; }
  static Ints ints(Floats v) { return {_mm512_cvttps_epi32(v.v)}; }
  static Floats magnitude(Floats v) { return {_mm512_abs_ps(v.v)}; }
  static Floats with_sign(float size, Floats of) {
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(of.v), _mm512_set1_epi32(INT32_MIN));
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(_mm512_set1_ps(size)), sign))};
  }
  static Floats larger(Floats a, Floats b) { return {_mm512_max_ps(b.v, a.v)}; }   // b > a ? b : a
  static Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(b.v, a.v)}; }  // b < a ? b : a
  static Floats if_smaller(Floats a, Floats b, Floats then, Floats otherwise) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), otherwise.v, then.v)};
  }
  static Floats nearest(Floats v) { return {_mm512_roundscale_ps(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Floats unless_nan(Floats v) { return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v.v, v.v, _CMP_ORD_Q), v.v)}; }
  static Floats largest_of_lanes(Floats v) { return {_mm512_set1_ps(_mm512_reduce_max_ps(v.v))}; }
  static Floats unless_zero(Floats test, Floats v) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test.v, _mm512_setzero_ps(), _CMP_NEQ_UQ), v.v)};
  }
  static Floats through_half(Floats v) {
    return {_mm512_cvtph_ps(_mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
  }

 private:
  static __m256i load_256(Ptr p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store_256(Ptr p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(writable(p)), v); }
};

}  // namespace
}  // namespace tilewright::cpu
