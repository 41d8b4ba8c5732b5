// SPDX-License-Identifier: Apache-2.0
// Operands without scales, residuals (in place every other time), and outputs that are integers or have a scale,
// through every family; then what becomes of NaN and infinities.
#include <limits>

#include "emulator/gemm_gemv_test.h"
#include "emulator/gemm_mma_test.h"
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e4m3_tensor.cuh"
#include "formats/e5m2.cuh"
#include "formats/e5m2_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"
#include "formats/int8_tensor.cuh"
#include "formats/q4_0.cuh"

using namespace gemm_test;

namespace {

using ToI8 = Epilogue<i8, float, Act::silu, f16>;
using ToE4m3 = Epilogue<e4m3, NoBias, Act::none>;
using ToE5m2 = Epilogue<e5m2, bf16, Act::relu, float>;
using ToI32 = Epilogue<i32, NoBias, Act::none>;
using ToI32Biased = Epilogue<i32, i32, Act::none>;
using InPlaceF16 = Epilogue<f16, NoBias, Act::none, f16>;
using InPlaceF32 = Epilogue<float, float, Act::gelu, float>;

}  // namespace

TEST_CASE("gemv: epilogues and operands without scales", "[gemm]") {
  SECTION("outputs") {
    check_gemv<fmt::f16, fmt::f16, ToI8, gemm::GemvKnobs{.depth = 2, .staged_k = 1}>();
    check_gemv<fmt::f16, fmt::q4_0, ToE4m3,
               gemm::GemvKnobs{.tokens = 2, .unit = 32, .lanes = 8, .rows = 2, .staged_k = 1, .split_k = 2}>();
    check_gemv<fmt::bf16, fmt::bf16, ToE5m2,
               gemm::GemvKnobs{.tokens = 4, .warps_k = 4, .rows = 4, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::f16, fmt::f16, InPlaceF16,
               gemm::GemvKnobs{.tokens = 2, .warps_k = 2, .rows = 4, .depth = 2, .staged_k = 1, .split_k = 2}>();
    check_gemv<fmt::f32, fmt::f32, InPlaceF32,
               gemm::GemvKnobs{.tokens = 8, .unit = 4, .rows = 2, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none, bf16>,
               gemm::GemvKnobs{.depth = 2, .staged_k = 1}>();
  }
  SECTION("operands") {
    check_gemv<fmt::int8, fmt::int8, ToI32, gemm::GemvKnobs{.unit = 16, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::int8, fmt::int8, ToI32Biased,
               gemm::GemvKnobs{
                   .tokens = 4, .unit = 2, .warps_k = 2, .rows = 2, .depth = 2, .staged_k = 1, .split_k = 2}>();
    check_gemv<fmt::int8, fmt::int8, Epilogue<bf16, NoBias, Act::none>,
               gemm::GemvKnobs{.tokens = 2, .unit = 4, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::e4m3, fmt::e4m3, PlainF32,
               gemm::GemvKnobs{.unit = 16, .warps_k = 2, .rows = 4, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::e5m2, fmt::e4m3, PlainF32, gemm::GemvKnobs{.tokens = 2, .unit = 2, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::f16, fmt::e4m3, PlainF32, gemm::GemvKnobs{.tokens = 4, .depth = 2, .staged_k = 1}>();
    check_gemv<fmt::e4m3, fmt::q4_0, PlainF32, gemm::GemvKnobs{.tokens = 2, .unit = 64, .lanes = 8, .staged_k = 1}>();
    check_gemv<fmt::int8_tensor, fmt::int8_tensor, PlainF32, gemm::GemvKnobs{.tokens = 2, .depth = 2, .staged_k = 1}>();
  }
}

TEST_CASE("mma: epilogues and operands without scales", "[gemm]") {
  SECTION("outputs") {
    check_mma<fmt::f16, fmt::f16, ToI8, copied(tile(16, 64, 64, 1, 4), 3)>();
    check_mma<fmt::f16, fmt::q4_0, ToE4m3, coded(tile(32, 64, 64, 1, 4), 32, 2)>();
    check_mma<fmt::bf16, fmt::bf16, ToE5m2, loaded(tile(16, 64, 32, 1, 4), 2, 2)>();
    check_mma<fmt::f16, fmt::f16, InPlaceF16, copied(tile(32, 64, 64, 1, 4), 3, 4)>();
    check_mma<fmt::f16, fmt::f16, InPlaceF32, copied(tile(16, 64, 64, 1, 4), 3)>();
  }
  SECTION("operands") {
    check_mma<fmt::int8, fmt::int8, ToI32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
    check_mma<fmt::int8, fmt::int8, ToI32Biased, copied_bytes(tile(32, 64, 128, 1, 4), 3, 2)>();
    check_mma<fmt::int8, fmt::int8, Epilogue<bf16, float, Act::relu>, loaded(tile(64, 64, 64, 2, 2), 3, 8)>();
    check_mma<fmt::e4m3, fmt::e4m3, PlainF32, copied_bytes(tile(16, 64, 128, 1, 4), 3, 4)>();
    check_mma<fmt::e5m2, fmt::e5m2, Epilogue<f16, NoBias, Act::none>, loaded(tile(32, 64, 64, 1, 4), 2, 4)>();
    check_mma<fmt::e5m2, fmt::e4m3_row, PlainF32, loaded(tile(32, 64, 64, 1, 4), 2, 4)>();
    check_mma<fmt::e4m3_row, fmt::e5m2_tensor, Epilogue<bf16, NoBias, Act::none>,
              copied_bytes(tile(16, 64, 64, 1, 4), 3)>();
  }
}

TEST_CASE("wgmma: epilogues and operands without scales", "[gemm]") {
  SECTION("outputs") {
    check_warpgroups<fmt::f16, fmt::f16, ToI8, WgmmaKnobs{}>();
    check_warpgroups<fmt::bf16, fmt::bf16, ToE5m2,
                     WgmmaKnobs{
                         .block_m = 16, .warpgroups_n = 1, .panels = 2, .stages = 2, .cluster = 2, .split_k = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, InPlaceF16, WgmmaKnobs{.cluster = 2}>();
    check_warpgroups<
        fmt::f16, fmt::f16, InPlaceF16,
        WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 2, .cluster = 2, .split_k = 2}>();
    check_warpgroups<fmt::f16, fmt::q4_0, InPlaceF32, WgmmaKnobs{.block_m = 16, .panels = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, ToE4m3,
                     WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .panels = 2, .stages = 2}>();
  }
  SECTION("chunks of tokens: each size of y beside each of c, over 32, 16 and 8 tokens") {
    check_warpgroups<fmt::f16, fmt::f16, ToE4m3, WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, ToE5m2, WgmmaKnobs{.block_m = 8, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, ToI8, WgmmaKnobs{.block_m = 80, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_row, ToI8, WgmmaKnobs{.strips = 2, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, InPlaceF16,
                     WgmmaKnobs{.block_m = 32, .strips = 2, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, InPlaceF16, WgmmaKnobs{.block_m = 48, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, InPlaceF16, WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, InPlaceF32,
                     WgmmaKnobs{.block_m = 32, .strips = 2, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, InPlaceF32, WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<f16, NoBias, Act::none, float>,
                     WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .stages = 2}>();
    check_warpgroups<fmt::f16, fmt::f16, Epilogue<float, NoBias, Act::none, bf16>,
                     WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .stages = 2}>();
  }
  SECTION("the sides changed places") {
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, ToE4m3,
                     WgmmaKnobs{.warpgroups_n = 1, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, ToI8,
                     WgmmaKnobs{.strips = 2, .warpgroups_n = 1, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, ToE5m2,
                     WgmmaKnobs{.block_m = 128, .warpgroups_n = 1, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, InPlaceF16,
                     WgmmaKnobs{.block_m = 128, .strips = 2, .warpgroups_n = 1, .stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_row, fmt::e4m3_b128, InPlaceF32, WgmmaKnobs{.stages = 2, .swapped = true}>();
    check_warpgroups<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<f16, NoBias, Act::none, float>,
                     WgmmaKnobs{.warpgroups_n = 1, .stages = 2, .swapped = true}>();
  }
  SECTION("operands") {
    check_warpgroups<fmt::int8, fmt::int8, ToI32, WgmmaKnobs{.warpgroups_n = 1}>();
    check_warpgroups<fmt::int8, fmt::int8, ToI32Biased,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 2,
                                .stages = 2,
                                .cluster = 2,
                                .split_k = 2}>();
    check_warpgroups<fmt::int8, fmt::int8, Epilogue<bf16, NoBias, Act::none>, WgmmaKnobs{.block_m = 32}>();
    check_warpgroups<fmt::int8_row, fmt::int8, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 32, .warpgroups_n = 1}>();
    check_warpgroups<fmt::e4m3, fmt::e4m3, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 32, .warpgroups_n = 1}>();
    check_warpgroups<fmt::e4m3, fmt::e4m3_tensor, ToI8,
                     WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2, .stages = 2}>();
    check_warpgroups<fmt::e4m3, fmt::e4m3_row, PlainF32,
                     WgmmaKnobs{
                         .block_m = 16, .warpgroups_n = 1, .panels = 2, .stages = 2, .fast_accumulation = true}>();
    check_warpgroups<fmt::e5m2, fmt::e5m2, Epilogue<f16, NoBias, Act::none>, WgmmaKnobs{.cluster = 2}>();
    check_warpgroups<fmt::e5m2, fmt::e5m2, PlainF32,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 2,
                                .stages = 2,
                                .fast_accumulation = true}>();
    check_warpgroups<fmt::e5m2, fmt::e4m3_row, PlainF32, WgmmaKnobs{.block_m = 32, .warpgroups_n = 1}>();
    check_warpgroups<fmt::e4m3_row, fmt::e5m2_tensor, Epilogue<bf16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 16,
                                .warpgroups_n = 1,
                                .warpgroups_k = 2,
                                .panels = 2,
                                .stages = 2,
                                .fast_accumulation = true}>();
    check_warpgroups<fmt::int8, fmt::int4_row, Epilogue<f16, NoBias, Act::none>,
                     WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2}>();
  }
}

TEST_CASE("reference: epilogues and operands without scales", "[gemm]") {
  const auto run = []<class X, class W, class Epi>(X*, W*, Epi*) {
    constexpr i64 kUnit = std::lcm(X::kBlock, W::kBlock);
    for (std::uint64_t seed = 0; const i64 m : kRagged)
      check<gemm::Reference<X, W, Epi, false>, X, W, Epi>({m, m % 2 ? 130 : 1, kUnit * (7 * m % 5 + 1), 0, m % 2 * 3},
                                                          seed++);
  };
  const auto pair = [&]<class X, class W>(X* x, W* w) {
    run(x, w, static_cast<ToI8*>(nullptr)), run(x, w, static_cast<ToE4m3*>(nullptr));
    run(x, w, static_cast<ToE5m2*>(nullptr)), run(x, w, static_cast<InPlaceF16*>(nullptr));
  };
  const auto of = []<class T>() { return static_cast<T*>(nullptr); };
  pair(of.operator()<fmt::f16>(), of.operator()<fmt::q4_0>());
  pair(of.operator()<fmt::e4m3>(), of.operator()<fmt::e5m2>());
  pair(of.operator()<fmt::int8>(), of.operator()<fmt::int8>());
  run(of.operator()<fmt::int8>(), of.operator()<fmt::int8>(), of.operator()<ToI32Biased>());
}

namespace {

// The oracle's value and bound, on the same operands that `launch` computes y of: rows of x are ordinary, NaN,
// infinite.
template <class Epi, class Launch>
void check_special(const Launch& launch) {
  using Y = typename Epi::Out;
  using F = fmt::f16;
  const Size s{6, 72, 64};
  Matrix<F> x(s.m, s.k, s.k, 3), w(s.n, s.k, s.k, 4);
  const auto put = [](Matrix<F>& to, i64 row, i64 column, float v) {
    const f16 h = from_f32<f16>(v);
    std::memcpy(&to.data[static_cast<std::size_t>((row * to.ld + column) * 2)], &h, 2);
  };
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (i64 j = 0; j < s.n; ++j) put(w, j, 0, 1.0f);
  put(x, 1, 0, nan), put(x, 2, 0, inf), put(x, 3, 0, -inf);
  Output<F, F, Epi> out(s, 2);
  CHECK(out.factor() < 0);
  if constexpr (Epi::kC) {
    CHECK(out.shape.beta * out.beta < 0);
    out.c[static_cast<std::size_t>(4 * out.ldc + 5)] = from_f32<typename Epi::Residual>(nan);
    out.c[static_cast<std::size_t>(4 * out.ldc + 6)] = from_f32<typename Epi::Residual>(-inf);
  }
  launch(out.args(x.operand(), w.operand()), out.shape, x, w);
  std::vector<float> oracle(static_cast<std::size_t>(2 * s.m * s.n));
  gemm::Args asked = out.args(x.operand(), w.operand());
  asked.y = oracle.data();
  using Plan = gemm::Reference<F, F, Epi, true>;
  emu::run(launch_of(static_cast<Plan*>(nullptr), s), [&] { Plan::run(asked, out.shape); });
  constexpr gemm::StoreError store = gemm::store_error<Y>();
  const double most = store.most > 0 ? store.most : INFINITY, least = store.least < 0 ? store.least : -INFINITY;
  i64 wrong = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      const double got = value_of(out.y[static_cast<std::size_t>(i * s.n + j)]);
      const double value = oracle[static_cast<std::size_t>(i * s.n + j)],
                   bound = oracle[static_cast<std::size_t>((s.m + i) * s.n + j)];
      const bool is_nan = i == 1 || (Epi::kC && i == 4 && j == 5),
                 is_inf = i == 2 || i == 3 || (Epi::kC && i == 4 && j == 6);
      if (is_nan)
        wrong += same<Y, i8>() ? !(got == 0 && value == 0) : !(std::isnan(got) && std::isnan(value));
      else if (is_inf)
        wrong += !(got == (i == 2 ? least : most)) + !(value == got);  // alpha is negative, and so is beta
      else
        wrong += !(std::fabs(got - value) <= bound) || !std::isfinite(bound);
    }
  CHECK(wrong == 0);
}

template <class Epi>
void check_special_everywhere() {
  const auto of = [](auto* plan, const gemm::Args& args, const gemm::Shape& shape) {
    using Plan = std::remove_pointer_t<decltype(plan)>;
    emu::run(launch_of(plan, {args.m, shape.n, shape.k}), [&] { Plan::run(args, shape); });
  };
  check_special<Epi>([&](const gemm::Args& args, const gemm::Shape& shape, const auto&, const auto&) {
    of(static_cast<gemm::Gemv<fmt::f16, fmt::f16, Epi,
                              Fixed<gemm::GemvKnobs{.tokens = 2, .depth = 2, .staged_k = 512}>::value>*>(nullptr),
       args, shape);
  });
  check_special<Epi>([&](const gemm::Args& args, const gemm::Shape& shape, const auto&, const auto&) {
    of(static_cast<gemm::Mma<fmt::f16, fmt::f16, Epi,
                             Fixed<gemm::MmaKnobs{.block_m = 16, .warps_m = 1, .warps_n = 4}>::value>*>(nullptr),
       args, shape);
  });
  check_special<Epi>([&](const gemm::Args& args, const gemm::Shape& shape, const auto& x, const auto& w) {
    launch_wgmma<gemm::WgmmaKernel<fmt::f16, fmt::f16, Epi, Fixed<WgmmaKnobs{.block_m = 8, .warpgroups_n = 1}>::value>>(
        args, shape, x, w, 2, 1);
  });
  check_special<Epi>([&](const gemm::Args& args, const gemm::Shape& shape, const auto&, const auto&) {
    of(static_cast<gemm::Reference<fmt::f16, fmt::f16, Epi, false>*>(nullptr), args, shape);
  });
}

}  // namespace

TEST_CASE("wgmma, and every other family: NaN and infinities", "[gemm]") {
  check_special_everywhere<Epilogue<float, NoBias, Act::none>>();
  check_special_everywhere<InPlaceF16>();
  check_special_everywhere<Epilogue<i8, NoBias, Act::none, f16>>();
  check_special_everywhere<Epilogue<e4m3, NoBias, Act::none, float>>();
  check_special_everywhere<Epilogue<e5m2, NoBias, Act::none, bf16>>();
}
