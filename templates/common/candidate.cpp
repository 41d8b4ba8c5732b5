// SPDX-License-Identifier: Apache-2.0
#include <tilewright/candidate.h>
#include <tilewright/error.h>

#include <charconv>

#include "support/must_be.h"

namespace tilewright {
namespace {

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > 64) return false;
  for (char c : s)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '/')) return false;
  return true;
}

}  // namespace

std::int64_t Candidate::at(std::string_view knob) const {
  for (const auto& [name, value] : knobs)
    if (name == knob) return value;
  throw must_be("knob", knob, "a knob of candidate '" + text() + "'");
}

std::string Candidate::text() const {
  std::string out = family;
  for (const auto& [name, value] : knobs) out += " " + name + "=" + std::to_string(value);
  return out;
}

Candidate Candidate::parse(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument, "candidate", std::string(text), why);
  };
  Candidate out;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (out.family.empty()) {
      if (!is_name(word)) throw bad("must start with a family name of letters a-z, digits and '_'");
      out.family = word;
      continue;
    }
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos || !is_name(word.substr(0, equals)))
      throw bad("must have knobs of the form name=integer");
    const std::string_view digits = word.substr(equals + 1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size())
      throw bad("must have knobs of the form name=integer");
    out.knobs.emplace_back(word.substr(0, equals), value);
  }
  if (out.family.empty()) throw bad("must start with a family name");
  return out;
}

}  // namespace tilewright
