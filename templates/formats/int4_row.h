// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of int4_row (format_host.h).
#pragma once
#include "formats/int4_row.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::int4_row> : HostDefaults {
  using Panels = cpu::Panels<tw::fmt::int4_row, cpu::PanelCodes{.bits = 4, .offset = 8, .scale = cpu::PanelScale::row},
                             cpu::RowScale, cpu::PairedNibbles<tw::fmt::int4_row::TileBase>>;
};

}  // namespace tilewright
