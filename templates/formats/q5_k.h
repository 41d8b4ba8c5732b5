// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of q5_k (format_host.h).
#pragma once
#include "formats/q5_k.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::q5_k> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels =
      cpu::Panels<tw::fmt::q5_k, cpu::PanelCodes{.bits = 5, .scale = cpu::PanelScale::grouped, .minima = true},
                  cpu::PairScales, tw::fmt::MinimaBase<5>>;
};

}  // namespace tilewright
