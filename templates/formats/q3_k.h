// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q3_k (format_host.h). Panels have codes of four bits, 4 more.
#pragma once
#include "formats/q3_k.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q3_k> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q3_k,
                             cpu::PanelCodes{.bits = 4, .offset = 8, .scales = 2, .scale = cpu::PanelScale::grouped},
                             cpu::SixteensScales<tw::fmt::q3_k::TileBase>, tw::fmt::q3_k::TileBase, 4>;
};

}  // namespace tilewright
