// SPDX-License-Identifier: Apache-2.0
#include "templates/common/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <vector>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/suggest.h"

namespace tilewright {

std::pair<std::string, Words> split_problem(std::string_view text) {
  std::string operation;
  Words words;
  std::set<std::string_view> seen;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t space = text.find_first_of(" \t", at);
    const std::string_view word = text.substr(at, space - at);
    at = space == std::string_view::npos ? text.size() : space + 1;
    if (word.empty()) continue;
    if (operation.empty()) {
      operation = word;
      continue;
    }
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw must_be("problem", text, fmt::format("words of the form field=value: '{}' is not", word));
    const std::string_view field = word.substr(0, equals), value = word.substr(equals + 1);
    if (!seen.insert(field).second) throw must_be(std::string(field), value, "given once");
    words.emplace_back(field, value);
  }
  return {std::move(operation), std::move(words)};
}

void check_names(std::string_view operation, std::span<const FieldInfo> fields, const Words& words) {
  std::vector<std::string_view> names;
  for (const FieldInfo& f : fields) names.push_back(f.name);
  for (const auto& [name, value] : words) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    throw invalid(name, value,
                  fmt::format("is not a field of {}, which has {}{}", operation, fmt::join(names, " "),
                              did_you_mean(nearest(name, names))));
  }
}

std::int64_t parse_integer(const char* field, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    throw Error(ErrorCode::too_large, field, text, "must be 0 to 2147483647");
  if (error != std::errc() || end != text.data() + text.size()) throw must_be(field, text, "an integer");
  return value;
}

double parse_number(const char* field, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) throw must_be(field, text, "a number");
  return value;
}

Format parse_format(const char* field, const std::string& text) {
  try {
    return Format::parse(text);
  } catch (const Error& e) {
    throw invalid(field, text, e.allowed());
  }
}

int parse_choice(const char* field, const std::string& text, std::span<const char* const> names) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (text == names[i]) return static_cast<int>(i);
  if (names.empty()) throw must_be(field, text, "left out: there is nothing to choose from");
  throw invalid(field, text, one_of(std::vector<std::string_view>(names.begin(), names.end()), text));
}

const std::string* ParseFields::find(const FieldSpec& f) const {
  for (const auto& [name, value] : words_)
    if (name == f.name) return &value;
  if (f.required) throw invalid(f.name, "", fmt::format("is required: {}", f.help));
  return nullptr;
}

void ParseFields::operator()(const FieldSpec& f, int& member) {
  const std::string* text = find(f);
  if (!text) return;
  const std::int64_t value = parse_integer(f.name, *text);
  if (value < 0 || value > std::numeric_limits<int>::max())
    throw Error(ErrorCode::too_large, f.name, *text, "must be 0 to 2147483647");
  member = static_cast<int>(value);
}

bool PrintFields::done(const FieldSpec& f) {
  if (to_first_size_ && !ended_ && f.role == Role::size) {
    if (f.required) text += fmt::format(" {}=", f.name);  // others are left out where they have their default
    ended_ = true;
  }
  return ended_;
}

void PrintFields::add(const FieldSpec& f, std::string_view value) { text += fmt::format(" {}={}", f.name, value); }

std::string PrintFields::written(double member) { return fmt::format("{}", member); }

}  // namespace tilewright
