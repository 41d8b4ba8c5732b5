// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of uint4_g64 (format_host.h).
#pragma once
#include "formats/uint4_g64.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::uint4_g64> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::integers;
  using Panels = cpu::Panels<tw::fmt::uint4_g64,
                             cpu::PanelCodes{.bits = 4, .scale = cpu::PanelScale::front, .minima = true, .together = 2},
                             cpu::GroupScaleAndZero, cpu::PairedNibbles<tw::fmt::uint4_g64::TileBase>>;
};

}  // namespace tilewright
