// SPDX-License-Identifier: Apache-2.0
// What panels hold, of all formats that have native kernels. Formats that differ only in where they keep their bytes
// share an entry, because the native kernels have an instance for each.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include "format_hosts.inc"
#include "format_includes.inc"
#include "templates/backends/cpu/panel_codes.h"

namespace tilewright::cpu {

template <class F>
constexpr PanelCodes panel_codes_of() {
  if constexpr (!std::is_void_v<typename HostFormat<F>::Panels>) return HostFormat<F>::Panels::kCodes;
  return {};
}
inline constexpr PanelCodes kEachPanelCodes[] = {
#define FORMAT(NAME) panel_codes_of<tw::fmt::NAME>(),
#include "format_list.inc"
#undef FORMAT
};
constexpr bool is_first_of_its_panels(std::size_t format) {
  for (std::size_t i = 0; i < format; ++i)
    if (kEachPanelCodes[i] == kEachPanelCodes[format]) return false;
  return kEachPanelCodes[format].native();
}
constexpr std::size_t different_panels() {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::size(kEachPanelCodes); ++i) count += is_first_of_its_panels(i) ? 1 : 0;
  return count;
}
inline constexpr auto kPanelCodes = [] {
  std::array<PanelCodes, different_panels()> list;
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::size(kEachPanelCodes); ++i)
    if (is_first_of_its_panels(i)) list[count++] = kEachPanelCodes[i];
  return list;
}();

}  // namespace tilewright::cpu
