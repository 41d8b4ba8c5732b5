// SPDX-License-Identifier: Apache-2.0
// Text that came from outside, on its way to a terminal or into an Error. Pure functions, usable from any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <tilewright/export.h>

namespace tilewright {

// True for valid UTF-8 without control characters and without those that change the direction of writing: nothing that
// moves a terminal's cursor or makes a text look like another. `lines`: tabs and line breaks are allowed.
TILEWRIGHT_EXPORT bool is_printable(std::string_view text, bool lines = false);

// The text with every byte of what is_printable(text, true) refuses written as "\xNN".
TILEWRIGHT_EXPORT std::string printable(std::string_view text);

// What an Error allows where `name` is not one of a list: "must be one of a b c; did you mean b?"
TILEWRIGHT_EXPORT std::string one_of(std::span<const std::string_view> names, std::string_view name);

}  // namespace tilewright
