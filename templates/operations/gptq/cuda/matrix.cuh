// SPDX-License-Identifier: Apache-2.0
// What GPTQ does to matrices whatever the format: w's tiles, R of H = R R^T, the sums that correct columns, and the
// streams. Each step is what quantize/rounding/hessian.cpp and quantize/rounding/post_training.cpp do on the host, in
// the same order.
#pragma once
#include "operations/gptq/cuda/product.cuh"

namespace tw::gptq {

struct Matrix {
  TW_CONSTANTS(int, kThreads = gptq::kThreads, kSharedBytes = gptq::kSharedBytes);

  TW_MEMBER static void run(const Args& a, const Shape& s) {
    switch (a.step) {
      case Step::gather: return gather(a, s);
      case Step::energy: return a.plain ? energy_of_rows(s) : energy(s);
      case Step::arrange: return arrange(a, s);
      case Step::subtract: return subtract(a, s);
      case Step::diagonal: return diagonal(a.first, s);
      case Step::solve: return solve(a.first, s);
      case Step::transpose: return transpose(s);
      case Step::add: return add(a, s);
      case Step::store: return store(s);
      default: return;
    }
  }

 private:
  TW_MEMBER static int thread() { return static_cast<int>(thread_x()); }
  TW_MEMBER static i64 block() { return static_cast<i64>(block_x()); }
  // f(e) of the elements of a tile, neighbours by neighbouring threads.
  template <class F>
  TW_MEMBER static void each_element(F f) {
    for (int e = thread(); e < kTileSize; e += kThreads) f(e);
  }

  // Block (strip, tile): w's columns in order, transposed; 0 for dead columns and beyond the matrix. `plain`: in their
  // own order, dead ones as they are.
  TW_MEMBER static void gather(const Args& a, const Shape& s) {
    float* const shared = reinterpret_cast<float*>(dynamic_shared());
    const i64 strip = block() / s.tiles(), tile = block() % s.tiles();
    each_element([&](int e) {
      const i64 row = strip * kTile + e / kTile, i = tile * kTile + e % kTile;
      float v = 0;
      if (row < s.n && i < s.k) {
        const i64 column = a.plain ? i : s.order[i];
        if (column >= 0) v = s.source[row * s.k + column];
      }
      shared[e / kTile * (kTile + 1) + e % kTile] = v;
    });
    sync_block();
    float* const to = s.w + s.strip(strip, tile);
    each_element([&](int e) { to[e] = shared[e % kTile * (kTile + 1) + e / kTile]; });
  }

  // Block (strip, tile): H w of the tile's columns, of which those right of the diagonal count twice.
  TW_MEMBER static void energy(const Shape& s) {
    const i64 strip = block() / s.tiles(), tile = block() % s.tiles();
    const auto of_h = [&](i64 j) { return s.h + Shape::triangle(tile, j); };
    const auto of_w = [&](i64 j) { return s.w + s.strip(strip, j); };
    Product p = {};
    p.template add<false>(tile + 1, s.tiles(), of_h, of_w);
    p.each([](double& v, int) { v = mul_rn(2.0, v); });
    p.template add<false>(tile, tile + 1, of_h, of_w);
    double* const to = s.sums + s.strip(strip, tile);
    p.each([&](double v, int e) { to[e] = v; });
  }
  // Block strip: a row's products with w, added up in order.
  TW_MEMBER static void energy_of_rows(const Shape& s) {
    if (thread() >= kTile) return;
    const double* const products = s.sums + s.strip(block(), 0) + thread();
    const float* const w = s.w + s.strip(block(), 0) + thread();
    const i64 columns = s.tiles() * kTile;
    double sum = 0;
    TW_UNROLL_BY(8)
    for (i64 i = 0; i < columns; ++i) sum = add_rn(sum, mul_rn(products[i * kTile], static_cast<double>(w[i * kTile])));
    s.errors[block() * kTile + thread()] = sum;
  }

  // Block (i, j) of all tiles: H in order and damped, tiles column-major.
  TW_MEMBER static void arrange(const Args& a, const Shape& s) {
    const i64 ti = block() / s.tiles(), tj = block() % s.tiles();
    if (ti > tj) return;
    double* const to = s.r + Shape::triangle(ti, tj);
    each_element([&](int e) {
      const i64 i = ti * kTile + e % kTile, j = tj * kTile + e / kTile;
      double v = i == j ? 1.0 : 0.0;
      if (i < s.k && j < s.k) {
        const i64 oi = s.order[i] < 0 ? ~s.order[i] : s.order[i], oj = s.order[j] < 0 ? ~s.order[j] : s.order[j];
        const i64 low = min2(oi, oj), high = max2(oi, oj);
        v = s.h[Shape::triangle(low / kTile, high / kTile) + high % kTile * kTile + low % kTile];
        if (i == j) v = add_rn(v == 0 ? s.mean : v, a.added);
      }
      to[e] = v;
      if (i == j) s.least[i] = mul_rn(s.least_pivot, v);
    });
  }

  // Block (i, j) of the columns first to first + count - 1 of tiles: what they take from the tiles `from` to end - 1
  // right of them.
  TW_MEMBER static void subtract(const Args& a, const Shape& s) {
    const i64 i = block() / a.count, j = a.first + block() % a.count;
    if (i > j || *s.failed) return;
    double* const tile = s.r + Shape::triangle(i, j);
    Product p;
    p.each([&](double& v, int e) { v = tile[e]; });
    p.template add<true>(
        a.from, a.end, [&](i64 m) { return s.r + Shape::triangle(j, m); },
        [&](i64 m) { return s.r + Shape::triangle(i, m); });
    p.each([&](double v, int e) { tile[e] = v; });
  }

  // One block: the factor of a tile on the diagonal. Below the diagonal it becomes 0.
  TW_MEMBER static void diagonal(i64 j, const Shape& s) {
    double* const t = reinterpret_cast<double*>(dynamic_shared());
    double* const tile = s.r + Shape::triangle(j, j);
    const int row = thread() % kTile, half = thread() / kTile;
    const bool failed = *s.failed;
    each_element([&](int e) { t[e] = tile[e]; });
    sync_block();
    if (failed) return;
    TW_NO_UNROLL for (int c = kTile - 1; c >= 0; --c) {
      double* const column = t + c * kTile;
      const double pivot = column[c];
      if (!(pivot > s.least[j * kTile + c])) {
        if (thread() == 0) *s.failed = 1;
        return;
      }
      const double root = sqrt_rn(pivot);
      sync_block();
      if (half == 0) column[row] = row < c ? div_rn(column[row], root) : row == c ? root : 0.0;
      sync_block();
      for (int m = half; m < c; m += 2)
        if (row <= m) t[m * kTile + row] = sub_rn(t[m * kTile + row], mul_rn(column[row], column[m]));
      sync_block();
    }
    each_element([&](int e) { tile[e] = t[e]; });
  }

  // Block i < j: x of x r^T = t, in place of the tile t = (i, j), where r is the factored tile (j, j).
  TW_MEMBER static void solve(i64 j, const Shape& s) {
    if (*s.failed) return;
    double* const t = reinterpret_cast<double*>(dynamic_shared());
    double* const tile = s.r + Shape::triangle(block(), j);
    const double* const r = s.r + Shape::triangle(j, j);
    const int row = thread() % kTile, half = thread() / kTile;
    each_element([&](int e) { t[e] = tile[e]; });
    TW_NO_UNROLL for (int m = kTile - 1; m >= 0; --m) {
      sync_block();
      const double x = div_rn(t[m * kTile + row], r[m * kTile + m]);
      if (half == 0) tile[m * kTile + row] = x;
      TW_UNROLL_BY(4)
      for (int q = half; q < m; q += 2) t[q * kTile + row] = fma_rn(r[m * kTile + q], -x, t[q * kTile + row]);
    }
  }

  // Block (i, j) of all tiles: from column-major to row-major.
  TW_MEMBER static void transpose(const Shape& s) {
    const i64 i = block() / s.tiles(), j = block() % s.tiles();
    if (i > j || *s.failed) return;
    double* const t = reinterpret_cast<double*>(dynamic_shared());
    double* const tile = s.r + Shape::triangle(i, j);
    each_element([&](int e) { t[e / kTile * (kTile + 1) + e % kTile] = tile[e]; });
    sync_block();
    each_element([&](int e) { tile[e] = t[e % kTile * (kTile + 1) + e / kTile]; });
  }

  // Block (strip, tile) of the tiles first to first + count - 1: the sums of d[p] R[p, tile] over the tiles p of `from`
  // to end - 1 are added to what is there.
  TW_MEMBER static void add(const Args& a, const Shape& s) {
    const i64 strip = block() / a.count, tile = a.first + block() % a.count;
    double* const to = s.sums + s.strip(strip, tile);
    Product p;
    p.each([&](double& v, int e) { v = to[e]; });
    p.template add<false>(
        a.from, a.end, [&](i64 m) { return s.r + Shape::triangle(m, tile); },
        [&](i64 m) { return s.sums + s.strip(strip, m); });
    p.each([&](double v, int e) { to[e] = v; });
  }

  // Block (strip, tile): 64 columns of the streams, and the values of 64 columns of w, in their own order.
  TW_MEMBER static void store(const Shape& s) {
    const i64 strip = block() / s.tiles(), first = block() % s.tiles() * kTile, rows = min2(s.n - strip * kTile, 64ll);
    const int columns = static_cast<int>(min2(s.k - first, 64ll));
    u8* const codes = dynamic_shared();
    each_element([&](int e) {
      const int c = e / kTile, r = e % kTile;
      if (c < columns) codes[c * kTile + r] = s.codes[s.strip(strip, 0) + s.places[first + c] * kTile + r];
    });
    sync_block();
    for (int e = thread(); e < kTileSize / 2; e += kThreads) {
      const int r = e / (kTile / 2), pair = e % (kTile / 2);
      if (r < rows && 2 * pair < columns)
        s.data[((strip * kTile + r) * s.k + first) / 2 + pair] =
            static_cast<u8>(codes[2 * pair * kTile + r] | (codes[(2 * pair + 1) * kTile + r] << 4));
    }
    sync_block();
    float* const values = reinterpret_cast<float*>(dynamic_shared());
    each_element([&](int e) {
      const int c = e / kTile, r = e % kTile;
      if (c < columns) values[c * (kTile + 1) + r] = s.w[s.strip(strip, 0) + s.slots[first + c] * kTile + r];
    });
    sync_block();
    each_element([&](int e) {
      const int r = e / kTile, c = e % kTile;
      if (r < rows && c < columns) s.source[(strip * kTile + r) * s.k + first + c] = values[c * (kTile + 1) + r];
    });
  }
};

}  // namespace tw::gptq
