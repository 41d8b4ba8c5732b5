// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of int8_row (format_host.h).
#pragma once
#include "formats/int8_row.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::int8_row> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::int8_rows;
  using Panels =
      cpu::Panels<tw::fmt::int8_row, cpu::PanelCodes{.bits = 8, .offset = 128, .scale = cpu::PanelScale::row},
                  cpu::RowScale, cpu::SignedBytes>;
};

}  // namespace tilewright
