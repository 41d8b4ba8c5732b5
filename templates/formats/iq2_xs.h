// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq2_xs (format_host.h).
#pragma once
#include "formats/iq2_xs.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq2_xs> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::GridPanels<tw::fmt::iq2_xs, 3, 43>;
};

}  // namespace tilewright
