// SPDX-License-Identifier: Apache-2.0
// The list of templates/operations.cpp, and one operation more.
#include <tilewright/operation.h>

#include <vector>

#include "operation/row_scale/row_scale.h"

#define operations operations_of_the_library
#include "templates/operations.cpp"
#undef operations

namespace tilewright {

std::span<const Operation* const> operations() {
  static const std::vector<const Operation*> list = [] {
    const std::span<const Operation* const> own = operations_of_the_library();
    std::vector<const Operation*> all(own.begin(), own.end());
    all.push_back(&row_scale::operation());
    return all;
  }();
  return list;
}

}  // namespace tilewright
