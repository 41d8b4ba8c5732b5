// SPDX-License-Identifier: Apache-2.0
// What every message of an error has to be: a sentence with a verb.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

// "FIELD = VALUE: ALLOWED", as messages were once, is none.
inline bool is_sentence(std::string message) {
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const auto field = std::find_if_not(message.begin(), message.end(), word);
  if (std::string_view(message).substr(static_cast<std::size_t>(field - message.begin())).starts_with(" = "))
    return false;
  std::replace_if(
      message.begin(), message.end(), [&](char c) { return !word(c); }, ' ');
  message = " " + message + " ";
  constexpr std::array kVerbs = {"must", "cannot", "is",     "are",   "was",     "has",    "have",   "needs",
                                 "need", "lacks",  "fits",   "holds", "belongs", "exists", "does",   "occurs",
                                 "ends", "ended",  "failed", "died",  "took",    "draws",  "changed"};
  return std::any_of(kVerbs.begin(), kVerbs.end(),
                     [&](const char* verb) { return message.find(std::string(" ") + verb + " ") != message.npos; });
}
