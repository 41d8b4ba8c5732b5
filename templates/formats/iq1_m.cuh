// SPDX-License-Identifier: Apache-2.0
// IQ1_M as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 56 bytes: of each eight elements a byte, the
// lower bits of an index of a list of 2048 vectors of -1, 0 and 1; of each eight half a byte, three upper bits of the
// index and a sign; and four times two bytes, with three bits s for each of four 16 elements, and above them four bits
// of a half d, the lowest first; value = d (2 s + 1) (element + 1/8, or with the sign - 1/8). Encoders:
// formats/shared/grids.cuh and, with importance, iq1_grid.cuh.
#pragma once
#include "formats/shared/iq1_grid.cuh"

namespace tw::fmt {

struct iq1_m : Iq1Blocks<iq1_m, 56, 16, 1> {
  static constexpr const char* title() { return "ggml IQ1_M: eights of a list of 2048 vectors, 3-bit scales per 16"; }
  static constexpr const char* source() { return "ggml (block_iq1_m); plain: this library"; }

  struct Search {
    TW_CONSTANTS(int, kNear = 3, kMost = 205);
    TW_MEMBER static constexpr float least() { return 1e-7f; }
    TW_MEMBER static constexpr float more() { return 1.1125f; }
  };

  TW_CONSTANTS(int, kParts = 3);
  TW_MEMBER static constexpr Part part(int p) {
    return p == 0 ? Part{0, 4, 0, 0} : p == 1 ? Part{32, 2, 0, 0} : Part{48, 0, 0, 8};
  }
  TW_MEMBER static u32 eight_in(u32 low, u32 high, int n) {
    const u32 nibble = (high >> (4 * (n % 2))) & 15u;
    return iq1_eight(low | (nibble & 7u) << 8, nibble > 7);
  }
  TW_MEMBER static u32 eight_of(const u8* block, int n) { return eight_in(block[n], block[32 + n / 2], n); }
  // The upper four bits of each of two words' halves.
  TW_MEMBER static u32 half_in(u32 first, u32 second) {
    return ((first >> 12) & 0x000fu) | ((first >> 24) & 0x00f0u) | ((second >> 4) & 0x0f00u) |
           ((second >> 16) & 0xf000u);
  }
  TW_MEMBER static u32 half_of(const u8* block) { return half_in(read32(block + 48), read32(block + 52)); }
  TW_MEMBER static i32 step(const u8* block, int j) {
    return 2 * ((read16(block + 48 + 2 * (j / 4)) >> (3 * (j % 4))) & 7) + 1;
  }
  TW_MEMBER static void put_minus(u8* block, int j, u32 minus) {
    add_bits(block + 32 + j, (minus & 1u) << 3 | (minus >> 1) << 7);
  }
  TW_MEMBER static void put_half(u8* block, u16 bits) {
    for (int i = 0; i < 4; ++i) add_bits(block + 49 + 2 * i, ((static_cast<u32>(bits) >> (4 * i)) & 15u) << 4);
  }
  TW_MEMBER static void put_step(u8* block, int j, u32 number) {
    const u32 bits = number << (3 * (j % 4));
    add_bits(block + 48 + 2 * (j / 4), bits & 255u), add_bits(block + 49 + 2 * (j / 4), bits >> 8);
  }
  TW_MEMBER static void put(u8* block, int n, u32 index, u32, u32 sign) {
    add_bits(block + n, index & 255u), add_bits(block + 32 + n / 2, (index >> 8 | sign << 3) << (4 * (n % 2)));
  }

  template <int E>
  TW_MEMBER static u32 eight(const Unit<E>& u, int n) {
    return eight_in(u.byte(0, n), u.byte(1, n / 2), n);
  }
  template <int E>
  TW_MEMBER static float scale_of(const Unit<E>& u, int g) {
    const int four = u.first / 2 + g / 4;
    const u32 word = four < 2 ? u.word(2, 0) : u.word(2, 1), two = word >> (16 * (four % 2));
    return scale_of_step(half_in(u.word(2, 0), u.word(2, 1)), static_cast<i32>(2 * ((two >> (3 * (g % 4))) & 7u) + 1));
  }
};

}  // namespace tw::fmt
