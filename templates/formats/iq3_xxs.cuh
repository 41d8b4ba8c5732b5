// SPDX-License-Identifier: Apache-2.0
// IQ3_XXS as ggml defines it (ggml-common.h, ggml-quants.c): 256 elements in 98 bytes: a half-precision d; of each four
// elements a byte, an index of a list of 256 vectors of magnitudes; and for each 32 elements a word, from bit 7 l on
// seven signs of eight l, the number of all of which is even, and above them four bits s; value = d (2 s + 1) / 4
// magnitude, these being 4, 12, 20, 28, 36, 44, 52 and 62. Encoders:
// formats/shared/grids.cuh and grid_search.cuh.
#pragma once
#include "formats/shared/grid_search.cuh"

namespace tw::fmt {

// ggml-common.h, iq3xxs_grid: the numbers are a part of the format. Elements are numbers of levels in four bits each,
// the first lowest.
TW_TABLE(u16, iq3_xxs_grid, 256) = {
    0x0000, 0x0002, 0x0004, 0x0011, 0x0013, 0x0017, 0x0020, 0x0022, 0x0031, 0x0042, 0x0073, 0x0075, 0x0101, 0x0103,
    0x0110, 0x0112, 0x0121, 0x0125, 0x0130, 0x0132, 0x0141, 0x0154, 0x0170, 0x0200, 0x0202, 0x0204, 0x0211, 0x0220,
    0x0222, 0x0231, 0x0233, 0x0237, 0x0251, 0x0257, 0x0275, 0x0301, 0x0307, 0x0310, 0x0312, 0x0325, 0x0370, 0x0413,
    0x0437, 0x0444, 0x0457, 0x0473, 0x0475, 0x0501, 0x0507, 0x0532, 0x0552, 0x0635, 0x0664, 0x0710, 0x0714, 0x0716,
    0x0743, 0x0761, 0x1001, 0x1003, 0x1010, 0x1012, 0x1021, 0x1023, 0x1030, 0x1032, 0x1034, 0x1047, 0x1050, 0x1100,
    0x1102, 0x1111, 0x1120, 0x1122, 0x1201, 0x1203, 0x1210, 0x1212, 0x1221, 0x1230, 0x1272, 0x1300, 0x1302, 0x1320,
    0x1331, 0x1346, 0x1366, 0x1401, 0x1405, 0x1450, 0x1520, 0x1524, 0x1546, 0x1571, 0x1605, 0x1722, 0x1740, 0x2000,
    0x2002, 0x2011, 0x2013, 0x2020, 0x2022, 0x2026, 0x2031, 0x2042, 0x2101, 0x2103, 0x2105, 0x2110, 0x2112, 0x2121,
    0x2130, 0x2163, 0x2167, 0x2170, 0x2200, 0x2202, 0x2211, 0x2217, 0x2220, 0x2222, 0x2237, 0x2240, 0x2255, 0x2301,
    0x2310, 0x2314, 0x2370, 0x2374, 0x2435, 0x2453, 0x2503, 0x2527, 0x2541, 0x2574, 0x2701, 0x2703, 0x2716, 0x2745,
    0x3001, 0x3010, 0x3012, 0x3021, 0x3023, 0x3050, 0x3065, 0x3072, 0x3100, 0x3102, 0x3120, 0x3131, 0x3144, 0x3146,
    0x3201, 0x3203, 0x3210, 0x3225, 0x3252, 0x3272, 0x3311, 0x3333, 0x3430, 0x3447, 0x3472, 0x3500, 0x3506, 0x3522,
    0x3555, 0x3614, 0x3636, 0x3663, 0x3733, 0x3760, 0x4004, 0x4017, 0x4035, 0x4037, 0x4053, 0x4057, 0x4174, 0x4220,
    0x4237, 0x4240, 0x4260, 0x4266, 0x4307, 0x4345, 0x4404, 0x4451, 0x4464, 0x4525, 0x4543, 0x4570, 0x4705, 0x4710,
    0x4712, 0x4730, 0x5012, 0x5041, 0x5070, 0x5100, 0x5106, 0x5126, 0x5155, 0x5214, 0x5232, 0x5272, 0x5302, 0x5353,
    0x5410, 0x5423, 0x5427, 0x5472, 0x5502, 0x5531, 0x5650, 0x5724, 0x5742, 0x6024, 0x6044, 0x6046, 0x6064, 0x6121,
    0x6161, 0x6217, 0x6264, 0x6330, 0x6336, 0x6444, 0x6505, 0x6552, 0x6633, 0x6703, 0x6721, 0x7003, 0x7005, 0x7007,
    0x7010, 0x7032, 0x7052, 0x7126, 0x7140, 0x7212, 0x7245, 0x7252, 0x7300, 0x7315, 0x7333, 0x7360, 0x7421, 0x7441,
    0x7500, 0x7502, 0x7524, 0x7630};

struct iq3_xxs : SearchedGridBlocks<iq3_xxs, 98, 32> {
  static constexpr const char* title() { return "ggml IQ3_XXS: fours of a list of 256 vectors, 4-bit scales per 32"; }
  static constexpr const char* source() { return "ggml (quantize_row_iq3_xxs_ref); plain: this library"; }
  using Levels = Sixteen<0x1c140c04u, 0x3e342c24u, 0xe4ecf4fcu, 0xc2ccd4dcu>;
  TW_CONSTANTS(int, kBits = 3, kWide = 4, kSteps = 16);
  TW_CONSTANTS(u32, kEntries = 256);
  TW_MEMBER static constexpr GridSigns signs() { return GridSigns::even; }
  TW_MEMBER static u32 grid(u32 i) { return iq3_xxs_grid[i]; }
  TW_MEMBER static constexpr float top() { return 15.5f; }
  TW_MEMBER static constexpr float unit() { return 0.25f; }

  TW_CONSTANTS(int, kParts = 3);
  TW_MEMBER static constexpr Part part(int p) {
    return p == 0 ? Part{0, 0, 0, 2} : p == 1 ? Part{2, 8, 0, 0} : Part{66, 4, 0, 0};
  }
  TW_MEMBER static u32 eight_in(u32 first, u32 second, u32 signs, int l) {
    return (grid(first) | grid(second) << 16) | eight_bits_to_nibbles(even_signs((signs >> (7 * l)) & 127u)) << 3;
  }
  TW_MEMBER static u32 eight_of(const u8* block, int n) {
    return eight_in(block[2 + 2 * n], block[3 + 2 * n], read32(block + 66 + 4 * (n / 4)), n % 4);
  }
  struct Search {
    TW_CONSTANTS(int, kTrials = 15, kNear = 2, kMost = 38, kSquares = 2);
    TW_CONSTANTS(bool, kLevels = false);
    TW_MEMBER static constexpr GridAgain again() { return GridAgain::unlisted; }
    TW_MEMBER static constexpr float apart() { return 0.2f; }
    TW_MEMBER static constexpr float least() { return 1e-8f; }
    TW_MEMBER static constexpr float more() { return 1.0125f; }
    TW_MEMBER static float weight(float square, float) { return square; }
  };

  TW_MEMBER static u32 half_of(const u8* block) { return read16(block); }
  TW_MEMBER static i32 step(const u8* block, int j) { return 2 * (block[69 + 4 * j] >> 4) + 1; }
  TW_MEMBER static void put_half(u8* block, u16 bits) { write16(block, bits); }
  TW_MEMBER static void put_step(u8* block, int j, u32 number) { add_bits(block + 69 + 4 * j, number << 4); }
  TW_MEMBER static void put(u8* block, int n, u32 index, u32 second, u32 signs) {
    add_bits(block + 2 + 2 * n, index), add_bits(block + 3 + 2 * n, second);
    const u32 seven = (signs & 127u) << (7 * (n % 4));
    for (int i = 0; i < 4; ++i) add_bits(block + 66 + 4 * (n / 4) + i, (seven >> (8 * i)) & 255u);
  }

  template <int E>
  TW_MEMBER static u32 eight(const Unit<E>& u, int n) {
    return eight_in(u.byte(1, 2 * n), u.byte(1, 2 * n + 1), u.word(2, n / 4), n % 4);
  }
  template <int E>
  TW_MEMBER static float scale_of(const Unit<E>& u, int g) {
    return scale_of_step(u.two(0, 0), static_cast<i32>(2 * (u.word(2, g) >> 28) + 1));
  }
};

}  // namespace tw::fmt
