// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq4_nl (format_host.h).
#pragma once
#include "formats/iq4_nl.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq4_nl> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::iq4_nl,
                             cpu::PanelCodes{
                                 .bits = 4, .offset = 127, .levels = cpu::panel_levels<tw::fmt::iq4_nl::Levels, 127>()},
                             cpu::HalfScale>;
};

}  // namespace tilewright
