// SPDX-License-Identifier: Apache-2.0
// The warpgroup kernel with a prologue: x widened, quantized with a scale per row, or unpacked; and what a prologue
// writes, byte for byte what a cast does.
#include "emulator/gemm_wgmma.h"
#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_b128.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8_row.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q4_0.cuh"
#include "formats/ternary_row.cuh"

using namespace gemm_test;

namespace {

using Brain = Epilogue<bf16, NoBias, Act::none>;
using Residual = Epilogue<bf16, float, Act::silu, bf16>;
template <class From>
using E4m3Row = fmt::Quantized<fmt::e4m3_row, From>;
template <class From>
using Int8Row = fmt::Quantized<fmt::int8_row, From>;

// What a prologue writes of m rows, by `blocks` blocks: rows, then scales.
template <class Raw, class To, int row_threads>
std::vector<u8> written(const Operand& operand, i64 rows, i64 ld, i64 cols, u32 blocks, std::uint64_t seed) {
  constexpr int kThreads = 192;
  using P = gemm::Prologue<Raw, To, kThreads, row_threads == 0 ? kThreads : row_threads>;
  std::vector<u8> workspace;
  const auto prologue = [&] { return P{operand, rows, ld, cols, workspace.data()}; };
  workspace.resize(static_cast<std::size_t>(prologue().end()));
  std::fill(workspace.begin() + gemm::kScheduleBytes, workspace.end(), u8{0xff});
  emu::run({{blocks, 1, 1}, kThreads, 1, sizeof(typename P::Shared), seed}, [&] {
    prologue().run(*reinterpret_cast<typename P::Shared*>(dynamic_shared()), grid_x(), static_cast<int>(thread_x()));
  });
  CHECK(std::all_of(workspace.begin(), workspace.begin() + gemm::kScheduleBytes, [](u8 b) { return b == 0; }));
  return {workspace.begin() + gemm::kScheduleBytes, workspace.end()};
}

template <class Raw, class To, int row_threads>
std::vector<u8> written(const Matrix<Raw>& x, u32 blocks, std::uint64_t seed) {
  return written<Raw, To, row_threads>(x.operand(), x.rows, x.ld, x.cols, blocks, seed);
}

// Codes and scales of the scalar encoder.
template <class F, class From>
void check_quantized(i64 rows, i64 cols, u32 blocks, float magnitude) {
  using Raw = fmt::Quantized<F, From>;
  INFO(F::title() << " " << rows << " x " << cols << ", " << blocks << " blocks, times " << magnitude);
  Matrix<Raw> x(rows, cols, cols + 16, 3);
  std::vector<float> values(static_cast<std::size_t>(cols));
  for (i64 r = 0; r < rows; ++r)
    for (i64 i = 0; i < cols; ++i) {
      u8* at = &x.data[static_cast<std::size_t>((r * x.ld + i) * From::kDataBytes)];
      const float v = r == 1 ? 0.0f : From::decode(at, nullptr, 1.0f, 0) * magnitude;
      From::encode(&v, at, nullptr, 1.0f, 0);
    }
  const std::vector<u8> block = written<Raw, typename F::Element, 0>(x, blocks, 1),
                        warp = written<Raw, typename F::Element, 32>(x, blocks, 2),
                        half = written<Raw, typename F::Element, 96>(x, blocks, 3);
  CHECK(block == warp);
  CHECK(block == half);
  i64 wrong = 0;
  for (i64 r = 0; r < rows; ++r) {
    const u8* row = &x.data[static_cast<std::size_t>(r * x.ld * From::kDataBytes)];
    const float scale = Raw::row_context(row, cols);
    float stored;
    std::memcpy(&stored, &block[static_cast<std::size_t>(rows * cols + r * 4)], 4);
    wrong += stored != scale;
    for (i64 i = 0; i < cols; ++i) {
      const float v = From::decode(row + i * From::kDataBytes, nullptr, 1.0f, 0);
      u8 code;
      F::encode(&v, &code, nullptr, scale, 0);
      wrong += code != block[static_cast<std::size_t>(r * cols + i)];
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("wgmma: a prologue writes what a cast writes, whoever runs", "[wgmma][prologue]") {
  check_quantized<fmt::e4m3_row, fmt::bf16>(7, 1104, 4, 1.0f);
  check_quantized<fmt::e4m3_row, fmt::f16>(3, 64, 1, 1.0f);
  check_quantized<fmt::e4m3_row, fmt::f32>(5, 2048, 9, 1.0f);
  check_quantized<fmt::e4m3_row, fmt::f32>(3, 128, 2, 1e30f);  // beyond what one reciprocal divides
  check_quantized<fmt::e4m3_row, fmt::bf16>(3, 128, 2, 1e-30f);
  check_quantized<fmt::int8_row, fmt::bf16>(4, 592, 3, 1.0f);
}

TEST_CASE("wgmma: a prologue widens E4M3", "[wgmma][prologue]") {
  const Matrix<fmt::e4m3_row> x(5, 208, 224, 1);
  const std::vector<u8> wide = written<fmt::e4m3_row, f16, 32>(x, 3, 1),
                        brain = written<fmt::e4m3_row, bf16, 0>(x, 3, 2);
  i64 wrong = 0;
  for (i64 r = 0; r < x.rows; ++r)
    for (i64 i = 0; i < x.cols; ++i) {
      const u8 code = x.data[static_cast<std::size_t>(r * x.ld + i)];
      const auto at = static_cast<std::size_t>(r * x.cols + i);
      u16 half, other;
      std::memcpy(&half, &wide[2 * at], 2);
      std::memcpy(&other, &brain[2 * at], 2);
      const float v = e4m3_to_f32(code);
      const bool same_number = to_f32(bits_as<f16>(half)) == v && to_f32(bits_as<bf16>(other)) == v;
      wrong += !(same_number || std::isnan(v));
    }
  CHECK(wrong == 0);
}

TEST_CASE("wgmma: a prologue unpacks codes with a scale per row", "[wgmma][prologue]") {
  const auto check = []<class F>(F*, i64 rows, i64 cols, u32 blocks) {
    Matrix<F> x(rows, cols, cols + 32, 1);
    std::mt19937 random(5);  // every byte, of which the encoder makes a few
    for (u8& byte : x.data)
      byte = static_cast<u8>(same<F, fmt::int4_row>() ? random() : random() % 3 * 0x55 & random());
    using Raw = fmt::UnpackedRow<F>;
    const std::vector<u8> block = written<Raw, i8, 0>(x.operand(), rows, x.ld, cols, blocks, 1),
                          warp = written<Raw, i8, 32>(x.operand(), rows, x.ld, cols, blocks, 2);
    CHECK(block == warp);
    i64 wrong = 0;
    for (i64 r = 0; r < rows; ++r)
      for (i64 i = 0; i < cols; ++i) {
        const u8 byte = x.data[static_cast<std::size_t>((r * x.ld + i) / F::kBlock)];
        const float code = F::decode(&byte, &byte, fmt::row_item<F>{1.0f}, static_cast<int>(i % F::kBlock));
        wrong += static_cast<float>(static_cast<i8>(block[static_cast<std::size_t>(r * cols + i)])) * F::step() != code;
      }
    CHECK(wrong == 0);
  };
  check(static_cast<fmt::int4_row*>(nullptr), 7, 1104, 4);
  check(static_cast<fmt::int4_row*>(nullptr), 3, 128, 1);
  check(static_cast<fmt::int4_row*>(nullptr), 2, 16, 5);  // less than a warp has, and blocks without a row
  check(static_cast<fmt::ternary_row*>(nullptr), 5, 2048, 9);
}

TEST_CASE("wgmma: int4 by int4, which a prologue unpacked", "[wgmma][prologue]") {
  check_warpgroups<fmt::int4_row, fmt::int4_row, Brain, WgmmaKnobs{.cluster = 2, .prologue = true}>();
  check_warpgroups<
      fmt::int4_row, fmt::int4_row, Residual,
      WgmmaKnobs{.block_m = 80, .panels = 2, .cluster = 2, .schedule = Schedule::split_last_wave, .prologue = true}>();
  check_warpgroups<fmt::int4_row, fmt::int4_row, PlainF32,
                   WgmmaKnobs{.block_m = 96, .stages = 4, .schedule = Schedule::stream_k, .prologue = true}>();
  check_warpgroups<fmt::int4_row, fmt::int4_row, Brain,
                   WgmmaKnobs{.block_m = 8,
                              .warpgroups_n = 1,
                              .panels = 4,
                              .warp_mma = true,
                              .schedule = Schedule::queue,
                              .prologue = true}>();
  check_warpgroups<fmt::int4_row, fmt::int4_row, PlainF32,
                   WgmmaKnobs{.block_m = 16,
                              .warpgroups_n = 1,
                              .warpgroups_k = 2,
                              .panels = 4,
                              .stages = 2,
                              .cluster = 2,
                              .split_k = 2,
                              .prologue = true}>();
  check_warpgroups<fmt::ternary_row, fmt::int4_g128, Brain, WgmmaKnobs{.block_m = 80, .panels = 2, .prologue = true}>();
}

TEST_CASE("wgmma: E4M3 that a prologue widened, by tiles for 16-bit x", "[wgmma][prologue]") {
  check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain, WgmmaKnobs{.warpgroups_n = 1, .prologue = true}>();
  check_warpgroups<
      fmt::e4m3_row, fmt::q4_0, Residual,
      WgmmaKnobs{.block_m = 80, .panels = 2, .cluster = 2, .schedule = Schedule::split_last_wave, .prologue = true}>();
  check_warpgroups<fmt::e4m3, fmt::nvfp4, PlainF32,
                   WgmmaKnobs{.block_m = 128, .strips = 2, .cluster = 2, .prologue = true}>();
  check_warpgroups<fmt::e4m3_row, fmt::q4_0, Brain,
                   WgmmaKnobs{.block_m = 96, .stages = 4, .schedule = Schedule::stream_k, .prologue = true}>();
  check_warpgroups<fmt::e4m3_row, fmt::nvfp4, Brain,
                   WgmmaKnobs{.block_m = 8,
                              .warpgroups_n = 1,
                              .panels = 4,
                              .warp_mma = true,
                              .schedule = Schedule::queue,
                              .prologue = true}>();
}

TEST_CASE("wgmma: floats that a prologue quantizes", "[wgmma][prologue]") {
  check_warpgroups<E4m3Row<fmt::bf16>, fmt::nvfp4, Brain, WgmmaKnobs{.block_m = 72, .prologue = true}>();
  check_warpgroups<E4m3Row<fmt::bf16>, fmt::nvfp4, Brain,
                   WgmmaKnobs{
                       .block_m = 72, .schedule = Schedule::stream_k, .prologue = true, .fast_accumulation = true}>();
  check_warpgroups<E4m3Row<fmt::f16>, fmt::nvfp4, Residual,
                   WgmmaKnobs{.block_m = 16,
                              .warpgroups_n = 1,
                              .warpgroups_k = 2,
                              .panels = 4,
                              .stages = 2,
                              .cluster = 2,
                              .split_k = 2,
                              .prologue = true}>();
  check_warpgroups<E4m3Row<fmt::bf16>, fmt::nvfp4, Brain,
                   WgmmaKnobs{.block_m = 1,
                              .warpgroups_n = 1,
                              .panels = 8,
                              .cluster = 2,
                              .split_k = 2,
                              .warp_mma = true,
                              .prologue = true}>();
  check_warpgroups<E4m3Row<fmt::bf16>, fmt::e4m3_row, Brain, WgmmaKnobs{.cluster = 2, .prologue = true}>();
  check_warpgroups<E4m3Row<fmt::f32>, fmt::e4m3_row, Brain,
                   WgmmaKnobs{.block_m = 64, .panels = 2, .swapped = true, .prologue = true}>();
  check_warpgroups<E4m3Row<fmt::bf16>, fmt::e4m3_b128, Brain,
                   WgmmaKnobs{.block_m = 128, .swapped = true, .prologue = true}>();
  check_warpgroups<Int8Row<fmt::bf16>, fmt::int4_row, Brain,
                   WgmmaKnobs{.block_m = 32, .panels = 2, .prologue = true}>();
  check_warpgroups<Int8Row<fmt::f32>, fmt::int8_row, PlainF32,
                   WgmmaKnobs{.block_m = 80, .schedule = Schedule::stream_k, .prologue = true}>();
}
