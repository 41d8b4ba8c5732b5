// SPDX-License-Identifier: Apache-2.0
// The host's view of templates/formats: one FormatInfo per file of that folder, made from its struct.
#include <tilewright/error.h>
#include <tilewright/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "format_hosts.inc"
#include "format_includes.inc"
#include "templates/common/exact_floats.h"
#include "templates/common/suggest.h"
#include "templates/formats/shared/format_concept.h"

namespace tilewright {
namespace {

#define FORMAT(NAME) \
  static_assert(FormatFile<tw::fmt::NAME>, "templates/formats/" #NAME ".cuh: see formats/shared/format.cuh");
#include "format_list.inc"
#undef FORMAT

template <class F>
constexpr int kStreamCount = 1 + (F::kScaleBytes > 0 || F::kRowScale ? 1 : 0) + (F::kGlobal ? 1 : 0);

template <class F>
constexpr std::array<StreamSpec, kStreamCount<F>> streams_of() {
  std::array<StreamSpec, kStreamCount<F>> s{};
  int i = 0;
  s[i++] = {StreamName::data, Scope::block, F::kDataBytes};
  if (F::kRowScale) s[i++] = {StreamName::scales, Scope::row, tw::fmt::row_bytes<F>()};
  if (F::kScaleBytes > 0) s[i++] = {StreamName::scales, Scope::block, F::kScaleBytes, F::kScaleRows};
  if (F::kGlobal) s[i++] = {StreamName::global, Scope::tensor, 4};
  return s;
}
template <class F>
constexpr std::array<const char*, F::kEncoders> encoders_of() {
  std::array<const char*, F::kEncoders> names{};
  for (int i = 0; i < F::kEncoders; ++i) names[i] = F::encoder_name(i);
  return names;
}
template <class F>
constexpr std::array<ErrorBound, F::kEncoders> errors_of() {
  std::array<ErrorBound, F::kEncoders> bounds{};
  for (int i = 0; i < F::kEncoders; ++i) {
    const tw::fmt::Error e = F::error(i);
    bounds[i] = {e.element, e.amax, e.range, e.outer, e.least, e.largest};
  }
  return bounds;
}
constexpr Infinity infinity_of(tw::fmt::Infinity i) {
  return i == tw::fmt::Infinity::stays       ? Infinity::stays
         : i == tw::fmt::Infinity::saturates ? Infinity::saturates
                                             : Infinity::spreads;
}
template <class F>
constexpr auto kStreams = streams_of<F>();
template <class F>
constexpr auto kEncoderNames = encoders_of<F>();
template <class F>
constexpr auto kErrors = errors_of<F>();

template <class F>
void encode(const float* src, std::int64_t rows, std::int64_t cols, MutableOperand dst, int encoder) {
  const ExactFloats exact;
  const std::int64_t blocks = cols / F::kBlock;
  auto* data = static_cast<tw::u8*>(dst.data);
  auto* scales = static_cast<tw::u8*>(dst.scales);
  tw::fmt::row_item<F> context{1.0f};
  if constexpr (F::kGlobal) context = *dst.global;
  constexpr std::int64_t kRows = F::kScaleRows;
  for (std::int64_t r = 0; r < rows; ++r) {
    if constexpr (kRows > 1) {
      for (std::int64_t b = 0; r % kRows == 0 && b < blocks; ++b) {
        float amax = 0.0f;
        for (std::int64_t i = r; i < std::min(rows, r + kRows); ++i)
          for (int j = 0; j < F::kBlock; ++j) amax = tw::max2(amax, tw::abs_f(src[i * cols + b * F::kBlock + j]));
        F::write_scale(scales + (r / kRows * blocks + b) * F::kScaleBytes, F::scale_for(amax));
      }
    }
    if constexpr (F::kRowScale) {
      tw::fmt::Extent<F> extent;
      for (std::int64_t c = 0; c < cols; ++c) extent.add(src[r * cols + c]);
      context = extent.item();
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t at = r * blocks + b;
      F::encode(src + at * F::kBlock, data + at * F::kDataBytes,
                F::kScaleBytes ? scales + (r / kRows * blocks + b) * F::kScaleBytes : nullptr, context, encoder);
      if constexpr (F::kRowScale) tw::fmt::add_codes(context, data[at]);
    }
    if constexpr (F::kRowScale) std::memcpy(scales + r * tw::fmt::row_bytes<F>(), &context, sizeof(context));
  }
}
template <class F>
void encode_weighted(const float* src, std::int64_t rows, std::int64_t cols, const float* importance,
                     MutableOperand dst) {
  const ExactFloats exact;
  const std::int64_t blocks = cols / F::kBlock;
  for (std::int64_t at = 0; at < rows * blocks; ++at)
    F::encode_weighted(src + at * F::kBlock, importance + at % blocks * F::kBlock,
                       static_cast<tw::u8*>(dst.data) + at * F::kDataBytes);
}
template <class F>
constexpr auto weighted_of() -> decltype(FormatInfo::encode_weighted) {
  if constexpr (F::kImportance) return &encode_weighted<F>;
  return nullptr;
}
template <class F>
void decode(Operand src, std::int64_t rows, std::int64_t cols, float* dst) {
  const ExactFloats exact;
  const std::int64_t blocks = cols / F::kBlock;
  const auto* data = static_cast<const tw::u8*>(src.data);
  const auto* scales = static_cast<const tw::u8*>(src.scales);
  tw::fmt::row_item<F> context{1.0f};
  if constexpr (F::kGlobal) context = *src.global;
  for (std::int64_t r = 0; r < rows; ++r) {
    if constexpr (F::kRowScale) std::memcpy(&context, scales + r * tw::fmt::row_bytes<F>(), sizeof(context));
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t at = r * blocks + b, scale = r / F::kScaleRows * blocks + b;
      for (int i = 0; i < F::kBlock; ++i)
        dst[at * F::kBlock + i] = F::decode(data + at * F::kDataBytes,
                                            F::kScaleBytes ? scales + scale * F::kScaleBytes : nullptr, context, i);
    }
  }
}
template <class F>
float global_scale(float amax) {
  volatile float in_memory = amax;
  const ExactFloats exact;
  in_memory = F::global_scale(in_memory);
  return in_memory;
}
template <class F>
constexpr auto global_of() -> float (*)(float) {
  if constexpr (F::kGlobal) return &global_scale<F>;
  return nullptr;
}

template <class F>
concept HasGrid = requires {
  typename F::Grid;
};
template <class F>
concept HasZeroPoints = requires(typename F::Grid grid) {
  grid.zero;
};
template <class F>
constexpr int kItemBytes = F::kRowScale ? tw::fmt::row_bytes<F>() : F::kScaleBytes;
template <class F>
typename F::Grid grid_of(const std::byte* items, std::int64_t group) {
  tw::u32 item = 0;
  std::memcpy(&item, items + group * kItemBytes<F>, kItemBytes<F>);
  return typename F::Grid(item);
}
template <class F>
void choose_items(const float* low, const float* high, std::int64_t groups, int encoder, std::byte* items,
                  float* scales) {
  const ExactFloats exact;
  for (std::int64_t g = 0; g < groups; ++g) {
    const tw::u32 item = F::Grid::item(low[g], high[g], encoder);
    std::memcpy(items + g * kItemBytes<F>, &item, kItemBytes<F>);
    scales[g] = typename F::Grid(item).scale;
  }
}
template <class F>
void nearest_codes(const float* w, std::int64_t groups, int encoder, const std::byte* items, std::uint8_t* codes,
                   float* values) {
  const ExactFloats exact;
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto grid = grid_of<F>(items, g);
    const tw::u32 code = grid.nearest(w[g], encoder);
    codes[g] = static_cast<std::uint8_t>(code), values[g] = grid.value(code);
  }
}
template <class F>
constexpr IntegerGrid integer_grid() {
  if constexpr (HasGrid<F>) return {F::kBits, HasZeroPoints<F>, &choose_items<F>, &nearest_codes<F>};
  return {};
}
template <class F>
constexpr IntegerGrid kGrid = integer_grid<F>();

constexpr FormatInfo kInfos[] = {
#define FORMAT(NAME)                                         \
  {#NAME,                                                    \
   tw::fmt::NAME::title(),                                   \
   tw::fmt::NAME::kLayout,                                   \
   tw::fmt::NAME::kBlock,                                    \
   tw::fmt::NAME::kBits,                                     \
   kStreams<tw::fmt::NAME>,                                  \
   kEncoderNames<tw::fmt::NAME>,                             \
   &encode<tw::fmt::NAME>,                                   \
   &decode<tw::fmt::NAME>,                                   \
   global_of<tw::fmt::NAME>(),                               \
   tw::fmt::NAME::source(),                                  \
   tw::fmt::NAME::kErrorColumns,                             \
   kErrors<tw::fmt::NAME>,                                   \
   tw::fmt::NAME::kKeepsNan,                                 \
   infinity_of(tw::fmt::NAME::infinity()),                   \
   weighted_of<tw::fmt::NAME>(),                             \
   HasGrid<tw::fmt::NAME> ? &kGrid<tw::fmt::NAME> : nullptr, \
   HostFormat<tw::fmt::NAME>::kGguf,                         \
   HostFormat<tw::fmt::NAME>::kCheckpoint},
#include "format_list.inc"
#undef FORMAT
};

}  // namespace

std::span<const Format> Format::all() {
  static const std::vector<Format> formats = [] {
    std::vector<Format> list;
    for (const FormatInfo& info : kInfos) list.push_back(Format(&info));
    return list;
  }();
  return formats;
}

std::span<const Format> integer_formats() {
  static const std::vector<Format> formats = [] {
    std::vector<Format> list;
    for (const Format f : Format::all())
      if (f.info().integer_grid) list.push_back(f);
    // A row is the widest of groups.
    const auto rank = [](Format f) {
      const bool row = f.info().streams.back().scope == Scope::row;
      return std::tuple(f.info().integer_grid->zero_points, f.info().integer_grid->bits, !row, -f.block());
    };
    std::stable_sort(list.begin(), list.end(), [&](Format a, Format b) { return rank(a) < rank(b); });
    return list;
  }();
  return formats;
}

Format Format::parse(std::string_view name) {
  for (Format f : all())
    if (f.name() == name) return f;
  std::vector<std::string_view> names;
  for (Format f : all()) names.push_back(f.name());
  throw Error(ErrorCode::invalid_argument, "format", std::string(name), one_of(names, name));
}

std::int64_t Format::stream_bytes(int i, std::int64_t rows, std::int64_t cols) const {
  if (i < 0 || static_cast<std::size_t>(i) >= info_->streams.size()) return 0;
  const StreamSpec& s = info_->streams[static_cast<std::size_t>(i)];
  if (s.scope == Scope::tensor) return s.bytes;
  std::int64_t items = rows / s.rows + (rows % s.rows != 0);
  if (s.scope == Scope::block && __builtin_mul_overflow(items, cols / info_->block, &items)) items = INT64_MAX;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(items, static_cast<std::int64_t>(s.bytes), &bytes))
    throw Error(ErrorCode::too_large, "shape", std::to_string(rows) + " x " + std::to_string(cols),
                "must be a matrix of less than 2^63 bytes");
  return bytes;
}

std::int64_t Format::total_bytes(std::int64_t rows, std::int64_t cols) const {
  std::int64_t total = 0;
  for (std::size_t i = 0; i < info_->streams.size(); ++i) total += stream_bytes(static_cast<int>(i), rows, cols);
  return total;
}

double Format::bits_per_element() const {
  double bits = 0;
  for (const StreamSpec& s : info_->streams)
    if (s.scope == Scope::block) bits += 8.0 * s.bytes / info_->block / s.rows;
  return bits;
}

}  // namespace tilewright
