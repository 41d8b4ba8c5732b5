// SPDX-License-Identifier: Apache-2.0
// The operation cast and its kernel families.
#pragma once

#include <tilewright/cast.h>
#include <tilewright/operation.h>

#include <cstddef>
#include <vector>

namespace tilewright::cast {

const Operation& operation();
const Family& blocks();     // formats whose blocks know nothing of their row, both ways; row scales one way
const Family& rows();       // to formats with a scale per row
const Family& reference();  // any pair of formats

// What a launch has to pass of an operand at offset `at` of its arguments. names: of data, scales and global.
void add_pointers(std::vector<PointerRule>& rules, const char* const (&names)[3], std::size_t at, Format format);

}  // namespace tilewright::cast
