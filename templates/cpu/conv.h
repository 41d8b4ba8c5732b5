// SPDX-License-Identifier: Apache-2.0
// What the CPU has of the operation conv. Stateless, usable from any thread.
#pragma once

#include <tilewright/family.h>

#include <span>

namespace tilewright::cpu {

std::span<const Family* const> conv_families();  // cpu_depthwise, cpu_columns, cpu_reference

const Family& conv_depthwise();
const Family& conv_columns();    // of floats by floats
const Family& conv_reference();  // any convolution, and the oracle

}  // namespace tilewright::cpu
