// SPDX-License-Identifier: Apache-2.0
#include "templates/cast/lanes.h"

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

}  // namespace tilewright::cast
