// SPDX-License-Identifier: Apache-2.0
// Grouped gemms of coded weights, packed as tiles.
#include "emulator/gemm_grouped.h"
#include "formats/bf16.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_1.cuh"
#include "formats/uint4_g128.cuh"

using namespace gemm_test;

TEST_CASE("wgmma: groups of coded weights", "[gemm]") {
  SECTION("16-bit x, many tokens") {
    check_grouped<fmt::f16, fmt::q4_0, Epilogue<f16, float, Act::silu>, WgmmaKnobs{.block_m = 96, .cluster = 2}>();
    check_grouped<fmt::bf16, fmt::int4_g128, PlainF32, WgmmaKnobs{.block_m = 128, .panels = 2, .stages = 2}>();
    check_grouped<fmt::bf16, fmt::nvfp4, Epilogue<bf16, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 192, .cluster = 2, .async_store = true}>();
    check_grouped<fmt::f16, fmt::q4_k, Epilogue<f16, NoBias, Act::none>, WgmmaKnobs{.block_m = 96, .panels = 2}>();
  }
  SECTION("16-bit x, few tokens") {
    check_grouped<fmt::bf16, fmt::mxfp4, PlainF32, WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .panels = 2}>();
    check_grouped<fmt::bf16, fmt::uint4_g128, Epilogue<bf16, bf16, Act::none>,
                  WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
    check_grouped<fmt::f16, fmt::nvfp4, Epilogue<f16, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 16,
                             .warpgroups_n = 1,
                             .warpgroups_k = 2,
                             .panels = 2,
                             .stages = 2,
                             .cluster = 2,
                             .split_k = 2,
                             .warp_mma = true}>();
  }
  SECTION("8-bit x") {
    check_grouped<fmt::e4m3_row, fmt::int4_row, Epilogue<bf16, NoBias, Act::none>,
                  WgmmaKnobs{.block_m = 96, .panels = 2, .stages = 2, .cluster = 2}>();
    check_grouped<fmt::int8_row, fmt::int4_g128, PlainF32, WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2}>();
  }
  SECTION("E4M3 x that is widened") {
    check_grouped<fmt::e4m3_row, fmt::nvfp4, Epilogue<bf16, float, Act::silu>,
                  WgmmaKnobs{.block_m = 96, .panels = 2, .stages = 2, .cluster = 2}>();
    check_grouped<fmt::e4m3_row, fmt::q4_0, PlainF32,
                  WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
  SECTION("codes by codes") {
    check_grouped<fmt::q8_1, fmt::q4_0, PlainF32,
                  WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .panels = 2, .stages = 2, .warp_mma = true}>();
    check_grouped<fmt::q8_1, fmt::q4_k, Epilogue<bf16, float, Act::none>,
                  WgmmaKnobs{.block_m = 32, .warpgroups_n = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
  SECTION("many groups") {
    check_many_groups<fmt::bf16, fmt::nvfp4, PlainF32,
                      WgmmaKnobs{.block_m = 8, .warpgroups_n = 1, .panels = 4, .stages = 2, .warp_mma = true}>();
  }
}

namespace {
template <class X, class W>
void check_reference() {
  using Tiled = tile_element<X, W>;
  using Plan = gemm::Reference<X, W, PlainF32, false, Tiled, true>;
  const Groups groups = contiguous({3, 0, 6, 1, 5}, 1);
  check_groups<X, W, PlainF32, Tiled>(
      groups, 64, 512, 0, 0, [&](const gemm::Args& args, const gemm::Shape& shape, const Matrix<X>&, const Stack<W>&) {
        emu::run({{static_cast<u32>(groups.x_rows()), 1, 1}, 128, 1, 0, 0}, [&] {
          wait_prerequisite_grids();
          Plan::run(args, shape);
        });
      });
}
}  // namespace

TEST_CASE("reference: groups of tiles", "[gemm]") {
  check_reference<fmt::f16, fmt::q4_0>();
  check_reference<fmt::bf16, fmt::nvfp4>();
  check_reference<fmt::e4m3_row, fmt::int4_row>();
}
