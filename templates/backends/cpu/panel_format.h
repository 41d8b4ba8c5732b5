// SPDX-License-Identifier: Apache-2.0
// How a format's weights come into panels (panel_codes.h), for the files of templates/formats: Panels<F, codes, Scales,
// Codes, add>. Codes are read and written by the functions that F's tiles have for theirs, and scales by one of the
// kinds below, whose functions move those of the 32 columns with number `block` of the format's block. `from`, `to`:
// that block, or its item of the stream of scales, if there is one.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "formats/shared/e8m0.cuh"
#include "formats/shared/format.cuh"
#include "formats/shared/grids.cuh"
#include "formats/shared/k_quants.cuh"
#include "templates/backends/cpu/panel_codes.h"
#include "templates/backends/cpu/panel_rows.h"

namespace tilewright::cpu {

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
// Bytes that count in a half of the format's block. Tile: has scale(block, j), put_scale(block, j, scale), and is one
// of HalfAt.
template <class Tile>
struct SixteensScales {
  static void get(const tw::u8* from, int block, PanelRow& row) {
    row.group[0] = Tile::half(from);
    for (int i = 0; i < 2; ++i) row.scales[i] = static_cast<tw::u8>(Tile::scale(from, 2 * block + i));
  }
  static void put(const PanelRow& row, int block, tw::u8* to) {
    Tile::put_half(to, row.group[0]);
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

// A word's nibbles as bytes, the lowest first in memory.
inline tw::u64 bytes_of_nibbles(tw::u32 nibbles) {
  tw::u64 eight = nibbles;
  eight = (eight | eight << 16) & 0x0000ffff0000ffffu;
  eight = (eight | eight << 8) & 0x00ff00ff00ff00ffu;
  return (eight | eight << 4) & 0x0f0f0f0f0f0f0f0fu;
}

// Codes of formats whose code() compilers make slow: eight(block, i) has those from element i on, in bytes.
// Nibbles, the low one of a byte before the high one.
template <class Base>
struct PairedNibbles : Base {
  static tw::u64 eight(const tw::u8* block, int i) {
    tw::u32 nibbles;
    std::memcpy(&nibbles, block + i / 2, sizeof nibbles);
    return bytes_of_nibbles(nibbles);
  }
};
// Of blocks32.cuh: sixteen bytes of nibbles from byte `nibbles` on, and before them a word of fifth bits.
template <class Base, int nibbles>
struct FifthBits : Base {
  static tw::u64 eight(const tw::u8* block, int i) {
    constexpr tw::u64 kOnes = 0x0101010101010101u;
    tw::u64 low;
    std::memcpy(&low, block + nibbles + i % 16, sizeof low);
    // Bit j of the byte, in byte j; adding 127 carries it into the highest bit, and none further.
    const tw::u64 fifth = block[nibbles - 4 + i / 8] * kOnes & 0x8040201008040201u;
    return (low >> (i / 16 * 4) & 15 * kOnes) | ((fifth + 127 * kOnes) & 128 * kOnes) >> 3;
  }
};

// A format's panels: of codes or of floats.
struct PanelFormat {
  const char* name;
  const PanelCodes* codes;  // null: of floats
  PanelFloats floats;
  bool converts;  // its elements are no floats that a panel can hold, and become such
  // Of a matrix of k columns, panels first to last - 1 (panels.h).
  void (*pack)(std::int64_t k, std::int64_t first, std::int64_t last, Operand from, tw::u8* to);
  void (*unpack)(std::int64_t k, std::int64_t first, std::int64_t last, const tw::u8* from, MutableOperand to);
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
  static constexpr int kBytes = kColumns / F::kBlock * F::kDataBytes;
  static constexpr int kScaleBytes = [] {
    if constexpr (F::kRowScale) return tw::fmt::row_bytes<F>();
    return kColumns / F::kBlock * F::kScaleBytes;
  }();

  static void read(const tw::u8* block, const tw::u8* scales, PanelColumns* columns) {
    read_all(block, scales, columns, std::make_integer_sequence<int, kColumns / kPanelColumns>());
  }
  static void write(const PanelColumns& columns, int number, tw::u8* block, tw::u8* scales) {
    Scales::put(columns.row, number, scales);
    for (int c = 0; c < kPanelColumns; ++c) {
      const int i = number * kPanelColumns + c;
      Codes::put_code(block + i / F::kBlock * F::kDataBytes, i % F::kBlock,
                      static_cast<tw::u32>(columns.codes[c] - add) & ((1u << F::kBits) - 1));
    }
  }
  static constexpr PanelFormat format(const char* name) {
    return {name, &kCodes, {}, false, &pack_codes<Panels>, &unpack_codes<Panels>};
  }

 private:
  // The first of sixteen columns is known when this is compiled, so that vector instructions read their codes.
  template <int... numbers>
  static void read_all(const tw::u8* block, const tw::u8* scales, PanelColumns* columns,
                       std::integer_sequence<int, numbers...>) {
    (Scales::get(scales, numbers, columns[numbers].row), ...);
    (read_sixteen<numbers * kPanelColumns>(block, columns[numbers].codes), ...);
    (read_sixteen<numbers * kPanelColumns + 16>(block, columns[numbers].codes + 16), ...);
  }
  template <int first>
  static void read_sixteen(const tw::u8* block, tw::u8* codes) {
    tw::u8 sixteen[16];  // apart from `codes`, which the compiler takes for a part of `block`
    const tw::u8* const of = block + first / F::kBlock * F::kDataBytes;
    if constexpr (requires { Codes::eight(of, 0); }) {
      for (int i = 0; i < 16; i += 8) {
        const tw::u64 eight = Codes::eight(of, first % F::kBlock + i);
        std::memcpy(sixteen + i, &eight, sizeof eight);
      }
    } else {
      constexpr int kStep = F::kBlock < 16 ? F::kBlock : 16;
      for (int at = 0; at < 16; at += kStep)
        for (int i = 0; i < kStep; ++i)
          sixteen[at + i] =
              static_cast<tw::u8>(Codes::code(of + at / F::kBlock * F::kDataBytes, first % F::kBlock + i));
    }
    for (tw::u8& code : sixteen) code = static_cast<tw::u8>(code + add);
    std::memcpy(codes, sixteen, sizeof sixteen);
  }
};

// Of a format of grids.cuh. Panels have its codes of four bits; unpacking finds the vectors in the list.
template <class F, int halvings, int offset>
struct GridPanels {
  static constexpr int kParts = 32 / F::kGroup, kColumns = F::kBlock, kBytes = F::kDataBytes, kScaleBytes = 0;
  static constexpr PanelCodes kCodes{.bits = 4,
                                     .offset = offset,
                                     .levels = panel_levels<typename F::Levels, offset>(),
                                     .scales = kParts,
                                     .scale = PanelScale::grouped,
                                     .halvings = halvings};

  static void read(const tw::u8* block, const tw::u8*, PanelColumns* columns) {
    for (int number = 0; number < F::kBlock / kPanelColumns; ++number) {
      StepScales<F, kParts>::get(block, number, columns[number].row);
      for (int n = 0; n < 4; ++n) {
        const tw::u64 eight = bytes_of_nibbles(F::eight_of(block, 4 * number + n));
        std::memcpy(columns[number].codes + 8 * n, &eight, sizeof eight);
      }
    }
  }
  static void write(const PanelColumns& columns, int number, tw::u8* block, tw::u8*) {
    StepScales<F, kParts>::put(columns.row, number, block);
    for (int n = 0; n < 4; ++n) {
      tw::u32 nibbles = 0;
      for (int i = 0; i < 8; ++i) nibbles |= static_cast<tw::u32>(columns.codes[8 * n + i]) << (4 * i);
      F::put_eight(block, 4 * number + n, nibbles);
    }
  }
  static constexpr PanelFormat format(const char* name) {
    return {name, &kCodes, {}, false, &pack_codes<GridPanels>, &unpack_codes<GridPanels>};
  }
};

// Of f32, f16 and bf16.
template <class F>
struct FloatPanels {
  static constexpr PanelCodes kCodes = {};
  static constexpr PanelFloats kFloats = {F::kDataBytes, tw::same<typename F::Element, tw::bf16>() ? 2 : 1,
                                          FloatScales::none};
  using Element = std::conditional_t<F::kDataBytes == 4, tw::u32, tw::u16>;
  using Number = Element;
  struct Convert {
    static Number number(Element element) { return element; }
    static Element element(Number number) { return number; }
  };
  static constexpr PanelFormat format(const char* name) {
    return {name, nullptr, kFloats, false, &pack_floats<FloatPanels>, &unpack_floats<FloatPanels>};
  }
};
// Of E4M3, whose numbers a bf16 holds. A NaN keeps its sign.
template <FloatScales scales>
struct E4m3Panels {
  static constexpr PanelCodes kCodes = {};
  static constexpr PanelFloats kFloats = {2, 2, scales};
  using Element = tw::u8;
  using Number = tw::u16;
  struct Convert {
    tw::u16 numbers[256];
    Convert() {
      for (tw::u32 i = 0; i < 256; ++i)
        numbers[i] = (i & 0x7f) == 0x7f ? static_cast<tw::u16>((i & 0x80) << 8 | 0x7fc0)
                                        : tw::f32_to_bf16_bits(tw::e4m3_to_f32(static_cast<tw::u8>(i)));
    }
    tw::u16 number(tw::u8 element) const { return numbers[element]; }
    static tw::u8 element(tw::u16 number) {
      const float v = tw::bf16_bits_to_f32(number);
      return tw::is_nan(v) ? static_cast<tw::u8>((number >> 8 & 0x80) | 0x7f) : tw::f32_to_e4m3(v);
    }
  };
  static constexpr PanelFormat format(const char* name) {
    return {name, nullptr, kFloats, true, &pack_floats<E4m3Panels>, &unpack_floats<E4m3Panels>};
  }
};

}  // namespace tilewright::cpu
