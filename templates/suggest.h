// SPDX-License-Identifier: Apache-2.0
// What an Error allows where a name is not one of a list: all of them, and the one that may have been meant.
#pragma once

#include <algorithm>
#include <cctype>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright {

// Letters to insert, remove or replace to make `from` of `to`; capitals are no difference.
inline std::size_t edits(std::string_view from, std::string_view to) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (lower(from[i]) != lower(to[j]));
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// The name that is nearest, if fewer than half of its letters differ, two at most; else none.
inline std::string_view nearest(std::span<const std::string_view> names, std::string_view name) {
  if (names.empty() || name.size() > 64) return {};
  const std::string_view best =
      *std::min_element(names.begin(), names.end(), [&](auto a, auto b) { return edits(name, a) < edits(name, b); });
  const std::size_t distance = edits(name, best);
  return distance <= 2 && 2 * distance < best.size() ? best : std::string_view{};
}

// "one of a b c; did you mean b?"
inline std::string one_of(std::span<const std::string_view> names, std::string_view name) {
  std::string text = "one of";
  for (std::string_view n : names) text.append(" ").append(n);
  if (const std::string_view meant = nearest(names, name); !meant.empty())
    text.append("; did you mean ").append(meant).append("?");
  return text;
}

}  // namespace tilewright
