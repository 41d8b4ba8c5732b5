// SPDX-License-Identifier: Apache-2.0
#include "quantize/rounding.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace tilewright::quantize {
namespace {

constexpr float kSymmetricZero = 8;
constexpr float kIntegers = 0x1.8p23f;  // added and taken away, it rounds small numbers to integers, ties to even

// low for a NaN, which no comparison holds for.
float clamped(float v, float low, float high) { return v > low ? (v < high ? v : high) : low; }

}  // namespace

Rounder::Rounder(Format format, int encoder, std::string_view name)
    : format_(format), half_(Format::parse("f16")), encoder_(encoder) {
  constexpr std::string_view kFormats[] = {"int4_row",   "int4_g128", "int4_g64", "int4_g32",
                                           "uint4_g128", "uint4_g64", "uint4_g32"};
  bool known = false;
  for (std::string_view f : kFormats) known = known || f == format.name();
  if (!known)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} format", name), std::string(format.name()),
                "int4_row, int4_g128, int4_g64, int4_g32, uint4_g128, uint4_g64 or uint4_g32");
  const auto encoders = format.info().encoders;
  if (encoder < 0 || encoder >= static_cast<int>(encoders.size()))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} encoder", name), std::to_string(encoder),
                fmt::format("0 to {}: {} has {}", encoders.size() - 1, format.name(), fmt::join(encoders, " ")));
  const StreamSpec& scales = format.info().streams.back();
  item_bytes_ = scales.bytes;
  row_scaled_ = scales.scope == Scope::row;
  asymmetric_ = format.name().front() == 'u';
  least_ = std::string_view(encoders[static_cast<std::size_t>(encoder)]) == "amax7" ? -7 : -8;
}

bool Rounder::choose(const float* low, const float* high, Rule& rule) const {
  const std::int64_t block = format_.block();
  std::vector<float> x(static_cast<std::size_t>(kStrip * block));
  std::vector<std::byte> data(static_cast<std::size_t>(format_.stream_bytes(0, kStrip, block)));
  for (std::int64_t r = 0; r < kStrip; ++r) {
    x[static_cast<std::size_t>(r * block)] = low[r];
    x[static_cast<std::size_t>(r * block + 1)] = high[r];
  }
  format_.info().encode(x.data(), kStrip, block, {data.data(), rule.items, nullptr}, encoder_);
  if (row_scaled_) {
    std::memcpy(rule.scale, rule.items, sizeof rule.scale);
  } else {
    float items[2 * kStrip];
    half_.info().decode({rule.items, nullptr, nullptr}, 1, kStrip * item_bytes_ / 2, items);
    for (std::int64_t r = 0; r < kStrip; ++r) rule.scale[r] = items[asymmetric_ ? 2 * r : r];
    if (asymmetric_)
      for (std::int64_t r = 0; r < kStrip; ++r) rule.zero[r] = items[2 * r + 1];
  }
  if (!asymmetric_)
    for (float& zero : rule.zero) zero = kSymmetricZero;
  for (const float scale : rule.scale)
    if (!std::isfinite(scale)) return false;
  return true;
}

void Rounder::round(const Rule& rule, const float* w, std::uint8_t* codes, float* values) const {
  for (std::int64_t r = 0; r < kStrip; ++r) {
    const float scale = rule.scale[r], zero = rule.zero[r];
    float code;
    if (asymmetric_) {
      code = clamped((w[r] + zero * scale) / scale, 0, 15) + kIntegers - kIntegers;
    } else {
      const float steps = scale > 0 ? w[r] / scale : 0;
      code = clamped(steps, least_, 7) + kIntegers - kIntegers + kSymmetricZero;
    }
    codes[r] = static_cast<std::uint8_t>(code);
    values[r] = (code - zero) * scale;
  }
}

}  // namespace tilewright::quantize
