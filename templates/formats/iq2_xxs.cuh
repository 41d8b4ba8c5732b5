// SPDX-License-Identifier: Apache-2.0
// IQ2_XXS as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 66 bytes: a half-precision d, and for each
// 32 elements two words. The first has four indices of a list of 256 vectors of eight magnitudes, the second from bit 7
// l on seven signs of eight l, the number of all of which is even, and above them four bits s; value = d (2 s + 1) / 8
// magnitude, these being 8, 25 and 43. Encoders: formats/shared/grids.cuh and, with
// importance, grid_search.cuh.
#pragma once
#include "formats/shared/grid_search.cuh"

namespace tw::fmt {

// ggml-common.h, iq2xxs_grid: the numbers are a part of the format. Elements are numbers of levels in two bits each,
// the first lowest.
TW_TABLE(u16, iq2_xxs_grid, 256) = {
    0x0000, 0x0002, 0x0005, 0x0008, 0x000a, 0x0011, 0x0014, 0x0020, 0x0022, 0x0028, 0x002a, 0x0041, 0x0044, 0x0050,
    0x0058, 0x0061, 0x0064, 0x0080, 0x0082, 0x008a, 0x00a2, 0x0101, 0x0104, 0x0110, 0x0115, 0x0140, 0x0184, 0x0198,
    0x0200, 0x0202, 0x0222, 0x0282, 0x0401, 0x0404, 0x0410, 0x0421, 0x0424, 0x0440, 0x0442, 0x0448, 0x0460, 0x0481,
    0x0484, 0x0490, 0x04a4, 0x0500, 0x0502, 0x0508, 0x0520, 0x0546, 0x0569, 0x0580, 0x0591, 0x0609, 0x0610, 0x0640,
    0x0684, 0x06a4, 0x0800, 0x0805, 0x0808, 0x0814, 0x0828, 0x0841, 0x0844, 0x0850, 0x0852, 0x0888, 0x0904, 0x0940,
    0x0a02, 0x0a14, 0x1001, 0x1004, 0x1010, 0x1021, 0x1040, 0x1060, 0x1084, 0x1090, 0x1095, 0x1100, 0x1108, 0x1120,
    0x1150, 0x115a, 0x1180, 0x1224, 0x1245, 0x1400, 0x1408, 0x1420, 0x1425, 0x1449, 0x1480, 0x1518, 0x1562, 0x1600,
    0x1616, 0x1801, 0x1804, 0x1810, 0x1840, 0x1881, 0x1900, 0x1905, 0x19a0, 0x1a51, 0x2000, 0x2002, 0x200a, 0x2044,
    0x2061, 0x2080, 0x2082, 0x2129, 0x2148, 0x2200, 0x2202, 0x2401, 0x2404, 0x2410, 0x2440, 0x2456, 0x2500, 0x2541,
    0x2564, 0x2690, 0x2808, 0x2820, 0x2894, 0x2a44, 0x4001, 0x4004, 0x4010, 0x4018, 0x4021, 0x4024, 0x4040, 0x4048,
    0x4056, 0x4060, 0x4081, 0x4084, 0x4090, 0x4100, 0x4120, 0x4161, 0x4180, 0x4185, 0x4201, 0x4210, 0x4248, 0x4256,
    0x4268, 0x4400, 0x4408, 0x4420, 0x4480, 0x4499, 0x4512, 0x4524, 0x4600, 0x4801, 0x4804, 0x4810, 0x4840, 0x4845,
    0x4900, 0x4958, 0x4961, 0x4982, 0x4a45, 0x4a90, 0x5000, 0x5008, 0x5011, 0x5019, 0x5020, 0x5080, 0x5088, 0x5104,
    0x5142, 0x51a4, 0x5291, 0x5490, 0x5492, 0x550a, 0x5601, 0x5654, 0x5800, 0x5811, 0x5819, 0x5864, 0x5940, 0x5a08,
    0x6004, 0x6010, 0x6040, 0x6068, 0x6100, 0x6155, 0x6218, 0x6260, 0x6400, 0x6405, 0x6510, 0x6512, 0x6584, 0x6842,
    0x8000, 0x8002, 0x800a, 0x8041, 0x8082, 0x8104, 0x8118, 0x8140, 0x8211, 0x8401, 0x8404, 0x8410, 0x8415, 0x8440,
    0x8460, 0x8500, 0x8546, 0x8594, 0x8609, 0x8640, 0x8660, 0x8802, 0x8904, 0x8a11, 0x9004, 0x9010, 0x9024, 0x9040,
    0x90a1, 0x9116, 0x9180, 0x9245, 0x9400, 0x9422, 0x9444, 0x9551, 0x9881, 0x9920, 0xa002, 0xa050, 0xa085, 0xa109,
    0xa200, 0xa418, 0xa850, 0xa904};

struct iq2_xxs : WeightedGridBlocks<iq2_xxs, 66, 32> {
  static constexpr const char* title() { return "ggml IQ2_XXS: eights of a list of 256 vectors, 4-bit scales per 32"; }
  static constexpr const char* source() { return "ggml (block_iq2_xxs); plain: this library"; }
  using Levels = Sixteen<0x002b1908u, 0x00d5e7f8u, 0, 0>;
  TW_CONSTANTS(int, kBits = 2, kWide = 8, kSteps = 16);
  TW_CONSTANTS(u32, kEntries = 256);
  TW_MEMBER static constexpr GridSigns signs() { return GridSigns::even; }
  TW_MEMBER static u32 grid(u32 i) { return iq2_xxs_grid[i]; }
  TW_MEMBER static constexpr float top() { return 5.375f; }
  TW_MEMBER static constexpr float unit() { return 0.125f; }

  TW_CONSTANTS(int, kParts = 2);
  TW_MEMBER static constexpr Part part(int p) { return p == 0 ? Part{0, 0, 0, 2} : Part{2, 8, 0, 0}; }
  TW_MEMBER static u32 eight_in(u32 indices, u32 signs, int l) {
    return eight_pairs_to_nibbles(grid((indices >> (8 * l)) & 255u)) |
           eight_bits_to_nibbles(even_signs((signs >> (7 * l)) & 127u)) << 2;
  }
  TW_MEMBER static u32 eight_of(const u8* block, int n) {
    return eight_in(read32(block + 2 + 8 * (n / 4)), read32(block + 6 + 8 * (n / 4)), n % 4);
  }
  struct Search {
    TW_CONSTANTS(int, kTrials = 6, kNear = 2, kMost = 150, kSquares = 1);
    TW_CONSTANTS(bool, kLevels = true);
    TW_MEMBER static constexpr GridAgain again() { return GridAgain::all; }
    TW_MEMBER static constexpr float apart() { return 0.1f; }
    TW_MEMBER static constexpr float least() { return 1e-15f; }
    TW_MEMBER static constexpr float more() { return 1.0f; }
  };

  TW_MEMBER static u32 half_of(const u8* block) { return read16(block); }
  TW_MEMBER static i32 step(const u8* block, int j) { return 2 * (block[9 + 8 * j] >> 4) + 1; }
  TW_MEMBER static void put_half(u8* block, u16 bits) { write16(block, bits); }
  TW_MEMBER static void put_step(u8* block, int j, u32 number) { add_bits(block + 9 + 8 * j, number << 4); }
  TW_MEMBER static void put(u8* block, int n, u32 index, u32, u32 signs) {
    u8* const words = block + 2 + 8 * (n / 4);
    add_bits(words + n % 4, index);
    const u32 seven = (signs & 127u) << (7 * (n % 4));
    for (int i = 0; i < 4; ++i) add_bits(words + 4 + i, (seven >> (8 * i)) & 255u);
  }

  template <int E>
  TW_MEMBER static u32 eight(const Unit<E>& u, int n) {
    return eight_in(u.word(1, n / 4 * 2), u.word(1, n / 4 * 2 + 1), n % 4);
  }
  template <int E>
  TW_MEMBER static float scale_of(const Unit<E>& u, int g) {
    return scale_of_step(u.two(0, 0), static_cast<i32>(2 * (u.word(1, 2 * g + 1) >> 28) + 1));
  }
};

}  // namespace tw::fmt
