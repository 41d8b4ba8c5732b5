// SPDX-License-Identifier: Apache-2.0
#include "templates/common/fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace tilewright {
namespace {

// Encoding runs at some 100 M elements/s on one core and a 70 B layer has 470 M: a million distinct ones is enough for
// any error that depends on values, and the scrambled repetition shows any that depends on rows.
constexpr std::int64_t kPoolElements = 1 << 20;
constexpr std::int64_t kLeastPoolRows = 3;
constexpr float kLargest = 8;  // deviations; values are clamped to it, so that the global scale is known in advance

// Rows and 64-element runs differ in magnitude, or a kernel that takes the wrong scale would go unnoticed.
void random_row(Random& random, float deviation, std::span<float> row) {
  float row_scale = std::exp2(random.uniform() * 3 - 2);
  float run_scale = 1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i % 64 == 0) run_scale = 0.25f + 1.5f * random.uniform();
    row[i] = std::clamp(random.normal() * row_scale * run_scale, -kLargest, kLargest) * deviation;
  }
}

// Rows that share scales are repeated together.
std::int64_t unit_rows(Format f) {
  std::int64_t rows = 1;
  for (const StreamSpec& s : f.info().streams) rows = std::max<std::int64_t>(rows, s.rows);
  return rows;
}

// Order of pool rows in the matrix: a full-period walk, shifted each time round, so that neighbours differ.
std::int64_t pool_row(std::int64_t row, std::int64_t pool) { return (row * 7 + row / pool * 3 + 1) % pool; }

}  // namespace

std::int64_t pool_size(std::int64_t rows, std::int64_t cols) {
  std::int64_t pool = std::min(rows, std::max(kLeastPoolRows, kPoolElements / std::max<std::int64_t>(1, cols)));
  while (pool > 1 && pool < rows && pool % 7 == 0) --pool;  // 7 must walk through all of it
  return pool;
}

void repeat_pool(std::span<const std::byte> from, std::int64_t pool, std::int64_t rows, std::size_t item,
                 std::span<std::byte> to) {
  for (std::int64_t r = 0; r < rows && static_cast<std::size_t>(r) * item < to.size(); ++r) {
    const std::size_t source = static_cast<std::size_t>(pool < rows ? pool_row(r, pool) : r) * item;
    const std::size_t at = static_cast<std::size_t>(r) * item;
    std::memcpy(to.data() + at, from.data() + source, std::min(item, to.size() - at));
  }
}

float Random::normal() {
  // Sum of four uniforms, normalised: tails end at 3.5 deviations, which is where quantized tensors are clipped.
  float sum = uniform() + uniform() + uniform() + uniform();
  return (sum - 2.0f) * 1.7320508f;
}

float global_of(const Content& c) {
  auto rule = c.format.info().global_for;
  float global = rule ? rule(kLargest * c.deviation) : 1.0f;
  return c.inverse_global ? 1.0f / global : global;
}

std::uint64_t seed_of(std::uint64_t seed, std::string_view matrix) {
  for (const char c : matrix) seed = Random(seed ^ static_cast<unsigned char>(c)).next();
  return seed;
}

void fill_stream(const Content& c, int stream, std::uint64_t seed, std::span<std::byte> bytes) {
  const FormatInfo& info = c.format.info();
  const StreamSpec& spec = info.streams[static_cast<std::size_t>(stream)];
  if (spec.scope == Scope::tensor) {
    float global = global_of(c);
    std::memcpy(bytes.data(), &global, std::min(bytes.size(), sizeof global));
    return;
  }
  const std::int64_t unit = unit_rows(c.format), units = (c.rows + unit - 1) / unit;
  const std::int64_t pool = pool_size(units, unit * c.cols), rows = pool * unit;
  std::vector<float> values(static_cast<std::size_t>(rows * c.cols));
  Random random(seed * 0x2545f4914f6cdd1dull + static_cast<std::uint64_t>(c.cols));
  for (std::int64_t r = 0; r < rows; ++r)
    random_row(random, c.deviation, std::span(values).subspan(static_cast<std::size_t>(r * c.cols), c.cols));

  std::vector<std::vector<std::byte>> streams;
  MutableOperand to;
  float global = info.global_for ? info.global_for(kLargest * c.deviation) : 1.0f;
  to.global = &global;
  for (int i = 0; i < static_cast<int>(info.streams.size()); ++i) {
    const StreamSpec& s = info.streams[static_cast<std::size_t>(i)];
    streams.emplace_back(static_cast<std::size_t>(c.format.stream_bytes(i, rows, c.cols)));
    if (s.scope == Scope::tensor) continue;
    to.set(s.stream, streams.back().data());
  }
  info.encode(values.data(), rows, c.cols, to, 0);

  repeat_pool(streams[static_cast<std::size_t>(stream)], pool, units,
              static_cast<std::size_t>(c.format.stream_bytes(stream, unit, c.cols)), bytes);
}

}  // namespace tilewright
