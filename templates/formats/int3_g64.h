// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of int3_g64 (format_host.h). Its panels are int4_g64's: codes less 4 are codes less 8 of
// four bits.
#pragma once
#include "formats/int3_g64.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::int3_g64> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::integers;
  using Panels = cpu::Panels<tw::fmt::int3_g64,
                             cpu::PanelCodes{.bits = 4, .offset = 8, .scale = cpu::PanelScale::front, .together = 2},
                             cpu::GroupScale, tw::fmt::int3_g64::TileBase, 4>;
};

}  // namespace tilewright
