// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of tq1_0 (format_host.h). Panels have codes of four bits, 7 more.
#pragma once
#include "formats/tq1_0.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::tq1_0> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::tq1_0,
                             cpu::PanelCodes{.bits = 4, .offset = 8, .scale = cpu::PanelScale::front, .together = 8},
                             cpu::HalfBehind<tw::fmt::tq1_0>, tw::fmt::tq1_0::TileBase, 7>;
};

}  // namespace tilewright
