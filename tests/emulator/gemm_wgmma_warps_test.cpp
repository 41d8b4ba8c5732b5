// SPDX-License-Identifier: Apache-2.0
// Matrix instructions of single warps, where tiles leave scales and minima to sums (formats/shared/tiles.cuh,
// AfterMma): every number of tokens, long k, and what becomes of NaN and infinities.
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q2_k.cuh"
#include "formats/q3_k.cuh"
#include "formats/q4_1.cuh"
#include "formats/q4_k.cuh"
#include "formats/q5_1.cuh"
#include "formats/q6_k.cuh"
#include "formats/uint4_g128.cuh"
#include "formats/uint4_g32.cuh"

using namespace gemm_test;

namespace {

template <class X, class W, int BM, int STRIPS>
using Plan = gemm::WgmmaKernel<X, W, PlainF32,
                               Fixed<WgmmaKnobs{.block_m = BM,
                                                .strips = STRIPS,
                                                .warpgroups_n = 1,
                                                .warpgroups_k = 2,
                                                .panels = 8,
                                                .stages = 2,
                                                .warp_mma = true}>::value>;

// From one token to as many as a tile holds, and one more.
template <class X, class W, int BM, int STRIPS>
void check_tokens() {
  using P = Plan<X, W, BM, STRIPS>;
  const i64 step = std::lcm<i64>(P::kBlockK, W::kBlock);
  for (i64 m : {1, 2, BM / 2 + 1, BM, BM + 1})
    check_wgmma<P, X, W, PlainF32>({m, P::kBlockN + 64, step * (m == 1 ? 16 : 1), 0, 0}, 4,
                                   static_cast<std::uint64_t>(m));
}
template <class X, class W>
void check_tokens() {
  check_tokens<X, W, 1, 1>();
  check_tokens<X, W, 8, 1>();
  check_tokens<X, W, 16, 2>();
}

// Tokens with a NaN, an infinity; rows of w that are zero, or with a NaN for a scale, the half at byte `at` of a block.
template <class X, class W, int at, bool in_scales = false>
void check_special() {
  using P = Plan<X, W, 8, 1>;
  using Element = typename X::Element;
  const Size s{5, 64, 1024, 0, 0};
  const auto run = [&](bool special) {
    Matrix<X> x(s.m, s.k, s.k, 5);
    Matrix<W> w(s.n, s.k, s.k, 6);
    if (special) {
      const auto put = [&](i64 row, i64 k, float v) {
        reinterpret_cast<Element*>(x.data.data())[row * s.k + k] = from_f32<Element>(v);
      };
      put(1, 300, NAN), put(2, 77, INFINITY), put(3, 1023, -INFINITY);
      const i64 blocks = s.k / W::kBlock;
      const float zeros[W::kBlock] = {};
      for (i64 b = 9 * blocks; b < 10 * blocks; ++b)
        W::encode(zeros, &w.data[static_cast<std::size_t>(b * W::kDataBytes)], w.scales.data() + b * W::kScaleBytes,
                  1.0f, 0);
      u8* block = in_scales ? &w.scales[static_cast<std::size_t>((20 * blocks + 1) * W::kScaleBytes)]
                            : &w.data[static_cast<std::size_t>((20 * blocks + 1) * W::kDataBytes)];
      fmt::write16(block + at, 0x7e00);
    }
    Output<X, W, PlainF32> out(s, 0);
    Tiles<W> tiles = pack<W, Element>(w);
    launch_wgmma<P>(out.args(x.operand(), {tiles.data.data(), tiles.scales.data(), nullptr}), out.shape, x, w, 1, 0);
    return out.y;
  };
  const auto plain = run(false), special = run(true);
  i64 wrong = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      const auto cell = static_cast<std::size_t>(i * s.n + j);
      const float y = special[cell];
      if (i == 1 || j == 20)
        wrong += !std::isnan(y);
      else if (i == 2 || i == 3)
        wrong += std::isfinite(y);
      else if (j == 9)
        wrong += !(y == 0);
      else
        wrong += !(y == plain[cell]);
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("wgmma: scales and minima of sums", "[gemm]") {
  SECTION("q4_1") { check_tokens<fmt::bf16, fmt::q4_1>(); }
  SECTION("q5_1") { check_tokens<fmt::bf16, fmt::q5_1>(); }
  SECTION("q4_k") { check_tokens<fmt::bf16, fmt::q4_k>(); }
  SECTION("q2_k") { check_tokens<fmt::bf16, fmt::q2_k>(); }
  SECTION("q3_k") { check_tokens<fmt::bf16, fmt::q3_k>(); }
  SECTION("q6_k") { check_tokens<fmt::bf16, fmt::q6_k>(); }
  SECTION("nvfp4") { check_tokens<fmt::bf16, fmt::nvfp4>(); }
  SECTION("uint4_g128") { check_tokens<fmt::bf16, fmt::uint4_g128>(); }
  SECTION("uint4_g32") { check_tokens<fmt::bf16, fmt::uint4_g32>(); }
}

TEST_CASE("wgmma: NaN and infinities in what scales and minima apply to", "[gemm]") {
  check_special<fmt::bf16, fmt::q4_1, 0>();
  check_special<fmt::bf16, fmt::q4_k, 2>();
  check_special<fmt::bf16, fmt::q2_k, 80>();
  check_special<fmt::bf16, fmt::q6_k, 208>();
  check_special<fmt::bf16, fmt::uint4_g128, 2, true>();
}
