// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q2_k (format_host.h).
#pragma once
#include "formats/q2_k.cuh"
#include "templates/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q2_k> : HostDefaults {
  static constexpr bool kGguf = true;
};

}  // namespace tilewright
