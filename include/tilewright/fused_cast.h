// SPDX-License-Identifier: Apache-2.0
// The operation fused_cast: the elementwise steps between two layers, and then a cast, in one pass over memory
//
//   fused_cast x=bf16 y=e4m3_row rows=512 cols=4096 residual=add norm=rms weight=bf16     residual, RMSNorm, quantize
//   fused_cast x=bf16 y=nvfp4 rows=512 cols=14336 act=silu gate=first                     SwiGLU, quantize
//   fused_cast x=f16 y=q8_1 rows=512 cols=4096 bias=f16 act=gelu                          bias, GELU, quantize
//
// For each row, those of these steps that the problem has, in this order:
//   h = x + bias                                            single precision
//   h = residual_out = h + residual                         rounded once to x's format
//   h = h / sqrt(mean(h^2) + eps) * weight                  norm=rms; the mean is of a row
//   h = act(h), or with a gate act(gate) * up               gate=first: x is [rows, 2 cols], the gate's half first
//   y = encode(h)                                           as a cast from single precision encodes
// Nothing between residual_out and y is rounded to 16 bits. docs/use/fused-cast.md has formulas, bound and examples.
// Values; any thread may use them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <tilewright/format.h>
#include <tilewright/gemm.h>

namespace tilewright {

enum class Norm { none, rms };      // h / sqrt(mean(h^2) + eps)
enum class Residual { none, add };  // a matrix is added, and the sum is written
enum class Gate { none, first };  // x is [rows, 2 cols]: in each row `cols` gates, then the numbers that they multiply

struct FusedCast {
  static constexpr std::string_view kOperation = "fused_cast";

  Format x;                            // f32 f16 bf16
  Format y;                            // any format whose rows do not share scales
  std::int64_t rows = 0, cols = 0;     // of y
  std::optional<Format> bias = {};     // [cols]; f32 f16 bf16. Not with a gate
  Residual residual = Residual::none;  // [rows, cols] of x's format. Not with a gate
  Norm norm = Norm::none;              // not with a gate
  std::optional<Format> weight = {};   // [cols]; f32 f16 bf16: the factors of a normalized row. Only with norm
  double eps = 1e-6;                   // with norm: 1e-30 to 1e30
  Activation act = Activation::none;
  Gate gate = Gate::none;
  int encoder = 0;  // index into y.info().encoders; the text has its name
  friend bool operator==(const FusedCast&, const FusedCast&) = default;
};

// What a launch passes. Standard layout, as templates/operations/fused_cast/params.cuh. Device pointers to dense
// matrices, 16-byte aligned; null for what the problem does not have.
struct FusedCastArgs {
  static constexpr std::string_view kOperation = "fused_cast";

  const void* x = nullptr;         // [rows, cols], with a gate [rows, 2 cols]
  MutableOperand y = {};           // [rows, cols]; y.global is read, not written
  const void* bias = nullptr;      // [cols]
  const void* weight = nullptr;    // [cols]
  const void* residual = nullptr;  // [rows, cols]
  void* residual_out = nullptr;    // [rows, cols]; may be `residual`; otherwise it must not overlap anything
  std::int64_t rows = 0;           // of this call; 0 launches nothing
};

}  // namespace tilewright
