// SPDX-License-Identifier: Apache-2.0
// The kernel families of the operation cast, and its launch contract.
#pragma once

#include <tilewright/family.h>
#include <tilewright/kernel.h>

namespace tilewright::cast {

const Family& blocks();     // formats whose blocks know nothing of their row, both ways; row scales one way
const Family& rows();       // to formats with a scale per row
const Family& reference();  // any pair of formats

Contract contract(const Cast& cast);

}  // namespace tilewright::cast
