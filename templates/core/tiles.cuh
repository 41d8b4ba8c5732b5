// SPDX-License-Identifier: Apache-2.0
// Tiles: weights as the warpgroup instruction takes them from registers. A packed matrix is a lossless reordering of a
// coded one, made once at load: for each strip of 64 rows, and each panel of 128 bytes of x along k (64 columns against
// 16-bit x, 128 against 8-bit x), the words of codes of 128 threads, so that a thread fetches its four fragments with
// 16-byte loads. Word i of thread t is at word 4 t + i % 4 of plane i / 4; words beyond the last whole four lie one plane
// of 128 words each. The scales of a strip's 64 rows are ordered by thread too: rows q and q + 8 of a warp's sixteen are
// neighbours, at 2 (8 warp + q) and the next.
//
// Fragment of step s (of four): register r of thread t holds row 16 (t / 32) + t % 32 / 4 + 8 (r % 2) and `width`
// elements (2 or 4 to a word) from k = 2 width (4 s) ... : column (8 s + t % 4 + 4 (r / 2)) * width of the panel.
//
// A coded format takes part if it has a template `Tile<Element>`, Element being x's (f16, bf16, e4m3 or i8), with
//   kBits                          of a stored code: 4 or 8
//   kWords                         of codes per thread and panel: kBits * elements / 32
//   kScaleK, kScaleBytes           columns per chunk of scales, bytes per row of one (0: no such stream)
//   kFactor                        what unpacked values lack, given to the epilogue
//   code(data, scales, i)          the stored form of element i of a block; put_code() its inverse
//   put_scales(out, row data...)   a row's chunk
//   Scales, scales(chunk, q, part) two rows' scales in registers: q counts pairs of rows, part panels of the chunk
//   fragment(words, step, scales, a)
#pragma once
#include "core/ptx.cuh"

namespace tw {

// Where an element's code is: word of the thread, and the shift within it. 4-bit codes are interleaved so that masks
// separate them.
template <int bits, int width> struct TilePlace {
  TW_MEMBER static constexpr int elements() { return 16 * width; }  // of a thread and panel
  TW_MEMBER static constexpr int word(int step, int r) {
    return bits == 4 ? (width == 2 ? step : 2 * step + r / 2) : width == 2 ? 2 * step + r / 2 : 4 * step + r;
  }
  TW_MEMBER static constexpr int shift(int r, int e) {
    return bits == 4 ? (width == 2 ? 4 * (r + 4 * e) : 4 * (2 * e + r % 2)) : width == 2 ? 8 * (2 * (r % 2) + e) : 8 * e;
  }
};
// Row within the strip and column within the panel.
template <int width> TW_FN constexpr int tile_row(int thread, int r) { return 16 * (thread / 32) + thread % 32 / 4 + 8 * (r % 2); }
template <int width> TW_FN constexpr int tile_column(int thread, int step, int r, int e) {
  return (8 * step + thread % 4 + 4 * (r / 2)) * width + e;
}

// ---- pieces of fragment() --------------------------------------------------------------------------------------------
TW_DEVICE u32 both_halves(u16 h) { return h * 0x00010001u; }
// a b + c on both halves, rounded once.
TW_DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
#if defined(__CUDACC__)
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  return f32_to_f16_bits(static_cast<float>(static_cast<double>(low_half<f16>(a)) * low_half<f16>(b) + low_half<f16>(c))) |
         (static_cast<u32>(f32_to_f16_bits(static_cast<float>(static_cast<double>(high_half<f16>(a)) * high_half<f16>(b) + high_half<f16>(c)))) << 16);
#endif
}
// The four pairs of signed 4-bit codes (stored plus 8) of a word, exact in f16.
TW_DEVICE void signed_nibbles_f16(u32 word, u32 (&v)[4]) {
  // Or-ed into the mantissa of 1024, a code is added to it; one nibble further up, 16 times the code.
  const u32 next = word >> 8;
  v[0] = sub_f16x2(mask_or<0x000f000fu, 0x64006400u>(word), 0x64086408u);                // - 1032
  v[1] = fma_f16x2(mask_or<0x00f000f0u, 0x64006400u>(word), 0x2c002c00u, 0xd480d480u);    // / 16 - 72
  v[2] = sub_f16x2(mask_or<0x000f000fu, 0x64006400u>(next), 0x64086408u);
  v[3] = fma_f16x2(mask_or<0x00f000f0u, 0x64006400u>(next), 0x2c002c00u, 0xd480d480u);
}

}  // namespace tw
