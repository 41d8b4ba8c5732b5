// SPDX-License-Identifier: Apache-2.0
// The operation gemm: y[m,n] = (act(alpha * sum_k x[m,k] w[n,k] + bias[n]) + beta * c[m,n]) / y_scale
//
//   gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336
//
// Grouped, for mixtures of experts: `groups` weight matrices in one launch, each for its own rows of x, which need be
// known on the device alone:
//
//   gemm x=bf16 w=bf16 y=bf16 m=128 n=4096 k=7168 groups=64
//
// Every field of Gemm is a field of the text, under the same name but for `packing` (pack), `accumulation` (accum) and
// `constant_weights` (weights=constant); those with a default are printed only when they differ from it.
// Limits: each extent < 2^31, each stream of each matrix < 2^47 bytes.
// Values, usable from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <tilewright/format.h>

namespace tilewright {

enum class Activation { none, relu, gelu, gelu_tanh, silu };
enum class Global { none, mul, div };  // how a tensor-wide scale is applied: value = code * scale * (or /) global
// How sums of fp8 products are formed. full: in single precision, but for 128 at a time. fast: by the matrix units
// alone, which keep some 14 bits of each; what other libraries call fast accumulation.
enum class Accumulation { full, fast };
// Where the rows of a grouped gemm's groups are. contiguous: one group behind the other, the first row of each in
// GemmArgs::group_rows. masked: as many rows for each group, of which GemmArgs::group_rows says how many are in use.
enum class GroupLayout { contiguous, masked };
inline constexpr int kMostGroups = 1024;
// How w is stored: as its format says, or reordered for kernels that want that: in tiles for GPUs, in panels for CPUs.
enum class Packing { none, tiles, panels };

struct Gemm {
  static constexpr std::string_view kOperation = "gemm";

  // x: activations; w: weights; y: f32 f16 bf16, int8 e4m3 e5m2 (rounded to nearest even, saturating) or int32, which
  // is for x=int8 w=int8, exact, and takes no other option than `bias`, `workspace` and `constant_weights`.
  Format x, w, y;
  std::int64_t m = 0;  // tokens; varies at run time. With groups: of each, on average (contiguous) or at most (masked)
  std::int64_t n = 0;  // output features
  std::int64_t k = 0;  // reduction
  Global global = Global::none;  // required when x or w has a tensor-wide scale
  // tiles: only for formats that have them for this x; n is a multiple of 64, k of 64 (16-bit x) or 128 (8-bit x).
  // panels: w of 4 to 8 bits that docs/use/cpu.md lists, x q8_1 or int8_row, or both int8, k a multiple of 32; or x and
  // w of f32, f16 or bf16. n is a multiple of 16. See tilewright/pack.h.
  Packing packing = Packing::none;
  // The floats that x arrives as, in x's place in GemmArgs, for the kernel to quantize by x's default encoder: what a
  // Cast and then the same Gemm on its result give, without the launch between. Each block quantizes what it reads:
  // for few tokens (`gemv`), with packed weights for one (`wgmma`: more are computed one after the other). Only where x
  // is q8_1, e4m3_row or int8_row; or f16 or bf16, to which CPUs round f32.
  std::optional<Format> x_from = {};
  std::optional<Format> bias = {};                 // [n]; f32 f16 bf16, of y=int32 int32
  Accumulation accumulation = Accumulation::full;  // fast: only where x has fp8 elements
  Activation act = Activation::none;
  double alpha = 1.0;            // single precision holds it. A launch may give another factor: GemmArgs::alpha
  std::optional<Format> c = {};  // [m, n]; f32 f16 bf16: a matrix that is added, a residual
  double beta = 1.0;             // of c; single precision holds it. See GemmArgs::beta
  double y_scale = 1.0;          // results are divided by it; only for y of int8, e4m3 or e5m2
  // Bytes of device memory that each launch may use besides (GemmArgs::workspace), so that kernels are considered whose
  // blocks share tiles through it. 0: none.
  std::int64_t workspace = 0;
  static constexpr std::int64_t kTileWorkspace = 33ll << 20;  // enough for shared tiles on 132 multiprocessors
  // Whether all of w (its scales and zero points too) is complete, for good, when a launch is enqueued: work that wrote
  // it has been waited for, and none that writes it comes later. A launch may then read w while the one before it in
  // the stream still runs.
  bool constant_weights = false;
  // 0: an ordinary gemm. Else w is a stack of as many matrices [n, k], and the bias one of rows [n]. Every stream of w
  // is stacked: behind the first matrix' scales are the second's, and `global` is one float for each (x has one for
  // all). No c, and x_from only where w is in panels.
  int groups = 0;  // kMostGroups at most
  GroupLayout group_layout = GroupLayout::contiguous;

  std::int64_t x_rows() const { return groups ? groups * m : m; }  // of x and y in memory
  Format x_stored() const { return x_from.value_or(x); }           // x in memory
  friend bool operator==(const Gemm&, const Gemm&) = default;
};

// What a launch passes. Standard layout and the same on the device (templates/operations/gemm/params.cuh), so that
// launching copies nothing twice. All pointers are device pointers, 16-byte aligned.
struct GemmArgs {
  static constexpr std::string_view kOperation = "gemm";

  Operand x = {};              // [m, k], activations; as Gemm::x_from if the problem has one, which ldx then counts
  Operand w = {};              // [n, k], weights
  void* y = nullptr;           // [m, n]
  const void* bias = nullptr;  // [n], if the problem has one
  std::int64_t m = 0;          // tokens of this call; 0 launches nothing. With groups: rows of all of them, but of
                               // each if group_layout=masked
  std::int64_t ldx = 0;        // elements from one row of x to the next; 0: k. A multiple of the format's block, >= k.
                               // If a row's bytes divide by 16, rows must be 16-byte aligned
  std::int64_t ldy = 0;        // elements from one row of y to the next; 0: n. >= n
  const void* c = nullptr;     // [m, n], if the problem has one: apart from y, or y itself if formats and strides agree
  std::int64_t ldc = 0;        // elements from one row of c to the next; 0: n. >= n
  void* workspace = nullptr;   // Gemm::workspace bytes that no other launch uses meanwhile. Zero when first used; every
                               // launch leaves it fit for the next, of any problem
  // Factors of this call, on top of the problem's: the product is multiplied by Gemm::alpha * alpha, c by
  // Gemm::beta * beta, each product rounded to single precision. One kernel serves every finite value. alpha is 1 where
  // y=int32, beta where the problem has no c. c is read whatever beta is: 0 does not hide its NaN.
  float alpha = 1.0f;
  float beta = 1.0f;
  // Only where the problem has groups; 4-byte aligned, and read on the device when the launch runs.
  // contiguous: groups + 1 offsets that ascend, from 0 to m: group g has the rows from the g-th to the next.
  // masked: groups counts, from 0 to m: group g has the first so many of its m rows.
  // Rows that no group has are left alone in y.
  // Other values are taken for the nearest that are allowed: an offset below the one before it counts as that one.
  const std::int32_t* group_rows = nullptr;
};

}  // namespace tilewright
