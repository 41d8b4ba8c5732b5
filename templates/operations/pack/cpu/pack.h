// SPDX-License-Identifier: Apache-2.0
// What the CPU has of the operation pack. Stateless, usable from any thread.
#pragma once

#include <tilewright/family.h>

#include <span>

namespace tilewright::cpu {

std::span<const Family* const> pack_families();  // cpu_panels

}  // namespace tilewright::cpu
