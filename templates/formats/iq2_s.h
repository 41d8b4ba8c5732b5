// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq2_s (format_host.h).
#pragma once
#include "formats/iq2_s.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq2_s> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::GridPanels<tw::fmt::iq2_s, 3, 43>;
};

}  // namespace tilewright
