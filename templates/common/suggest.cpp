// SPDX-License-Identifier: Apache-2.0
#include "templates/common/suggest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace tilewright {
namespace {

constexpr std::size_t kLongest = 64;  // longer ones are no slip of the keyboard

int lower(char c) { return std::tolower(static_cast<unsigned char>(c)); }

// Letters to insert, remove or replace to make `from` of `to`.
std::size_t edits(std::string_view from, std::string_view to) {
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

std::size_t common_start(std::string_view a, std::string_view b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (n < shorter && lower(a[n]) == lower(b[n])) ++n;
  return n;
}

}  // namespace

std::string_view nearest(std::string_view name, std::span<const std::string_view> names) {
  if (name.size() > kLongest) return {};
  std::string_view best;
  std::size_t fewest = 3;
  for (const std::string_view candidate : names) {
    const std::size_t n = edits(name, candidate);
    if (2 * n > std::max(name.size(), candidate.size())) continue;
    if (n < fewest || (n == fewest && common_start(name, candidate) > common_start(name, best))) {
      best = candidate;
      fewest = n;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view meant) {
  return meant.empty() ? std::string() : "; did you mean " + std::string(meant) + "?";
}

std::string one_of(std::span<const std::string_view> names, std::string_view name) {
  std::string text = "must be one of";
  for (const std::string_view n : names) text.append(" ").append(n);
  return text + did_you_mean(nearest(name, names));
}

}  // namespace tilewright
