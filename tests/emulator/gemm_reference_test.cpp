// SPDX-License-Identifier: Apache-2.0
// The reference kernel over every pair of formats, and the values and bounds that it gives the tuner as an oracle.
#include "emulator/gemm.h"
#include "formats/bf16.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/nf4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"

using namespace gemm_test;

namespace {
template <class X, class W>
void check_pair() {
  using Epi = Epilogue<float, float, Act::silu>;
  using Plan = gemm::Reference<X, W, Epi, false>;
  constexpr i64 kUnit = std::lcm(X::kBlock, W::kBlock);
  std::uint64_t seed = 0;
  for (const i64 m : kRagged)
    check<Plan, X, W, Epi>({m, m % 2 ? 130 : 1, kUnit * (m % 3 + 1), m % 3 ? 0 : 256, m % 2 * 3}, seed++);
}

// x is quantized on the way.
template <class From>
void check_quantized() {
  check_pair<fmt::Quantized<fmt::q8_1, From>, fmt::q4_0>();
  check_pair<fmt::Quantized<fmt::q8_1, From>, fmt::bf16>();
}

template <class X>
void check_row() {
  check_pair<X, fmt::f32>();
  check_pair<X, fmt::f16>();
  check_pair<X, fmt::bf16>();
  check_pair<X, fmt::q4_0>();
  check_pair<X, fmt::q4_k>();
  check_pair<X, fmt::q8_0>();
  check_pair<X, fmt::q8_1>();
  check_pair<X, fmt::nvfp4>();
  check_pair<X, fmt::e4m3_row>();
}

// Values and bounds of the oracle variant against this folder's own.
template <class X, class W, class Epi>
void check_oracle(i64 k) {
  const Size s{6, 133, k};
  const Matrix<X> x(s.m, k, k, 1);
  const Matrix<W> w(s.n, k, k, 2);
  std::vector<double> bias;
  const std::vector<u8> bias_bytes = make_bias<typename BiasOf<Epi>::type>(s.n, bias);
  std::vector<float> out(static_cast<std::size_t>(2 * s.m * s.n), NAN);
  const gemm::Args args{x.operand(), w.operand(), out.data(), bias_bytes.empty() ? nullptr : bias_bytes.data(),
                        s.m,         0,           0};
  using Plan = gemm::Reference<X, W, Epi, true>;
  emu::run(launch_of(static_cast<Plan*>(nullptr), s), [&] { Plan::run(args, {s.n, k, 1.5f, 0}); });
  i64 wrong = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      double sum = 0, magnitude = 0;
      for (i64 l = 0; l < k; ++l) {
        const double product = static_cast<double>(x.exact[static_cast<std::size_t>(i * k + l)]) *
                               w.exact[static_cast<std::size_t>(j * k + l)];
        sum += product, magnitude += std::fabs(product);
      }
      const Expected e =
          expect<Epi>(sum, magnitude, 1.5 * static_cast<double>(x.global) * w.global, bias[static_cast<std::size_t>(j)],
                      k, 0, 1, gemm::table_rounding<W, gemm::element_of<X>>() * magnitude);
      wrong += !(std::fabs(out[static_cast<std::size_t>(i * s.n + j)] - e.y) <= 1e-3 * e.bound + 1e-6 * std::fabs(e.y));
      wrong += !(std::fabs(out[static_cast<std::size_t>((s.m + i) * s.n + j)] - e.bound) <= 5e-3 * e.bound);
    }
  CHECK(wrong == 0);
}
}  // namespace

TEST_CASE("reference: every pair of formats", "[gemm]") {
  SECTION("f32") { check_row<fmt::f32>(); }
  SECTION("f16") { check_row<fmt::f16>(); }
  SECTION("bf16") { check_row<fmt::bf16>(); }
  SECTION("q4_0") { check_row<fmt::q4_0>(); }
  SECTION("q4_k") { check_row<fmt::q4_k>(); }
  SECTION("q8_0") { check_row<fmt::q8_0>(); }
  SECTION("q8_1, quantized from f32") { check_quantized<fmt::f32>(); }
  SECTION("q8_1, quantized from f16") { check_quantized<fmt::f16>(); }
  SECTION("q8_1") { check_row<fmt::q8_1>(); }
  SECTION("nvfp4") { check_row<fmt::nvfp4>(); }
  SECTION("e4m3_row") { check_row<fmt::e4m3_row>(); }
  SECTION("zero points") {
    check_pair<fmt::int8_asym_row, fmt::int8_asym_row>();
    check_pair<fmt::int8_asym_row, fmt::q4_0>();
    check_pair<fmt::f16, fmt::int8_asym_row>();
  }
  SECTION("scales of blocks") {
    check_pair<fmt::e4m3_g128, fmt::e4m3_b128>();
    check_pair<fmt::f16, fmt::e4m3_b128>();
    check_pair<fmt::e4m3_g128, fmt::e4m3_g128>();
  }
}

TEST_CASE("reference: values and bounds as an oracle", "[gemm]") {
  check_oracle<fmt::f32, fmt::f32, PlainF32>(77);
  check_oracle<fmt::f16, fmt::q4_k, Epilogue<f16, float, Act::gelu>>(512);
  check_oracle<fmt::bf16, fmt::nvfp4, Epilogue<bf16, bf16, Act::silu>>(48);
  check_oracle<fmt::q8_1, fmt::q4_0, Epilogue<float, f16, Act::gelu_tanh>>(1024);
  check_oracle<fmt::e4m3_row, fmt::q8_0, Epilogue<float, NoBias, Act::relu>>(96);
  check_oracle<fmt::int8_asym_row, fmt::int8_asym_row, PlainF32>(99);
  // Entries of a table are rounded against x of 16 bits.
  check_oracle<fmt::f16, fmt::nf4, PlainF32>(192);
  check_oracle<fmt::bf16, fmt::nf4, Epilogue<bf16, float, Act::silu>>(128);
  check_oracle<fmt::f32, fmt::nf4, PlainF32>(128);
}
