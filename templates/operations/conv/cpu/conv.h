// SPDX-License-Identifier: Apache-2.0
// What the CPU has of the operation conv. Stateless, usable from any thread.
#pragma once

#include <tilewright/conv.h>
#include <tilewright/family.h>

#include <optional>
#include <span>

namespace tilewright::cpu {

std::span<const Family* const> conv_families();  // cpu_depthwise, cpu_columns, cpu_reference

// The problem with w in panels, if it is not packed yet and kernels of this CPU take it so. Depthwise ones have none.
std::optional<Problem> packed(const Conv& c, const Arch& arch);

const Family& conv_depthwise();
const Family& conv_columns();    // of floats by floats
const Family& conv_reference();  // any convolution, and the oracle

}  // namespace tilewright::cpu
