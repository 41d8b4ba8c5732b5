// SPDX-License-Identifier: Apache-2.0
// x that arrives as floats and is quantized by the kernel: against the oracle, and byte by byte against the same kernel
// on what a cast would have written.
#include "emulator/gemm_gemv_test.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"

using namespace gemm_test;

namespace {

template <class X, class W, class Plan>
std::vector<float> product(const Matrix<W>& w, Operand x, Size s, i64 ldx) {
  std::vector<float> y(static_cast<std::size_t>(s.m * s.n), -1.0f);
  const gemm::Args args{x, w.operand(), y.data(), nullptr, s.m, ldx, 0};
  const gemm::Shape shape{s.n, s.k, 1.0f, 0};
  emu::Launch launch = launch_of(static_cast<Plan*>(nullptr), s);
  launch.seed = 5;
  emu::run(launch, [&] { Plan::run(args, shape); });
  return y;
}

// Floats of every size, some blocks of nothing but zero; rows `pad` elements further apart.
template <class From, class W, gemm::GemvKnobs knobs>
void check_bytes(Size s, i64 pad) {
  using F = fmt::q8_1;
  using X = fmt::Quantized<F, From>;
  const i64 ld = s.k + pad;
  std::vector<u8> floats(static_cast<std::size_t>(s.m * ld * From::kDataBytes), 0xff),
      blocks(static_cast<std::size_t>(s.m * s.k / 32 * 36));
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (i64 m = 0; m < s.m; ++m)
    for (i64 b = 0; b < s.k / 32; ++b) {
      float x[32];
      const float size = b % 5 == 4 ? 0.0f : std::ldexp(1.0f, static_cast<int>(random() % 20) - 12);
      for (int i = 0; i < 32; ++i) {
        u8* at = &floats[static_cast<std::size_t>((m * ld + 32 * b + i) * From::kDataBytes)];
        const float v = normal(random) * size;
        From::encode(&v, at, nullptr, 1.0f, 0);
        x[i] = From::decode(at, nullptr, 1.0f, 0);
      }
      F::encode(x, &blocks[static_cast<std::size_t>((m * s.k / 32 + b) * 36)], nullptr, 1.0f, 0);
    }
  const Matrix<W> w(s.n, s.k, s.k, 9);
  const auto one = product<X, W, gemm::Gemv<X, W, PlainF32, Fixed<knobs>::value>>(w, {floats.data(), nullptr, nullptr},
                                                                                  s, pad ? ld : 0);
  const auto two =
      product<F, W, gemm::Gemv<F, W, PlainF32, Fixed<knobs>::value>>(w, {blocks.data(), nullptr, nullptr}, s, 0);
  CHECK(std::memcmp(one.data(), two.data(), one.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("gemv: x quantized by the kernel", "[gemm]") {
  SECTION("f32, q4_0") { check_gemv_knobs<fmt::Quantized<fmt::q8_1, fmt::f32>, fmt::q4_0, 32, 256>(); }
  SECTION("f16, q4_k") { check_gemv_knobs<fmt::Quantized<fmt::q8_1, fmt::f16>, fmt::q4_k, 64, 256>(); }
  SECTION("bf16, q8_0") { check_gemv_knobs<fmt::Quantized<fmt::q8_1, fmt::bf16>, fmt::q8_0, 32, 128>(); }
  SECTION("f32, nvfp4") { check_gemv_knobs<fmt::Quantized<fmt::q8_1, fmt::f32>, fmt::nvfp4, 32, 256>(); }
}

TEST_CASE("gemv: x quantized by the kernel has the bytes that a cast writes", "[gemm]") {
  using Knobs = gemm::GemvKnobs;
  SECTION("one token, several pieces of k") {
    check_bytes<fmt::f32, fmt::q4_0, Knobs{.unit = 32, .lanes = 4, .staged_k = 256}>({1, 50, 1056}, 0);
  }
  SECTION("rows apart") {
    check_bytes<fmt::f16, fmt::q4_k, Knobs{.tokens = 2, .unit = 64, .lanes = 8, .staged_k = 512}>({3, 50, 1280}, 8);
  }
  SECTION("more tokens than one block has") {
    check_bytes<fmt::bf16, fmt::q8_0, Knobs{.tokens = 4, .unit = 32, .warps_k = 2, .staged_k = 4096}>({6, 9, 2080}, 16);
  }
  SECTION("f32, rows four elements apart") {
    check_bytes<fmt::f32, fmt::q8_0, Knobs{.tokens = 8, .unit = 32, .lanes = 8, .staged_k = 256}>({9, 50, 544}, 4);
  }
}
