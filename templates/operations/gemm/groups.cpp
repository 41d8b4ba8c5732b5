// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/groups.h"

#include <fmt/format.h>
#include <tilewright/problem.h>

#include <algorithm>
#include <cstring>

#include "support/must_be.h"
#include "templates/common/checks.h"
#include "templates/common/fill.h"

namespace tilewright::gemm {
namespace {

bool masked(const Gemm& g) { return g.group_layout == GroupLayout::masked; }
std::int64_t table_size(const Gemm& g) { return g.groups + (masked(g) ? 0 : 1); }

// Of a launch with `rows` rows for each group: one group in three is empty, and one has half of all rows, or all that
// it may have; the others have random numbers of what is left.
std::vector<std::int64_t> skewed(const Gemm& g, std::int64_t rows, std::uint64_t seed) {
  Random random(seed);
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(std::max<std::int64_t>(most, 0) + 1));
  };
  std::vector<std::int64_t> counts(static_cast<std::size_t>(g.groups));
  const std::int64_t giant = up_to(g.groups - 1), half = masked(g) ? rows : rows * g.groups / 2;
  std::int64_t left = masked(g) ? rows * g.groups : rows * g.groups - half - rows / 16;  // some are no group's
  for (std::int64_t i = 0; i < g.groups; ++i) {
    if (i != giant && up_to(2) == 0) continue;
    const std::int64_t count = i == giant ? half : up_to(std::min(left, masked(g) ? rows : 4 * rows));
    counts[static_cast<std::size_t>(i)] = count;
    if (i != giant) left -= count;
  }
  return counts;
}

// Rows that a step's table is for.
std::int64_t rows_of_step(const Gemm& g, int step) { return step == row_step(g.m) ? g.m : step_rows(step); }

}  // namespace

void stack(std::span<Buffer> buffers, int groups) {
  for (Buffer& b : buffers) {
    const std::size_t bytes = b.bytes;
    b.bytes *= static_cast<std::size_t>(groups);
    b.fill = [fill = std::move(b.fill), bytes](std::span<std::byte> all, std::uint64_t seed) {
      for (std::size_t at = 0; at < all.size(); at += bytes) fill(all.subspan(at, bytes), seed + at / bytes * 64);
    };
  }
}

Buffer group_rows_buffer(const Gemm& g) {
  Buffer b;
  b.name = "group_rows";
  b.element = "int32";
  b.launch_bytes = static_cast<std::size_t>(table_size(g)) * sizeof(std::int32_t);
  const int steps = row_step(g.m) + 1;
  b.bytes = static_cast<std::size_t>(steps * table_size(g)) * sizeof(std::int32_t);
  b.fill = [g, steps](std::span<std::byte> bytes, std::uint64_t seed) {
    std::vector<std::int32_t> tables;
    for (int step = 0; step < steps; ++step) {
      const std::int64_t rows = rows_of_step(g, step);
      const std::vector<std::int64_t> counts =
          seed % 2 ? std::vector<std::int64_t>(static_cast<std::size_t>(g.groups), rows) : skewed(g, rows, seed);
      std::int64_t row = seed % 2 ? 0 : rows / 32;
      if (!masked(g)) tables.push_back(static_cast<std::int32_t>(row));
      for (const std::int64_t count : counts)
        tables.push_back(static_cast<std::int32_t>(masked(g) ? count : row += count));
    }
    std::memcpy(bytes.data(), tables.data(), std::min(bytes.size(), tables.size() * sizeof(std::int32_t)));
  };
  return b;
}

std::int64_t group_rows_at(const Gemm& g, std::int64_t rows) {
  return std::min(row_step(rows), row_step(g.m)) * table_size(g);
}

std::vector<int> owners_of_rows(const Gemm& g, std::int64_t rows, std::span<const std::byte> buffer) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(table_size(g)));
  std::memcpy(table.data(), buffer.data() + static_cast<std::size_t>(group_rows_at(g, rows)) * sizeof(std::int32_t),
              table.size() * sizeof(std::int32_t));
  // A table is for the most rows of its step; a launch may have fewer, and then uses less of it.
  const std::int64_t all = rows * g.groups, most = masked(g) ? rows : all;
  const std::int64_t allowed =
      std::max(rows, rows_of_step(g, std::min(row_step(rows), row_step(g.m)))) * (masked(g) ? 1 : g.groups);
  std::vector<int> owners(static_cast<std::size_t>(all), -1);
  const auto at = [&](int i) { return std::min<std::int64_t>(table[static_cast<std::size_t>(i)], most); };
  for (int i = 0; i < static_cast<int>(table.size()); ++i) {
    const std::int64_t least = masked(g) || i == 0 ? 0 : table[static_cast<std::size_t>(i) - 1],
                       value = table[static_cast<std::size_t>(i)];
    if (value < least || value > allowed)
      throw must_be(fmt::format("group_rows[{}]", i), value, fmt::format("{} to {}", least, allowed));
    if (i == g.groups) break;
    const std::int64_t begin = masked(g) ? i * rows : at(i), end = masked(g) ? begin + at(i) : at(i + 1);
    for (std::int64_t row = begin; row < end; ++row) owners[static_cast<std::size_t>(row)] = i;
  }
  return owners;
}

}  // namespace tilewright::gemm
