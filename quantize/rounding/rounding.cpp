// SPDX-License-Identifier: Apache-2.0
#include "quantize/rounding/rounding.h"

#include <fmt/format.h>
#include <tilewright/error.h>

#include <cmath>
#include <string>

#include "support/must_be.h"

namespace tilewright::quantize {
namespace {

std::string integer_format_names() {
  const auto formats = integer_formats();
  std::string names;
  for (std::size_t i = 0; i < formats.size(); ++i)
    names += fmt::format("{}{}", i == 0 ? "" : i + 1 < formats.size() ? ", " : " or ", formats[i].name());
  return names;
}

}  // namespace

Rounder::Rounder(Format format, int encoder, std::string_view name) : format_(format), encoder_(encoder) {
  if (!format.info().integer_grid)
    throw must_be(fmt::format("{} format", name), format.name(), "" + integer_format_names());
  const auto encoders = format.info().encoders;
  if (encoder < 0 || encoder >= static_cast<int>(encoders.size()))
    throw must_be(fmt::format("{} encoder", name), encoder,
                  fmt::format("0 to {}: {} has {}", encoders.size() - 1, format.name(), fmt::join(encoders, " ")));
  const StreamSpec& scales = format.info().streams.back();
  item_bytes_ = scales.bytes;
  row_scaled_ = scales.scope == Scope::row;
}

bool Rounder::choose(const float* low, const float* high, Rule& rule) const {
  format_.info().integer_grid->choose(low, high, kStrip, encoder_, rule.items, rule.scale);
  for (const float scale : rule.scale)
    if (!std::isfinite(scale)) return false;
  return true;
}

void Rounder::round(const Rule& rule, const float* w, std::uint8_t* codes, float* values) const {
  format_.info().integer_grid->nearest(w, kStrip, encoder_, rule.items, codes, values);
}

}  // namespace tilewright::quantize
