// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq1_s (format_host.h).
#pragma once
#include "formats/iq1_s.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq1_s> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::GridPanels<tw::fmt::iq1_s, 3, 9>;
};

}  // namespace tilewright
