// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq2_xxs (format_host.h).
#pragma once
#include "formats/iq2_xxs.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq2_xxs> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::GridPanels<tw::fmt::iq2_xxs, 3, 43>;
};

}  // namespace tilewright
