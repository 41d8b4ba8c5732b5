// SPDX-License-Identifier: Apache-2.0
// The operation amax and its kernel families.
#pragma once

#include <tilewright/amax.h>
#include <tilewright/operation.h>

#include <cstdint>
#include <span>

namespace tilewright::amax {

const Operation& operation();
const Family& vectors();
const Family& reference();

// The same on the host.
float largest_magnitude(std::span<const float> values);

}  // namespace tilewright::amax
