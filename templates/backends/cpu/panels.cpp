// SPDX-License-Identifier: Apache-2.0
#include "templates/backends/cpu/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>

#include "format_hosts.inc"
#include "format_includes.inc"
#include "support/must_be.h"
#include "templates/backends/cpu/panel_format.h"
#include "templates/common/checks.h"
#include "templates/common/exact_floats.h"
#include "templates/formats/shared/fast_path.h"

namespace tilewright::cpu {
namespace {

using Byte = std::uint8_t;

constexpr auto grouped = PanelScale::grouped;

template <class F>
constexpr PanelFormat panel_format(const char* name) {
  if constexpr (!std::is_void_v<typename HostFormat<F>::Panels>) return HostFormat<F>::Panels::format(name);
  return {};
}
constexpr PanelFormat kFormats[] = {
#define FORMAT(NAME) panel_format<tw::fmt::NAME>(#NAME),
#include "format_list.inc"
#undef FORMAT
};

const PanelFormat* find(Format w) {
  for (const PanelFormat& f : kFormats)
    if (f.name && w.name() == f.name) return &f;
  return nullptr;
}

const PanelFloats* panel_floats_of(const PanelFormat* f) { return f && f->floats.bytes ? &f->floats : nullptr; }

// Where a column's code is in a panel's block, for row 0; others are four bytes on. `low` has its lower bits, or all of
// them, `high` the others.
struct Place {
  int low, low_bit, high = 0, high_bit = 0;
};
int low_bits(const PanelCodes& c) { return c.bits == 8 ? 8 : 4; }
Byte bits_of(Byte byte, int at, int count) { return static_cast<Byte>(byte >> at & ((1 << count) - 1)); }
Place panel_place(const PanelCodes& c, int column) {
  const int in_vector = column % 4, vector = column / 4;
  if (c.bits == 8) return {64 * vector + in_vector, 0};
  Place p{64 * (vector % 4) + in_vector, vector / 4 * 4};
  if (c.bits == 5) p.high = 256 + in_vector, p.high_bit = vector;
  if (c.bits == 6) p.high = 256 + 64 * (vector / 4) + in_vector, p.high_bit = vector % 4 * 2;
  return p;
}
Byte get_code(const PanelCodes& c, const Byte* block, const Place& p) {
  Byte code = bits_of(block[p.low], p.low_bit, low_bits(c));
  if (c.bits == 5 || c.bits == 6) code = static_cast<Byte>(code | bits_of(block[p.high], p.high_bit, c.bits - 4) << 4);
  return code;
}
void put_code(const PanelCodes& c, Byte* block, const Place& p, Byte code) {
  block[p.low] = static_cast<Byte>(block[p.low] | bits_of(code, 0, low_bits(c)) << p.low_bit);
  if (c.bits == 5 || c.bits == 6) block[p.high] = static_cast<Byte>(block[p.high] | code >> 4 << p.high_bit);
}

// `panel`: what stands in front of its blocks.
void get_panel(const PanelCodes& c, const Byte* panel, const Byte* group, const Byte* block, int r, PanelRow& row) {
  const Byte* scales = block + c.code_bytes();
  if (c.scale == grouped) {
    for (int i = 0; i < c.scales; ++i, scales += kPanel) row.scales[i] = scales[r];
    for (int i = 0; i < c.scales && c.minima; ++i, scales += kPanel) row.minima[i] = scales[r];
  } else if (c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
    for (int i = 0; i < c.scales; ++i) row.scales[i] = read16(scales + 2 * (kPanel * i + r));
    for (int i = 0; i < c.scales && c.minima; ++i) row.minima[i] = read16(scales + 2 * (kPanel * (c.scales + i) + r));
  } else if (c.scale == PanelScale::row) {
    std::memcpy(&row.whole, panel + 4 * r, 4);
  }
  for (int i = 0; i < c.group_bytes() / (2 * kPanel); ++i) row.group[i] = read16(group + 2 * (kPanel * i + r));
}
void put_panel(const PanelCodes& c, Byte* panel, Byte* group, Byte* block, int r, const PanelRow& row) {
  Byte* scales = block + c.code_bytes();
  if (c.scale == grouped) {
    for (int i = 0; i < c.scales; ++i, scales += kPanel) scales[r] = static_cast<Byte>(row.scales[i]);
    for (int i = 0; i < c.scales && c.minima; ++i, scales += kPanel) scales[r] = static_cast<Byte>(row.minima[i]);
  } else if (c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
    for (int i = 0; i < c.scales; ++i) write16(scales + 2 * (kPanel * i + r), row.scales[i]);
    for (int i = 0; i < c.scales && c.minima; ++i) write16(scales + 2 * (kPanel * (c.scales + i) + r), row.minima[i]);
  } else if (c.scale == PanelScale::row) {
    std::memcpy(panel + 4 * r, &row.whole, 4);
  }
  for (int i = 0; i < c.group_bytes() / (2 * kPanel); ++i) write16(group + 2 * (kPanel * i + r), row.group[i]);
}

// Where 32 columns of a row are.
template <class A, class B>
struct Columns {
  A *codes, *scales;  // of the format: its block, and what holds its scale
  int number;         // within it
  B *panel, *group, *block;
  int row;  // of the panel
};
template <class A, class B, class Move>
void each_block(const PanelFormat& f, std::int64_t k, std::int64_t first, std::int64_t last, A* data, A* scales,
                B* panels, const Move& move) {
  const PanelCodes& c = *f.codes;
  const std::int64_t blocks = k / f.columns, items = c.scale == PanelScale::row ? 1 : blocks;  // of a row
  for (std::int64_t panel = first; panel < last; ++panel)
    for (std::int64_t block = 0; block < k / kPanelColumns; ++block) {
      const std::int64_t column = block * kPanelColumns;
      B* const head = panels + panel * c.panel_bytes(k);
      B* const group = head + c.head_bytes() + block / c.blocks() * (c.blocks() * c.bytes() + c.group_bytes());
      for (int r = 0; r < kPanel; ++r) {
        const std::int64_t row = panel * kPanel + r, at = column / f.columns;
        A* const codes = data + (row * blocks + at) * f.bytes;
        move(Columns<A, B>{codes, f.scale_bytes ? scales + (row * items + at % items) * f.scale_bytes : codes,
                           static_cast<int>(column % f.columns / kPanelColumns), head, group,
                           group + c.group_bytes() + block % c.blocks() * c.bytes(), r});
      }
    }
}
std::array<Place, kPanelColumns> places(const PanelCodes& c) {
  std::array<Place, kPanelColumns> list = {};
  for (int i = 0; i < kPanelColumns; ++i) list[static_cast<std::size_t>(i)] = panel_place(c, i);
  return list;
}

}  // namespace

const PanelCodes* panel_codes(Format w) {
  const PanelFormat* f = find(w);
  return f ? f->codes : nullptr;
}

const PanelFloats* panel_floats(Format w) { return panel_floats_of(find(w)); }

std::int64_t panel_bytes(Format w, std::int64_t k) {
  const PanelFormat& f = *find(w);
  return f.codes ? f.codes->panel_bytes(k) : f.floats.panel_bytes(k);
}

namespace {
// Formats of x that panels of w are for, as a text; without panels none.
const char* partners(const PanelFormat* f) {
  return !f                  ? ""
         : f->number         ? "f32, f16, bf16, e4m3, e4m3_row or e4m3_g128"
         : !f->codes         ? "f32, f16 or bf16"
         : f->codes->exact() ? "int8"
                             : "q8_1 or int8_row (x_from quantizes floats), f32, f16 or bf16";
}
bool partner(const PanelFormat* f, Format x) {
  if (!f) return false;
  if (f->codes && f->codes->exact()) return x.name() == "int8";
  if (f->codes) return is_float(x) || x.name() == "q8_1" || x.name() == "int8_row";
  const FastPath& path = fast_path(x);
  return is_float(x) || (f->number && path.element == Element::e4m3 && !path.global && path.scale_rows == 1);
}
}  // namespace

bool have_panels(Format w, Format x, std::int64_t n, std::int64_t k) {
  const PanelFormat* f = find(w);
  return partner(f, x) && n % kPanel == 0 && (!f->codes || k % kPanelColumns == 0);
}

void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                  const char* n_field) {
  const PanelFormat* const format = find(w);
  if (!format) {
    std::string all = "f32, f16, bf16";
    for (const PanelFormat& f : kFormats)
      if (f.name && (f.codes || f.number)) all += fmt::format(", {}", f.name);
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("is not supported: w={} has no panels; {} have", w.name(), all));
  }
  if (!partner(format, x))
    throw Error(
        ErrorCode::unsupported, field, std::move(value),
        fmt::format("is not supported: panels of w={} are for x={}, not x={}", w.name(), partners(format), x.name()));
  if (n % kPanel != 0) throw must_be(n_field, n, fmt::format("a multiple of {}, the rows of a panel", kPanel));
  if (format->codes && k % kPanelColumns != 0)
    throw must_be("k", k, fmt::format("a multiple of {}, the columns of a panel's block", kPanelColumns));
}

namespace {

// Elements of a panel of floats, in it and in the rows, by move(in rows, bytes from the panels' begin to the number).
template <class Move>
void each_float(const PanelFloats& f, std::int64_t k, std::int64_t first, std::int64_t last, const Move& move) {
  const std::int64_t head = f.head_bytes(k), bytes = f.panel_bytes(k);
  for (std::int64_t panel = first; panel < last; ++panel)
    for (std::int64_t column = 0; column < k; ++column) {
      const std::int64_t in_panel = column / f.step * f.step * kPanel + column % f.step;
      for (int r = 0; r < kPanel; ++r)
        move((panel * kPanel + r) * k + column, panel * bytes + head + (in_panel + r * f.step) * f.bytes);
    }
}
// A row's scales, in the stream and in its panel's head, by move(stream's float, bytes to the panel's).
template <class Move>
void each_scale(const PanelFloats& f, std::int64_t k, std::int64_t row, const Move& move) {
  if (f.scales == FloatScales::none) return;
  const std::int64_t at = row / kPanel * f.panel_bytes(k) + 4 * (row % kPanel), groups = k / kScaleColumns;
  if (f.scales == FloatScales::row) return move(row, at);
  for (std::int64_t g = 0; g < groups; ++g) move(row / kScaleColumns * groups + g, at + 4 * kPanel * g);
}
// Weights may be a file's bytes: of any alignment.
void pack_floats(const PanelFormat& format, std::int64_t k, std::int64_t first, std::int64_t last, Operand from,
                 Byte* to) {
  const PanelFloats& f = format.floats;
  const auto* const data = static_cast<const Byte*>(from.data);
  if (k % f.step != 0) std::fill(to + first * f.panel_bytes(k), to + last * f.panel_bytes(k), Byte{});
  each_float(f, k, first, last, [&](std::int64_t in_rows, std::int64_t at) {
    if (format.number)
      write16(to + at, format.number(data[in_rows]));
    else if (f.bytes == 4)
      std::memcpy(to + at, data + 4 * in_rows, 4);
    else
      std::memcpy(to + at, data + 2 * in_rows, 2);
  });
  for (std::int64_t row = first * kPanel; row < last * kPanel; ++row)
    each_scale(f, k, row, [&](std::int64_t stored, std::int64_t at) {
      std::memcpy(to + at, static_cast<const Byte*>(from.scales) + 4 * stored, 4);
    });
}
void unpack_floats(const PanelFormat& format, std::int64_t k, std::int64_t first, std::int64_t last, const Byte* from,
                   MutableOperand to) {
  const PanelFloats& f = format.floats;
  auto* const data = static_cast<Byte*>(to.data);
  each_float(f, k, first, last, [&](std::int64_t in_rows, std::int64_t at) {
    if (format.number)
      data[in_rows] = format.element(read16(from + at));
    else if (f.bytes == 4)
      std::memcpy(data + 4 * in_rows, from + at, 4);
    else
      std::memcpy(data + 2 * in_rows, from + at, 2);
  });
  for (std::int64_t row = first * kPanel; row < last * kPanel; ++row) {
    // Of rows that share a scale the first has it: others may be another thread's.
    if (f.scales == FloatScales::columns && row % kScaleColumns != 0) continue;
    each_scale(f, k, row, [&](std::int64_t stored, std::int64_t at) {
      std::memcpy(static_cast<Byte*>(to.scales) + 4 * stored, from + at, 4);
    });
  }
}

}  // namespace

void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, Operand from, std::byte* to) {
  const PanelFormat& f = *find(w);
  const ExactFloats exact;
  if (!f.codes) return pack_floats(f, k, first, last, from, reinterpret_cast<Byte*>(to));
  const auto all = places(*f.codes);
  const std::int64_t bytes = f.codes->panel_bytes(k);
  std::fill(to + first * bytes, to + last * bytes, std::byte{});
  each_block(f, k, first, last, static_cast<const Byte*>(from.data), static_cast<const Byte*>(from.scales),
             reinterpret_cast<Byte*>(to), [&](const Columns<const Byte, Byte>& c) {
               PanelRow row = {};
               Byte codes[kPanelColumns];
               f.read(c.codes, c.scales, c.number, codes, row);
               put_panel(*f.codes, c.panel, c.group, c.block, c.row, row);
               for (std::size_t i = 0; i < all.size(); ++i) put_code(*f.codes, c.block + 4 * c.row, all[i], codes[i]);
             });
}
void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   MutableOperand to) {
  const PanelFormat& f = *find(w);
  const ExactFloats exact;
  if (!f.codes) return unpack_floats(f, k, first, last, reinterpret_cast<const Byte*>(from), to);
  const auto all = places(*f.codes);
  const std::int64_t bytes = kPanel * (k / f.columns) * f.bytes;
  auto* const data = static_cast<Byte*>(to.data);
  std::fill(data + first * bytes, data + last * bytes, Byte{});
  each_block(f, k, first, last, data, static_cast<Byte*>(to.scales), reinterpret_cast<const Byte*>(from),
             [&](const Columns<Byte, const Byte>& c) {
               PanelRow row = {};
               get_panel(*f.codes, c.panel, c.group, c.block, c.row, row);
               Byte codes[kPanelColumns];
               for (std::size_t i = 0; i < all.size(); ++i) codes[i] = get_code(*f.codes, c.block + 4 * c.row, all[i]);
               f.write(codes, row, c.number, c.codes, c.scales);
             });
}

}  // namespace tilewright::cpu
