// SPDX-License-Identifier: Apache-2.0
// The operation fake_quant and its kernel families.
#pragma once

#include <tilewright/fake_quant.h>
#include <tilewright/operation.h>

namespace tilewright::fake_quant {

inline bool by_row(const FakeQuant& f) { return f.scope == ScaleScope::row; }
inline bool learned(const FakeQuant& f) { return f.grad == FakeQuantGrad::learned; }

const Operation& operation();
const Family& vectors();
const Family& reference();

}  // namespace tilewright::fake_quant
