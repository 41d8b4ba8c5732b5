// SPDX-License-Identifier: Apache-2.0
// The most frequent error: a value that a field must not have.
#pragma once

#include <tilewright/error.h>

#include <string>
#include <type_traits>

namespace tilewright {

// "FIELD must be WHAT (got VALUE)".
template <class Value>
Error must_be(std::string field, const Value& value, const std::string& what) {
  const auto text = [&] {
    if constexpr (std::is_arithmetic_v<Value>)
      return std::to_string(value);
    else
      return std::string(value);
  };
  return Error(ErrorCode::invalid_argument, std::move(field), text(), "must be " + what);
}

}  // namespace tilewright
