// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q8_0 (format_host.h).
#pragma once
#include "formats/q8_0.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q8_0> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::q8_0, cpu::PanelCodes{.bits = 8, .offset = 128}, cpu::HalfScale>;
};

}  // namespace tilewright
