// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq3_s (format_host.h).
#pragma once
#include "formats/iq3_s.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq3_s> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::GridPanels<tw::fmt::iq3_s, 0, 15>;
};

}  // namespace tilewright
