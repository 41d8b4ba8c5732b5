// SPDX-License-Identifier: Apache-2.0
// The operation conv, a convolution (cross-correlation, as deep learning has it) over one to three spatial axes:
//
//   y[i, o, f] = (act(alpha * sum over taps t and channels c of x[i, o * stride - pad.lo + t * dilation, c] w[f, t, c]
//                     + bias[f]) + beta * residual[i, o, f]) / y_scale
//
//   conv x=bf16 w=bf16 y=bf16 n=1 c=96 in=6x480x832 k=96 kernel=3x3x3 pad=0x1x1
//
// Every field of Conv is a field of the text. The names are equal, except for `packing` (pack), `accumulation` (accum)
// and `constant_weights` (weights=constant). Fields are printed only if they differ from their default. Values for the
// axes are written outermost first, with x between them; one value applies to all axes.
// Limits: each extent < 2^31, each tensor < 2^47 bytes.
// Values, usable from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <tilewright/export.h>
#include <tilewright/format.h>
#include <tilewright/gemm.h>

namespace tilewright {

inline constexpr int kMostAxes = 3;

// One number for each spatial axis, outermost first: depth, height and width, or the last two, or the last. There are
// as many as Conv::in has. One number applies to all axes; none means the default.
struct Axes {
  std::array<std::int64_t, kMostAxes> at = {};
  int rank = 0;

  Axes() = default;
  Axes(std::int64_t all) : at{all}, rank(1) {}
  Axes(std::int64_t height, std::int64_t width) : at{height, width}, rank(2) {}
  Axes(std::int64_t depth, std::int64_t height, std::int64_t width) : at{depth, height, width}, rank(3) {}
  friend bool operator==(const Axes&, const Axes&) = default;
};

// The number of elements that are added to each axis before its first and after its last element. Text: 1 means one on
// both sides, 2:0 two in front.
struct Pads {
  Axes lo, hi;
  Pads() = default;
  Pads(Axes both) : lo(both), hi(both) {}
  Pads(Axes before, Axes behind) : lo(before), hi(behind) {}
  friend bool operator==(const Pads&, const Pads&) = default;
};

// The values of these elements: zeros, which kernels skip; the nearest element of the axis; or the axis mirrored at its
// first and last element.
enum class PadMode { zero, replicate, reflect };
struct PadModes {
  std::array<PadMode, kMostAxes> at = {};
  int rank = 0;
  PadModes() = default;
  PadModes(PadMode all) : at{all}, rank(1) {}
  friend bool operator==(const PadModes&, const PadModes&) = default;
};

// The layout of a dense tensor of n images, with any number of axes. ndhwc: [n, axes, channels]; ncdhw: [n, channels,
// axes].
enum class TensorLayout { ndhwc, ncdhw };
// ktrsc: [k, kernel axes, c / groups]. kctrs: [k, c / groups, kernel axes], only of formats without blocks.
enum class FilterLayout { ktrsc, kctrs };

// FP4 fake quantization of x: before the product, x is rounded as by fp4_fake_quant (docs/use/fake-quant.md), in x's
// format, in blocks of `block` elements: 16 32 64 128 256. 0: x is not rounded. Text: e2m1/16.
struct QuantAct {
  int block = 0;
  friend bool operator==(const QuantAct&, const QuantAct&) = default;
};
// The position of these blocks. ctrs: along the inputs of an output pixel, [c / groups, kernel axes], including
// padding. An element of x that is an input of several output pixels may be rounded to several values. trsc: along the
// channels of a pixel. Each group starts a new block, and the last block of a row may be short.
enum class QuantOrder { ctrs, trsc };

struct Conv {
  static constexpr std::string_view kOperation = "conv";

  // x: f32 f16 bf16 e4m3 e5m2 int8, or e4m3, e5m2 or int8 with a tensor scale. x may also be sign_row or signbit_row,
  // where a row is a pixel's channels: [n, axes, c] with c a multiple of 8, w of these two formats, no groups and no
  // cache. w: the same formats, formats with a scale per row (per output channel), and coded formats, whose blocks lie
  // along [kernel axes, c / groups]. y: f32 f16 bf16, int8 e4m3 e5m2 (rounded to nearest even, saturating).
  Format x, w, y;
  std::int64_t n = 0;  // images
  std::int64_t c = 0;  // input channels
  Axes in = {};        // input extents, cache included; its rank is the number of axes
  std::int64_t k = 0;  // output channels
  Axes kernel = {};
  Axes stride = {};         // default 1
  Pads pad = {};            // default 0
  PadModes pad_mode = {};   // default zero
  Axes dilation = {};       // default 1
  std::int64_t groups = 1;  // of the channels of x and y; an output channel has the inputs of its group only
  TensorLayout x_layout = TensorLayout::ndhwc, y_layout = TensorLayout::ndhwc;
  FilterLayout w_layout = FilterLayout::ktrsc;
  // The number of leading elements of the outermost axis that come from a second tensor, ConvArgs::cache; x has the
  // others. A causal decoder keeps the last frames of the previous chunk there.
  std::int64_t cache = 0;
  Global global = Global::none;  // required when x or w has a tensor-wide scale
  // w was reordered once, at load, like Gemm::packing for a matrix [k, kernel axes and channels]; for one group only.
  // tiles: k is a multiple of 64, and kernel elements times channels is a multiple of a tile's columns. panels: x and w
  // are f32, f16 or bf16, and k is a multiple of 16.
  Packing packing = Packing::none;
  std::optional<Format> bias = {};  // [k]; f32 f16 bf16
  // f32 by f32 uses TF32 if that is faster (docs/reference/numerics.md). fast: only if x has fp8 elements, whose sums
  // the matrix units then compute alone, or if x and w are f32, which may then be rounded to bfloat16.
  Accumulation accumulation = Accumulation::full;
  Activation act = Activation::none;
  double alpha = 1.0;                   // single precision holds it. A launch may give another: ConvArgs::alpha
  std::optional<Format> residual = {};  // as y, but f32 f16 bf16: a tensor that is added, in y's layout
  double beta = 1.0;                    // of residual
  double y_scale = 1.0;                 // results are divided by it; only for y of int8, e4m3 or e5m2
  // As Gemm::workspace. Hopper's kernels first write x or w there if its channels are not innermost or not a multiple
  // of 16 bytes, if both are rounded, if x is quantized, or if w has a different format from x. `plan` and why_not()
  // say how many bytes this takes.
  std::int64_t workspace = 0;
  bool constant_weights = false;        // as Gemm::constant_weights
  QuantAct quant_act = {};              // x of f32 f16 bf16 only; takes ConvArgs::amax
  QuantOrder order = QuantOrder::ctrs;  // of quant_act

  friend bool operator==(const Conv&, const Conv&) = default;
};

// What a launch passes. Standard layout and the same on the device (templates/operations/conv/params.cuh). Device
// pointers, 16-byte aligned. A launch takes the problem's n images.
struct ConvArgs {
  static constexpr std::string_view kOperation = "conv";

  Operand x = {};  // without the elements in the cache
  Operand w = {};
  void* y = nullptr;
  const void* bias = nullptr;       // [k], if the problem has one
  const void* residual = nullptr;   // if the problem has one: apart from y, or y itself if formats agree
  const void* cache = nullptr;      // Conv::cache elements of the outermost axis, in x's format and layout
  void* workspace = nullptr;        // as GemmArgs::workspace
  float alpha = 1.0f, beta = 1.0f;  // as in GemmArgs
  const float* amax = nullptr;  // if the problem has quant_act: one float, as Fp4FakeQuantArgs::amax. 4-byte aligned
};

// Output extents: floor((in + pad.lo + pad.hi - dilation (kernel - 1) - 1) / stride) + 1 for each axis. Precondition:
// the problem is legal, as every Problem is.
TILEWRIGHT_EXPORT Axes output_extents(const Conv& conv);

}  // namespace tilewright
