// SPDX-License-Identifier: Apache-2.0
// Convolutions that are built in.
#pragma once

#include <tilewright/conv.h>

#include <array>

#include "templates/backends/cpu/built_in.h"
#include "templates/operations/conv/params.cuh"
#include "templates/operations/gemm/cpu/kernels_shared.h"

namespace tilewright::cpu {

// What a kernel is written for.
struct Filter {
  Type x = Type::f32, w = Type::f32;        // of elements in memory: f32, f16, bf16 or int8
  bool w_has_scales = false;                // for each row
  int rank = 1;                             // axes, the last ones of tw::conv::Shape's
  std::array<PadMode, kMostAxes> pad = {};  // of tw::conv::Shape's axes
  bool cache = false;
  bool x_channels_first = false, y_channels_first = false, w_channels_first = false;
  bool packed = false;  // w is in panels of its own format
  Epilogue e;           // c: the residual
};

// And its knobs, as the function of the text has them.
struct NativeConvOptions {
  bool depthwise = false;  // the kernel of that name, or columns
  Filter filter = {};
  int tokens = 0, panels = 0, together = 0, tiles = 0, turns = 0;
};
using NativeConv = NativeKernel<NativeConvOptions>;
NativeConv native_v3_conv(const NativeConvOptions& options);
NativeConv native_v4_conv(const NativeConvOptions& options);

}  // namespace tilewright::cpu
