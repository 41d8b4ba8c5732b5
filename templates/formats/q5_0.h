// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q5_0 (format_host.h).
#pragma once
#include "formats/q5_0.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q5_0> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q5_0, cpu::PanelCodes{.bits = 5, .offset = 16}, cpu::HalfScale,
                             cpu::FifthBits<tw::fmt::q5_0::TileBase, 6>>;
};

}  // namespace tilewright
