// SPDX-License-Identifier: Apache-2.0
// The warpgroup kernel on weights in tiles: its knobs on a few formats. (Every format's tiles, once:
// format_test.cpp.in.)
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e2m1_row.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"

using namespace gemm_test;

namespace {

using Half = Epilogue<f16, NoBias, Act::none>;
using Brain = Epilogue<bf16, NoBias, Act::none>;

// A step at a time, as with many tokens; whole panels; warpgroups and blocks along k.
template <class X, class W, class Epi>
void check_tiles() {
  constexpr bool kFp8 = same<typename X::Element, e4m3>;
  check_warpgroups<X, W, Epi, 64, 1, 1, 1, 1, 3, 1, 1, false, kFp8>();
  check_warpgroups<X, W, PlainF32, 16, 1, 1, 2, 4, 2, 2, 2>();
  if constexpr (!kFp8) check_warpgroups<X, W, Epi, 8, 2, 1, 4, 4, 3, 2, 2, true>();
}

}  // namespace

TEST_CASE("wgmma: tiles", "[gemm]") {
  SECTION("q4_0") {
    check_tiles<fmt::f16, fmt::q4_0, Half>();
    check_warpgroups<fmt::bf16, fmt::q4_0, Brain, 8, 1, 1, 4, 8, 2, 1, 1>();
    check_warpgroups<fmt::f16, fmt::q4_0, Half, 16, 1, 1, 1, 2, 3, 1, 1,
                     true>();  // eight panels, begun early, are more than the ring
    check_warpgroups<fmt::f16, fmt::q4_0, Epilogue<f16, float, Act::silu>, 32, 2, 2, 1, 1, 3, 2, 1>();
  }
  SECTION("a shelf, from which idle warps store") {
    check_warpgroups<fmt::bf16, fmt::int4_g128, Brain, 176, 1, 2, 1, 1, 3, 2, 1, false, false, false, gemm::kNoTail,
                     true>();
    check_warpgroups<fmt::f16, fmt::q4_0, Epilogue<f16, float, Act::silu>, 96, 2, 2, 1, 1, 3, 1, 1, false, false, false,
                     gemm::kNoTail, true>();
  }
  SECTION("nvfp4") {
    check_tiles<fmt::f16, fmt::nvfp4, Half>();
    check_tiles<fmt::bf16, fmt::nvfp4, Brain>();
  }
  SECTION("int4 in groups against signed bytes") {
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Brain, 64, 1, 2, 1, 2, 3, 1, 1>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, PlainF32, 16, 1, 1, 2, 4, 2, 2, 2>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Brain, 128, 1, 1, 1, 2, 2, 2, 1>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Brain, 16, 1, 1, 4, 4, 2, 1, 1, true>();
  }
  SECTION("int4 in groups against E4M3") {
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, Brain, 64, 1, 2, 1, 2, 3, 1, 1>();
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, PlainF32, 16, 1, 1, 2, 4, 2, 2, 2>();
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, Brain, 128, 1, 1, 1, 2, 2, 2, 1, false, true>();
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, Brain, 176, 1, 2, 1, 2, 2, 2, 1, false, false, false,
                     kStreamK>();  // fragments ahead
  }
  SECTION("Stream-K") {
    check_warpgroups<fmt::f16, fmt::q4_k, Half, 64, 1, 2, 1, 2, 2, 1, 1, false, false, false, kStreamK>();
    check_warpgroups<fmt::bf16, fmt::int4_g128, Brain, 128, 1, 2, 1, 2, 2, 2, 1, false, false, false, kStreamK>();
    check_warpgroups<fmt::e4m3_row, fmt::int4_g128, Brain, 64, 1, 2, 1, 2, 3, 1, 1, false, false, false, kStreamK>();
    // A block's few sums.
    check_warpgroups<fmt::f16, fmt::q4_k, Half, 8, 1, 1, 2, 4, 3, 1, 1, true, false, false, kStreamK>();
    check_warpgroups<fmt::bf16, fmt::int4_g128, PlainF32, 16, 2, 1, 2, 4, 2, 1, 1, true, false, false, kStreamK>();
    check_warpgroups<fmt::int8_row, fmt::int8_row, Brain, 8, 1, 2, 2, 2, 2, 1, 1, false, false, false, kStreamK>();
  }
  SECTION("tiles from a queue") {
    check_warpgroups<fmt::f16, fmt::q4_0, Half, 16, 1, 1, 1, 4, 3, 1, 1, true, false, false, kQueue>();
    check_warpgroups<fmt::bf16, fmt::mxfp4, Brain, 1, 1, 1, 2, 4, 2, 1, 1, true, false, false, kQueue>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Epilogue<bf16, float, Act::silu>, 8, 2, 2, 1, 4, 2, 1, 1, true,
                     false, false, kQueue>();
  }
  SECTION("tiles from a queue, in many orders") {
    using Plan = gemm::Warpgroups<fmt::f16, fmt::q4_0, Half, 8, 1, 1, 1, 4, 2, 1, 1, true, false, false, kQueue>;
    for (std::uint64_t seed = 300; seed < 340; ++seed)
      check_wgmma<Plan, fmt::f16, fmt::q4_0, Half>({7, 9 * Plan::BN, 256 * static_cast<i64>(1 + seed % 3), 0, 0}, 4,
                                                   seed);
  }
  SECTION("one token") {
    check_warpgroups<fmt::f16, fmt::q4_0, Half, 1, 1, 1, 1, 4, 3, 1, 1, true>();
    check_warpgroups<fmt::bf16, fmt::mxfp4, Brain, 1, 2, 1, 2, 8, 2, 1, 1, true>();
    check_warpgroups<fmt::f16, fmt::int4_g128, Epilogue<f16, float, Act::silu>, 1, 1, 2, 1, 4, 2, 2, 2, true>();
    check_warpgroups<fmt::int8_row, fmt::int4_g128, Brain, 1, 1, 1, 4, 8, 2, 1, 1, true>();
    check_warpgroups<fmt::int8_row, fmt::int4_row, PlainF32, 1, 1, 2, 1, 4, 2, 1, 1, true>();
    check_warpgroups<fmt::f16, fmt::q4_k, Half, 1, 1, 1, 2, 4, 3, 1, 1, true, false, false, kStreamK>();
  }
  SECTION("a scale per row") {
    check_tiles<fmt::int8_row, fmt::int4_row, Brain>();
    check_tiles<fmt::e4m3_row, fmt::int4_row, Brain>();
    check_tiles<fmt::e4m3_row, fmt::e2m1_row, Brain>();
  }
}
