// SPDX-License-Identifier: Apache-2.0
// What an Error allows where a name is not one of a list: all of them, and the one that may have been meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tilewright {

// The name with the fewest edits (two at most, and no more than half of the letters), capitals ignored; of several the
// one that begins most like `name`. Empty if none is near.
std::string_view nearest(std::string_view name, std::span<const std::string_view> names);

// "; did you mean b?", or nothing if `meant` is empty.
std::string did_you_mean(std::string_view meant);

// "one of a b c; did you mean b?"
std::string one_of(std::span<const std::string_view> names, std::string_view name);

}  // namespace tilewright
