// SPDX-License-Identifier: Apache-2.0
// How a format's weights come into panels (panel_codes.h), for the files of templates/formats: Panels<F, codes, Scales,
// Codes, add>. Codes are read and written by the functions that F's tiles have for theirs, and scales by one of the
// kinds below, whose functions move those of the 32 columns with number `block` of the format's block. `from`, `to`:
// that block, or its item of the stream of scales, if there is one.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats/shared/e8m0.cuh"
#include "formats/shared/format.cuh"
#include "formats/shared/grids.cuh"
#include "formats/shared/k_quants.cuh"
#include "templates/backends/cpu/panel_codes.h"

namespace tilewright::cpu {

using tw::fmt::read16;
using tw::fmt::write16;

// Scales of a row's 32 columns, as they are in the panel.
struct PanelRow {
  std::uint16_t scales[2], group[2];  // group: of the format's block, scale and minimum or zero point
  std::uint16_t minima[2];
  std::uint32_t whole;  // of all columns, a float's bits
};

struct HalfScale {
  static void get(const tw::u8* from, int, PanelRow& row) { row.scales[0] = read16(from); }
  static void put(const PanelRow& row, int, tw::u8* to) { write16(to, row.scales[0]); }
};
// The format's minimum is added, and a panel's is subtracted: the sign is turned.
struct HalfScaleAndMinimum {
  static void get(const tw::u8* from, int, PanelRow& row) {
    row.scales[0] = read16(from), row.minima[0] = read16(from + 2) ^ 0x8000;
  }
  static void put(const PanelRow& row, int, tw::u8* to) {
    write16(to, row.scales[0]), write16(to + 2, row.minima[0] ^ 0x8000);
  }
};
// Half of an E8M0, which a bf16 holds, and a NaN. step: bytes from one to the next.
template <int step>
struct E8m0Scale {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    const float scale = tw::mul_rn(tw::fmt::e8m0_to_f32(from[step * block]), 0.5f);
    row.scales[0] = tw::is_nan(scale) ? 0x7fc0 : tw::f32_to_bf16_bits(scale);
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    const float scale = tw::mul_rn(tw::bf16_bits_to_f32(row.scales[0]), 2.0f);
    to[step * block] = static_cast<tw::u8>(tw::bits_as<tw::u32>(scale) >> 23);
  }
};
// Halves of two E4M3, which halves hold. A NaN keeps its sign.
struct E4m3Scales {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    for (int i = 0; i < 2; ++i) {
      const tw::u8 code = from[2 * block + i];
      row.scales[i] = (code & 0x7f) == 0x7f ? static_cast<std::uint16_t>(((code & 0x80) << 8) | 0x7e00)
                                            : tw::f32_to_f16_bits(tw::mul_rn(tw::e4m3_to_f32(code), 0.5f));
    }
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    for (int i = 0; i < 2; ++i) {
      const float scale = tw::mul_rn(tw::f16_bits_to_f32(row.scales[i]), 2.0f);
      to[2 * block + i] =
          tw::is_nan(scale) ? static_cast<tw::u8>((row.scales[i] >> 8 & 0x80) | 0x7f) : tw::f32_to_e4m3(scale);
    }
  }
};
// Eight pairs of six bits (ggml's get_scale_min_k4), behind two halves.
struct PairScales {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    for (int i = 0; i < 2; ++i) row.group[i] = read16(from + 2 * i);
    row.scales[0] = static_cast<std::uint16_t>(tw::fmt::minima_scale(from, block));
    row.minima[0] = static_cast<std::uint16_t>(tw::fmt::minima_minimum(from, block));
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    for (int i = 0; i < 2; ++i) write16(to + 2 * i, row.group[i]);
    tw::u8* const s = to + 4;
    const auto add = [](tw::u8& byte, int bits) { byte = static_cast<tw::u8>(byte | bits); };
    if (block < 4) {
      add(s[block], row.scales[0]), add(s[block + 4], row.minima[0]);
    } else {
      add(s[block + 4], (row.scales[0] & 15) | (row.minima[0] & 15) << 4);
      add(s[block - 4], row.scales[0] >> 4 << 6), add(s[block], row.minima[0] >> 4 << 6);
    }
  }
};
// Nibbles of scales and, above them, of minima, a byte for 16 columns from the block's first on; behind the codes two
// halves that they count in.
template <class F>
struct NibbleScales {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    for (int i = 0; i < 2; ++i) {
      row.group[i] = read16(from + F::kDataBytes - 4 + 2 * i);
      row.scales[i] = from[2 * block + i] & 15;
      row.minima[i] = from[2 * block + i] >> 4;
    }
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    for (int i = 0; i < 2; ++i) {
      write16(to + F::kDataBytes - 4 + 2 * i, row.group[i]);
      to[2 * block + i] = static_cast<tw::u8>((row.scales[i] & 15) | row.minima[i] << 4);
    }
  }
};
// Bytes that count in a half `d` of the format's block. Tile: has scale(block, j), put_scale(block, j, scale) and kD.
template <class Tile>
struct SixteensScales {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    row.group[0] = read16(from + Tile::kD);
    for (int i = 0; i < 2; ++i) row.scales[i] = static_cast<tw::u8>(Tile::scale(from, 2 * block + i));
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    write16(to + Tile::kD, row.group[0]);
    for (int i = 0; i < 2; ++i) Tile::put_scale(to, 2 * block + i, static_cast<tw::i8>(row.scales[i]));
  }
};
// Steps of columns that count in a half of the format's block (formats/shared/levels.cuh), `parts` of 32 columns.
// F: has them, and puts the number of a step, as those of grids.cuh do.
template <class F, int parts>
struct StepScales {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    row.group[0] = static_cast<std::uint16_t>(F::half_of(from));
    for (int i = 0; i < parts; ++i) row.scales[i] = static_cast<tw::u8>(F::step(from, parts * block + i));
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    if (block == 0) F::put_half(to, row.group[0]);
    for (int i = 0; i < parts; ++i) F::put_step(to, parts * block + i, (row.scales[i] - 1u) / 2);
  }
};
// A half behind the codes.
template <class F>
struct HalfBehind {
  static void get(const tw::u8* from, int, PanelRow& row) { row.group[0] = read16(from + F::kDataBytes - 2); }
  static void put(const PanelRow& row, int, tw::u8* to) { write16(to + F::kDataBytes - 2, row.group[0]); }
};
// One for all columns of the format's block.
struct GroupScale {
  static void get(const tw::u8* from, int, PanelRow& row) { row.group[0] = read16(from); }
  static void put(const PanelRow& row, int, tw::u8* to) { write16(to, row.group[0]); }
};
struct GroupScaleAndZero {
  static void get(const tw::u8* from, int, PanelRow& row) {
    for (int i = 0; i < 2; ++i) row.group[i] = read16(from + 2 * i);
  }
  static void put(const PanelRow& row, int, tw::u8* to) {
    for (int i = 0; i < 2; ++i) write16(to + 2 * i, row.group[i]);
  }
};
// A float for the row.
struct RowScale {
  static void get(const tw::u8* from, int, PanelRow& row) { std::memcpy(&row.whole, from, sizeof row.whole); }
  static void put(const PanelRow& row, int, tw::u8* to) { std::memcpy(to, &row.whole, sizeof row.whole); }
};
struct NoScale {
  static void get(const tw::u8*, int, PanelRow&) {}
  static void put(const PanelRow&, int, tw::u8*) {}
};

// Codes of formats whose elements are signed bytes.
struct SignedBytes {
  static tw::u32 code(const tw::u8* element, int) { return *element ^ 0x80u; }
  static void put_code(tw::u8* element, int, tw::u32 code) { *element = static_cast<tw::u8>(code ^ 0x80u); }
};

// What packing has to know of a format, whose panels are of codes or of floats. read, write: of codes. Of 32 columns of
// a row, `number` counting them within the format's block, or within several where that is shorter.
struct PanelFormat {
  const char* name;
  const PanelCodes* codes;  // null: of floats
  int bytes, columns;       // of such blocks
  int scale_bytes;          // of their items of the stream of scales, or of a row's; 0: the blocks have them
  void (*read)(const tw::u8* block, const tw::u8* scales, int number, tw::u8 (&codes)[kPanelColumns], PanelRow& row);
  // Into zeroed bytes.
  void (*write)(const tw::u8 (&codes)[kPanelColumns], const PanelRow& row, int number, tw::u8* block, tw::u8* scales);
  PanelFloats floats;
  // Floats that the format does not store as such, from elements and back. Null: as they are.
  std::uint16_t (*number)(tw::u8 element);
  tw::u8 (*element)(std::uint16_t number);
};

// A format's sixteen levels, `offset` more.
template <class Levels, int offset>
constexpr PanelLevels panel_levels() {
  PanelLevels list = {};
  for (tw::u32 i = 0; i < 16; ++i) list.of[i] = static_cast<std::uint8_t>(Levels::level(i) + offset);
  return list;
}

// add: what a panel's code is more than the format's.
template <class F, PanelCodes codes_, class Scales, class Codes = typename F::TileBase, int add = 0>
struct Panels {
  static constexpr PanelCodes kCodes = codes_;
  static constexpr int kColumns = F::kBlock < kPanelColumns ? kPanelColumns : F::kBlock;
  static_assert(kColumns % F::kBlock == 0 && kColumns % kPanelColumns == 0);

  static void read(const tw::u8* block, const tw::u8* scales, int number, tw::u8 (&codes)[kPanelColumns],
                   PanelRow& row) {
    Scales::get(scales, number, row);
    for (int c = 0; c < kPanelColumns; ++c) {
      const int i = number * kPanelColumns + c;
      codes[c] = static_cast<tw::u8>(Codes::code(block + i / F::kBlock * F::kDataBytes, i % F::kBlock) + add);
    }
  }
  static void write(const tw::u8 (&codes)[kPanelColumns], const PanelRow& row, int number, tw::u8* block,
                    tw::u8* scales) {
    Scales::put(row, number, scales);
    for (int c = 0; c < kPanelColumns; ++c) {
      const int i = number * kPanelColumns + c;
      Codes::put_code(block + i / F::kBlock * F::kDataBytes, i % F::kBlock,
                      static_cast<tw::u32>(codes[c] - add) & ((1u << F::kBits) - 1));
    }
  }
  static constexpr PanelFormat format(const char* name) {
    return {name,
            &kCodes,
            kColumns / F::kBlock * F::kDataBytes,
            kColumns,
            F::kRowScale ? tw::fmt::row_bytes<F>() : kColumns / F::kBlock * F::kScaleBytes,
            &read,
            &write,
            {},
            nullptr,
            nullptr};
  }
};

// Of a format of grids.cuh. Panels have its codes of four bits; unpacking finds the vectors in the list.
template <class F, int halvings, int offset>
struct GridPanels {
  static constexpr int kParts = 32 / F::kGroup;
  static constexpr PanelCodes kCodes{.bits = 4,
                                     .offset = offset,
                                     .levels = panel_levels<typename F::Levels, offset>(),
                                     .scales = kParts,
                                     .scale = PanelScale::grouped,
                                     .halvings = halvings};

  static void read(const tw::u8* block, const tw::u8*, int number, tw::u8 (&codes)[kPanelColumns], PanelRow& row) {
    StepScales<F, kParts>::get(block, number, row);
    for (int n = 0; n < 4; ++n) {
      const tw::u32 eight = F::eight_of(block, 4 * number + n);
      for (int i = 0; i < 8; ++i) codes[8 * n + i] = static_cast<tw::u8>((eight >> (4 * i)) & 15u);
    }
  }
  static void write(const tw::u8 (&codes)[kPanelColumns], const PanelRow& row, int number, tw::u8* block, tw::u8*) {
    StepScales<F, kParts>::put(row, number, block);
    constexpr int kWide = F::kWide, kBits = 16 / kWide, kSign = kWide == 4 ? 3 : 2;
    for (int n = 0; n < 4; ++n) {
      tw::u32 entries[8 / kWide] = {}, signs = 0;
      for (int i = 0; i < 8; ++i) {
        const tw::u32 code = codes[8 * n + i];
        entries[i / kWide] |= (code & ((1u << kSign) - 1)) << (kBits * (i % kWide));
        signs |= (code >> kSign) << i;
      }
      F::put(block, 4 * number + n, tw::fmt::list_index<F>(entries[0]),
             kWide == 4 ? tw::fmt::list_index<F>(entries[8 / kWide - 1]) : 0u,
             F::signs() == tw::fmt::GridSigns::one ? signs & 1u : signs);
    }
  }
  static constexpr PanelFormat format(const char* name) {
    return {name, &kCodes, F::kDataBytes, F::kBlock, 0, &read, &write, {}, nullptr, nullptr};
  }
};

// Of f32, f16 and bf16.
template <class F>
struct FloatPanels {
  static constexpr PanelCodes kCodes = {};
  static constexpr PanelFormat format(const char* name) {
    PanelFormat f = {};
    f.name = name, f.floats = {F::kDataBytes, tw::same<typename F::Element, tw::bf16>() ? 2 : 1, FloatScales::none};
    return f;
  }
};
// Of E4M3, whose numbers a bf16 holds. A NaN keeps its sign.
template <FloatScales scales>
struct E4m3Panels {
  static constexpr PanelCodes kCodes = {};
  static std::uint16_t number(tw::u8 element) {
    if ((element & 0x7f) == 0x7f) return static_cast<std::uint16_t>((element & 0x80) << 8 | 0x7fc0);
    return tw::f32_to_bf16_bits(tw::e4m3_to_f32(element));
  }
  static tw::u8 element(std::uint16_t number) {
    const float v = tw::bf16_bits_to_f32(number);
    return tw::is_nan(v) ? static_cast<tw::u8>((number >> 8 & 0x80) | 0x7f) : tw::f32_to_e4m3(v);
  }
  static constexpr PanelFormat format(const char* name) {
    PanelFormat f = {};
    f.name = name, f.floats = {2, 2, scales}, f.number = &number, f.element = &element;
    return f;
  }
};

}  // namespace tilewright::cpu
