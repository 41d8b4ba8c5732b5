// SPDX-License-Identifier: Apache-2.0
// The operation cast and its kernel families.
#pragma once

#include <tilewright/cast.h>
#include <tilewright/operation.h>

namespace tilewright::cast {

const Operation& operation();
const Family& blocks();     // formats whose blocks know nothing of their row, both ways; row scales one way
const Family& rows();       // to formats with a scale per row
const Family& reference();  // any pair of formats

}  // namespace tilewright::cast
