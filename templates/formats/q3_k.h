// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q3_k (format_host.h).
#pragma once
#include "formats/q3_k.cuh"
#include "templates/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q3_k> : HostDefaults {
  static constexpr bool kGguf = true;
};

}  // namespace tilewright
