// SPDX-License-Identifier: Apache-2.0
// The operation transpose and its kernel families.
#pragma once

#include <tilewright/operation.h>
#include <tilewright/transpose.h>

namespace tilewright::transpose {

const Operation& operation();
const Family& tiles();
const Family& reference();

}  // namespace tilewright::transpose
