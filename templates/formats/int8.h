// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of int8 (format_host.h).
#pragma once
#include "formats/int8.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::int8> : HostDefaults {
  using Panels = cpu::Panels<tw::fmt::int8, cpu::PanelCodes{.bits = 8, .offset = 128, .scale = cpu::PanelScale::none},
                             cpu::NoScale, cpu::SignedBytes>;
};

}  // namespace tilewright
