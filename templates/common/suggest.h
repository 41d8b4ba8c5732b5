// SPDX-License-Identifier: Apache-2.0
// Which name of a list may have been meant by one that is not in it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <tilewright/text.h>

namespace tilewright {

// The name with the fewest edits (two at most, and no more than half of the letters), capitals ignored; of several the
// one that begins most like `name`. Empty if none is near.
std::string_view nearest(std::string_view name, std::span<const std::string_view> names);

// "; did you mean b?", or nothing if `meant` is empty.
std::string did_you_mean(std::string_view meant);

}  // namespace tilewright
