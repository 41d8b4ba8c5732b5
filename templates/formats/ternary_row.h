// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of ternary_row (format_host.h). Panels are int4_row's: codes 7 more.
#pragma once
#include "formats/ternary_row.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::ternary_row> : HostDefaults {
  using Panels =
      cpu::Panels<tw::fmt::ternary_row, cpu::PanelCodes{.bits = 4, .offset = 8, .scale = cpu::PanelScale::row},
                  cpu::RowScale, tw::fmt::ternary_row::TileBase, 7>;
};

}  // namespace tilewright
