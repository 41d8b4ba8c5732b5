// SPDX-License-Identifier: Apache-2.0
// Says which file an error is about.
#pragma once

#include <tilewright/error.h>

#include <string>

namespace tilewright {

// An error of a file's contents says which file.
template <class Action>
decltype(auto) in_file(const std::string& file, Action&& action) {
  try {
    return action();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;  // has the path
    throw Error(e.code(), file + ": " + e.field(), e.value(), e.allowed());
  }
}

}  // namespace tilewright
