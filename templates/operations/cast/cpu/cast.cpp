// SPDX-License-Identifier: Apache-2.0
// A cast on the CPU: its formats' scalar codecs, by rows. What it writes is what codecs define.
#include "templates/operations/cast/cpu/cast.h"

#include <tilewright/cast.h>

#include <vector>

#include "templates/backends/cpu/by_rows.h"
#include "templates/backends/cpu/rows.h"
#include "templates/operations/cast/stochastic.h"

namespace tilewright::cpu {
namespace {

void cast_rows(const Cast& c, const CastArgs& a, std::int64_t first, std::int64_t rows) {
  thread_local std::vector<float> values;
  values.resize(static_cast<std::size_t>(rows * c.cols));
  for (std::int64_t i = 0; i < rows; ++i)  // one by one: where rows share a scale, a range may begin among them
    c.x.info().decode(from_row(c.x, a.x, first + i, c.cols), 1, c.cols, values.data() + i * c.cols);
  const MutableOperand y = from_row(c.y, a.y, first, c.cols);
  c.y.info().encode(values.data(), rows, c.cols, y, c.encoder);
  if (c.rounding == Rounding::stochastic)
    cast::round_stochastically(c.y, values.data(), first, rows, c.cols, y, c.encoder, a.seed);
}

}  // namespace

std::span<const Family* const> cast_families() {
  static const RowsFamily<Cast, CastArgs> family("cpu_cast", "CPU, any pair of formats by their scalar codecs, by rows",
                                                 &cast_rows);
  static const Family* const list[] = {&family};
  return list;
}

}  // namespace tilewright::cpu
