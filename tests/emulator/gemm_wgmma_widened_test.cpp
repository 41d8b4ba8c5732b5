// SPDX-License-Identifier: Apache-2.0
// The warpgroup kernel where x is E4M3 and w's tiles are for 16-bit floats, as which the producer writes x into the
// ring: its knobs on a few formats, and every E4M3. (Every format's tiles, once: format_test.cpp.in.)
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e4m3_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"

using namespace gemm_test;

namespace {

using Brain = Epilogue<bf16, NoBias, Act::none>;
using Residual = Epilogue<bf16, float, Act::silu, bf16>;

// Warpgroups and single warps; blocks along k.
template <class X, class W>
void check_widened() {
  check_warpgroups<X, W, Brain, WgmmaKnobs{.warpgroups_n = 1}>();
  check_warpgroups<X, W, Brain, WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
  check_warpgroups<
      X, W, PlainF32,
      WgmmaKnobs{
          .block_m = 16, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 4, .stages = 2, .cluster = 2, .split_k = 2}>();
}

// A row of x for each E4M3, which stands alone among zeros; w of codes and scales at the ends of their ranges. Products
// are exact, so each sum is one of them; a NaN makes its row NaN and no other.
template <class W, WgmmaKnobs knobs>
void check_every_e4m3() {
  using X = fmt::e4m3_row;
  using Plan = gemm::WgmmaKernel<X, W, PlainF32, Fixed<knobs>::value>;
  const Size s{256, Plan::kBlockN, Plan::kBlockK, 0, 0};
  Matrix<X> x(s.m, s.k, s.k, 1);
  Matrix<W> w(s.n, s.k, s.k, 2);
  std::fill(x.data.begin(), x.data.end(), u8{0});
  for (std::size_t i = 0; i < 256; ++i) {
    x.data[i * static_cast<std::size_t>(s.k) + i * 37 % static_cast<std::size_t>(s.k)] = static_cast<u8>(i);
    const float scale = i % 3 == 0 ? 1e-10f : i % 3 == 1 ? 1.0f : 1e10f;
    std::memcpy(&x.scales[4 * i], &scale, 4);
  }
  for (std::size_t i = 0; i < w.data.size(); ++i) w.data[i] = static_cast<u8>(i * 41 + i / 256);
  constexpr u8 kScales[] = {0x01, 0x07, 0x08, 0x38, 0x7e};  // the least, the last subnormal, the first normal, 1, 448
  for (std::size_t i = 0; i < w.scales.size(); ++i)
    w.scales[i] = same<W, fmt::nvfp4>() ? kScales[i % 5] : static_cast<u8>(i % 3 == 0 ? 67 : 107 + i % 40);
  w.global = 1;
  Output<X, W, PlainF32> out(s, 0);
  const Tiles<W> tiles = pack<W, tile_element<X, W>>(w);
  launch_wgmma<Plan>(out.args(x.operand(), {tiles.data.data(), tiles.scales.data(), &w.global}), out.shape, x, w, 4, 0);
  i64 wrong = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      const i64 k = i * 37 % s.k;
      const auto code = static_cast<u8>(i);
      const i64 block = (j * s.k + k) / W::kBlock;
      const double weight =
          W::decode(&w.data[static_cast<std::size_t>(block * W::kDataBytes)],
                    &w.scales[static_cast<std::size_t>(block * W::kScaleBytes)], 1.0f, static_cast<int>(k % W::kBlock));
      const float row = i % 3 == 0 ? 1e-10f : i % 3 == 1 ? 1.0f : 1e10f;
      const double exact = out.factor() * static_cast<double>(row) * e4m3_to_f32(code) * weight;
      const float y = out.y[static_cast<std::size_t>(i * s.n + j)];
      wrong += std::isnan(exact) ? !std::isnan(y) : !(std::fabs(y - exact) <= 1e-6 * std::fabs(exact));
    }
  CHECK(wrong == 0);
}

// How alike y is to the exact product where weights are rounded: the cosine of the angle between them.
double cosine_of_narrowed() {
  using X = fmt::e4m3_row;
  using W = fmt::nvfp4;
  using Plan = gemm::WgmmaKernel<X, W, PlainF32,
                                 Fixed<WgmmaKnobs{.block_m = 64, .warpgroups_n = 1, .fast_accumulation = true}>::value>;
  const Size s{64, 192, 1024, 0, 0};
  const Matrix<X> x(s.m, s.k, s.k, 1);
  const Matrix<W> w(s.n, s.k, s.k, 2);
  Output<X, W, PlainF32> out(s, 0);
  const Tiles<W> tiles = pack<W, f16>(w);
  launch_wgmma<Plan>(out.args(x.operand(), {tiles.data.data(), tiles.scales.data(), &w.global}), out.shape, x, w, 4, 0);
  double both = 0, first = 0, second = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      double exact = 0;
      for (i64 k = 0; k < s.k; ++k)
        exact += static_cast<double>(x.exact[static_cast<std::size_t>(i * s.k + k)]) *
                 w.exact[static_cast<std::size_t>(j * s.k + k)];
      exact *= out.factor() * w.global;
      const double y = out.y[static_cast<std::size_t>(i * s.n + j)];
      both += exact * y, first += exact * exact, second += y * y;
    }
  return both / std::sqrt(first * second);
}

// What the oracle allows such a kernel, and no other.
void check_oracle_of_narrowed() {
  using X = fmt::e4m3_row;
  using W = fmt::nvfp4;
  using Oracle = gemm::Reference<X, W, PlainF32, true, f16>;
  const Size s{3, 64, 256, 0, 0};
  const Matrix<X> x(s.m, s.k, s.k, 1);
  const Matrix<W> w(s.n, s.k, s.k, 2);
  const Tiles<W> tiles = pack<W, f16>(w);
  const Operand operand{tiles.data.data(), tiles.scales.data(), &w.global};
  const auto cells = static_cast<std::size_t>(s.m * s.n);
  std::vector<float> full(2 * cells), fast(2 * cells);
  for (const bool is_fast : {false, true}) {
    gemm::Shape shape{s.n, s.k, 1, 0};
    shape.fast = is_fast;
    gemm::Args args{x.operand(), operand, (is_fast ? fast : full).data(), nullptr, s.m, 0, 0};
    emu::run({{1, 1, 1}, 128, 1, 0, 0}, [&] { Oracle::run(args, shape); });
  }
  i64 wrong = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      double more = 0;
      for (i64 k = 0; k < s.k; ++k) {
        const double a = std::fabs(static_cast<double>(x.exact[static_cast<std::size_t>(i * s.k + k)])),
                     b = std::fabs(static_cast<double>(w.exact[static_cast<std::size_t>(j * s.k + k)]));
        more += a * (b / 16 + 1.0 / 128) + a * b * gemm::cut_of(true, true, s.k);
      }
      const auto at = static_cast<std::size_t>(i * s.n + j);
      wrong += fast[at] != full[at];
      wrong += !(std::fabs(fast[cells + at] - full[cells + at] - 1.2 * more * w.global) <= 1e-5 * fast[cells + at]);
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("wgmma: every E4M3 is widened exactly", "[gemm]") {
  check_every_e4m3<fmt::nvfp4, WgmmaKnobs{.warpgroups_n = 1, .panels = 2}>();
  check_every_e4m3<fmt::nvfp4, WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
  check_every_e4m3<fmt::mxfp4, WgmmaKnobs{.warpgroups_n = 1, .panels = 2}>();
  check_every_e4m3<fmt::mxfp4, WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
}

TEST_CASE("wgmma: E4M3 against tiles for 16-bit floats", "[gemm]") {
  SECTION("nvfp4") { check_widened<fmt::e4m3_row, fmt::nvfp4>(); }
  SECTION("q4_0") { check_widened<fmt::e4m3_row, fmt::q4_0>(); }
  SECTION("q8_0") { check_widened<fmt::e4m3, fmt::q8_0>(); }
  SECTION("mxfp4") { check_widened<fmt::e4m3_row, fmt::mxfp4>(); }
}

TEST_CASE("wgmma: E4M3 against tiles for 16-bit floats, many tokens", "[gemm]") {
  SECTION("registers are handed over") {
    check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain, WgmmaKnobs{.block_m = 192, .panels = 2, .stages = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::q4_0, Residual, WgmmaKnobs{.block_m = 96, .strips = 2, .stages = 2}>();
  }
  SECTION("three warpgroups") {
    check_warpgroups<fmt::e4m3_tensor, fmt::mxfp4, Brain, WgmmaKnobs{.block_m = 72, .warpgroups_n = 3}>();
  }
  SECTION("the last wave") {
    check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain,
                     WgmmaKnobs{.block_m = 80, .cluster = 2, .schedule = Schedule::split_last_wave}>();
    check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain,
                     WgmmaKnobs{
                         .block_m = 80, .panels = 2, .stages = 2, .cluster = 2, .schedule = Schedule::stream_k}>();
  }
}

TEST_CASE("wgmma: E4M3 against tiles for 16-bit floats, few tokens", "[gemm]") {
  SECTION("one") {
    check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain,
                     WgmmaKnobs{.block_m = 1, .warpgroups_n = 1, .panels = 4, .warp_mma = true}>();
    check_warpgroups<fmt::e4m3, fmt::q4_0, Residual,
                     WgmmaKnobs{.block_m = 1,
                                .strips = 2,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 8,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2,
                                .warp_mma = true}>();
  }
  SECTION("tiles from a queue") {
    check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain,
                     WgmmaKnobs{.block_m = 1,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .stages = 2,
                                .warp_mma = true,
                                .schedule = Schedule::queue}>();
    using Plan = gemm::WgmmaKernel<fmt::e4m3_row, fmt::q4_0, Brain,
                                   Fixed<WgmmaKnobs{.block_m = 16,
                                                    .warpgroups_n = 1,
                                                    .panels = 4,
                                                    .stages = 2,
                                                    .warp_mma = true,
                                                    .schedule = Schedule::queue}>::value>;
    for (std::uint64_t seed = 300; seed < 320; ++seed)
      check_wgmma<Plan, fmt::e4m3_row, fmt::q4_0, Brain>(
          {15, 9 * Plan::kBlockN, 256 * static_cast<i64>(1 + seed % 3), 0, 0}, 4, seed);
  }
  SECTION("Stream-K") {
    check_warpgroups<fmt::e4m3_row, fmt::q4_k, Brain,
                     WgmmaKnobs{.block_m = 8,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 4,
                                .warp_mma = true,
                                .schedule = Schedule::stream_k}>();
    check_warpgroups<fmt::e4m3_row, fmt::q4_0, Brain,
                     WgmmaKnobs{.block_m = 32, .panels = 2, .stages = 2, .schedule = Schedule::stream_k}>();
  }
}

TEST_CASE("wgmma: nvfp4 rounded to E4M3 where accumulation is fast", "[gemm]") {
  const double cosine = cosine_of_narrowed();
  CHECK(cosine > 0.9996);
  CHECK(cosine < 0.99999);  // of the exact kernel's
  check_oracle_of_narrowed();
  check_warpgroups<fmt::e4m3_row, fmt::nvfp4, PlainF32, WgmmaKnobs{.warpgroups_n = 1, .fast_accumulation = true}>();
  check_warpgroups<fmt::e4m3, fmt::nvfp4, Brain,
                   WgmmaKnobs{.block_m = 96,
                              .panels = 2,
                              .stages = 2,
                              .cluster = 2,
                              .schedule = Schedule::stream_k,
                              .fast_accumulation = true}>();
  check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Residual,
                   WgmmaKnobs{.strips = 2, .stages = 2, .cluster = 2, .fast_accumulation = true}>();
}
