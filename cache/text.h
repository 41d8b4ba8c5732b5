// SPDX-License-Identifier: Apache-2.0
// UTF-8, a character at a time. Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace tilewright::cache {

struct Character {
  std::size_t bytes = 1;
  char32_t value = 0;
  bool valid = false;  // otherwise `bytes` is 1
};
// At the start of `text`, which is not empty. Overlong forms and surrogates are invalid.
Character first_character(std::string_view text);

// Control characters (C0, DEL, C1), line separators, and what changes the direction of writing.
bool is_control(char32_t value);

}  // namespace tilewright::cache
