// SPDX-License-Identifier: Apache-2.0
// IQ1_S as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 50 bytes: a half-precision d; of each eight
// elements a byte, the lower bits of an index of a list of 2048 vectors of -1, 0 and 1; and of each 32 elements two
// bytes with three upper bits of each index, three bits s, and a sign; value = d (2 s + 1) (element + 1/8, or with the
// sign - 1/8). Encoders: formats/shared/grids.cuh and, with importance,
// iq1_grid.cuh.
#pragma once
#include "formats/shared/iq1_grid.cuh"

namespace tw::fmt {

struct iq1_s : Iq1Blocks<iq1_s, 50, 32, 4> {
  static constexpr const char* title() { return "ggml IQ1_S: eights of a list of 2048 vectors, 3-bit scales per 32"; }
  static constexpr const char* source() { return "ggml (block_iq1_s); plain: this library"; }

  struct Search {
    TW_CONSTANTS(int, kNear = 3, kMost = 205);
    TW_MEMBER static constexpr float least() { return 1e-12f; }
    TW_MEMBER static constexpr float more() { return 1.125f; }
  };

  TW_CONSTANTS(int, kParts = 3);
  TW_MEMBER static constexpr Part part(int p) {
    return p == 0 ? Part{0, 0, 0, 2} : p == 1 ? Part{2, 4, 0, 0} : Part{34, 2, 0, 0};
  }
  TW_MEMBER static u32 eight_in(u32 low, u32 high, int l) {
    return iq1_eight(low | ((high >> (3 * l)) & 7u) << 8, high >> 15 != 0);
  }
  TW_MEMBER static u32 eight_of(const u8* block, int n) {
    return eight_in(block[2 + n], read16(block + 34 + 2 * (n / 4)), n % 4);
  }
  TW_MEMBER static u32 half_of(const u8* block) { return read16(block); }
  TW_MEMBER static i32 step(const u8* block, int j) { return 2 * ((block[35 + 2 * j] >> 4) & 7) + 1; }
  TW_MEMBER static void put_minus(u8* block, int j, u32 minus) { add_bits(block + 35 + 2 * j, (minus & 1u) << 7); }
  TW_MEMBER static void put_half(u8* block, u16 bits) { write16(block, bits); }
  TW_MEMBER static void put_step(u8* block, int j, u32 number) { add_bits(block + 35 + 2 * j, number << 4); }
  TW_MEMBER static void put(u8* block, int n, u32 index, u32, u32 sign) {
    add_bits(block + 2 + n, index & 255u);
    const u32 high = (index >> 8) << (3 * (n % 4)) | sign << 15;
    add_bits(block + 34 + 2 * (n / 4), high & 255u), add_bits(block + 35 + 2 * (n / 4), high >> 8);
  }

  template <int E>
  TW_MEMBER static u32 eight(const Unit<E>& u, int n) {
    return eight_in(u.byte(1, n), u.two(2, n / 4), n % 4);
  }
  template <int E>
  TW_MEMBER static float scale_of(const Unit<E>& u, int g) {
    return scale_of_step(u.two(0, 0), static_cast<i32>(2 * ((u.two(2, g) >> 12) & 7u) + 1));
  }
};

}  // namespace tw::fmt
