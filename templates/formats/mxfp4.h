// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of mxfp4 (format_host.h).
#pragma once
#include "formats/mxfp4.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::mxfp4> : HostDefaults {
  using Panels =
      cpu::Panels<tw::fmt::mxfp4,
                  cpu::PanelCodes{.bits = 4, .offset = 12, .levels = cpu::kE2m1Levels, .scale = cpu::PanelScale::bf16},
                  cpu::E8m0Scale<1>, cpu::PairedNibbles<tw::fmt::mxfp4::TileBase>>;
};

}  // namespace tilewright
