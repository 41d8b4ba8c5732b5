// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of bf16 (format_host.h).
#pragma once
#include "formats/bf16.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::bf16> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::FloatPanels<tw::fmt::bf16>;
};

}  // namespace tilewright
