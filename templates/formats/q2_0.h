// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q2_0 (format_host.h). Panels have steps as codes of four bits.
#pragma once
#include "formats/q2_0.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q2_0> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q2_0,
                             cpu::PanelCodes{.bits = 4, .offset = 8, .scale = cpu::PanelScale::front, .together = 2},
                             cpu::GroupScale, tw::fmt::q2_0::TileBase, 7>;
};

}  // namespace tilewright
