// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of e4m3_row (format_host.h).
#pragma once
#include "formats/e4m3_row.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::e4m3_row> : HostDefaults {
  static constexpr CheckpointForm kCheckpoint = CheckpointForm::fp8_rows;
  using Panels = cpu::E4m3Panels<cpu::FloatScales::row>;
};

}  // namespace tilewright
