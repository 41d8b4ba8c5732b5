// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of e4m3 (format_host.h).
#pragma once
#include "formats/e4m3.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::e4m3> : HostDefaults {
  using Panels = cpu::E4m3Panels<cpu::FloatScales::none>;
};

}  // namespace tilewright
