// SPDX-License-Identifier: Apache-2.0
// What the CPU has of the operation cast. Stateless, usable from any thread.
#pragma once

#include <tilewright/family.h>

#include <span>

namespace tilewright::cpu {

std::span<const Family* const> cast_families();  // cpu_cast

}  // namespace tilewright::cpu
