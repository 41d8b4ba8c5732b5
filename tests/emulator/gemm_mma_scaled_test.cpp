// SPDX-License-Identifier: Apache-2.0
// Blocks that the matrix units scale themselves (sm_120a).
#include "emulator/gemm_mma_test.h"
#include "formats/bf16.cuh"
#include "formats/mxfp4.cuh"
#include "formats/mxfp8.cuh"
#include "formats/nvfp4.cuh"

using namespace gemm_test;

namespace {

// UNIT: columns of a word of scales.
template <class F, int UNIT, class Epi, MmaKnobs knobs>
void check_scaled() {
  using Plan = gemm::Mma<F, F, Epi, Fixed<knobs>::value>;
  static_assert(Plan::kSharedBytes <= 99 * 1024, "the test asks for too much");
  constexpr i64 kStageK = knobs.block_k, kRounds = knobs.stages, kSplit = knobs.split_k;
  check_sizes<Plan, F, F, Epi>(
      knobs.block_n, kStageK + UNIT,
      {UNIT, 3 * UNIT, kStageK, kStageK * kRounds * kSplit + UNIT, (2 * kRounds + 1) * kStageK * kSplit}, UNIT);
}
template <class F, int BLOCK_K, int UNIT>
void check_format() {
  check_scaled<F, UNIT, PlainF32, copied(tile(16, 64, BLOCK_K, 1, 4), 3)>();
  check_scaled<F, UNIT, Epilogue<bf16, float, Act::silu>, copied(tile(64, 128, BLOCK_K, 2, 4), 3, 2)>();
  check_scaled<F, UNIT, PlainF32, copied(tile(128, 64, BLOCK_K, 4, 2), 3)>();
}

}  // namespace

TEST_CASE("mma: blocks with scales as the units take them", "[gemm]") {
  SECTION("NVFP4") { check_format<fmt::nvfp4, 256, 64>(); }
  SECTION("MXFP4") { check_format<fmt::mxfp4, 256, 128>(); }
  SECTION("MXFP8") { check_format<fmt::mxfp8, 128, 128>(); }
}
