// SPDX-License-Identifier: Apache-2.0
// TQ2_0 as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 66 bytes: 64 bytes of codes, bits 2 t of
// byte 32 h + l of which are those of element 128 h + 32 t + l, and a half d; value = d (code - 1). Encoder:
// formats/shared/ternary_blocks.cuh.
#pragma once
#include "formats/shared/ternary_blocks.cuh"

namespace tw::fmt {

struct tq2_0 : TernaryBlocks<tq2_0, 66> {
  static constexpr const char* title() { return "ggml TQ2_0: codes -1, 0 and 1 in two bits, one half per 256"; }
  static constexpr const char* source() { return "ggml (block_tq2_0, quantize_row_tq2_0_ref)"; }

  struct TileBase : HalfAt<66, 64> {
    TW_MEMBER static u32 code(const u8* block, int i) {
      return (block[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4))) & 3u;
    }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) {
      block[i / 128 * 32 + i % 32] |= static_cast<u8>(code << (2 * (i / 32 % 4)));
    }
    TW_MEMBER static i8 scale(const u8*, int) { return 1; }
    TW_MEMBER static void put_scale(u8*, int, i8) {}
  };
  TW_MEMBER static u32 nibble(const u8* block, int i) { return TileBase::code(block, i); }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int i = 0; i < 64; ++i) data[i] = 0;
    const Code code = code_of(x, data);
    for (int i = 0; i < 256; ++i) TileBase::put_code(data, i, code.of(x[i]));
  }

  TW_CONSTANTS(int, kParts = 2);
  TW_MEMBER static constexpr Part part(int p) { return p == 0 ? Part{0, 0, 32, 0} : Part{64, 0, 0, 2}; }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    const int j = u.first + g;
    TW_UNROLL for (int i = 0; i < 8; ++i) codes[i] =
        less_one((u.word(0, (E == 256 ? g / 4 * 8 : 0) + i) >> (2 * (j % 4))) & 0x03030303u);
    scale = f16_bits_to_f32(static_cast<u16>(u.two(1, 0)));
    offset = 0.0f;
  }

  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = SixteensTile<Element, TileBase, 2, 1>;
};

}  // namespace tw::fmt
