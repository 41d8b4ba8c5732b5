// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of ggml_nvfp4 (format_host.h).
#pragma once
#include "formats/ggml_nvfp4.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::ggml_nvfp4> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels = cpu::Panels<tw::fmt::ggml_nvfp4,
                             cpu::PanelCodes{.bits = 4, .offset = 12, .levels = cpu::kE2m1Levels, .scales = 2},
                             cpu::E4m3Scales, tw::fmt::ggml_nvfp4::Tile<tw::f16>>;
};

}  // namespace tilewright
