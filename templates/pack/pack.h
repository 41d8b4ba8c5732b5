// SPDX-License-Identifier: Apache-2.0
// The kernel family of the operation pack, and its launch contract.
#pragma once

#include <tilewright/family.h>
#include <tilewright/kernel.h>

namespace tilewright::pack {

const Family& tiles();  // weights to tiles and back

Contract contract(const Pack& pack);

}  // namespace tilewright::pack
