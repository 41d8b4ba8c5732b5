// SPDX-License-Identifier: Apache-2.0
// Moves weights between the rows in which a format stores them and panels (panel_codes.h). panel_format.h has the
// formats' parts. All that a format fixes is a constant here, so that compilers use vector instructions.
#pragma once

#include <tilewright/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats/shared/format.cuh"
#include "templates/backends/cpu/panel_codes.h"

namespace tilewright::cpu {

using tw::fmt::read16;
using tw::fmt::write16;

// Scales of a row's 32 columns, in the panel's encoding.
struct PanelRow {
  std::uint16_t scales[2], group[2];  // group: of the format's block, scale and minimum or zero point
  std::uint16_t minima[2];
  std::uint32_t whole;  // of all columns, a float's bits
};
struct PanelColumns {
  tw::u8 codes[kPanelColumns];
  PanelRow row;
};

// ---- panels of codes

// Writes the codes of 32 columns of one row into a panel's block, four in a word, and reads them. `block`: the row's
// first byte.
template <int bits>
void put_codes(const tw::u8* codes, tw::u8* block) {
  tw::u32 of[8];
  std::memcpy(of, codes, sizeof of);
  const auto put = [&](int vector, tw::u32 word) { std::memcpy(block + 64 * vector, &word, sizeof word); };
  if constexpr (bits == 8) {
    for (int i = 0; i < 8; ++i) put(i, of[i]);
    return;
  }
  for (int i = 0; i < 4; ++i) put(i, (of[i] & 0x0f0f0f0fu) | (of[i + 4] & 0x0f0f0f0fu) << 4);
  tw::u32 high[2] = {};
  if constexpr (bits == 5)
    for (int i = 0; i < 8; ++i) high[0] |= (of[i] >> 4 & 0x01010101u) << i;
  if constexpr (bits == 6)
    for (int i = 0; i < 8; ++i) high[i / 4] |= (of[i] >> 4 & 0x03030303u) << (2 * (i % 4));
  for (int i = 0; i < bits - 4; ++i) put(4 + i, high[i]);
}
template <int bits>
void get_codes(const tw::u8* block, tw::u8* codes) {
  tw::u32 of[8];
  const auto get = [&](int vector) {
    tw::u32 word;
    std::memcpy(&word, block + 64 * vector, sizeof word);
    return word;
  };
  for (int i = 0; i < 8; ++i) {
    of[i] = bits == 8 ? get(i) : get(i % 4) >> (i / 4 * 4) & 0x0f0f0f0fu;
    if constexpr (bits == 5) of[i] |= (get(4) >> i & 0x01010101u) << 4;
    if constexpr (bits == 6) of[i] |= (get(4 + i / 4) >> (2 * (i % 4)) & 0x03030303u) << 4;
  }
  std::memcpy(codes, of, sizeof of);
}

// Block `number` of a panel: pointers to the panel, to the group in front of it, and to its codes and scales.
template <PanelCodes c, class Byte>
struct PanelBlock {
  PanelBlock(Byte* panel, std::int64_t number)
      : panel(panel),
        group(panel + c.head_bytes() + number / c.blocks() * (c.blocks() * c.bytes() + c.group_bytes())),
        codes(group + c.group_bytes() + number % c.blocks() * c.bytes()),
        scales(codes + c.code_bytes()) {}
  Byte *panel, *group, *codes, *scales;

  // Calls move<bytes>(field of `row`, address in the panel) for each scale of row r: 2 bytes, 1 in a grouped block, 4
  // for a scale of the whole row.
  template <class Row, class Move>
  void each_scale(Row& row, int r, const Move& move) const {
    constexpr int kBytes = c.scale == PanelScale::grouped ? 1 : 2;
    if constexpr (kBytes == 1 || c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
      for (int i = 0; i < c.scales; ++i)
        move.template operator()<kBytes>(row.scales[i], scales + kBytes * (kPanel * i + r));
      for (int i = 0; i < (c.minima ? c.scales : 0); ++i)
        move.template operator()<kBytes>(row.minima[i], scales + kBytes * (kPanel * (c.scales + i) + r));
    }
    for (int i = 0; i < c.group_bytes() / (2 * kPanel); ++i)
      move.template operator()<2>(row.group[i], group + 2 * (kPanel * i + r));
    if constexpr (c.scale == PanelScale::row) move.template operator()<4>(row.whole, panel + 4 * r);
  }
  void put(const PanelColumns& columns, int r) const {
    each_scale(columns.row, r, []<int bytes>(auto scale, Byte* to) {
      if constexpr (bytes == 4)
        std::memcpy(to, &scale, 4);
      else if constexpr (bytes == 2)
        write16(to, scale);
      else
        *to = static_cast<Byte>(scale);
    });
    put_codes<c.bits>(columns.codes, codes + 4 * r);
  }
  void get(PanelColumns& columns, int r) const {
    each_scale(columns.row, r, []<int bytes>(auto& scale, const Byte* from) {
      if constexpr (bytes == 4)
        std::memcpy(&scale, from, 4);
      else
        scale = bytes == 2 ? read16(from) : *from;
    });
    get_codes<c.bits>(codes + 4 * r, columns.codes);
  }
};

// P describes a format. It has kCodes and, of one block of the format, or of several if a block is shorter than 32
// columns:
//   kColumns, kBytes               both counted
//   kScaleBytes                    of its item of the stream of scales, or of a row's; 0: the block has its scales
//   read(block, scales, columns)   all of its columns, 32 in each of `columns`
//   write(columns, i, block, scales)   32 columns, the i-th, into zeroed bytes
// Calls move(block, what holds its scale, panel, number of the panel's first block with its columns, row of the panel)
// for each block of the format.
template <class P, class A, class B, class Move>
void each_block(std::int64_t k, std::int64_t first, std::int64_t last, A* data, A* scales, B* panels,
                const Move& move) {
  const std::int64_t blocks = k / P::kColumns, items = P::kCodes.scale == PanelScale::row ? 1 : blocks;  // of a row
  for (std::int64_t panel = first; panel < last; ++panel)
    for (std::int64_t at = 0; at < blocks; ++at)
      for (int r = 0; r < kPanel; ++r) {
        const std::int64_t row = panel * kPanel + r;
        A* const block = data + (row * blocks + at) * P::kBytes;
        A* const of = P::kScaleBytes ? scales + (row * items + (items == 1 ? 0 : at)) * P::kScaleBytes : block;
        move(block, of, panels + panel * P::kCodes.panel_bytes(k), at * (P::kColumns / kPanelColumns), r);
      }
}
template <class P>
void pack_codes(std::int64_t k, std::int64_t first, std::int64_t last, Operand from, tw::u8* to) {
  each_block<P>(k, first, last, static_cast<const tw::u8*>(from.data), static_cast<const tw::u8*>(from.scales), to,
                [](const tw::u8* block, const tw::u8* scales, tw::u8* panel, std::int64_t number, int r) {
                  PanelColumns columns[P::kColumns / kPanelColumns];
                  P::read(block, scales, columns);
                  for (const PanelColumns& each : columns) PanelBlock<P::kCodes, tw::u8>(panel, number++).put(each, r);
                });
}
template <class P>
void unpack_codes(std::int64_t k, std::int64_t first, std::int64_t last, const tw::u8* from, MutableOperand to) {
  const std::int64_t bytes = kPanel * (k / P::kColumns) * P::kBytes;
  auto* const data = static_cast<tw::u8*>(to.data);
  std::fill(data + first * bytes, data + last * bytes, tw::u8{});
  each_block<P>(k, first, last, data, static_cast<tw::u8*>(to.scales), from,
                [](tw::u8* block, tw::u8* scales, const tw::u8* panel, std::int64_t number, int r) {
                  for (int i = 0; i < P::kColumns / kPanelColumns; ++i) {
                    PanelColumns columns = {};
                    PanelBlock<P::kCodes, const tw::u8>(panel, number + i).get(columns, r);
                    P::write(columns, i, block, scales);
                  }
                });
}

// ---- panels of floats

// Transposes 32 columns of all rows at a time: rows a power of two apart would evict each other from the cache. `rows`
// may be a file's bytes, of any alignment.
inline constexpr std::int64_t kFloatColumns = 32;

template <class P>
void pack_numbers(std::int64_t k, const tw::u8* rows, tw::u8* to) {
  using Element = typename P::Element;
  using Number = typename P::Number;
  constexpr std::int64_t kStep = P::kFloats.step;
  const typename P::Convert convert;
  for (std::int64_t column = 0; column < k; column += kFloatColumns) {
    const std::int64_t count = std::min(kFloatColumns, k - column);
    Number numbers[kPanel][kFloatColumns];
    for (std::int64_t r = 0; r < kPanel; ++r) {
      Element elements[kFloatColumns] = {};
      const tw::u8* const row = rows + (r * k + column) * static_cast<std::int64_t>(sizeof(Element));
      if (count == kFloatColumns)
        std::memcpy(elements, row, sizeof elements);
      else
        std::memcpy(elements, row, static_cast<std::size_t>(count) * sizeof(Element));
      for (std::int64_t i = 0; i < kFloatColumns; ++i) numbers[r][i] = convert.number(elements[i]);
    }
    for (std::int64_t i = 0; i < count; i += kStep)
      for (std::int64_t r = 0; r < kPanel; ++r, to += kStep * sizeof(Number))
        std::memcpy(to, &numbers[r][i], kStep * sizeof(Number));
  }
}
template <class P>
void unpack_numbers(std::int64_t k, const tw::u8* from, tw::u8* rows) {
  using Element = typename P::Element;
  using Number = typename P::Number;
  constexpr std::int64_t kStep = P::kFloats.step;
  const typename P::Convert convert;
  for (std::int64_t column = 0; column < k; column += kStep)
    for (std::int64_t r = 0; r < kPanel; ++r, from += kStep * sizeof(Number))
      for (std::int64_t i = 0; i < std::min(kStep, k - column); ++i) {
        Number number;
        std::memcpy(&number, from + i * static_cast<std::int64_t>(sizeof number), sizeof number);
        const Element element = convert.element(number);
        std::memcpy(rows + (r * k + column + i) * static_cast<std::int64_t>(sizeof element), &element, sizeof element);
      }
}

// Calls move(index in the stream of scales, address in the panel, row) for each scale of a panel.
template <PanelFloats f, class Byte, class Move>
void each_float_scale(std::int64_t k, std::int64_t panel, Byte* panels, const Move& move) {
  Byte* const head = panels + panel * f.panel_bytes(k);
  const std::int64_t groups = f.scales == FloatScales::columns ? k / kScaleColumns : 1;
  for (std::int64_t r = 0; r < kPanel && f.scales != FloatScales::none; ++r) {
    const std::int64_t row = panel * kPanel + r,
                       first = f.scales == FloatScales::row ? row : row / kScaleColumns * groups;
    for (std::int64_t g = 0; g < groups; ++g) move(first + g, head + 4 * (kPanel * g + r), row);
  }
}
// P, of a format, has kFloats, Element and Number, what it stores and what its panels hold, and Convert, whose
// number(element) and element(number) are each other's inverse and keep zeros.
template <class P>
void pack_floats(std::int64_t k, std::int64_t first, std::int64_t last, Operand from, tw::u8* to) {
  constexpr PanelFloats f = P::kFloats;
  const auto* const data = static_cast<const tw::u8*>(from.data);
  const auto* const scales = static_cast<const tw::u8*>(from.scales);
  for (std::int64_t panel = first; panel < last; ++panel) {
    pack_numbers<P>(k, data + panel * kPanel * k * static_cast<std::int64_t>(sizeof(typename P::Element)),
                    to + panel * f.panel_bytes(k) + f.head_bytes(k));
    each_float_scale<f>(k, panel, to,
                        [&](std::int64_t i, tw::u8* at, std::int64_t) { std::memcpy(at, scales + 4 * i, 4); });
  }
}
template <class P>
void unpack_floats(std::int64_t k, std::int64_t first, std::int64_t last, const tw::u8* from, MutableOperand to) {
  constexpr PanelFloats f = P::kFloats;
  auto* const data = static_cast<tw::u8*>(to.data);
  auto* const scales = static_cast<tw::u8*>(to.scales);
  for (std::int64_t panel = first; panel < last; ++panel) {
    unpack_numbers<P>(k, from + panel * f.panel_bytes(k) + f.head_bytes(k),
                      data + panel * kPanel * k * static_cast<std::int64_t>(sizeof(typename P::Element)));
    each_float_scale<f>(k, panel, from, [&](std::int64_t i, const tw::u8* at, std::int64_t row) {
      // Only the first of the rows that share a scale writes it; another thread may own the others.
      if (f.scales != FloatScales::columns || row % kScaleColumns == 0) std::memcpy(scales + 4 * i, at, 4);
    });
  }
}

}  // namespace tilewright::cpu
