// SPDX-License-Identifier: Apache-2.0
// The operation pack and its kernel family.
#pragma once

#include <tilewright/operation.h>

namespace tilewright::pack {

const Operation& operation();
const Family& tiles();  // weights to tiles and back

}  // namespace tilewright::pack
