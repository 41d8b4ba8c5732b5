// SPDX-License-Identifier: Apache-2.0
#include "emulator/gemm_gemv_test.h"
#include "emulator/grids.h"
#include "formats/f16.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/q8_1.cuh"

using namespace gemm_test;

TEST_CASE("gemv: f16 activations, coded weights", "[gemm]") {
  SECTION("q4_0") { check_gemv_knobs<fmt::f16, fmt::q4_0, 32, 256>(); }
  SECTION("q4_k") { check_gemv_knobs<fmt::f16, fmt::q4_k, 64, 256>(); }
  SECTION("q8_0") { check_gemv_knobs<fmt::f16, fmt::q8_0, 32, 128>(); }
  SECTION("q8_1") { check_gemv_knobs<fmt::f16, fmt::q8_1, 64, 128>(); }
  SECTION("nvfp4") { check_gemv_knobs<fmt::f16, fmt::nvfp4, 16, 256>(); }
}

TEST_CASE("gemv: x, and w unless it is constant, are read once the kernel before has written them", "[gemm]") {
  constexpr gemm::GemvKnobs knobs{.tokens = 2, .unit = 32, .lanes = 8, .warps = 2, .rows = 2, .staged_k = 256};
  using Plan = gemm::Gemv<fmt::f16, fmt::q4_0, PlainF32, Fixed<knobs>::value>;
  const Size s{2, knobs.block_rows() + 3, 512, 0, 0};
  for (const bool constant : {false, true}) {
    Matrix<fmt::f16> x(s.m, s.k, s.k, 1);
    Matrix<fmt::q4_0> w(s.n, s.k, s.k, 2);
    Output<fmt::f16, fmt::q4_0, PlainF32> out(s, 0);
    out.shape.constant_weights = constant;
    if (constant)
      emu::written_before({&x.data});
    else
      emu::written_before({&x.data, &w.data});
    const gemm::Args args = out.args(x.operand(), w.operand());
    emu::run(launch_of(static_cast<Plan*>(nullptr), s), [&] { Plan::run(args, out.shape); });
    CHECK(emu::written());
    out.compare(x.exact, w.exact, out.factor(), [](const float*, const float*) { return 0.0; });
  }
}
