// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of int4_g32 (format_host.h).
#pragma once
#include "formats/int4_g32.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::int4_g32> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::integers;
  using Panels = cpu::Panels<tw::fmt::int4_g32, cpu::PanelCodes{.bits = 4, .offset = 8}, cpu::HalfScale,
                             cpu::PairedNibbles<tw::fmt::int4_g32::TileBase>>;
};

}  // namespace tilewright
