// SPDX-License-Identifier: Apache-2.0
// conv's wgmma: boxes of pixels, with halos and without, read as they lie or written to the workspace first.
#include "emulator/conv_wgmma.h"

#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "formats/int8.cuh"
#include "formats/int8_row.cuh"

using namespace conv_test;
using conv::WgmmaKnobs;
using Biased = Epilogue<float, float, Act::none>;
using Halves = Epilogue<bf16, float, Act::none>;

TEST_CASE("conv: Hopper's matrix units on boxes of pixels", "[conv]") {
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 8, .box_h = 16, .features = 32, .swapped = true, .channels = 72, .skips = true}>(21,
                                                                                                                   8);
  check_boxes<fmt::bf16, fmt::bf16, Halves,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 96,
                         .cluster = 2,
                         .swapped = true,
                         .halo = true,
                         .kernel_h = 3,
                         .channels = 96,
                         .skips = true}>(22, 8);
  check_boxes<fmt::f16, fmt::f16, Plain,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .halo = true, .kernel_h = 2, .dilation_h = 2, .channels = 40}>(23, 6);
  check_boxes<fmt::f16, fmt::f16, Whole,
              WgmmaKnobs{.box_w = 4, .box_h = 3, .box_d = 2, .box_n = 4, .cluster = 2, .channels = 16}>(24, 6);
  check_boxes<fmt::int8, fmt::int8_row, Biased,
              WgmmaKnobs{.box_w = 8, .box_h = 16, .features = 64, .swapped = true, .channels = 160}>(25, 6);
  check_boxes<fmt::e4m3, fmt::e4m3, Plain, WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 32, .skips = true}>(26, 6);
  check_boxes<fmt::bf16, fmt::bf16, Halves,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 32,
                         .features = 96,
                         .strips = 2,
                         .stages = 5,
                         .cluster = 2,
                         .swapped = true,
                         .halo = true,
                         .kernel_h = 3,
                         .channels = 64,
                         .async_store = true}>(27, 5);
  check_boxes<
      fmt::f32, fmt::f32, Plain,
      WgmmaKnobs{
          .box_w = 8, .box_h = 16, .features = 40, .swapped = true, .halo = true, .kernel_h = 3, .channels = 36}>(28,
                                                                                                                  5);
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 32,
                         .swapped = true,
                         .halo = true,
                         .kernel_h = 3,
                         .channels = 5,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true}>(29, 8);
  check_boxes<fmt::f32, fmt::f32, Biased,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 64,
                         .cluster = 2,
                         .swapped = true,
                         .channels = 70,
                         .writes_x = true,
                         .writes_w = true,
                         .skips = true},
              fmt::bf16>(30, 6);
  check_boxes<fmt::int8, fmt::int8_row, Biased,
              WgmmaKnobs{.box_w = 16,
                         .box_h = 3,
                         .box_d = 2,
                         .box_n = 1,
                         .channels = 20,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true}>(31, 6);
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 10,
                         .halo = true,
                         .kernel_h = 3,
                         .channels = 24,
                         .channels_first = true,
                         .writes_x = true,
                         .writes_w = true}>(32, 8);
  check_boxes<fmt::f16, fmt::f16, Biased,
              WgmmaKnobs{.box_w = 16, .box_h = 3, .box_d = 2, .channels = 24, .channels_first = true}>(33, 6);
  check_boxes<fmt::int8, fmt::int8_row, Halves,
              WgmmaKnobs{.box_w = 3, .box_h = 16, .box_d = 2, .cluster = 2, .channels = 32, .channels_first = true}>(34,
                                                                                                                     6);
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 48,
                         .swapped = true,
                         .halo = true,
                         .kernel_h = 3,
                         .channels = 70,
                         .channels_first = true,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true}>(35, 8);
  check_boxes<fmt::e4m3, fmt::e4m3, Plain,
              WgmmaKnobs{
                  .box_w = 16, .box_h = 8, .features = 24, .swapped = true, .channels = 32, .channels_first = true}>(36,
                                                                                                                     6);
  check_boxes<fmt::f32, fmt::f32, Halves,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 40,
                         .swapped = true,
                         .channels = 64,
                         .channels_first = true,
                         .writes_x = true,
                         .writes_w = true},
              fmt::bf16>(37, 6);
}

TEST_CASE("conv: Hopper's matrix units with all filters in shared memory", "[conv]") {
  static constexpr WgmmaKnobs kFew{.box_w = 8,
                                   .box_h = 16,
                                   .features = 16,
                                   .stages = 24,
                                   .swapped = true,
                                   .halo = true,
                                   .resident = true,
                                   .kernel_h = 3,
                                   .channels = 72};
  constexpr WgmmaKnobs kSkips = [] {
    WgmmaKnobs k = kFew;
    k.skips = true, k.strips = 2, k.box_h = 32, k.features = 8;
    return k;
  }();
  check_boxes<fmt::bf16, fmt::bf16, Whole, kFew>(61, 8);
  check_boxes<fmt::f16, fmt::f16, Plain, kSkips>(62, 8);
}

TEST_CASE("conv: Hopper's matrix units on input that is fake quantized in the workspace", "[conv]") {
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 32,
                         .swapped = true,
                         .channels = 72,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 16,
                         .skips = true}>(41, 6);
  check_boxes<fmt::f16, fmt::f16, Plain,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 10,
                         .channels = 101,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 64}>(42, 5);
  check_boxes<fmt::bf16, fmt::bf16, Plain,
              WgmmaKnobs{
                  .box_w = 8, .box_h = 10, .channels = 300, .writes_x = true, .writes_w = true, .quant_block = 256}>(43,
                                                                                                                     4);
  check_boxes<fmt::f32, fmt::f32, Plain,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 40,
                         .stages = 4,
                         .swapped = true,
                         .channels = 132,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 128}>(44, 4);
  check_boxes<fmt::f32, fmt::f32, Plain,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 64,
                         .swapped = true,
                         .channels = 41,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 32},
              fmt::bf16>(45, 5);
}

TEST_CASE("conv: Hopper's matrix units on columns that are fake quantized in the workspace", "[conv]") {
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 128,
                         .box_h = 1,
                         .features = 32,
                         .swapped = true,
                         .channels = 72,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 16,
                         .unfolds = true}>(51, 10);
  check_boxes<fmt::f16, fmt::f16, Plain,
              WgmmaKnobs{.box_w = 40,
                         .box_h = 1,
                         .box_n = 2,
                         .channels = 360,
                         .channels_first = true,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 64,
                         .unfolds = true}>(52, 10);
  check_boxes<fmt::f32, fmt::f32, Plain,
              WgmmaKnobs{.box_w = 128,
                         .box_h = 1,
                         .features = 40,
                         .stages = 5,
                         .swapped = true,
                         .channels = 168,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 128,
                         .unfolds = true}>(53, 8);
  check_boxes<fmt::f32, fmt::f32, Plain,
              WgmmaKnobs{.box_w = 128,
                         .box_h = 1,
                         .features = 64,
                         .stages = 5,
                         .swapped = true,
                         .channels = 600,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 256,
                         .unfolds = true},
              fmt::bf16>(54, 8);
}

TEST_CASE("conv: Hopper's matrix units fake quantize every kind of trouble exactly", "[conv]") {
  check_boxes_exactly<
      fmt::bf16, fmt::bf16,
      WgmmaKnobs{.box_w = 16, .box_h = 8, .channels = 100, .writes_x = true, .writes_w = true, .quant_block = 16}>(
      pixels_of_taps(100, 2), 16, true);
  check_boxes_exactly<
      fmt::f16, fmt::f16,
      WgmmaKnobs{.box_w = 16, .box_h = 8, .channels = 264, .writes_x = true, .writes_w = true, .quant_block = 128}>(
      pixels_of_taps(264, 1), 128, true);
  check_boxes_exactly<fmt::bf16, fmt::bf16,
                      WgmmaKnobs{.box_w = 16,
                                 .box_h = 8,
                                 .features = 64,
                                 .swapped = true,
                                 .channels = 264,
                                 .writes_x = true,
                                 .writes_w = true,
                                 .quant_block = 256}>(pixels_of_taps(264, 2), 256, true);
  check_boxes_exactly<fmt::bf16, fmt::bf16,
                      WgmmaKnobs{.box_w = 24,
                                 .box_h = 1,
                                 .box_n = 4,
                                 .channels = 304,
                                 .w_channels_first = true,
                                 .writes_x = true,
                                 .writes_w = true,
                                 .quant_block = 16,
                                 .unfolds = true}>(whole_images(304), 16, false);
  check_boxes_exactly<fmt::f16, fmt::f16,
                      WgmmaKnobs{.box_w = 24,
                                 .box_h = 1,
                                 .box_n = 4,
                                 .channels = 304,
                                 .w_channels_first = true,
                                 .writes_x = true,
                                 .writes_w = true,
                                 .quant_block = 256,
                                 .unfolds = true}>(whole_images(304), 256, false);
}
