// SPDX-License-Identifier: Apache-2.0
// The operations unscale and update_scale, and their kernel families.
#pragma once

#include <tilewright/loss_scale.h>
#include <tilewright/operation.h>

namespace tilewright::loss_scale {

const Operation& unscale();
const Operation& update_scale();
const Family& vectors();
const Family& reference();
const Family& one_step();

}  // namespace tilewright::loss_scale
