// SPDX-License-Identifier: Apache-2.0
// What the CPU has of the operation fused_cast. Stateless, usable from any thread.
#pragma once

#include <tilewright/family.h>

#include <span>

namespace tilewright::cpu {

std::span<const Family* const> fused_cast_families();  // cpu_fused_cast

}  // namespace tilewright::cpu
