// SPDX-License-Identifier: Apache-2.0
// The operation gemm: y[m,n] = (act(alpha * sum_k x[m,k] w[n,k] + bias[n]) + beta * c[m,n]) / y_scale
//
//   gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336
//
// A grouped gemm, for mixtures of experts, multiplies `groups` weight matrices in one launch, each by its own rows of
// x. The number of rows may be known on the device only:
//
//   gemm x=bf16 w=bf16 y=bf16 m=128 n=4096 k=7168 groups=64
//
// Every field of Gemm is a field of the text. The names are equal, except for `packing` (pack), `accumulation` (accum)
// and `constant_weights` (weights=constant). Fields are printed only if they differ from their default.
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
// How fp8 products are summed. full: the matrix units sum 128 products, and the rest is summed in single precision.
// fast: the matrix units compute the whole sum, with about 14 bits. Other libraries call this fast accumulation.
enum class Accumulation { full, fast };
// The positions of a grouped gemm's rows. contiguous: one group after the other; GemmArgs::group_rows has the first row
// of each. masked: the same number of rows for each group; GemmArgs::group_rows says how many are used.
enum class GroupLayout { contiguous, masked };
inline constexpr int kMostGroups = 1024;
// How w is stored: as its format defines, or reordered for some kernels, in tiles for GPUs or in panels for CPUs.
enum class Packing { none, tiles, panels };

struct Gemm {
  static constexpr std::string_view kOperation = "gemm";

  // x: activations; w: weights; y: f32 f16 bf16, int8 e4m3 e5m2 (rounded to nearest even, saturating) or int32. int32
  // is exact, requires x=int8 and w=int8, and allows no option except `bias`, `workspace` and `constant_weights`.
  Format x, w, y;
  std::int64_t m = 0;  // tokens; varies at run time. With groups: of each, on average (contiguous) or at most (masked)
  std::int64_t n = 0;  // output features
  std::int64_t k = 0;  // reduction
  Global global = Global::none;  // required when x or w has a tensor-wide scale
  // tiles: only for formats that have them for this x; n is a multiple of 64, k of 64 (16-bit x) or 128 (8-bit x).
  // panels: w of 4 to 8 bits that docs/use/cpu.md lists, x q8_1 or int8_row, or both int8, k a multiple of 32; or x and
  // w of f32, f16 or bf16. n is a multiple of 16. See tilewright/pack.h.
  Packing packing = Packing::none;
  // The float type of the x that GemmArgs passes. The kernel quantizes x with its default encoder, so the result equals
  // that of a Cast and then this Gemm. To q8_1, each block quantizes the rows that it reads, which is meant for few
  // tokens (`gemv`), or with packed weights for one token (`wgmma`). Only if x is q8_1, e4m3_row or int8_row, or f16 or
  // bf16 (CPUs round f32 to these).
  std::optional<Format> x_from = {};
  std::optional<Format> bias = {};                 // [n]; f32 f16 bf16, of y=int32 int32
  Accumulation accumulation = Accumulation::full;  // fast: only where x has fp8 elements
  Activation act = Activation::none;
  double alpha = 1.0;            // single precision holds it. A launch may give another factor: GemmArgs::alpha
  std::optional<Format> c = {};  // [m, n]; f32 f16 bf16: a matrix that is added, a residual
  double beta = 1.0;             // of c; single precision holds it. See GemmArgs::beta
  double y_scale = 1.0;          // results are divided by it; only for y of int8, e4m3 or e5m2
  // Bytes of additional device memory that each launch may use (GemmArgs::workspace). It allows kernels whose blocks
  // share tiles. 0: none.
  std::int64_t workspace = 0;
  static constexpr std::int64_t kTileWorkspace = 33ll << 20;  // enough for shared tiles on 132 multiprocessors
  // Whether all of w, including scales and zero points, is complete when a launch is enqueued, and never changes. The
  // caller must have waited for the work that wrote w. A launch may then read w while the previous launch in the stream
  // is still running.
  bool constant_weights = false;
  // 0: an ordinary gemm. Otherwise w is a stack of this many matrices [n, k], and the bias a stack of rows [n]. Every
  // stream of w is stacked: the scales of the second matrix follow those of the first, and `global` has one float for
  // each matrix (x has one for all). Groups exclude c, and allow x_from only with w in panels.
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
  std::int64_t m = 0;  // tokens of this call; 0 launches nothing. With groups: rows of all groups, or of each group if
                       // group_layout=masked
  std::int64_t ldx = 0;       // elements from one row of x to the next; 0: k. A multiple of the format's block, >= k.
                              // If a row's bytes divide by 16, rows must be 16-byte aligned
  std::int64_t ldy = 0;       // elements from one row of y to the next; 0: n. >= n
  const void* c = nullptr;    // [m, n], if the problem has one: apart from y, or y itself if formats and strides agree
  std::int64_t ldc = 0;       // elements from one row of c to the next; 0: n. >= n
  void* workspace = nullptr;  // Gemm::workspace bytes that no other launch uses meanwhile. Zero it before the first
                              // use; each launch restores it for the next, whatever its problem
  // Factors of this call, in addition to the problem's: the product is multiplied by Gemm::alpha * alpha, and c by
  // Gemm::beta * beta, each rounded to single precision. One kernel serves every finite value. alpha must be 1 if
  // y=int32, and beta must be 1 if the problem has no c. c is read even if beta is 0, so a NaN in c stays.
  float alpha = 1.0f;
  float beta = 1.0f;
  // Only if the problem has groups; 4-byte aligned, and read on the device when the launch runs.
  // contiguous: groups + 1 ascending offsets from 0 to m. Group g has the rows from offset g to offset g + 1.
  // masked: one count from 0 to m for each group, which uses this number of its m rows.
  // Rows of y that belong to no group are not written. Other values are clamped to the nearest allowed value: an offset
  // below the previous offset counts as the previous one.
  const std::int32_t* group_rows = nullptr;
};

}  // namespace tilewright
