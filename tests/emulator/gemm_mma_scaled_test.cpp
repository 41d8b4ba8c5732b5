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
template <class F, int BM, int BN, int BK, int WM, int WN, int STAGES, int SPLIT, int UNIT, class Epi>
void check_scaled() {
  using Plan = gemm::Mma<F, F, Epi, BM, BN, BK, WM, WN, STAGES, true, 8, 0, SPLIT>;
  static_assert(Plan::kSharedBytes <= 99 * 1024, "the test asks for too much");
  check_sizes<Plan, F, F, Epi>(BN, BK + UNIT,
                               {UNIT, 3 * UNIT, BK, BK * STAGES * SPLIT + UNIT, (2 * STAGES + 1) * BK * SPLIT}, UNIT);
}
template <class F, int BK, int UNIT>
void check_format() {
  check_scaled<F, 16, 64, BK, 1, 4, 3, 1, UNIT, PlainF32>();
  check_scaled<F, 64, 128, BK, 2, 4, 3, 2, UNIT, Epilogue<bf16, float, Act::silu>>();
  check_scaled<F, 128, 64, BK, 4, 2, 3, 1, UNIT, PlainF32>();
}

}  // namespace

TEST_CASE("mma: blocks with scales as the units take them", "[gemm]") {
  SECTION("NVFP4") { check_format<fmt::nvfp4, 256, 64>(); }
  SECTION("MXFP4") { check_format<fmt::mxfp4, 256, 128>(); }
  SECTION("MXFP8") { check_format<fmt::mxfp8, 128, 128>(); }
}
