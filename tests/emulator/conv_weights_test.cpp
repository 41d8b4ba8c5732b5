// SPDX-License-Identifier: Apache-2.0
// conv's wgmma where w is of another format than x: a launch first writes it to the workspace as x's elements.
#include "emulator/conv_wgmma.h"

#include "formats/bf16.cuh"
#include "formats/e4m3.cuh"
#include "formats/e4m3_row.cuh"
#include "formats/e5m2_tensor.cuh"
#include "formats/f16.cuh"
#include "formats/int4_g128.cuh"
#include "formats/int4_g32.cuh"
#include "formats/int4_row.cuh"
#include "formats/int8.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/q5_1.cuh"

using namespace conv_test;
using conv::WgmmaKnobs;
using Biased = Epilogue<float, float, Act::none>;

TEST_CASE("conv: Hopper's matrix units on weights of other formats", "[conv]") {
  check_boxes<fmt::bf16, fmt::int4_g32, Whole,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 32,
                         .swapped = true,
                         .halo = true,
                         .kernel_h = 3,
                         .channels = 96,
                         .writes_w = true,
                         .skips = true},
              fmt::bf16>(41, 6);
  check_boxes<fmt::f16, fmt::int4_g128, Biased,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .cluster = 2, .channels = 128, .writes_w = true}, fmt::f16>(42, 4);
  check_boxes<fmt::bf16, fmt::nvfp4, Biased,
              WgmmaKnobs{.box_w = 16,
                         .box_h = 3,
                         .box_d = 2,
                         .channels = 48,
                         .channels_first = true,
                         .writes_x = true,
                         .writes_w = true},
              fmt::bf16>(43, 6);
  check_boxes<fmt::bf16, fmt::mxfp4, Plain, WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 64, .writes_w = true},
              fmt::bf16>(44, 6);
  check_boxes<fmt::f16, fmt::q5_1, Plain, WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 32, .writes_w = true},
              fmt::f16>(45, 6);
  check_boxes<fmt::e4m3, fmt::int4_row, Whole,
              WgmmaKnobs{.box_w = 8, .box_h = 16, .features = 32, .swapped = true, .channels = 144, .writes_w = true},
              fmt::e4m3>(46, 5);
  check_boxes<
      fmt::int8, fmt::int4_row, Biased,
      WgmmaKnobs{
          .box_w = 8, .box_h = 16, .features = 64, .swapped = true, .channels = 20, .writes_x = true, .writes_w = true},
      fmt::int8>(47, 6);
  check_boxes<fmt::f16, fmt::e4m3_row, Whole, WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 40, .writes_w = true},
              fmt::f16>(48, 6);
  check_boxes<fmt::bf16, fmt::e5m2_tensor, Biased,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 32,
                         .swapped = true,
                         .channels = 21,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true},
              fmt::bf16>(49, 6);
  check_boxes<fmt::f16, fmt::e4m3_row, Biased,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 48, .w_channels_first = true, .writes_w = true},
              fmt::f16>(52, 5);
  // Weights that were packed, unpacked in registers.
  check_boxes<fmt::bf16, fmt::int4_g32, Whole,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 64, .tiles = true, .skips = true}>(53, 5);
  check_boxes<fmt::f16, fmt::int4_g128, Plain, WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 128, .tiles = true}>(58,
                                                                                                                    4);
  check_boxes<fmt::f16, fmt::nvfp4, Biased,
              WgmmaKnobs{.box_w = 4,
                         .box_h = 3,
                         .box_d = 2,
                         .box_n = 4,
                         .strips = 2,
                         .warpgroups_n = 1,
                         .cluster = 2,
                         .two_panels = true,
                         .channels = 128,
                         .tiles = true}>(54, 4);
  check_boxes<fmt::bf16, fmt::int4_row, Biased,
              WgmmaKnobs{
                  .box_w = 16, .box_h = 5, .channels = 64, .channels_first = true, .tiles = true, .writes_x = true}>(55,
                                                                                                                     5);
  check_boxes<fmt::e4m3, fmt::int4_row, Plain,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .two_panels = true, .channels = 256, .tiles = true}>(56, 3);
  check_boxes<fmt::int8, fmt::int4_row, Whole,
              WgmmaKnobs{.box_w = 8, .box_h = 12, .cluster = 2, .channels = 128, .tiles = true}>(57, 4);
  check_boxes<fmt::bf16, fmt::nvfp4, Whole,
              WgmmaKnobs{
                  .box_w = 4, .box_h = 3, .box_d = 2, .warpgroups_n = 1, .stages = 4, .channels = 64, .tiles = true}>(
      59, 4);
  // The other way round: only one of two plain operands is written.
  check_boxes<fmt::bf16, fmt::bf16, Whole,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 24, .w_channels_first = true, .writes_w = true}>(50, 6);
  check_boxes<fmt::f16, fmt::f16, Biased, WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 24, .writes_x = true}>(51, 6);
}

TEST_CASE("conv: Hopper's matrix units on weights of other formats and input that is fake quantized", "[conv]") {
  check_boxes<fmt::bf16, fmt::int4_g32, Whole,
              WgmmaKnobs{.box_w = 8,
                         .box_h = 16,
                         .features = 32,
                         .swapped = true,
                         .channels = 96,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 32},
              fmt::bf16>(71, 5);
  check_boxes<fmt::f16, fmt::nvfp4, Biased,
              WgmmaKnobs{.box_w = 64,
                         .box_h = 1,
                         .box_n = 2,
                         .channels = 384,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 64,
                         .unfolds = true},
              fmt::f16>(72, 5);
  check_boxes<fmt::f16, fmt::e4m3_row, Biased,
              WgmmaKnobs{.box_w = 128,
                         .box_h = 1,
                         .features = 32,
                         .swapped = true,
                         .channels = 72,
                         .w_channels_first = true,
                         .writes_x = true,
                         .writes_w = true,
                         .quant_block = 16,
                         .unfolds = true},
              fmt::f16>(73, 5);
  check_boxes<fmt::bf16, fmt::int4_g32, Biased,
              WgmmaKnobs{.box_w = 8, .box_h = 10, .channels = 64, .tiles = true, .writes_x = true, .quant_block = 16}>(
      74, 4);
}
