// SPDX-License-Identifier: Apache-2.0
// Signs by signs: every family's kernel for bytes, whose bytes are eight signs.
#include "emulator/gemm_gemv_test.h"
#include "emulator/gemm_mma_test.h"
#include "emulator/grids.h"
#include "formats/sign_row.cuh"
#include "formats/signbit_row.cuh"
#include "operations/gemm/cuda/signs.cuh"
#include "operations/gemm/cuda/wgmma/kernel.cuh"

using namespace gemm_test;

namespace {

using gemm::SignProducts;
template <class F>
using Bytes = fmt::SignBytes<F>;

// staged_k counts bytes.
template <class X, class W, class Epi, gemm::GemvKnobs knobs>
void check_gemv_signs() {
  using Plan = SignProducts<gemm::Gemv<Bytes<X>, Bytes<W>, Epi, Fixed<knobs>::value>>;
  constexpr i64 kUnit = 8 * knobs.unit, kStaged = 8 * knobs.staged_k;
  check_sizes<Plan, X, W, Epi>(knobs.block_rows(), 3 * kUnit, {kUnit, kStaged, kStaged * knobs.split_k + 3 * kUnit},
                               kUnit);
}

template <class X, class W, class Epi, gemm::MmaKnobs knobs>
void check_mma_signs() {
  using Plan = SignProducts<gemm::Mma<Bytes<X>, Bytes<W>, Epi, Fixed<knobs>::value>>;
  constexpr i64 kUnit = 8 * knobs.unit_x, kStage = 8 * knobs.block_k;
  check_sizes<Plan, X, W, Epi>(knobs.block_n, kStage + kUnit,
                               {kUnit, 3 * kUnit, kStage, kStage * knobs.stages * knobs.split_k + kUnit}, kUnit);
}

template <class X, class W, class Epi, gemm::WgmmaKnobs knobs>
void check_wgmma_signs() {
  using Kernel = gemm::WgmmaKernel<Bytes<X>, Bytes<W>, Epi, Fixed<knobs>::value>;
  constexpr int kPanel = 1024;  // signs of a panel
  static_assert(Kernel::kPanelK == kPanel / 8 && Kernel::kSharedBytes <= 227 * 1024);
  std::uint64_t seed = 0;
  for (const Size& s : {Size{1, Kernel::kBlockN + 24, 3 * kPanel},
                        {knobs.block_m - 3, Kernel::kBlockN, 5 * kPanel, 128, 3},
                        {2 * knobs.block_m + 1, 2 * Kernel::kBlockN + 8, 2 * kPanel}}) {
    INFO("m " << s.m << " n " << s.n << " k " << s.k);
    const Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(++seed));
    const Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) + 100);
    Output<X, W, Epi> out(s, seed);
    const auto map_of = [](const auto& matrix, int rows, int panels) {
      return emu::tensor_map(matrix.data.data(), 1, static_cast<u64>(matrix.cols / 8), static_cast<u64>(matrix.rows),
                             static_cast<u64>(matrix.ld / 8), 128, static_cast<u32>(rows), 128,
                             static_cast<u32>(panels));
    };
    const int rows =
        Kernel::kClips ? gemm::clipped_rows(s.m, Kernel::kBoxRows, knobs.block_m / Kernel::kBoxRows) : Kernel::kBoxRows;
    const TensorMap x_map = map_of(x, rows, rows < Kernel::kBoxRows ? 1 : Kernel::kPanelBoxes),
                    w_map = map_of(w, std::min<int>(Kernel::kBlockN, 256), knobs.panels);
    const gemm::Args args = out.args(x.operand(), w.operand());
    emu::run({{static_cast<u32>(2 * Kernel::kCluster), 1, 1},
              static_cast<u32>(Kernel::kThreads),
              static_cast<u32>(Kernel::kCluster),
              static_cast<u32>(Kernel::kSharedBytes),
              seed},
             [&] { SignProducts<Kernel>::run(args, out.shape, &x_map, &w_map); });
    out.compare(x.exact, w.exact, out.factor(), [](const float*, const float*) { return 0.0; });
  }
}

}  // namespace

TEST_CASE("gemv: signs by signs", "[gemm]") {
  check_gemv_signs<fmt::sign_row, fmt::sign_row, PlainF32,
                   gemm::GemvKnobs{.tokens = 1, .unit = 2, .lanes = 4, .staged_k = 16}>();
  check_gemv_signs<fmt::signbit_row, fmt::signbit_row, Epilogue<f16, float, Act::silu>,
                   gemm::GemvKnobs{.tokens = 2,
                                   .unit = 16,
                                   .lanes = 8,
                                   .warps_k = 2,
                                   .warps = 8,
                                   .rows = 4,
                                   .depth = 2,
                                   .staged_k = 512,
                                   .split_k = 2}>();
  check_gemv_signs<fmt::signbit_row, fmt::sign_row, Epilogue<bf16, bf16, Act::relu>,
                   gemm::GemvKnobs{.tokens = 8, .unit = 4, .rows = 2, .depth = 2, .staged_k = 512}>();
}

TEST_CASE("mma: signs by signs", "[gemm]") {
  check_mma_signs<fmt::sign_row, fmt::sign_row, PlainF32, loaded(tile(16, 64, 64, 1, 4), 2, 2)>();
  check_mma_signs<fmt::signbit_row, fmt::signbit_row, Epilogue<bf16, float, Act::relu>,
                  copied_bytes(tile(64, 128, 128, 2, 4), 3, 2)>();
  check_mma_signs<fmt::sign_row, fmt::signbit_row, Epilogue<f16, NoBias, Act::none>,
                  loaded(tile(32, 64, 64, 1, 4), 3, 8)>();
}

TEST_CASE("wgmma: signs by signs", "[gemm]") {
  check_wgmma_signs<fmt::sign_row, fmt::sign_row, Epilogue<bf16, NoBias, Act::none>, gemm::WgmmaKnobs{.cluster = 2}>();
  check_wgmma_signs<fmt::signbit_row, fmt::sign_row, PlainF32,
                    gemm::WgmmaKnobs{.block_m = 16, .warpgroups_n = 1, .panels = 2, .stages = 2}>();
  check_wgmma_signs<fmt::signbit_row, fmt::signbit_row, Epilogue<f16, float, Act::silu>,
                    gemm::WgmmaKnobs{.block_m = 128, .cluster = 2}>();
}
