// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q6_k (format_host.h).
#pragma once
#include "formats/q6_k.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q6_k> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q6_k,
                             cpu::PanelCodes{.bits = 6, .offset = 32, .scales = 2, .scale = cpu::PanelScale::grouped},
                             cpu::SixteensScales<tw::fmt::q6_k::TileBase>>;
};

}  // namespace tilewright
