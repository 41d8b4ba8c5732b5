// SPDX-License-Identifier: Apache-2.0
// What the host alone knows of iq4_xs (format_host.h).
#pragma once
#include "formats/iq4_xs.cuh"
#include "templates/backends/cpu/panel_format.h"
#include "templates/formats/shared/format_host.h"

namespace tilewright {

template <>
struct HostFormat<tw::fmt::iq4_xs> : HostDefaults {
  static constexpr bool kGguf = true;
  struct Scales {
    static void get(const tw::u8* from, int block, cpu::PanelRow& row) {
      row.group[0] = cpu::read16(from);
      row.scales[0] = static_cast<tw::u8>(tw::fmt::iq4_xs::step(from, block));
    }
    static void put(const cpu::PanelRow& row, int block, tw::u8* to) {
      cpu::write16(to, row.group[0]);
      tw::fmt::iq4_xs::put_step(to, block, static_cast<tw::i8>(row.scales[0]));
    }
  };
  using Panels = cpu::Panels<tw::fmt::iq4_xs,
                             cpu::PanelCodes{.bits = 4,
                                             .offset = 127,
                                             .levels = cpu::panel_levels<tw::fmt::iq4_xs::Levels, 127>(),
                                             .scale = cpu::PanelScale::grouped},
                             Scales>;
};

}  // namespace tilewright
