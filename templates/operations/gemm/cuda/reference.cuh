// SPDX-License-Identifier: Apache-2.0
// Any pair of formats, by their scalar decoders, summed in double precision. Slow and plain: what the tuner holds the
// others against, and the last resort where no other kernel is legal.
//
// As an oracle it stores, instead of y, two dense float matrices [m, n]: the value, clamped to what y holds, and the
// largest absolute error that a correct kernel may make there (operations/gemm/error_bound.cuh). Weights in tiles may
// be rounded when they are unpacked (rounding() of formats/shared/tiles.cuh), and so may entries of a table
// (formats/shared/format.cuh) against x of 16 bits; the bound's term for that is rounding() sum |x| p, where p is |w|,
// or, where w is code * step + w0 (Tile::kOffset) and either part may be rounded, |w| + 2 |w0| >= |code * step| + |w0|.
//
// Grouped, it leaves the rows that no group has as they are.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tiles.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/grid.cuh"
#include "operations/gemm/cuda/groups.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/quantized.cuh"
#include "operations/gemm/error_bound.cuh"

namespace tw::gemm {

// One row of a matrix, element by element.
template <class F>
struct Row {
  const u8* data;
  const u8* scales;
  fmt::row_item<F> context;
  // cols: of the row, for floats that get a scale per row.
  TW_MEMBER Row(const Operand& m, i64 row, i64 stride_elements, i64 cols) {
    data = static_cast<const u8*>(m.data) + row * data_stride<F>(stride_elements);
    scales = F::kScaleBytes ? static_cast<const u8*>(m.scales) + row / F::kScaleRows * scale_stride<F>(stride_elements)
                            : nullptr;
    if constexpr (fmt::is_quantized<F>())
      context = F::row_context(data, cols);
    else
      context = fmt::row_item_at<F>(m.scales, row);
  }
  TW_MEMBER float at(i64 k) const {
    const i64 b = k / F::kBlock;
    return F::decode(data + b * F::kDataBytes, F::kScaleBytes ? scales + b * F::kScaleBytes : nullptr, context,
                     static_cast<int>(k % F::kBlock));
  }
};

// The same from tiles: consecutive elements cost one rebuilt stretch. Without codes: what codes of 0 stand for.
template <class F, class Element, bool codes = true>
struct TiledRow {
  using Unit = TiledUnit<F, Element>;
  const Operand& tiles;
  i64 row, k, held = -1;
  fmt::row_item<F> context;
  Unit unit;
  TW_MEMBER TiledRow(const Operand& m, i64 at_row, i64 columns) : tiles(m), row(at_row), k(columns) {
    context = fmt::row_item_at<F>(m.scales, row);
  }
  TW_MEMBER float at(i64 at_k) {
    if (at_k / Unit::kColumns != held)
      held = at_k / Unit::kColumns, unit.template read<codes>(tiles.data, tiles.scales, k, row, held);
    const int i = static_cast<int>(at_k % Unit::kColumns), b = i / F::kBlock;
    return F::decode(unit.data + b * F::kDataBytes, F::kScaleBytes ? unit.scales + b * F::kScaleBytes : nullptr,
                     context, i % F::kBlock);
  }
};
// What kernels may round off weights that nothing packed, relatively: entries of a table, which matrix units take as
// elements of x, of type A.
template <class W, class A>
TW_FN constexpr double table_rounding() {
  if constexpr (fmt::is_table<W>() && (same<A, f16>() || same<A, bf16>())) return W::template rounding<A>();
  return 0;
}
// How a row of w is read and how far from it a correct kernel's may be, given with each element. `Tiled`: void, or the
// Element for which w is tiled; A: x's.
template <class W, class Tiled, class A>
struct WeightRow {
  using Tile = typename W::template Tile<Tiled>;
  TW_MEMBER static constexpr double rounding() { return Tile::rounding(); }
  TiledRow<W, Tiled> row;
  TiledRow<W, Tiled, false> base;
  TW_MEMBER WeightRow(const Operand& w, i64 n, i64 k) : row(w, n, k), base(w, n, k) {}
  TW_MEMBER double at(i64 k) { return row.at(k); }
  // narrowed: the tile is unpacked to E4M3.
  TW_MEMBER double slack(i64 k, double value, bool narrowed) {
    const double v = value < 0 ? -value : value, b = Tile::kOffset ? base.at(k) : 0.0f;
    if constexpr (!same<narrowed_tile<Tile>, void>())
      if (narrowed) return narrowed_tile<Tile>::rounding() * v + narrowed_tile<Tile>::least();
    return rounding() * (v + 2 * (b < 0 ? -b : b));
  }
};
template <class W, class A>
struct WeightRow<W, void, A> {
  TW_MEMBER static constexpr double rounding() { return table_rounding<W, A>(); }
  Row<W> row;
  TW_MEMBER WeightRow(const Operand& w, i64 n, i64 k) : row(w, n, k, k) {}
  TW_MEMBER double at(i64 k) const { return row.at(k); }
  TW_MEMBER double slack(i64, double value, bool) const { return rounding() * magnitude_of(value); }
};

// The tensors that an oracle writes.
struct Judgement {
  float *values, *bounds;
};
// Stores an element: y, at `at`; or as an oracle its value and bound, at `judged_at`.
template <class Epi, bool oracle>
TW_DEVICE void store_reference(void* y, i64 at, const Judgement& out, i64 judged_at, const ErrorRules& rules,
                               const ErrorTerms& terms) {
  if constexpr (!oracle) {
    Epi::store(y, at, static_cast<typename Epi::Value>(terms.y));
  } else {
    double value = terms.y, error = arithmetic_error(rules, terms);
    if (same<typename Epi::Out, i8>() && value != value) value = error = 0;  // what a NaN is stored as
    value = saturated(rules.store, value);
    out.values[judged_at] = static_cast<float>(value);
    out.bounds[judged_at] = static_cast<float>(stored_error(rules, error, value));
  }
}

// Whether matrix units may cut off what they add: FP8 products, codes of w that E4M3 holds included, and scaled blocks.
template <class X, class W>
TW_FN constexpr bool fp8_products() {
  return is_fp8_type<element_of<X>>() && (is_fp8_type<element_of<W>>() || (W::kCodes && W::kBits <= 4));
}
template <class X, class W>
TW_FN constexpr bool scaled_products() {
  return X::scaled_mma() != ScaledMma::none && X::scaled_mma() == W::scaled_mma();
}

template <class X, class W, class Epi, bool oracle, class Tiled = void, bool grouped = false>
struct Reference {
  using Multiplied = typename fmt::Unquantized<X>::type;
  TW_CONSTANTS(int, kThreads = 128, kSharedBytes = 0);
  TW_CONSTANTS(int, kRows = 4);  // of x per thread: a weight is decoded once for four of them
  // x is multiplied as it is, but by tiles that are for another element.
  using A = element_of<Multiplied>;
  TW_CONSTANTS(bool, kAsItIs = same<Tiled, void>() || same<Tiled, A>());
  TW_CONSTANTS(bool, kCuts = (kAsItIs && (fp8_products<Multiplied, W>() || (is_fp8_type<A>() && same<Tiled, A>()))) ||
                             scaled_products<Multiplied, W>());

  // What kernels may round and cut off besides where accumulation is fast.
  TW_MEMBER static constexpr bool may_narrow() {
    if constexpr (same<Tiled, f16>())
      return tw::may_narrow<Multiplied, W>();
    else
      return false;
  }
  TW_MEMBER static bool narrows(const Shape& shape) { return may_narrow() && shape.fast != 0; }

  // An oracle's matrices are dense. A group's begin at its first row.
  TW_MEMBER static void finish(const Args& args, const Shape& shape, const Judgement& out, i64 m, i64 n, double sum,
                               double magnitude, double rounding) {
    const double scale = tensor_scale<X, W>(args, shape);
    const double bias = Epi::bias_at(args.bias, n);
    double y = activate<Epi::activation()>(sum * scale + bias), residual = 0;
    if constexpr (Epi::kC) residual = static_cast<double>(shape.beta * args.beta) * Epi::c_at(args, shape, m, n);
    y += residual;
    if constexpr (Epi::kQuantized) y *= shape.y_factor;
    if constexpr (Epi::kExact)
      y = Epi::finish(args, shape, static_cast<i32>(sum), 1.0f, Epi::bias_at(args.bias, n), 0.0f);
    store_reference<Epi, oracle>(
        args.y, m * (args.ldy ? args.ldy : shape.n) + n, out, m * shape.n + n,
        {store_error<typename Epi::Out>(), additions_of(shape.k),
         cut_of(kCuts || narrows(shape), shape.fast != 0, shape.k), Epi::kExact, Epi::kQuantized, shape.y_factor},
        {scale, magnitude, rounding, sum * scale, bias, residual, y});
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    float* out = static_cast<float*>(args.y);
    if constexpr (grouped) {
      const u32 across = static_cast<u32>(ceil_div64(shape.n, kThreads));
      i64 tile = block_x() / across;  // of rows, counted from the group's first
      Group group{};
      i32 row = 0;
      for (i64 i = 0;; ++i) {
        if (i == shape.groups) return;
        group = next_group(args.group_rows, shape, args.m, i, row);
        const i64 tiles = ceil_div64(group.rows, kRows);
        if (tile < tiles) break;
        tile -= tiles;
      }
      const i64 y_rows = shape.masked ? shape.groups * args.m : args.m;
      Args own = args;
      own.m = group.rows;
      go_to_group<X, Epi>(own, own.x, own.w, shape, shape.n, group);
      out += group.row * shape.n;
      run_block(own, shape, {out, out + y_rows * shape.n},
                {tile * kRows, static_cast<i64>(block_x() % across) * kThreads});
    } else {
      run_block(args, shape, {out, out + args.m * shape.n}, grid_place<kRows, kThreads>(block_x(), args.m, shape.n));
    }
  }

 private:
  TW_MEMBER static void run_block(const Args& args, const Shape& shape, const Judgement& out, const GridPlace& place) {
    const i64 m0 = place.m, n = place.n + thread_x();
    if (n >= shape.n) return;
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    using Weight = WeightRow<W, Tiled, A>;
    constexpr bool kSlack = oracle && (Weight::rounding() > 0 || may_narrow());
    Weight w(args.w, n, shape.k);
    const i64 last = args.m - 1;
    const auto row_of_x = [&](int i) { return Row<X>(args.x, min2(m0 + i, last), ldx, shape.k); };
    const Row<X> x[kRows] = {row_of_x(0), row_of_x(1), row_of_x(2), row_of_x(3)};
    double sum[kRows] = {}, magnitude[kRows] = {}, rounded[kRows] = {};
    for (i64 k = 0; k < shape.k; ++k) {
      const double b = w.at(k);
      double slack = 0;
      if constexpr (kSlack) slack = w.slack(k, b, narrows(shape));
      TW_UNROLL for (int i = 0; i < kRows; ++i) {
        const double a = x[i].at(k), product = a * b;
        sum[i] += product;
        if constexpr (oracle) magnitude[i] += product < 0 ? -product : product;
        if constexpr (kSlack) rounded[i] += (a < 0 ? -a : a) * slack;
      }
    }
    TW_UNROLL for (int i = 0; i < kRows; ++i) if (m0 + i < args.m)
        finish(args, shape, out, m0 + i, n, sum[i], magnitude[i], rounded[i]);
  }
};

}  // namespace tw::gemm
