// SPDX-License-Identifier: Apache-2.0
// Tensor maps of a launch plan: checked when a kernel is loaded, encoded by the driver at every launch.
#pragma once

#include "jit/context.h"
#include "jit/kernel.h"

namespace tilewright::jit {

// All but what a call decides (its pointer, rows and stride). Throws Error: invalid_argument, library_missing.
void check_maps(const Device::Impl& device, const LaunchPlan& plan);

// Sizes of the argument struct (Kernel::Impl::kUnknown: not known) and of the constants. Throws Error
// (invalid_argument).
void check_map_fields(const LaunchPlan& plan, std::size_t args, std::size_t constants);

// Of arguments whose strides are resolved. Throws Error: driver_failed, with everything that the driver was told;
// invalid_argument, if rows are no whole panels.
void encode_map(const Kernel::Impl& kernel, const Loaded& loaded, const TensorMapPlan& map, const std::byte* args,
                CUtensorMap* out);

}  // namespace tilewright::jit
