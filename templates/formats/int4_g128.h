// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of int4_g128 (format_host.h).
#pragma once
#include "formats/int4_g128.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::int4_g128> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::integers;
  using Panels = cpu::Panels<tw::fmt::int4_g128,
                             cpu::PanelCodes{.bits = 4, .offset = 8, .scale = cpu::PanelScale::front, .together = 4},
                             cpu::GroupScale, cpu::PairedNibbles<tw::fmt::int4_g128::TileBase>>;
};

}  // namespace tilewright
