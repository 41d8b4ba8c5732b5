// SPDX-License-Identifier: Apache-2.0
// Grouped gemms of plain operands, and the reference kernel's.
#include "emulator/gemm_grouped.h"
#include "formats/bf16.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_g128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e4m3_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/int8.cuh"
#include "formats/int8_asym_row.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q8_1.cuh"

using namespace gemm_test;

TEST_CASE("wgmma: groups of plain operands", "[gemm]") {
  SECTION("bf16") {
    check_grouped<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::silu>, WgmmaKnobs{.block_m = 128, .cluster = 2}>();
    check_grouped<fmt::bf16, fmt::bf16, PlainF32, WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2}>();
    check_grouped<fmt::bf16, fmt::bf16, Epilogue<bf16, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 192, .cluster = 2, .async_store = true}>();
  }
  SECTION("tokens are the 64-row side") {
    check_grouped<fmt::f16, fmt::f16, Epilogue<f16, float, Act::none>,
                  WgmmaKnobs{.block_m = 96, .cluster = 2, .swapped = true}>();
    check_grouped<fmt::bf16, fmt::bf16, Epilogue<bf16, float, Act::gelu>,
                  WgmmaKnobs{.block_m = 224, .stages = 2, .cluster = 2, .swapped = true, .async_store = true}>();
    check_grouped<fmt::e4m3_row, fmt::e4m3_row, PlainF32, WgmmaKnobs{.block_m = 96, .stages = 2, .swapped = true}>();
  }
  SECTION("fp8") {
    check_grouped<fmt::e4m3_row, fmt::e4m3_row, Epilogue<bf16, NoBias, Act::none>, WgmmaKnobs{.cluster = 2}>();
    check_grouped<fmt::e4m3_tensor, fmt::e4m3_tensor, Epilogue<bf16, f16, Act::none>,
                  WgmmaKnobs{.block_m = 96, .fast_accumulation = true}>();
    check_grouped<fmt::e4m3_tensor, fmt::e4m3_tensor, Epilogue<e4m3, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 96, .cluster = 2, .swapped = true, .fast_accumulation = true}>();
  }
  SECTION("fp8, x in groups of 128, w in blocks of 128 x 128") {
    check_grouped<fmt::e4m3_g128, fmt::e4m3_b128, Epilogue<bf16, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 128, .cluster = 2, .swapped = true}>();
    check_grouped<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32, WgmmaKnobs{.block_m = 16, .stages = 2, .cluster = 2}>();
  }
  SECTION("bytes") {
    check_grouped<fmt::int8, fmt::int8, Epilogue<i32, i32, Act::none>, WgmmaKnobs{.block_m = 64}>();
    check_grouped<fmt::int8_asym_row, fmt::int8_asym_row, Epilogue<f16, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 80, .cluster = 2}>();
  }
  SECTION("k is split") {
    check_grouped<fmt::bf16, fmt::bf16, Epilogue<bf16, bf16, Act::none>,
                  WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2, .cluster = 2, .split_k = 2}>();
    check_grouped<fmt::f16, fmt::f16, PlainF32,
                  WgmmaKnobs{.block_m = 40, .warpgroups_n = 1, .warpgroups_k = 2, .panels = 2, .stages = 2}>();
  }
  SECTION("many groups") {
    check_many_groups<fmt::bf16, fmt::bf16, PlainF32, WgmmaKnobs{.block_m = 8, .warpgroups_n = 1}>();
    check_many_groups<fmt::e4m3_row, fmt::e4m3_row, PlainF32, WgmmaKnobs{.block_m = 96, .swapped = true}>();
  }
}

namespace {
template <class X, class W, class Epi>
void check_reference() {
  using Plan = gemm::Reference<X, W, Epi, false, void, true>;
  constexpr i64 kUnit = std::lcm(X::kBlock, W::kBlock);
  const auto check = [](const Groups& groups, i64 n, i64 k, i64 pad, std::uint64_t seed) {
    check_groups<X, W, Epi, void>(
        groups, n, k, pad, seed,
        [&](const gemm::Args& args, const gemm::Shape& shape, const Matrix<X>&, const Stack<W>&) {
          const i64 blocks = groups.x_rows() * ceil_div64(n, 128);
          emu::run({{static_cast<u32>(blocks), 1, 1}, 128, 1, 0, seed}, [&] {
            wait_prerequisite_grids();  // as if launched behind the kernel that writes the rows
            Plan::run(args, shape);
          });
        });
  };
  std::uint64_t seed = 0;
  check(contiguous({3, 0, 6, 1, 0, 5}), 133, kUnit * 2, 0, seed++);
  check(contiguous({0, 9, 0}, 2), 64, kUnit, 256, seed++);
  check({true, 5, {5, 0, 1, -5, 1 << 30}}, 130, kUnit, 0, seed++);
  check({false, 17, {4, 2, 9, 1, -7, 11, 1 << 30, 3}}, 1, kUnit, 0, seed++);
}
}  // namespace

TEST_CASE("reference: groups", "[gemm]") {
  check_reference<fmt::bf16, fmt::bf16, Epilogue<float, float, Act::silu>>();
  check_reference<fmt::e4m3_row, fmt::e4m3_row, PlainF32>();
  check_reference<fmt::e4m3_g128, fmt::e4m3_b128, PlainF32>();
  check_reference<fmt::q8_1, fmt::q4_0, Epilogue<float, bf16, Act::none>>();
  check_reference<fmt::f16, fmt::nvfp4, PlainF32>();
}
