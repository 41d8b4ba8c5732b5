// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/cast/cuda/lanes.h"

#include <fmt/format.h>

#include <string_view>

#include "format_includes.inc"

namespace tilewright::cast {
namespace {

template <class F>
constexpr unsigned lanes_of() {
  unsigned lanes = 0;
  for (int e = 2; e <= 5; ++e) lanes |= F::lanes_ok(1 << e) ? 1u << e : 0u;
  return lanes;
}

}  // namespace

unsigned encoder_lanes(Format f) {
#define FORMAT(NAME) \
  if (f.name() == #NAME) return lanes_of<tw::fmt::NAME>();
#include "format_list.inc"
#undef FORMAT
  return 0;
}

std::string no_row_codes(const FastPath& y, int most) {
  if (y.row_mean) return "has a scale from the mean magnitude of a row";  // summed in the order of the row
  if (y.data_bytes != 1 || y.block > most)
    return fmt::format("has rows of {} codes in {} bytes, and {} in one are what a thread makes", y.block, y.data_bytes,
                       most == 1 ? "one" : fmt::format("1 to {}", most));
  return "";
}

}  // namespace tilewright::cast
