// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of ggml_mxfp4 (format_host.h).
#pragma once
#include "formats/ggml_mxfp4.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::ggml_mxfp4> : HostDefaults {
  static constexpr bool kGguf = true;
  using Panels =
      cpu::Panels<tw::fmt::ggml_mxfp4,
                  cpu::PanelCodes{.bits = 4, .offset = 12, .levels = cpu::kE2m1Levels, .scale = cpu::PanelScale::bf16},
                  cpu::E8m0Scale<17>, tw::fmt::ggml_mxfp4::Tile<tw::bf16>>;
};

}  // namespace tilewright
