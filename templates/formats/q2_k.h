// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q2_k (format_host.h). Panels have its codes in four bits.
#pragma once
#include "formats/q2_k.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q2_k> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q2_k,
                             cpu::PanelCodes{.bits = 4, .scales = 2, .scale = cpu::PanelScale::grouped, .minima = true},
                             cpu::NibbleScales<tw::fmt::q2_k>>;
};

}  // namespace tilewright
