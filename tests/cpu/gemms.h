// SPDX-License-Identifier: Apache-2.0
// Problems of a gemm with w in panels, for tests of its kernels.
#pragma once

#include <fmt/format.h>
#include <tilewright/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "templates/backends/cpu/panels.h"

namespace tilewright::test {

inline std::string gemm(const char* w, std::int64_t m, std::int64_t n, std::int64_t k, const char* rest,
                        const char* x = "q8_1") {
  const bool global = Format::parse(w).info().global_for;
  return fmt::format("gemm x={} w={} y=f32 m={} n={} k={} pack=panels {}{}", x, w, m, n, k, rest,
                     global ? m % 2 ? " global=mul" : " global=div" : "");
}

// Formats whose panels are of codes with scales.
inline const std::vector<const char*> kWeights = [] {
  std::vector<const char*> list;
  for (const Format f : Format::all())
    if (const cpu::PanelCodes* codes = cpu::panel_codes(f); codes && !codes->exact()) list.push_back(f.info().name);
  return list;
}();

// One of them for all whose panels have the same codes and scales, which kernels read alike.
inline const std::vector<const char*> kPanels = [] {
  std::vector<const char*> list;
  for (const char* w : kWeights)
    if (std::ranges::none_of(list, [&](const char* other) {
          return *cpu::panel_codes(Format::parse(w)) == *cpu::panel_codes(Format::parse(other));
        }))
      list.push_back(w);
  return list;
}();

inline constexpr const char* kFloats[] = {"f32", "f16", "bf16"};
// Formats whose panels are of floats that they do not store as such.
inline constexpr const char* kFp8[] = {"e4m3", "e4m3_b128", "e4m3_row", "e4m3_tensor"};
inline const char* x_of(const char* w) {
  if (std::string(w) == "int8") return "int8";
  return cpu::panel_floats(Format::parse(w)) ? "bf16" : "q8_1";
}

// Of some format: k that is a small number of its blocks, and of 32 columns.
inline std::int64_t columns(const char* w, std::int64_t blocks) {
  return std::max(Format::parse(w).block(), 32) * blocks;
}

}  // namespace tilewright::test
