// SPDX-License-Identifier: Apache-2.0
// tilewright/import.h: what all packings have in common. A strip of rows is unpacked to a byte a code, its columns are
// put in order, and it is packed as the format wants it; scales and zero points are one matrix each in between.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "backends/cuda/numeric.cuh"
#include "support/must_be.h"
#include "templates/common/exact_floats.h"
#include "templates/formats/checkpoint/layout.h"

namespace tilewright {

using namespace checkpoint;

namespace checkpoint {

void read_zeros(const std::byte* from, std::int64_t n, std::int64_t groups, const int (&order)[8],
                std::uint32_t reduced, std::uint8_t* to) {
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t row = 0; row < n; row += 8) {
      const std::uint32_t word = load<std::uint32_t>(from, g * (n / 8) + row / 8) + reduced;
      for (int i = 0; i < 8; ++i) to[(row + order[i]) * groups + g] = static_cast<std::uint8_t>(word >> (4 * i) & 15u);
    }
}
void write_zeros(const std::uint8_t* from, std::int64_t n, std::int64_t groups, const int (&order)[8],
                 std::uint32_t reduced, std::byte* to) {
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t row = 0; row < n; row += 8) {
      std::uint32_t word = 0;
      for (int i = 0; i < 8; ++i) word |= static_cast<std::uint32_t>(from[(row + order[i]) * groups + g]) << (4 * i);
      store(to, g * (n / 8) + row / 8, word - reduced);
    }
}

}  // namespace checkpoint

namespace {

constexpr std::int64_t kStripRows = 32;
constexpr std::int64_t kBlockBytes = 34;  // of q8_0

std::uint8_t symmetric_zero(int bits) { return static_cast<std::uint8_t>(1 << (bits - 1)); }

const Layout& layout_of(Checkpoint packing) {
  switch (packing) {
    case Checkpoint::gptq: return kGptq;
    case Checkpoint::gptq_v2: return kGptqV2;
    case Checkpoint::awq: return kAwq;
    case Checkpoint::compressed_tensors: return kCompressedTensors;
  }
  throw must_be("packing", static_cast<int>(packing), "gptq, gptq_v2, awq or compressed_tensors");
}

const char* name_of(TensorType type) {
  switch (type) {
    case TensorType::i32: return "i32";
    case TensorType::f16: return "f16";
    case TensorType::bf16: return "bf16";
  }
  return "unknown";
}
std::int64_t bytes_of(TensorType type) { return type == TensorType::i32 ? 4 : 2; }

// The extents of w, checked before any tensor is looked at.
struct Shape {
  std::int64_t n, k, group, groups;
  int bits;
};
Shape shape_of(const CheckpointWeight& w, const Layout& layout) {
  const auto check = [](const char* name, std::int64_t value, std::int64_t multiple) {
    if (value < 1 || value > INT32_MAX || value % multiple)
      throw Error(ErrorCode::invalid_argument, name, std::to_string(value),
                  multiple == 1 ? "must be 1 to 2147483647"
                                : fmt::format("must be a multiple of {} below 2147483648", multiple));
  };
  const bool wide = layout.read_wide_codes && (w.bits == 2 || w.bits == 3 || w.bits == 8);
  if (w.bits != 4 && !wide)
    throw Error(ErrorCode::unsupported, "bits", std::to_string(w.bits),
                layout.read_wide_codes ? "must be 2, 3, 4 or 8" : "must be 4");
  const std::int64_t whole_words = w.bits == 2 ? 16 : w.bits == 3 ? 32 : 8;
  check("n", w.n, wide ? whole_words : layout.n_multiple);
  check("k", w.k, whole_words);
  const std::int64_t group = w.group == -1 ? w.k : w.group;
  if (group < 1 || w.k % group)
    throw must_be("group", w.group, fmt::format("a divisor of k={}, or -1 for all of k", w.k));
  return {w.n, w.k, group, w.k / group, w.bits};
}

void check_tensor(const CheckpointTensor& t, const char* name, const char* shape, Extents want, bool scales) {
  const auto text = [](const char* type, Extents e) { return fmt::format("{} [{}, {}]", type, e.rows, e.cols); };
  if (t.bytes.empty()) throw must_be(name, "missing", "" + text(scales ? "f16 or bf16" : "i32", want));
  if (t.rows != want.rows || t.cols != want.cols || (t.type == TensorType::i32) == scales)
    throw must_be(name, text(name_of(t.type), {t.rows, t.cols}),
                  fmt::format("{}, that is [{}]", text(scales ? "f16 or bf16" : "i32", want), shape));
  const std::int64_t bytes = t.rows * t.cols * bytes_of(t.type);
  if (static_cast<std::int64_t>(t.bytes.size()) != bytes)
    throw must_be(std::string(name) + ".bytes", t.bytes.size(),
                  fmt::format("{} for {}", bytes, text(name_of(t.type), want)));
}

Extents codes_extents(const Layout& layout, const Shape& s) {
  return s.bits == 4 ? layout.codes_extents(s.n, s.k) : Extents{s.k * s.bits / 32, s.n};
}
Extents zeros_extents(const Layout& layout, const Shape& s) {
  return s.bits == 4 ? layout.zeros_extents(s.n, s.groups) : Extents{s.groups, s.n * s.bits / 32};
}

Shape checked(const CheckpointWeight& w, const Layout& layout) {
  const Shape s = shape_of(w, layout);
  const std::string codes = s.bits == 4 ? layout.codes_shape : fmt::format("k {} / 32, n", s.bits);
  const std::string zeros = s.bits == 4 ? layout.zeros_shape : fmt::format("k / group, n {} / 32", s.bits);
  check_tensor(w.codes, layout.codes, codes.c_str(), codes_extents(layout, s), false);
  if (!w.zeros.bytes.empty() || !layout.zeros_optional)
    check_tensor(w.zeros, layout.zeros, zeros.c_str(), zeros_extents(layout, s), false);
  check_tensor(w.scales, layout.scales, layout.scales_shape,
               layout.scales_by_group ? Extents{s.groups, s.n} : Extents{s.n, s.groups}, true);
  if (!w.g_idx.bytes.empty()) {
    if (!layout.g_idx)
      throw Error(ErrorCode::unsupported, "g_idx", "given", fmt::format("must be left out: {} has none", layout.name));
    check_tensor(w.g_idx, layout.g_idx, "1, k", {1, s.k}, false);
  }
  return s;
}

std::vector<std::uint8_t> zeros_of(const CheckpointWeight& w, const Layout& layout, const Shape& s) {
  std::vector<std::uint8_t> zeros(static_cast<std::size_t>(s.n * s.groups), symmetric_zero(s.bits));
  if (s.bits != 4)
    layout.read_wide_zeros(w.zeros.bytes.data(), s.bits, s.n, s.groups, zeros.data());
  else if (!w.zeros.bytes.empty())
    layout.read_zeros(w.zeros.bytes.data(), s.n, s.groups, zeros.data());
  return zeros;
}

// Properties of the formats that this file needs.
bool row_scaled(Format f) { return f.info().streams.back().scope == Scope::row; }
bool has_zeros(Format f) { return f.info().integer_grid && f.info().integer_grid->zero_points; }

int bits_of(Format f) { return f.info().integer_grid ? f.info().integer_grid->bits : 8; }

bool holds_bytes(Format f) { return f.name() == "q8_0"; }  // a half and 32 codes a block

std::vector<Format> formats_for(const Shape& s, bool symmetric) {
  std::vector<Format> fitting;
  if (s.bits == 8) {
    if (symmetric && s.group % 32 == 0) fitting.push_back(Format::parse("q8_0"));
    return fitting;
  }
  for (const Format f : integer_formats())
    if (bits_of(f) >= s.bits && (symmetric || has_zeros(f)) &&
        (row_scaled(f) ? s.groups == 1 : s.group % f.block() == 0))
      fitting.push_back(f);
  return fitting;
}
bool symmetric(const std::vector<std::uint8_t>& zeros, int bits) {
  return std::all_of(zeros.begin(), zeros.end(), [&](std::uint8_t z) { return z == symmetric_zero(bits); });
}
std::vector<Format> checked_formats(const Shape& s, bool symmetric) {
  const auto fitting = formats_for(s, symmetric);
  if (fitting.empty() && s.bits == 8 && !symmetric)
    throw Error(ErrorCode::unsupported, "zero points", "other than 128", "must be 128 in all groups of 8-bit weights");
  if (fitting.empty())
    throw Error(ErrorCode::unsupported, "group", std::to_string(s.group),
                s.bits == 8 ? "must be a multiple of 32"
                : symmetric ? "must be a multiple of 32, or all of k"
                            : "must be a multiple of 32, as there are zero points other than 8");
  return fitting;
}

// The index of element [row, group] of the scales, and its name in errors.
std::int64_t scale_at(const Layout& layout, const Shape& s, std::int64_t row, std::int64_t group) {
  return layout.scales_by_group ? group * s.n + row : row * s.groups + group;
}
std::string scale_name(const Layout& layout, std::int64_t row, std::int64_t group) {
  return layout.scales_by_group ? fmt::format("{}[{}, {}]", layout.scales, group, row)
                                : fmt::format("{}[{}, {}]", layout.scales, row, group);
}

float widen(TensorType type, std::uint16_t bits) {
  return type == TensorType::bf16 ? tw::bf16_bits_to_f32(bits) : tw::f16_bits_to_f32(bits);
}
// Converts to sixteen bits without rounding; false if that is impossible.
bool narrow(TensorType type, float value, std::uint16_t& bits) {
  bits = type == TensorType::bf16 ? tw::f32_to_bf16_bits(value) : tw::f32_to_f16_bits(value);
  return widen(type, bits) == value || std::isnan(value);
}

void check_stream(Format f, std::size_t index, const Shape& s, std::size_t bytes) {
  const StreamSpec& stream = f.info().streams[index];
  const std::int64_t want = f.stream_bytes(static_cast<int>(index), s.n, s.k);
  if (static_cast<std::int64_t>(bytes) != want)
    throw must_be(name_of(stream.stream), fmt::format("{} bytes", bytes),
                  fmt::format("{} for {} of {} x {}", want, f.name(), s.n, s.k));
}

void check_format(Format format, const std::vector<Format>& fitting) {
  std::string names;
  for (Format f : fitting) {
    if (f == format) return;
    if (!names.empty()) names += ' ';
    names += f.name();
  }
  throw Error(ErrorCode::unsupported, "format", std::string(format.name()), "must be one of " + names);
}

// The codes of a row as a format has them, to a byte each and back.
void pack_codes(const std::uint8_t* from, std::int64_t count, int bits, std::byte* to) {
  for (std::int64_t word = 0; bits == 4 && word < count / 8; ++word) store(to, word, pack_nibbles(from + 8 * word));
  for (std::int64_t i = 0; bits != 4 && i < count; i += 8) {  // eight codes are `bits` bytes
    std::uint64_t eight = 0;
    for (int j = 0; j < 8; ++j) eight |= std::uint64_t{from[i + j]} << (bits * j);
    std::memcpy(to + i / 8 * bits, &eight, static_cast<std::size_t>(bits));
  }
}
void unpack_codes(const std::byte* from, std::int64_t count, int bits, std::uint8_t* to) {
  for (std::int64_t word = 0; bits == 4 && word < count / 8; ++word)
    unpack_nibbles(load<std::uint32_t>(from, word), to + 8 * word);
  for (std::int64_t i = 0; bits != 4 && i < count; i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, from + i / 8 * bits, static_cast<std::size_t>(bits));
    for (int j = 0; j < 8; ++j) to[i + j] = static_cast<std::uint8_t>(eight >> (bits * j) & ((1u << bits) - 1));
  }
}

// Permutations of int32 indices below 2^31.
void check_permutation(std::span<const std::int32_t> order) {
  std::vector<bool> seen(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto at = static_cast<std::size_t>(order[i]);  // negative: beyond the end
    if (at >= order.size() || seen[at])
      throw must_be(fmt::format("order[{}]", i), order[i], fmt::format("each of 0 to {} once", order.size() - 1));
    seen[at] = true;
  }
}

// Codes of a strip of rows, with room for a line between rows: their starts would all meet in a few sets of the cache.
struct Codes {
  std::int64_t pitch;
  std::vector<std::uint8_t> bytes;
  explicit Codes(std::int64_t k) : pitch(k + 64), bytes(static_cast<std::size_t>(pitch * kStripRows)) {}
  std::uint8_t* row(std::int64_t i) { return bytes.data() + i * pitch; }
};

}  // namespace

std::string_view to_string(Checkpoint packing) { return layout_of(packing).name; }

std::vector<Format> import_formats(const CheckpointWeight& w) {
  const Layout& layout = layout_of(w.packing);
  const Shape s = checked(w, layout);
  return checked_formats(s, symmetric(zeros_of(w, layout, s), s.bits));
}

std::vector<std::int32_t> import_order(const CheckpointWeight& w) {
  const Layout& layout = layout_of(w.packing);
  const Shape s = checked(w, layout);
  if (w.g_idx.bytes.empty()) return {};
  std::vector<std::int32_t> group(static_cast<std::size_t>(s.k));
  std::memcpy(group.data(), w.g_idx.bytes.data(), w.g_idx.bytes.size());
  if (layout.g_idx_negative && std::find(group.begin(), group.end(), -1) != group.end()) return {};
  std::vector<std::int64_t> columns(static_cast<std::size_t>(s.groups));
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i] < 0 || group[i] >= s.groups)
      throw must_be(fmt::format("{}[{}]", layout.g_idx, i), group[i],
                    fmt::format("0 to {}, one of k / group = {} groups", s.groups - 1, s.groups));
    ++columns[static_cast<std::size_t>(group[i])];
  }
  for (std::size_t g = 0; g < columns.size(); ++g)
    if (columns[g] != s.group)
      throw Error(ErrorCode::invalid_argument, layout.g_idx, fmt::format("{} columns in group {}", columns[g], g),
                  fmt::format("must have {} in each, as group says", s.group));
  if (std::is_sorted(group.begin(), group.end())) return {};
  std::vector<std::int32_t> order(group.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return group[static_cast<std::size_t>(a)] < group[static_cast<std::size_t>(b)];
  });
  return order;
}

void import_weights(const CheckpointWeight& w, Format format, std::span<std::byte> data, std::span<std::byte> scales) {
  const ExactFloats exact;
  const Layout& layout = layout_of(w.packing);
  const Shape s = checked(w, layout);
  const auto zeros = zeros_of(w, layout, s);
  check_format(format, checked_formats(s, symmetric(zeros, s.bits)));
  check_stream(format, 0, s, data.size());
  if (!holds_bytes(format))
    check_stream(format, 1, s, scales.size());
  else if (!scales.empty())
    throw must_be("scales", fmt::format("{} bytes", scales.size()), "0: q8_0 has one stream");
  const auto order = import_order(w);

  const std::int64_t repeat = row_scaled(format) ? 1 : s.group / format.block();
  std::int64_t item = 0;
  for (std::int64_t row = 0; row < s.n; ++row)
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const auto stored = load<std::uint16_t>(w.scales.bytes.data(), scale_at(layout, s, row, g));
      const float scale = widen(w.scales.type, stored);
      std::uint16_t half = 0;
      if (row_scaled(format)) {
        store(scales.data(), item++, scale);
      } else if (!narrow(TensorType::f16, scale, half)) {
        throw Error(ErrorCode::unsupported, scale_name(layout, row, g), fmt::format("{}", scale),
                    fmt::format("must be at most 65504 and a multiple of 2^-24: {} has scales in half precision",
                                format.name()));
      } else if (holds_bytes(format)) {
        for (std::int64_t i = 0; i < repeat; ++i) std::memcpy(data.data() + kBlockBytes * item++, &half, sizeof half);
      } else if (has_zeros(format)) {
        const std::uint16_t zero = tw::f32_to_f16_bits(zeros[static_cast<std::size_t>(row * s.groups + g)]);
        for (std::int64_t i = 0; i < repeat; ++i) store(scales.data(), item++, half | std::uint32_t{zero} << 16);
      } else {
        for (std::int64_t i = 0; i < repeat; ++i) store(scales.data(), item++, half);
      }
    }

  Codes codes(s.k);
  std::vector<std::uint8_t> ordered(order.size());
  for (std::int64_t first = 0; first < s.n; first += kStripRows) {
    const std::int64_t rows = std::min(kStripRows, s.n - first);
    const Strip<std::uint8_t> strip{codes.bytes.data(), codes.pitch, first, rows};
    if (s.bits == 4)
      layout.read_codes(w.codes.bytes.data(), s.n, s.k, strip);
    else
      layout.read_wide_codes(w.codes.bytes.data(), s.bits, s.n, s.k, strip);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::uint8_t* from = codes.row(row);
      if (!order.empty()) {
        for (std::size_t i = 0; i < order.size(); ++i) ordered[i] = from[order[i]];
        from = ordered.data();
      }
      if (holds_bytes(format)) {
        for (std::int64_t i = 0; i < s.k; ++i)
          data[static_cast<std::size_t>(((first + row) * s.k + i) / 32 * kBlockBytes + 2 + i % 32)] =
              std::byte(from[i] ^ 0x80u);
        continue;
      }
      const int bits = bits_of(format);
      if (!has_zeros(format) && s.bits < bits)
        for (std::int64_t i = 0; i < s.k; ++i)
          from[i] = static_cast<std::uint8_t>(from[i] + symmetric_zero(bits) - symmetric_zero(s.bits));
      pack_codes(from, s.k, bits, data.data() + (first + row) * s.k * bits / 8);
    }
  }
}

CheckpointWeight export_weights(Format format, std::span<const std::byte> data, std::span<const std::byte> scales,
                                const CheckpointWeight& like, std::span<const std::int32_t> order,
                                CheckpointBytes& to) {
  const ExactFloats exact;
  const Layout& layout = layout_of(like.packing);
  const Shape s = shape_of(like, layout);
  const int bits = bits_of(format);
  if (format.info().integer_grid && s.bits != bits)
    throw Error(ErrorCode::unsupported, "bits", std::to_string(s.bits),
                fmt::format("must be {}, as the codes of {} have", bits, format.name()));
  check_format(format, checked_formats(s, !has_zeros(format)));
  if (holds_bytes(format))
    throw Error(ErrorCode::unsupported, "bits", std::to_string(s.bits),
                "must be 4, or what the codes of a format have; weights of 8 bits can only be imported");
  check_stream(format, 0, s, data.size());
  check_stream(format, 1, s, scales.size());
  if (like.scales.type == TensorType::i32) throw must_be("scales.type", "i32", "f16 or bf16");
  if (!order.empty()) {
    if (!layout.g_idx)
      throw Error(ErrorCode::unsupported, "order", "given",
                  fmt::format("must be left out: {} has no g_idx", layout.name));
    if (static_cast<std::int64_t>(order.size()) != s.k)
      throw Error(ErrorCode::invalid_argument, "order", fmt::format("{} columns", order.size()),
                  fmt::format("must have {} (k), or be left out", s.k));
    check_permutation(order);
  }

  CheckpointWeight w = like;
  const auto make = [](std::vector<std::byte>& bytes, Extents e, TensorType type) {
    bytes.assign(static_cast<std::size_t>(e.rows * e.cols * bytes_of(type)), std::byte{0});
    return CheckpointTensor{bytes, e.rows, e.cols, type};
  };
  const bool write_zeros = has_zeros(format) || !layout.zeros_optional;
  const bool write_order = layout.g_idx && (layout.g_idx_always || !order.empty());
  w.codes = make(to.codes, codes_extents(layout, s), TensorType::i32);
  w.scales =
      make(to.scales, layout.scales_by_group ? Extents{s.groups, s.n} : Extents{s.n, s.groups}, like.scales.type);
  w.zeros = make(to.zeros, write_zeros ? zeros_extents(layout, s) : Extents{0, 0}, TensorType::i32);
  w.g_idx = make(to.g_idx, write_order ? Extents{1, s.k} : Extents{0, 0}, TensorType::i32);

  std::vector<std::uint8_t> zeros(static_cast<std::size_t>(s.n * s.groups), symmetric_zero(bits));
  const std::int64_t repeat = row_scaled(format) ? 1 : s.group / format.block();
  const std::int64_t item_bytes = format.info().streams.back().bytes;
  for (std::int64_t row = 0; row < s.n; ++row)
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const std::int64_t index = row * s.groups + g;
      const std::byte* item = scales.data() + index * repeat * item_bytes;
      for (std::int64_t i = 1; i < repeat; ++i)
        if (std::memcmp(item, item + i * item_bytes, static_cast<std::size_t>(item_bytes)) != 0)
          throw Error(ErrorCode::unsupported, "scales",
                      fmt::format("row {}, block {}, differs from its group's first", row, g * repeat + i),
                      fmt::format("must be equal in all {} columns of a group", s.group));
      const float scale =
          row_scaled(format) ? load<float>(item, 0) : widen(TensorType::f16, load<std::uint16_t>(item, 0));
      std::uint16_t stored = 0;
      if (!narrow(like.scales.type, scale, stored))
        throw Error(ErrorCode::unsupported, scale_name(layout, row, g), fmt::format("{}", scale),
                    fmt::format("must be a number that {} holds exactly", name_of(like.scales.type)));
      store(to.scales.data(), scale_at(layout, s, row, g), stored);
      if (!has_zeros(format)) continue;
      const float zero = widen(TensorType::f16, load<std::uint16_t>(item, 1));
      const int most = (1 << bits) - 1;
      const auto code = static_cast<std::uint8_t>(zero >= 0 && zero <= static_cast<float>(most) ? zero : 0);
      if (static_cast<float>(code) != zero)
        throw Error(ErrorCode::unsupported, fmt::format("zero point of row {}, group {}", row, g),
                    fmt::format("{}", zero), fmt::format("must be an integer of 0 to {}", most));
      zeros[static_cast<std::size_t>(index)] = code;
    }
  if (write_zeros && bits == 4)
    layout.write_zeros(zeros.data(), s.n, s.groups, to.zeros.data());
  else if (write_zeros)
    layout.write_wide_zeros(zeros.data(), bits, s.n, s.groups, to.zeros.data());
  if (write_order)
    for (std::int64_t i = 0; i < s.k; ++i)
      store(to.g_idx.data(), order.empty() ? i : order[static_cast<std::size_t>(i)],
            static_cast<std::int32_t>(i / s.group));

  Codes codes(s.k);
  std::vector<std::uint8_t> ordered(order.size());
  for (std::int64_t first = 0; first < s.n; first += kStripRows) {
    const std::int64_t rows = std::min(kStripRows, s.n - first);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::uint8_t* unpacked = order.empty() ? codes.row(row) : ordered.data();
      unpack_codes(data.data() + (first + row) * s.k * bits / 8, s.k, bits, unpacked);
      for (std::size_t i = 0; i < order.size(); ++i) codes.row(row)[order[i]] = ordered[i];
    }
    const Strip<const std::uint8_t> strip{codes.bytes.data(), codes.pitch, first, rows};
    if (bits == 4)
      layout.write_codes(strip, s.n, s.k, to.codes.data());
    else
      layout.write_wide_codes(strip, bits, s.n, s.k, to.codes.data());
  }
  return w;
}

void gather_rows(Format format, std::int64_t cols, std::span<const std::int32_t> order, Operand from,
                 MutableOperand to) {
  check_permutation(order);
  if (cols < 1 || cols % format.block())
    throw must_be("cols", cols, fmt::format("a multiple of {}, the block of {}", format.block(), format.name()));
  const auto copy = [&](const char* name, const void* source, void* target, std::int64_t row_bytes) {
    if (!source || !target)
      throw must_be(std::string(source ? "to." : "from.") + name, "null", fmt::format("a stream of {}", format.name()));
    for (std::size_t i = 0; i < order.size(); ++i)
      std::memcpy(static_cast<std::byte*>(target) + static_cast<std::int64_t>(i) * row_bytes,
                  static_cast<const std::byte*>(source) + order[i] * row_bytes, static_cast<std::size_t>(row_bytes));
  };
  for (std::size_t i = 0; i < format.info().streams.size(); ++i) {
    const StreamSpec& stream = format.info().streams[i];
    const std::int64_t bytes = format.stream_bytes(static_cast<int>(i), 1, cols);
    if (stream.scope == Scope::tensor) {
      if (from.global && to.global) *to.global = *from.global;
    } else {
      copy(name_of(stream.stream), from.at(stream.stream), to.at(stream.stream), bytes);
    }
  }
}

}  // namespace tilewright
