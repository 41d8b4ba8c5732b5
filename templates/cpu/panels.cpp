// SPDX-License-Identifier: Apache-2.0
#include "templates/cpu/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "templates/checks.h"

namespace tilewright::cpu {
namespace {

using Byte = std::uint8_t;

// Where a column's code is in its format's block: `low` has its lower bits, or all of them, `high` the others.
struct Place {
  int low, low_bit, high = 0, high_bit = 0;
};
// Scales of a row's 32 columns, as they are in the panel.
struct Row {
  std::uint16_t scales[2], group[2];  // group: of the format's block, scale and minimum or zero point
  std::uint16_t minimum;
  std::uint32_t whole;  // of all columns, a float's bits
};

std::uint16_t get16(const Byte* p) { return static_cast<std::uint16_t>(p[0] | p[1] << 8); }
void put16(Byte* p, std::uint16_t v) { p[0] = static_cast<Byte>(v), p[1] = static_cast<Byte>(v >> 8); }

// ---- scales of formats, `block` being the number of 32 columns within the format's block. `from`: that block, or its
// item of the stream of scales, if there is one

void get_half(const Byte* from, int, Row& row) { row.scales[0] = get16(from); }
void put_half(const Row& row, int, Byte* to) { put16(to, row.scales[0]); }

// A minimum is added, and a panel's is subtracted: the sign is turned.
void get_half_minimum(const Byte* from, int, Row& row) {
  row.scales[0] = get16(from), row.minimum = get16(from + 2) ^ 0x8000;
}
void put_half_minimum(const Row& row, int, Byte* to) { put16(to, row.scales[0]), put16(to + 2, row.minimum ^ 0x8000); }

// Half of 2^(code - 127), which bf16 holds, and a NaN.
void get_e8m0(const Byte* from, int, Row& row) {
  const int code = *from;
  row.scales[0] = static_cast<std::uint16_t>(code == 255 ? 0x7fc0 : code > 1 ? (code - 1) << 7 : 0x20 << code);
}
void put_e8m0(const Row& row, int, Byte* to) {
  const int bits = row.scales[0];
  *to = static_cast<Byte>(bits == 0x7fc0 ? 255 : bits < 0x80 ? bits >> 6 : (bits >> 7) + 1);
}

// Half of an E4M3, which a half holds, and a NaN.
std::uint16_t half_of_e4m3(int code) {
  const int sign = (code & 0x80) << 8, exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (exponent > 0) return static_cast<std::uint16_t>(sign | (exponent + 7) << 10 | mantissa << 7);
  if (mantissa == 0) return static_cast<std::uint16_t>(sign);
  const int top = std::bit_width(static_cast<unsigned>(mantissa)) - 1;
  return static_cast<std::uint16_t>(sign | (top + 5) << 10 | (mantissa << (3 - top) & 7) << 7);
}
Byte e4m3_of_half(int bits) {
  const int sign = bits >> 8 & 0x80, exponent = bits >> 10 & 31, mantissa = bits >> 7 & 7;
  return static_cast<Byte>(sign | (exponent == 31  ? 0x7f
                                   : exponent >= 8 ? (exponent - 7) << 3 | mantissa
                                   : exponent >= 5 ? (8 | mantissa) >> (8 - exponent)
                                                   : 0));
}
void get_e4m3(const Byte* from, int block, Row& row) {
  for (int i = 0; i < 2; ++i) row.scales[i] = half_of_e4m3(from[2 * block + i]);
}
void put_e4m3(const Row& row, int block, Byte* to) {
  for (int i = 0; i < 2; ++i) to[2 * block + i] = e4m3_of_half(row.scales[i]);
}

// Eight pairs of six bits (ggml's get_scale_min_k4), behind two halves.
void get_pairs(const Byte* from, int block, Row& row) {
  for (int i = 0; i < 2; ++i) row.group[i] = get16(from + 2 * i);
  const Byte* const s = from + 4;
  if (block < 4) {
    row.scales[0] = s[block] & 63, row.minimum = s[block + 4] & 63;
  } else {
    row.scales[0] = static_cast<Byte>((s[block + 4] & 15) | s[block - 4] >> 6 << 4);
    row.minimum = static_cast<Byte>(s[block + 4] >> 4 | s[block] >> 6 << 4);
  }
}
void put_pairs(const Row& row, int block, Byte* to) {
  for (int i = 0; i < 2; ++i) put16(to + 2 * i, row.group[i]);
  Byte* const s = to + 4;
  const auto add = [](Byte& byte, int bits) { byte = static_cast<Byte>(byte | bits); };
  if (block < 4) {
    add(s[block], row.scales[0]), add(s[block + 4], row.minimum);
  } else {
    add(s[block + 4], (row.scales[0] & 15) | (row.minimum & 15) << 4);
    add(s[block - 4], row.scales[0] >> 4 << 6), add(s[block], row.minimum >> 4 << 6);
  }
}

void get_q6_k(const Byte* from, int block, Row& row) {
  row.group[0] = get16(from + 208);
  for (int i = 0; i < 2; ++i) row.scales[i] = from[192 + 2 * block + i];
}
void put_q6_k(const Row& row, int block, Byte* to) {
  put16(to + 208, row.group[0]);
  for (int i = 0; i < 2; ++i) to[192 + 2 * block + i] = static_cast<Byte>(row.scales[i]);
}

// The same for all columns of the format's block, or of the row.
void get_group(const Byte* from, int, Row& row) { row.group[0] = get16(from); }
void put_group(const Row& row, int, Byte* to) { put16(to, row.group[0]); }
void get_affine(const Byte* from, int, Row& row) {
  for (int i = 0; i < 2; ++i) row.group[i] = get16(from + 2 * i);
}
void put_affine(const Row& row, int, Byte* to) {
  for (int i = 0; i < 2; ++i) put16(to + 2 * i, row.group[i]);
}
void get_row(const Byte* from, int, Row& row) { std::memcpy(&row.whole, from, sizeof row.whole); }
void put_row(const Row& row, int, Byte* to) { std::memcpy(to, &row.whole, sizeof row.whole); }
void get_none(const Byte*, int, Row&) {}
void put_none(const Row&, int, Byte*) {}

// ---- formats

Place nibble(int c) { return {c / 2, c % 2 * 4}; }
Place byte(int c) { return {c, 0}; }

struct PanelFormat {
  const char* name;
  PanelCodes codes;
  int bytes, columns;  // of the format's own block, or of several of them
  Byte flip;           // bits of a code that the panel has the other way round
  Place (*place)(int column);
  void (*get)(const Byte* from, int block, Row& row);
  void (*put)(const Row& row, int block, Byte* to);
  int scale_bytes = 0;  // of an item of the stream of scales, for `columns` or a row; 0: the blocks have them
};

constexpr PanelScale grouped = PanelScale::grouped;
constexpr PanelFormat kFormats[] = {
    {"ggml_mxfp4", kPanelCodes[0], 17, 32, 0,
     [](int c) {
       return Place{1 + c % 16, c / 16 * 4};
     },
     get_e8m0, put_e8m0},
    {"ggml_nvfp4", kPanelCodes[1], 36, 64, 0,
     [](int c) {
       return Place{4 + c / 16 * 8 + c % 8, c / 8 % 2 * 4};
     },
     get_e4m3, put_e4m3},
    {"q4_0", kPanelCodes[2], 18, 32, 0,
     [](int c) {
       return Place{2 + c % 16, c / 16 * 4};
     },
     get_half, put_half},
    {"q4_1", kPanelCodes[3], 20, 32, 0,
     [](int c) {
       return Place{4 + c % 16, c / 16 * 4};
     },
     get_half_minimum, put_half_minimum},
    {"q5_0", kPanelCodes[4], 22, 32, 0,
     [](int c) {
       return Place{6 + c % 16, c / 16 * 4, 2 + c / 8, c % 8};
     },
     get_half, put_half},
    {"q5_1", kPanelCodes[5], 24, 32, 0,
     [](int c) {
       return Place{8 + c % 16, c / 16 * 4, 4 + c / 8, c % 8};
     },
     get_half_minimum, put_half_minimum},
    {"q4_k", kPanelCodes[6], 144, 256, 0,
     [](int c) {
       return Place{16 + c / 64 * 32 + c % 32, c / 32 % 2 * 4};
     },
     get_pairs, put_pairs},
    {"q5_k", kPanelCodes[7], 176, 256, 0,
     [](int c) {
       return Place{48 + c / 64 * 32 + c % 32, c / 32 % 2 * 4, 16 + c % 32, c / 32};
     },
     get_pairs, put_pairs},
    {"q6_k", kPanelCodes[8], 210, 256, 0,
     [](int c) {
       return Place{c / 128 * 64 + c % 64, c / 64 % 2 * 4, 128 + c / 128 * 32 + c % 32, c / 32 % 4 * 2};
     },
     get_q6_k, put_q6_k},
    {"q8_0", kPanelCodes[9], 34, 32, 0x80,
     [](int c) {
       return Place{2 + c, 0};
     },
     get_half, put_half},
    {"mxfp4", kPanelCodes[0], 32, 64, 0, nibble,
     [](const Byte* from, int block, Row& row) { get_e8m0(from + block, 0, row); },
     [](const Row& row, int block, Byte* to) { put_e8m0(row, 0, to + block); }, 2},
    {"nvfp4", kPanelCodes[1], 16, 32, 0, nibble, get_e4m3, put_e4m3, 2},
    {"int4_g32", kPanelCodes[2], 16, 32, 0, nibble, get_half, put_half, 2},
    {"int4_g64", kPanelCodes[10], 32, 64, 0, nibble, get_group, put_group, 2},
    {"int4_g128", kPanelCodes[11], 64, 128, 0, nibble, get_group, put_group, 2},
    {"int4_row", kPanelCodes[12], 16, 32, 0, nibble, get_row, put_row, 4},
    {"int8_row", kPanelCodes[13], 32, 32, 0x80, byte, get_row, put_row, 4},
    {"uint4_g32", kPanelCodes[14], 16, 32, 0, nibble, get_affine, put_affine, 4},
    {"uint4_g64", kPanelCodes[15], 32, 64, 0, nibble, get_affine, put_affine, 4},
    {"uint4_g128", kPanelCodes[16], 64, 128, 0, nibble, get_affine, put_affine, 4},
    {"int8", kPanelCodes[17], 32, 32, 0x80, byte, get_none, put_none},
};

const PanelFormat* find(Format w) {
  for (const PanelFormat& f : kFormats)
    if (w.name() == f.name) return &f;
  return nullptr;
}

int float_bytes(Format f) {  // 0: it is not f32, f16 or bf16
  return f.name() == "f32" ? 4 : f.name() == "f16" || f.name() == "bf16" ? 2 : 0;
}
int float_step(Format f) { return f.name() == "bf16" ? 2 : 1; }  // columns of a row that lie side by side
std::int64_t float_columns(std::int64_t k, int step) { return (k + step - 1) / step * step; }  // of a panel

int low_bits(const PanelCodes& c) { return c.bits == 8 ? 8 : 4; }
Byte bits_of(Byte byte, int at, int count) { return static_cast<Byte>(byte >> at & ((1 << count) - 1)); }

// A code's place in a panel's block, for row 0; others are four bytes on.
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
void get_panel(const PanelCodes& c, const Byte* panel, const Byte* group, const Byte* block, int r, Row& row) {
  const Byte* scales = block + c.code_bytes();
  if (c.scale == grouped) {
    for (int i = 0; i < c.scales; ++i, scales += kPanel) row.scales[i] = scales[r];
    if (c.minima) row.minimum = scales[r];
  } else if (c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
    for (int i = 0; i < c.scales; ++i) row.scales[i] = get16(scales + 2 * (kPanel * i + r));
    if (c.minima) row.minimum = get16(scales + 2 * (kPanel * c.scales + r));
  } else if (c.scale == PanelScale::row) {
    std::memcpy(&row.whole, panel + 4 * r, 4);
  }
  for (int i = 0; i < c.group_bytes() / (2 * kPanel); ++i) row.group[i] = get16(group + 2 * (kPanel * i + r));
}
void put_panel(const PanelCodes& c, Byte* panel, Byte* group, Byte* block, int r, const Row& row) {
  Byte* scales = block + c.code_bytes();
  if (c.scale == grouped) {
    for (int i = 0; i < c.scales; ++i, scales += kPanel) scales[r] = static_cast<Byte>(row.scales[i]);
    if (c.minima) scales[r] = static_cast<Byte>(row.minimum);
  } else if (c.scale == PanelScale::half || c.scale == PanelScale::bf16) {
    for (int i = 0; i < c.scales; ++i) put16(scales + 2 * (kPanel * i + r), row.scales[i]);
    if (c.minima) put16(scales + 2 * (kPanel * c.scales + r), row.minimum);
  } else if (c.scale == PanelScale::row) {
    std::memcpy(panel + 4 * r, &row.whole, 4);
  }
  for (int i = 0; i < c.group_bytes() / (2 * kPanel); ++i) put16(group + 2 * (kPanel * i + r), row.group[i]);
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
  const PanelCodes& c = f.codes;
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
// Places of a code in a block of the format and in a panel's.
std::vector<std::pair<Place, Place>> places(const PanelFormat& f) {
  std::vector<std::pair<Place, Place>> list;
  for (int c = 0; c < f.columns; ++c) list.emplace_back(f.place(c), panel_place(f.codes, c % kPanelColumns));
  return list;
}

}  // namespace

const PanelCodes* panel_codes(Format w) {
  const PanelFormat* f = find(w);
  return f ? &f->codes : nullptr;
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
  return float_bytes(w) ? "f32, f16 or bf16" : !f ? "" : f->codes.exact() ? "int8" : "q8_1 or int8_row";
}
bool partner(Format w, Format x) {
  const PanelFormat* f = find(w);
  return float_bytes(w)     ? float_bytes(x) > 0
         : !f               ? false
         : f->codes.exact() ? x.name() == "int8"
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
    for (const PanelFormat& f : kFormats) all += fmt::format(", {}", f.name);
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
  const auto all = places(f);
  const std::int64_t bytes = f.codes.panel_bytes(k);
  std::fill(to + first * bytes, to + last * bytes, std::byte{});
  each_block(f, k, first, last, static_cast<const Byte*>(from.data), static_cast<const Byte*>(from.scales),
             reinterpret_cast<Byte*>(to), [&](const Columns<const Byte, Byte>& c) {
               Row row = {};
               f.get(c.scales, c.number, row);
               put_panel(f.codes, c.panel, c.group, c.block, c.row, row);
               for (int i = 0; i < kPanelColumns; ++i) {
                 const auto& [in_format, in_panel] = all[static_cast<std::size_t>(c.number * kPanelColumns + i)];
                 put_code(f.codes, c.block + 4 * c.row, in_panel,
                          static_cast<Byte>(get_code(f.codes, c.codes, in_format) ^ f.flip));
               }
             });
}
void unpack_panels(Format w, std::int64_t k, std::int64_t first, std::int64_t last, const std::byte* from,
                   MutableOperand to) {
  if (const int bytes = float_bytes(w))
    return (bytes == 4 ? unpack_floats<std::uint32_t> : unpack_floats<std::uint16_t>)(k, float_step(w), first, last,
                                                                                      from, to.data);
  const PanelFormat& f = *find(w);
  const auto all = places(f);
  const std::int64_t bytes = kPanel * (k / f.columns) * f.bytes;
  auto* const data = static_cast<Byte*>(to.data);
  std::fill(data + first * bytes, data + last * bytes, Byte{});
  each_block(f, k, first, last, data, static_cast<Byte*>(to.scales), reinterpret_cast<const Byte*>(from),
             [&](const Columns<Byte, const Byte>& c) {
               Row row = {};
               get_panel(f.codes, c.panel, c.group, c.block, c.row, row);
               f.put(row, c.number, c.scales);
               for (int i = 0; i < kPanelColumns; ++i) {
                 const auto& [in_format, in_panel] = all[static_cast<std::size_t>(c.number * kPanelColumns + i)];
                 put_code(f.codes, c.codes, in_format,
                          static_cast<Byte>(get_code(f.codes, c.block + 4 * c.row, in_panel) ^ f.flip));
               }
             });
}

void pack_panels(const Gemm& g, Operand w, void* panels) {
  pack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, w, static_cast<std::byte*>(panels));
}
void unpack_panels(const Gemm& g, const void* panels, MutableOperand w) {
  unpack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, static_cast<const std::byte*>(panels), w);
}

}  // namespace tilewright::cpu
