// SPDX-License-Identifier: Apache-2.0
#include "templates/cpu/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>

#include "format_hosts.inc"
#include "format_includes.inc"
#include "templates/checks.h"
#include "templates/cpu/panel_format.h"
#include "templates/exact_floats.h"

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

int float_bytes(Format f) {  // 0: it is not f32, f16 or bf16
  return f.name() == "f32" ? 4 : f.name() == "f16" || f.name() == "bf16" ? 2 : 0;
}
int float_step(Format f) { return f.name() == "bf16" ? 2 : 1; }  // columns of a row that lie side by side
std::int64_t float_columns(std::int64_t k, int step) { return (k + step - 1) / step * step; }  // of a panel

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
    if (c.minima) row.minimum = scales[r];
  } else if (c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
    for (int i = 0; i < c.scales; ++i) row.scales[i] = read16(scales + 2 * (kPanel * i + r));
    if (c.minima) row.minimum = read16(scales + 2 * (kPanel * c.scales + r));
  } else if (c.scale == PanelScale::row) {
    std::memcpy(&row.whole, panel + 4 * r, 4);
  }
  for (int i = 0; i < c.group_bytes() / (2 * kPanel); ++i) row.group[i] = read16(group + 2 * (kPanel * i + r));
}
void put_panel(const PanelCodes& c, Byte* panel, Byte* group, Byte* block, int r, const PanelRow& row) {
  Byte* scales = block + c.code_bytes();
  if (c.scale == grouped) {
    for (int i = 0; i < c.scales; ++i, scales += kPanel) scales[r] = static_cast<Byte>(row.scales[i]);
    if (c.minima) scales[r] = static_cast<Byte>(row.minimum);
  } else if (c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
    for (int i = 0; i < c.scales; ++i) write16(scales + 2 * (kPanel * i + r), row.scales[i]);
    if (c.minima) write16(scales + 2 * (kPanel * c.scales + r), row.minimum);
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

std::int64_t panel_bytes(Format w, std::int64_t k) {
  const int bytes = float_bytes(w);
  return bytes ? kPanel * bytes * float_columns(k, float_step(w)) : panel_codes(w)->panel_bytes(k);
}
std::int64_t panel_bytes(const Gemm& g) { return g.n / kPanel * panel_bytes(g.w, g.k); }

namespace {
// Formats of x that panels of w are for, as a text; without panels none.
const char* partners(Format w) {
  const PanelFormat* f = find(w);
  return float_bytes(w) ? "f32, f16 or bf16" : !f ? "" : f->codes->exact() ? "int8" : "q8_1 or int8_row";
}
bool partner(Format w, Format x) {
  const PanelFormat* f = find(w);
  return float_bytes(w)      ? float_bytes(x) > 0
         : !f                ? false
         : f->codes->exact() ? x.name() == "int8"
                             : x.name() == "q8_1" || x.name() == "int8_row";
}
}  // namespace

bool have_panels(Format w, Format x, std::int64_t n, std::int64_t k) {
  return partner(w, x) && n % kPanel == 0 && (float_bytes(w) || k % kPanelColumns == 0);
}

void check_panels(const char* field, std::string value, Format w, Format x, std::int64_t n, std::int64_t k,
                  const char* n_field) {
  const bool floats = float_bytes(w) > 0;
  if (!floats && !find(w)) {
    std::string all = "f32, f16, bf16";
    for (const PanelFormat& f : kFormats)
      if (f.name) all += fmt::format(", {}", f.name);
    throw Error(ErrorCode::unsupported, field, std::move(value),
                fmt::format("w={} has no panels; {} have", w.name(), all));
  }
  if (!partner(w, x))
    throw Error(
        ErrorCode::unsupported, field, std::move(value),
        fmt::format("panels of w={} are for x={}{}, not x={}", w.name(), partners(w),
                    std::string_view(partners(w)).starts_with("q8_1") ? " (x_from quantizes floats)" : "", x.name()));
  if (n % kPanel != 0)
    throw invalid(n_field, std::to_string(n), fmt::format("a multiple of {}, the rows of a panel", kPanel));
  if (!floats && k % kPanelColumns != 0)
    throw invalid("k", std::to_string(k),
                  fmt::format("a multiple of {}, the columns of a panel's block", kPanelColumns));
}

namespace {

// Elements of a panel of floats, in it and in the rows, by move(in rows, in panel).
template <class Move>
void each_float(std::int64_t k, int step, std::int64_t first, std::int64_t last, const Move& move) {
  for (std::int64_t panel = first; panel < last; ++panel)
    for (std::int64_t column = 0; column < k; ++column) {
      const std::int64_t in_panel = panel * float_columns(k, step) + column / step * step;
      for (int r = 0; r < kPanel; ++r)
        move((panel * kPanel + r) * k + column, in_panel * kPanel + r * step + column % step);
    }
}
// Of T's size, between pointers of any alignment: weights may be a file's bytes.
template <class T>
void move_element(const void* from, std::int64_t i, void* to, std::int64_t j) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  std::memcpy(static_cast<Byte*>(to) + j * kBytes, static_cast<const Byte*>(from) + i * kBytes, sizeof(T));
}
template <class T>
void pack_floats(std::int64_t k, int step, std::int64_t first, std::int64_t last, const void* from, void* to) {
  if (k % step != 0) {
    const std::int64_t bytes = kPanel * float_columns(k, step) * static_cast<std::int64_t>(sizeof(T));
    std::memset(static_cast<Byte*>(to) + first * bytes, 0, static_cast<std::size_t>((last - first) * bytes));
  }
  each_float(k, step, first, last,
             [&](std::int64_t in_rows, std::int64_t in_panel) { move_element<T>(from, in_rows, to, in_panel); });
}
template <class T>
void unpack_floats(std::int64_t k, int step, std::int64_t first, std::int64_t last, const void* from, void* to) {
  each_float(k, step, first, last,
             [&](std::int64_t in_rows, std::int64_t in_panel) { move_element<T>(from, in_panel, to, in_rows); });
}

}  // namespace

void pack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, Operand from, std::byte* to) {
  if (const int bytes = float_bytes(w))
    return (bytes == 4 ? pack_floats<std::uint32_t> : pack_floats<std::uint16_t>)(k, float_step(w), first, last,
                                                                                  from.data, to);
  const PanelFormat& f = *find(w);
  const ExactFloats exact;
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
  if (const int bytes = float_bytes(w))
    return (bytes == 4 ? unpack_floats<std::uint32_t> : unpack_floats<std::uint16_t>)(k, float_step(w), first, last,
                                                                                      from, to.data);
  const PanelFormat& f = *find(w);
  const ExactFloats exact;
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

void pack_panels(const Gemm& g, Operand w, void* panels) {
  pack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, w, static_cast<std::byte*>(panels));
}
void unpack_panels(const Gemm& g, const void* panels, MutableOperand w) {
  unpack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, static_cast<const std::byte*>(panels), w);
}

}  // namespace tilewright::cpu
