// SPDX-License-Identifier: Apache-2.0
// Runs a gemm kernel in the emulator on random matrices and holds every output to the bound of
// operations/gemm/error_bound.cuh. The oracle's values share nothing with the kernels but the formats' scalar decoders.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "operations/gemm/cuda/gemv/kernel.cuh"
#include "operations/gemm/cuda/mma/kernel.cuh"
#include "operations/gemm/cuda/reference.cuh"
#include "support/catch.h"

namespace gemm_test {

using namespace tw;

// Whether F is floats that get a scale per row.
template <class F>
constexpr bool quantizes_rows() {
  if constexpr (fmt::is_quantized<F>())
    return F::kByRow;
  else
    return false;
}

// A random matrix in format F, allocated to the byte; rows are `ld` elements apart and what lies between is NaN or
// junk.
template <class F>
struct Matrix {
  i64 rows, cols, ld;
  std::vector<u8> data, scales;
  float global = 1.0f;
  std::vector<float> exact;  // [rows, cols], without the tensor-wide scale

  Matrix(i64 rows_, i64 cols_, i64 ld_, unsigned seed) : rows(rows_), cols(cols_), ld(ld_) {
    const i64 data_row = gemm::data_stride<F>(ld), scale_row = gemm::scale_stride<F>(ld);
    data.assign(static_cast<std::size_t>((rows - 1) * data_row + gemm::data_stride<F>(cols)), 0xff);
    scales.assign(F::kRowScale || F::kScaleBytes
                      ? static_cast<std::size_t>((rows - 1) / kScaleRows * scale_row + gemm::scale_stride<F>(cols))
                      : 0,
                  0xff);
    exact.resize(static_cast<std::size_t>(rows * cols));
    if (F::kGlobal) global = 0.0078125f * 1.37f;
    std::mt19937 random(seed);
    const Pool& pool = blocks();
    for (i64 r = 0; r < rows; ++r) {
      fmt::row_item<F> item =
          F::kRowScale ? row_item(1.0f + 0.25f * static_cast<float>(r % 7)) : fmt::row_item<F>{1.0f};
      if constexpr (fmt::has_zero_point<F>()) item.zero = static_cast<i32>(r * 37 % 256) - 128;
      for (i64 b = 0; b < cols / F::kBlock; ++b) {
        const std::size_t pick = random() % kPool;
        u8* scale = scales.data() + r / kScaleRows * scale_row + b * F::kScaleBytes;
        std::memcpy(&data[static_cast<std::size_t>(r * data_row + b * F::kDataBytes)], &pool.data[pick * F::kDataBytes],
                    F::kDataBytes);
        if (F::kScaleBytes && r % kScaleRows == 0)
          std::memcpy(scale, &pool.scales[pick * F::kScaleBytes], F::kScaleBytes);
        for (int i = 0; i < F::kBlock; ++i)
          exact[static_cast<std::size_t>(r * cols + b * F::kBlock + i)] =
              kScaleRows > 1 || F::kRowScale ? F::decode(&pool.data[pick * F::kDataBytes], scale, item, i)
                                             : pool.exact[pick * F::kBlock + static_cast<std::size_t>(i)];
        if constexpr (F::kRowScale) fmt::add_codes(item, pool.data[pick * F::kDataBytes]);
      }
      if constexpr (quantizes_rows<F>()) {
        const u8* row = &data[static_cast<std::size_t>(r * data_row)];
        const float context = F::row_context(row, cols);
        for (i64 i = 0; i < cols; ++i)
          exact[static_cast<std::size_t>(r * cols + i)] = F::decode(row + i * F::kDataBytes, nullptr, context, 0);
      }
      if constexpr (F::kRowScale) std::memcpy(&scales[static_cast<std::size_t>(r * scale_row)], &item, sizeof(item));
    }
  }
  Operand operand() const {
    return {data.data(), scales.empty() ? nullptr : scales.data(), F::kGlobal ? &global : nullptr};
  }

 private:
  static fmt::row_item<F> row_item(float factor) { return {0.01f * factor}; }
  static constexpr i64 kScaleRows = F::kScaleRows;
  static constexpr std::size_t kPool = 61;
  static constexpr bool kInteger = same<gemm::element_of<F>, i8>() && !F::kRowScale;
  // Blocks to choose from: some encoders are slow.
  struct Pool {
    std::vector<u8> data, scales;
    std::vector<float> exact;
  };
  static const Pool& blocks() {
    static const Pool pool = [] {
      Pool p{std::vector<u8>(kPool * F::kDataBytes), std::vector<u8>(kPool * std::max(F::kScaleBytes, 1)),
             std::vector<float>(kPool * F::kBlock)};
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      const fmt::row_item<F> context = F::kRowScale ? row_item(1.0f) : fmt::row_item<F>{F::kGlobal ? 0.0078125f : 1.0f};
      for (std::size_t b = 0; b < kPool; ++b) {
        float x[F::kBlock];
        for (float& v : x) v = normal(random) * (kInteger ? 40.0f : 1.0f);
        if (kInteger && b < 2) x[0] = b ? 127.0f : -128.0f;
        u8* scales = &p.scales[b * F::kScaleBytes];
        if constexpr (kScaleRows > 1) F::write_scale(scales, F::scale_for(1.0f + normal(random) * 0.25f));
        F::encode(x, &p.data[b * F::kDataBytes], scales, context, 0);
        for (int i = 0; i < F::kBlock; ++i)
          p.exact[b * F::kBlock + static_cast<std::size_t>(i)] =
              F::decode(&p.data[b * F::kDataBytes], scales, fmt::row_item<F>{1.0f}, i);
      }
      return p;
    }();
    return pool;
  }
};

struct Size {
  i64 m, n, k;
  i64 pad_x = 0, pad_y = 0;  // elements between rows
};

// A kernel's template argument for knobs that are spelled out in place.
template <auto knobs>
struct Fixed {
  static constexpr auto value = knobs;
};

// ---- how each family is launched
template <class X, class W, class Epi, const gemm::GemvKnobs& k>
emu::Launch launch_of(gemm::Gemv<X, W, Epi, k>*, const Size& s) {
  using Plan = gemm::Gemv<X, W, Epi, k>;
  return {{static_cast<u32>(ceil_div64(s.n, k.block_rows()) * ceil_div64(s.m, k.tokens) * k.split_k), 1, 1},
          Plan::kThreads,
          static_cast<u32>(k.split_k),
          Plan::kSharedBytes,
          0};
}
template <class X, class W, class Epi, const gemm::MmaKnobs& k>
emu::Launch launch_of(gemm::Mma<X, W, Epi, k>*, const Size& s) {
  using Plan = gemm::Mma<X, W, Epi, k>;
  return {{static_cast<u32>(ceil_div64(s.n, k.block_n) * ceil_div64(s.m, k.block_m) * k.split_k), 1, 1},
          Plan::kThreads,
          static_cast<u32>(k.split_k),
          Plan::kSharedBytes,
          0};
}
template <class X, class W, class Epi, bool oracle>
emu::Launch launch_of(gemm::Reference<X, W, Epi, oracle>*, const Size& s) {
  return {{static_cast<u32>(ceil_div64(s.n, 128) * ceil_div64(s.m, 4)), 1, 1}, 128, 1, 0, 0};
}

template <class Plan>
constexpr bool uses_matrix_units(Plan*) {
  return false;
}
template <class X, class W, class Epi, const gemm::MmaKnobs& k>
constexpr bool uses_matrix_units(gemm::Mma<X, W, Epi, k>*) {
  return true;
}

// ---- oracle
inline double activate(gemm::Act act, double v) {
  switch (act) {
    case gemm::Act::none: return v;
    case gemm::Act::relu: return std::max(v, 0.0);
    case gemm::Act::gelu: return v * 0.5 * std::erfc(-v / std::sqrt(2.0));
    case gemm::Act::gelu_tanh:
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
    case gemm::Act::silu: return v / (1 + std::exp(-v));
  }
  return v;
}
struct Expected {
  double y, bound;
};
// Computed from sum x w, sum |x w|, the product of all scales, the bias, beta c, 1 / y_scale and what rounded weights
// add to the bound. The value is this file's own, the bound is operations/gemm/error_bound.cuh's without what matrix
// units may cut off.
template <class Epi>
Expected expect(double sum, double magnitude, double scale, double bias, i64 k, double residual = 0,
                double y_factor = 1, double rounding = 0) {
  if (Epi::kExact) return {sum + bias, 0};
  const gemm::ErrorRules rules = {
      gemm::store_error<typename Epi::Out>(), gemm::additions_of(k), 0, false, Epi::kQuantized, y_factor};
  const double linear = sum * scale, y = (activate(Epi::activation(), linear + bias) + residual) * y_factor;
  const double error = arithmetic_error(rules, {scale, magnitude, rounding, linear, bias, residual, y});
  const double stored = saturated(rules.store, y);
  return {stored, stored_error(rules, error, stored)};
}

template <class Bias>
std::vector<u8> make_bias(i64 n, std::vector<double>& values) {
  values.assign(static_cast<std::size_t>(n), 0.0);
  std::vector<u8> bytes;
  if constexpr (!same<Bias, gemm::NoBias>()) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0.0f, same<Bias, i32>() ? 1e6f : 1.0f);
    for (double& v : values) {
      const Bias b = from_f32<Bias>(normal(random));
      v = to_f32(b);
      const auto* raw = reinterpret_cast<const u8*>(&b);
      bytes.insert(bytes.end(), raw, raw + sizeof(Bias));
    }
  }
  return bytes;
}

template <class Epi>
struct BiasOf;
template <class Y, class Bias, gemm::Act act, class C>
struct BiasOf<gemm::Epilogue<Y, Bias, act, C>> {
  using type = Bias;
};

template <class T>
double value_of(T v) {
  if constexpr (same<T, i32>())
    return v;
  else
    return to_f32(v);
}

// y, and what else the epilogue reads. c is y itself, every other time that their types are the same.
template <class X, class W, class Epi>
struct Output {
  using Y = typename Epi::Out;
  using C = typename Epi::Residual;
  Size s;
  i64 ldy, ldc;
  bool divides, in_place;
  gemm::Shape shape;
  float alpha = 1, beta = 1;  // of the launch
  std::vector<double> bias, c_values;
  std::vector<u8> bias_bytes;
  std::vector<Y> y;
  std::vector<C> c;

  Output(const Size& size, std::uint64_t seed)
      : s(size), ldy(s.n + s.pad_y), ldc(s.n + s.pad_y), divides(seed % 2 == 1), in_place(same<C, Y>() && divides) {
    constexpr bool kBytes = same<gemm::element_of<X>, i8>() && same<gemm::element_of<W>, i8>() && !X::kRowScale;
    shape = {s.n, s.k, Epi::kExact ? 1.0f : kBytes ? -0.75f / 1024 : -0.75f, divides};
    if (Epi::kC) shape.beta = 0.625f;
    if (!Epi::kExact && seed % 3) alpha = seed % 3 == 1 ? -1.5f : 0.375f;
    if (Epi::kC && seed % 3 != 1) beta = seed % 3 ? -0.5f : 3.0f;
    // Some of the results saturate.
    if (Epi::kQuantized) shape.y_factor = same<Y, i8>() ? 11.0f : same<Y, e4m3>() ? 27.0f : 3500.0f;
    bias_bytes = make_bias<typename BiasOf<Epi>::type>(s.n, bias);
    y.resize(static_cast<std::size_t>((s.m - 1) * ldy + s.n));
    std::memset(static_cast<void*>(y.data()), 0xa5, y.size() * sizeof(Y));
    c_values.resize(static_cast<std::size_t>(s.m * s.n));
    if constexpr (Epi::kC) {
      if (!in_place && s.pad_y) ldc += 5;
      c.resize(static_cast<std::size_t>((s.m - 1) * ldc + s.n));
      std::memset(static_cast<void*>(c.data()), 0xff, c.size() * sizeof(C));
      std::mt19937 random(13);
      std::normal_distribution<float> normal(0.0f, 3.0f);
      for (i64 i = 0; i < s.m; ++i)
        for (i64 j = 0; j < s.n; ++j) {
          const C v = from_f32<C>(normal(random));
          c_values[static_cast<std::size_t>(i * s.n + j)] = to_f32(v);
          c[static_cast<std::size_t>(i * ldc + j)] = v;
          if constexpr (same<C, Y>())
            if (in_place) y[static_cast<std::size_t>(i * ldy + j)] = v;
        }
    }
  }
  // The factor of the sums, without tensor-wide scales.
  float factor() const { return shape.alpha * alpha; }
  gemm::Args args(Operand x, Operand w) {
    gemm::Args a{x,
                 w,
                 y.data(),
                 bias_bytes.empty() ? nullptr : bias_bytes.data(),
                 s.m,
                 s.pad_x ? s.k + s.pad_x : 0,
                 s.pad_y ? ldy : 0};
    a.alpha = alpha, a.beta = beta;
    if (Epi::kC) a.c = in_place ? static_cast<const void*>(y.data()) : c.data(), a.ldc = s.pad_y ? ldc : 0;
    return a;
  }
  // x, w: [m, k] and [n, k]; `rounded(i, j)`: how far a sum may be off besides.
  template <class Rounded>
  void compare(const std::vector<float>& x, const std::vector<float>& w, double scale, const Rounded& rounded) const {
    i64 wrong = 0;
    double worst = 0;
    for (i64 i = 0; i < s.m; ++i) {
      for (i64 j = 0; j < s.n; ++j) {
        const float* a = &x[static_cast<std::size_t>(i * s.k)];
        const float* b = &w[static_cast<std::size_t>(j * s.k)];
        double sum = 0, magnitude = 0;
        for (i64 k = 0; k < s.k; ++k) {
          const double product = static_cast<double>(a[k]) * b[k];
          sum += product, magnitude += std::fabs(product);
        }
        const Expected e =
            expect<Epi>(sum, magnitude, scale, bias[static_cast<std::size_t>(j)], s.k,
                        static_cast<double>(shape.beta * beta) * c_values[static_cast<std::size_t>(i * s.n + j)],
                        shape.y_factor, rounded(a, b));
        const double error = std::fabs(value_of(y[static_cast<std::size_t>(i * ldy + j)]) - e.y);
        wrong += !(error <= e.bound);
        if (e.bound > 0) worst = std::max(worst, error / e.bound);
      }
      for (i64 j = s.n; j < ldy && i + 1 < s.m; ++j) {
        const auto* pad = reinterpret_cast<const u8*>(&y[static_cast<std::size_t>(i * ldy + j)]);
        wrong += !std::all_of(pad, pad + sizeof(Y), [](u8 byte) { return byte == 0xa5; });
      }
    }
    INFO("worst error / bound " << worst);
    CHECK(wrong == 0);
  }
};

// One launch of Plan, a kernel for y = x w^T with X, W and Epi, compared element by element.
template <class Plan, class X, class W, class Epi>
void check(const Size& s, std::uint64_t seed) {
  INFO("m " << s.m << " n " << s.n << " k " << s.k << " ldx +" << s.pad_x << " ldy +" << s.pad_y << " seed " << seed);
  Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(seed) * 2 + 1);
  Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) * 2 + 2);
  Output<X, W, Epi> out(s, seed);
  if (out.divides) x.global = 1 / x.global, w.global = 1 / w.global;
  const gemm::Args args = out.args(x.operand(), w.operand());
  emu::Launch launch = launch_of(static_cast<Plan*>(nullptr), s);
  launch.seed = seed;
  emu::run(launch, [&] { Plan::run(args, out.shape); });
  const auto apply = [&](double f, double global) { return out.divides ? f / global : f * global; };
  // Entries of a table are rounded on the way to the matrix units, and only there.
  const double rounding =
      uses_matrix_units(static_cast<Plan*>(nullptr)) ? gemm::table_rounding<W, gemm::element_of<X>>() : 0;
  out.compare(x.exact, w.exact, apply(apply(out.factor(), x.global), w.global), [&](const float* a, const float* b) {
    double sum = 0;
    for (i64 k = 0; rounding > 0 && k < s.k; ++k) sum += std::fabs(static_cast<double>(a[k]) * b[k]);
    return rounding * sum;
  });
}

constexpr i64 kRagged[] = {1, 2, 3, 5, 8, 9, 17, 33};

// Every ragged m at a middling k, then the given k at m = 3; n is never a multiple of the tile. Every third m has rows
// of x `block` elements further apart.
template <class Plan, class X, class W, class Epi>
void check_sizes(i64 tile_n, i64 middle_k, std::initializer_list<i64> ks,
                 i64 block = std::max(X::kBlock, X::kBlock == 1 && X::kDataBytes == 1 ? 16 : 8)) {
  std::uint64_t seed = 0;
  for (const i64 m : kRagged)
    check<Plan, X, W, Epi>({m, m % 2 ? tile_n + 3 : tile_n - 3, middle_k, m % 3 ? 0 : block, m % 4 ? 3 : 0}, seed++);
  for (const i64 k : ks) check<Plan, X, W, Epi>({3, 2 * tile_n + 1, k}, seed++);
  check<Plan, X, W, Epi>({3, 1, middle_k}, seed);
}

template <class F>
constexpr i64 round_up(i64 k, i64 unit) {
  return (k + std::lcm<i64>(unit, F::kBlock) - 1) / std::lcm<i64>(unit, F::kBlock) * std::lcm<i64>(unit, F::kBlock);
}

using gemm::Act;
using gemm::Epilogue;
using gemm::NoBias;
using PlainF32 = Epilogue<float, NoBias, Act::none>;

}  // namespace gemm_test
