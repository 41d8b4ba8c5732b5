// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of nvfp4 (format_host.h).
#pragma once
#include "formats/nvfp4.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::nvfp4> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::nvfp4;
  using Panels =
      cpu::Panels<tw::fmt::nvfp4, cpu::PanelCodes{.bits = 4, .offset = 12, .levels = cpu::kE2m1Levels, .scales = 2},
                  cpu::E4m3Scales, cpu::PairedNibbles<tw::fmt::nvfp4::TileBase>>;
};

}  // namespace tilewright
