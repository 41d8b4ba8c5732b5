// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of f16 (format_host.h).
#pragma once
#include "formats/f16.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::f16> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::FloatPanels<tw::fmt::f16>;
};

}  // namespace tilewright
