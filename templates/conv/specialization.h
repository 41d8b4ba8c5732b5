// SPDX-License-Identifier: Apache-2.0
// What the sources of conv's families of pixel tiles have in common: a kernel of the formats and the epilogue, whose
// knobs the prelude defines as kKnobs.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "templates/gemm/family.h"
#include "templates/specialize.h"

namespace tilewright::conv {

// `family`: the folder in conv/, of which kernel.cuh has tw::conv::`type`. The plan is left to the caller.
inline Specialization tile_specialization(const Gemm& gemm, std::string_view family, std::string_view type,
                                          std::string prelude) {
  Specialization s;
  s.name = fmt::format("conv/{}", family);
  s.includes = gemm::includes_for(gemm, fmt::format("conv/{}/kernel.cuh", family).c_str());
  s.prelude = std::move(prelude);
  s.plan_type = fmt::format("tw::conv::{}<{}, {}, {}, kKnobs>", type, format_type(gemm.x), format_type(gemm.w),
                            gemm::epilogue_type(gemm));
  s.space = "tw::conv";
  return s;
}

}  // namespace tilewright::conv
