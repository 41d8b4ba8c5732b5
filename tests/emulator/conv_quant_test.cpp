// SPDX-License-Identifier: Apache-2.0
// Fused fake quantization of a convolution's input, by conv's reference and by mma, against the model of
// support/fake_quant.h: random shapes within the bound, and inputs with every kind of trouble exactly.
#include "emulator/conv_mma.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/q4_0.cuh"

using namespace conv_test;

namespace {

using conv::GatherKnobs;
using conv::Taps;
using gemm::MmaKnobs;

template <class X, class W, class Epi, int block, bool along_channels>
struct QuantizedShape : AnyShape<X, W, Epi> {
  static constexpr int kLeastChannels = std::max(1, block / 16);
  static void fit(Picked& p) {
    AnyShape<X, W, Epi>::fit(p);
    p.shape.quant_block = block, p.shape.quant_channels = along_channels;
  }
};
template <int block>
void check_reference(unsigned seed) {
  check_convolutions<fmt::bf16, fmt::bf16, Whole, QuantizedShape<fmt::bf16, fmt::bf16, Whole, block, false>>(seed, 12);
  check_convolutions<fmt::f32, fmt::f32, Plain, QuantizedShape<fmt::f32, fmt::f32, Plain, block, false>>(seed + 1, 12);
  check_convolutions<fmt::f16, fmt::f16, Plain, QuantizedShape<fmt::f16, fmt::f16, Plain, block, true>>(seed + 2, 12);
  check_convolutions<fmt::bf16, fmt::bf16, Plain, QuantizedShape<fmt::bf16, fmt::bf16, Plain, block, true>>(seed + 3,
                                                                                                            12);
}

template <class X, int block>
void check_reference_exactly() {
  check_exactly<X, X, AnyShape<X, X, Plain>>(whole_images(300), block, false);
  check_exactly<X, X, AnyShape<X, X, Plain>>(pixels_of_taps(52, 2), block, true);  // whose last block is short
}

// Channels behind each other, a tap at a time, and taps behind each other; `pixels`: of a tile.
constexpr GatherKnobs along_channels(int block) { return {.quant_block = block}; }
constexpr GatherKnobs along_taps(int block) {
  return {.unit = 1, .taps_innermost = true, .taps = Taps::zeros, .quant_block = block};
}
constexpr MmaKnobs by_elements(int block_k, int stages) {
  return {.block_k = block_k, .stages = stages, .async_copy = false, .unit_x = 1};
}
template <class X, MmaKnobs knobs, int block>
void check_taps_exactly() {
  check_exactly<X, X, Products<X, X, Plain, knobs, along_taps(block)>>(whole_images(300), block, false);
}
template <class X, MmaKnobs knobs, int block>
void check_channels_exactly() {
  using Kernel = Products<X, X, Plain, knobs, along_channels(block)>;
  check_exactly<X, X, Kernel>(pixels_of_taps(block < 64 ? 96 : 256, 2), block, true);
  check_exactly<X, X, Kernel>(pixels_of_taps(block < 64 ? 104 : 264, 1), block, false);
}

}  // namespace

TEST_CASE("conv: the reference fake quantizes x", "[conv]") {
  check_reference<16>(1);
  check_reference<32>(5);
  check_reference<64>(9);
  check_reference<128>(13);
  check_reference<256>(17);
}

TEST_CASE("conv: the reference fake quantizes every kind of trouble exactly", "[conv]") {
  check_reference_exactly<fmt::bf16, 16>();
  check_reference_exactly<fmt::f16, 32>();
  check_reference_exactly<fmt::f32, 64>();
  check_reference_exactly<fmt::bf16, 128>();
  check_reference_exactly<fmt::f32, 256>();
}

TEST_CASE("conv: the matrix units on input that is fake quantized along taps", "[conv]") {
  check_convolutions<
      fmt::bf16, fmt::bf16, Whole,
      Products<
          fmt::bf16, fmt::bf16, Whole, by_elements(64, 3),
          GatherKnobs{
              .unit = 1, .taps_innermost = true, .taps = Taps::zeros, .y_channels_first = true, .quant_block = 16}>>(
      61, 24);
  check_convolutions<
      fmt::f16, fmt::f16, Plain,
      Products<fmt::f16, fmt::f16, Plain, by_elements(64, 4),
               GatherKnobs{
                   .unit = 1, .taps_innermost = true, .taps = Taps::zeros, .grouped = true, .quant_block = 32}>>(62,
                                                                                                                 24);
  check_convolutions<
      fmt::f16, fmt::f16, Plain,
      Products<
          fmt::f16, fmt::f16, Plain, by_elements(64, 3),
          GatherKnobs{
              .unit = 1, .taps_innermost = true, .taps = Taps::table, .places = 9, .cached = true, .quant_block = 64}>>(
      63, 20);
  check_convolutions<fmt::bf16, fmt::bf16, Plain,
                     Products<fmt::bf16, fmt::bf16, Plain, by_elements(64, 4), along_taps(128)>>(64, 12);
  check_convolutions<
      fmt::f16, fmt::f16, Plain,
      Products<fmt::f16, fmt::f16, Plain,
               MmaKnobs{.block_m = 16, .block_k = 128, .warps_m = 1, .warps_n = 4, .stages = 5, .split_k = 2},
               along_taps(256)>>(65, 12);
  check_convolutions<fmt::bf16, fmt::bf16, Plain,
                     Products<fmt::bf16, fmt::bf16, Plain, by_elements(64, 6), along_taps(256)>>(66, 10);
  check_convolutions<fmt::f32, fmt::f32, Plain,
                     Products<fmt::f32, fmt::f32, Plain, by_elements(32, 3), along_taps(16)>>(67, 16);
}

TEST_CASE("conv: the matrix units on input that is fake quantized along channels", "[conv]") {
  check_convolutions<fmt::bf16, fmt::bf16, Whole,
                     Products<fmt::bf16, fmt::bf16, Whole, MmaKnobs{}, along_channels(16)>>(71, 20);
  check_convolutions<fmt::f16, fmt::f16, Plain,
                     Products<fmt::f16, fmt::f16, Plain,
                              MmaKnobs{.block_m = 32, .warps_m = 1, .stages = 4, .split_k = 2}, along_channels(128)>>(
      72, 10);
  check_convolutions<
      fmt::f16, fmt::f16, Plain,
      Products<fmt::f16, fmt::f16, Plain, MmaKnobs{.async_copy = false},
               GatherKnobs{
                   .unit = 1, .taps = Taps::zeros, .y_channels_first = true, .grouped = true, .quant_block = 16}>>(73,
                                                                                                                   16);
  check_convolutions<fmt::f16, fmt::q4_0, Plain,
                     Products<fmt::f16, fmt::q4_0, Plain, MmaKnobs{.unit_w = 32}, along_channels(32)>>(74, 12);
  check_convolutions<
      fmt::f32, fmt::f32, Plain,
      Products<fmt::f32, fmt::f32, Plain, MmaKnobs{.block_k = 32, .stages = 4, .unit_x = 4}, along_channels(64)>>(75,
                                                                                                                  10);
}

TEST_CASE("conv: the matrix units fake quantize every kind of trouble exactly", "[conv]") {
  check_taps_exactly<fmt::bf16, by_elements(64, 3), 16>();
  check_taps_exactly<fmt::f16, by_elements(64, 3), 32>();
  check_taps_exactly<fmt::f16, by_elements(64, 4), 128>();
  check_taps_exactly<fmt::bf16, by_elements(128, 4), 256>();
  check_taps_exactly<fmt::f32, by_elements(32, 3), 16>();
  check_taps_exactly<fmt::f32, by_elements(32, 10), 256>();
  check_channels_exactly<fmt::bf16, MmaKnobs{}, 16>();
  check_channels_exactly<fmt::f16, MmaKnobs{.block_k = 128, .stages = 3}, 64>();
  check_channels_exactly<fmt::bf16, MmaKnobs{.stages = 6}, 256>();
  check_channels_exactly<fmt::f32, MmaKnobs{.block_k = 32, .stages = 3, .unit_x = 4}, 32>();
}
