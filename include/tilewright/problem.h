// SPDX-License-Identifier: Apache-2.0
// Problem: what a caller asks for, as a value with one canonical text form.
//
//   gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336            y[m,n] = act(alpha * sum_k x[m,k] w[n,k] + bias[n]) + beta *
//   c[m,n] cast x=f32 y=q8_1 rows=2 cols=14336                    y = encode(decode(x)), row by row pack w=q4_0 x=f16
//   n=4096 k=14336                       w reordered, once, for gemms with this w and x and pack=tiles
//
// Optional gemm fields, printed only when they differ from their default: `group` (k elements per scale; only a format
// that leaves it open accepts one it does not fix itself), `global` (mul | div; required when x or w has a
// tensor-wide scale: mul if decoded value = code * scale * global, div if it is / global), `pack` (tiles: w was
// reordered, see tilewright/pack.h), `x_from` (f32 f16 bf16: how x arrives, if the kernel quantizes it to x), `accum`
// (fast: see Accumulation), `bias` (f32 f16 bf16; of y=int32 int32), `act` (relu gelu gelu_tanh silu), `alpha`, `c`
// (f32 f16 bf16: a matrix that is added, a residual) with `beta`, and for y of int8, e4m3 or e5m2 `y_scale`, by which
// results are divided before they are rounded to nearest even, saturating; `workspace` (bytes, see Gemm); `weights`
// (constant: see Gemm). y=int32 is for x=int8 w=int8, exact, with none of these but `bias`, `workspace` and `weights`.
// Optional cast field: `encoder` (see FormatInfo::encoders). Optional pack field: `inverse` (1: from tiles to w).
// Values; free-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <tilewright/export.h>
#include <tilewright/format.h>

namespace tilewright {

enum class Activation { none, relu, gelu, gelu_tanh, silu };
enum class Global { none, mul, div };  // how a tensor-wide scale is applied
// How sums of fp8 products are formed. full: in single precision, but for 128 at a time. fast: by the matrix units
// alone, which keep some 14 bits of each; what other libraries call fast accumulation.
enum class Accumulation { full, fast };
enum class Packing { none, tiles };  // how w is stored: as its format says, or reordered for kernels that want that

// Limits of every problem: each extent < 2^31, each stream of each matrix < 2^47 bytes.
struct Gemm {
  Format x, w, y;
  std::int64_t m = 0;  // tokens; varies at run time
  std::int64_t n = 0;  // output features
  std::int64_t k = 0;  // reduction
  int group = 0;       // 0: the format's own
  Global global = Global::none;
  // Floats that x arrives as, in x's place in GemmArgs, for the kernel to quantize by x's default encoder: what a Cast
  // and then the same Gemm on its result give, without the launch between. Each block quantizes what it reads: for few
  // tokens (`gemv`), with packed weights for one (`wgmma`: more are computed one after the other). Only where x is
  // q8_1.
  std::optional<Format> x_from = {};
  std::optional<Format> bias;  // [n]
  Activation act = Activation::none;
  double alpha = 1.0;
  // tiles: only for formats that have them for this x; n is a multiple of 64, k of 64 (16-bit x) or 128 (8-bit x).
  Packing packing = Packing::none;
  Accumulation accumulation = Accumulation::full;  // fast: only where x has fp8 elements
  std::optional<Format> c = {};                    // [m, n]
  double beta = 1.0;                               // of c
  double y_scale = 1.0;                            // what a one of y stands for
  // Bytes of device memory that each launch may use besides (GemmArgs::workspace), so that kernels are considered whose
  // blocks share tiles through it. 0: none. 33 MiB are enough for all of them on a chip of 132 multiprocessors.
  std::int64_t workspace = 0;
  // Whether all of w (its scales and zero points too) is complete, for good, when a launch is enqueued: work that wrote
  // it has been waited for, and none that writes it comes later. A launch may then read w while the one before it in
  // the stream still runs.
  bool constant_weights = false;

  Format x_stored() const { return x_from.value_or(x); }  // x in memory
  friend bool operator==(const Gemm&, const Gemm&) = default;
};

struct Cast {
  Format x, y;
  std::int64_t rows = 0, cols = 0;
  int encoder = 0;  // index into y.info().encoders
  friend bool operator==(const Cast&, const Cast&) = default;
};

// A weight matrix to tiles, or back. Both extents are fixed: a launch takes the whole matrix.
struct Pack {
  Format w, x;
  std::int64_t n = 0, k = 0;
  bool inverse = false;
  friend bool operator==(const Pack&, const Pack&) = default;
};

class TILEWRIGHT_EXPORT Problem {
 public:
  // The constructors and parse() validate everything that does not depend on a device; they throw Error
  // (invalid_argument, unsupported or too_large) naming the field.
  Problem(Gemm gemm);
  Problem(Cast cast);
  Problem(Pack pack);
  static Problem parse(std::string_view text);

  std::string text() const;     // canonical; parse(text()) == *this
  std::string_view op() const;  // "gemm", "cast", "pack"
  const Gemm* gemm() const { return std::get_if<Gemm>(&value_); }
  const Cast* cast() const { return std::get_if<Cast>(&value_); }
  const Pack* pack() const { return std::get_if<Pack>(&value_); }

  std::int64_t rows() const;  // the run-time extent: m of a gemm, rows of a cast; n of a pack, where it is fixed
  std::int64_t cols() const;  // the launch's second extent: n of a gemm, cols of a cast, k of a pack
  Problem with_rows(std::int64_t rows) const;  // a pack stays as it is
  double min_bytes() const;                    // every operand moved once
  double ops() const;                          // 2 m n k; 0 for the others

  friend bool operator==(const Problem&, const Problem&) = default;

 private:
  std::variant<Gemm, Cast, Pack> value_;
};

// Row buckets: one kernel is chosen for each. bucket_of(m) is the smallest bucket that is >= m, the last for all above.
inline constexpr std::int64_t kBuckets[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
inline constexpr int kBucketCount = 13;
inline int bucket_index(std::int64_t rows) {
  int i = rows <= 1 ? 0 : 64 - __builtin_clzll(static_cast<unsigned long long>(rows - 1));
  return i < kBucketCount ? i : kBucketCount - 1;
}

}  // namespace tilewright
