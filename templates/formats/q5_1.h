// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q5_1 (format_host.h).
#pragma once
#include "formats/q5_1.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q5_1> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q5_1, cpu::PanelCodes{.bits = 5, .minima = true}, cpu::HalfScaleAndMinimum,
                             cpu::FifthBits<tw::fmt::q5_1::TileBase, 8>>;
};

}  // namespace tilewright
