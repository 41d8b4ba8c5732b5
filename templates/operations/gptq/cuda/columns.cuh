// SPDX-License-Identifier: Apache-2.0
// The rounding of columns to a format's codes, one after the other, and the choice of scales. A block has the 64 rows
// of a strip, two threads for each: both share what a column's rounding does to the columns behind it.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "formats/shared/format.cuh"
#include "operations/gptq/params.cuh"

namespace tw::gptq {

template <class F>
struct Columns {
  TW_CONSTANTS(int, kThreads = gptq::kThreads, kSharedBytes = gptq::kSharedBytes);
  static_assert((kTileSize + kTile) * 8 <= kSharedBytes && kThreads == 2 * kTile, "sums, and d of a column");
  using Grid = typename F::Grid;

  TW_MEMBER static void run(const Args& a, const Shape& s) {
    if (a.step == Step::choose)
      choose_all(s);
    else if (a.step == Step::round)
      Columns(s).round(a);
  }

 private:
  TW_MEMBER explicit Columns(const Shape& shape)
      : s(shape),
        strip(block_x()),
        row(static_cast<int>(thread_x()) % kTile),
        half(static_cast<int>(thread_x()) / kTile) {}

  TW_MEMBER static void include(float v, float& low, float& high) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  // Of one row; remembers its first group whose scale is not finite.
  TW_MEMBER static void choose(const Shape& s, i64 row, i64 group, float low, float high) {
    const u32 item = F::Grid::item(low, high, s.encoder);
    s.items[group * s.rows() + row] = item;
    if (abs_f(Grid(item).scale) <= 3.4028234663852886e38f || s.bad_group[row]) return;
    s.bad_group[row] = static_cast<u32>(group) + 1;
    s.bad_range[2 * row] = low, s.bad_range[2 * row + 1] = high;
  }

  // Block strip: all groups, of neighbours in w, from the weights as they are.
  TW_MEMBER static void choose_all(const Shape& s) {
    const i64 row = static_cast<i64>(block_x()) * kTile + thread_x();
    if (thread_x() >= kTile) return;
    for (i64 group = 0; group < s.groups(); ++group) {
      float low = 0, high = 0;
      const i64 end = min2(s.k, (group + 1) * s.group);
      for (i64 c = group * s.group; c < end && row < s.n; ++c)
        if (s.order[s.slots[c]] >= 0) include(s.source[row * s.k + c], low, high);
      choose(s, row, group, low, high);
    }
  }

  // R[p, j]; rows of a tile are behind each other.
  TW_MEMBER const double* factor_row(i64 p, i64 tile) const {
    return s.r + Shape::triangle(p / kTile, tile) + p % kTile * kTile;
  }
  TW_MEMBER double pivot(i64 p) const { return factor_row(p, p / kTile)[p % kTile]; }

  TW_MEMBER void round(const Args& a) {
    const i64 tile = a.first;
    double* const sums = reinterpret_cast<double*>(dynamic_shared());
    double* const d = sums + kTileSize;
    const i64 first = s.strip(strip, tile), at = strip * kTile + row;
    for (int e = static_cast<int>(thread_x()); e < kTileSize; e += kThreads) sums[e] = s.sums[first + e];
    double error = s.errors[at];
    const int columns = static_cast<int>(min2(s.k - tile * kTile, 64ll));
    TW_NO_UNROLL for (int c = 0; c < columns; ++c) {
      const i64 i = tile * kTile + c;
      sync_block();
      if (!s.static_groups && i % s.group == 0) {
        choose_corrected(i, sums);
        sync_block();
      }
      if (half == 0) {
        const i64 group = (s.static_groups ? (s.order[i] < 0 ? ~s.order[i] : s.order[i]) : i) / s.group;
        const Grid grid(s.items[group * s.rows() + at]);
        const i64 e = first + c * kTile + row;
        const double p = pivot(i), sum = sums[c * kTile + row], w = static_cast<double>(s.w[e]);
        const u32 code = grid.nearest(static_cast<float>(add_rn(w, div_rn(sum, p))), s.encoder);
        const float value = grid.value(code);
        const double left = sub_rn(w, static_cast<double>(value)), scaled = add_rn(sum, mul_rn(left, p));
        error = add_rn(error, sub_rn(mul_rn(scaled, scaled), mul_rn(mul_rn(a.added, left), left)));
        d[row] = left;
        s.sums[e] = left;
        s.w[e] = value;
        s.codes[e] = static_cast<u8>(code);
      }
      sync_block();
      const double* const r = factor_row(i, tile);
      const double left = d[row];
      TW_UNROLL_BY(4)
      for (int q = c + 1 + half; q < kTile; q += 2) sums[q * kTile + row] = fma_rn(r[q], left, sums[q * kTile + row]);
    }
    if (half == 0) s.errors[at] = error;
  }

  // The rule of the group that begins with column i, from its weights as corrected by the columns before i: w + v,
  // where v R = sums within the group. `sums` are those of column i's tile; what the tiles behind it take from the
  // tiles before it is in s.sums.
  TW_MEMBER void choose_corrected(i64 i, const double* sums) {
    const i64 tile = i / kTile, end = min2(s.k, i + s.group), group = i / s.group;
    const float* const w = s.w + s.strip(strip, 0) + row;
    float low = 0, high = 0;
    if (i == 0) {  // nothing to correct
      if (half == 0) {
        for (i64 j = 0; j < end; ++j) include(w[j * kTile], low, high);
        choose(s, strip * kTile + row, group, low, high);
      }
      return;
    }
    const i64 room = s.group / kTile + 2;  // tiles of a strip's corrections
    double* const v = s.corrections + strip * room * kTileSize + row - tile * kTileSize;  // of column j at 64 j
    for (int c = half; c < kTile; c += 2) v[(tile * kTile + c) * kTile] = sums[c * kTile + row];
    for (i64 t = tile + 1; t < ceil_div64(end, kTile); ++t)
      for (int c = half; c < kTile; c += 2) {
        double sum = 0;
        for (int p = 0; p < i % kTile; ++p)
          sum = fma_rn(factor_row(tile * kTile + p, t)[c], s.sums[s.strip(strip, tile) + p * kTile + row], sum);
        v[(t * kTile + c) * kTile] = add_rn(s.sums[s.strip(strip, t) + c * kTile + row], sum);
      }
    TW_NO_UNROLL for (i64 p = i; p < end; ++p) {
      sync_block();
      const double solved = div_rn(v[p * kTile], pivot(p));
      include(static_cast<float>(add_rn(static_cast<double>(w[p * kTile]), solved)), low, high);
      TW_UNROLL_BY(4)
      for (i64 j = p + 1 + half; j < end; j += 2)
        v[j * kTile] = fma_rn(factor_row(p, j / kTile)[j % kTile], -solved, v[j * kTile]);
    }
    if (half == 0) choose(s, strip * kTile + row, group, low, high);
  }

  const Shape& s;
  const i64 strip;
  const int row, half;
};

}  // namespace tw::gptq
