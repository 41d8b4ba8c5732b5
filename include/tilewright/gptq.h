// SPDX-License-Identifier: Apache-2.0
// GPTQ of one linear layer on a GPU. Sums have the same order and roundings as in gptq() of post_training.h, so results
// have the same bits on any device.
//
//   const QuantizeTarget target{.format = Format::parse("int4_g128")};
//   const QuantizedLinear q = gptq(engine, Device::open(0), {w, n, k, "mlp.down"}, hessian, target);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tilewright/engine.h>
#include <tilewright/export.h>
#include <tilewright/post_training.h>
#include <tilewright/task.h>

namespace tilewright {

// An upper bound of the bytes of device memory that gptq() below allocates. group: of the target; 0 counts as 128.
TILEWRIGHT_EXPORT std::int64_t gptq_device_bytes(std::int64_t n, std::int64_t k, std::int64_t group = 0);

// As gptq() of post_training.h. Throws the same errors, and Error (driver_failed), also if memory is insufficient, and
// (library_missing, compile_failed) if no cache has the kernels. All products are in double precision, so a device with
// few double-precision units takes longer. Any thread may call it.
TILEWRIGHT_EXPORT QuantizedLinear gptq(Engine& engine, const Device& device, const LinearWeight& layer,
                                       const Hessian& hessian, const QuantizeTarget& target,
                                       const GptqOptions& options = {});

// The kernels that gptq() launches, for Engine::prewarm(): one for matrices, and one that rounds to codes of the
// format. Throws Error (invalid_argument) for a format that QuantizeTarget does not support.
TILEWRIGHT_EXPORT std::vector<Task> gptq_tasks(Format format);

// ---- What these kernels take. Matrices are tiles of 64 x 64: T = ceil(k / 64) of them beside each other, S = ceil(n /
// 64) below each other. Tiles of a triangle, (i, j) with i <= j, are behind each other in the order of j, then i.

// The second parameter of both: the layer, in device memory.
struct GptqLayer {
  std::int64_t n = 0, k = 0, group = 0;
  std::int32_t static_groups = 0, encoder = 0;
  double mean = 0;                       // of H[j, j] of live columns, which dead ones get
  double least_pivot = 0;                // of the factor, as a part of the diagonal
  float* source = nullptr;               // [n, k]: w; after `store` its values
  const double* h = nullptr;             // triangle of H; tiles column-major
  double* r = nullptr;                   // triangle of R
  double* least = nullptr;               // [64 T]: pivots
  std::uint32_t* failed = nullptr;       // set to 1 where a pivot is less
  const std::int32_t* order = nullptr;   // [k]: columns of w in the order of rounding; ~column where it is dead
  const std::int32_t* slots = nullptr;   // [k]: where each column of w is in that order
  const std::int32_t* places = nullptr;  // [k]: where each column of the streams is in that order
  float* w = nullptr;                    // [S][T][64][64]: w in order, columns behind each other; then its values
  double* sums = nullptr;                // the same: what corrects each column; then the differences w - value
  double* corrections = nullptr;         // [S][group / 64 + 2][64][64]
  std::uint32_t* items = nullptr;        // [groups][64 S]: items of stream `scales`
  std::uint8_t* codes = nullptr;         // as w
  double* errors = nullptr;              // [64 S]: each row's error, or energy
  std::uint32_t* bad_group = nullptr;    // [64 S]: 1 + the first group whose scale is not finite; 0: none
  float* bad_range = nullptr;            // [64 S, 2]: least and largest weight there
  std::uint8_t* data = nullptr;          // the stream
};

// The first parameter.
struct GptqArgs {
  enum class Step : std::int32_t {
    // of the matrices' kernel, with a block for each ...
    gather,     // tile of w: fills w from source; `plain`: all columns in their own order
    energy,     // tile of w: H w, to sums; `plain`, a block for each strip of 64 rows: products with w, to errors
    arrange,    // T x T: r from h, ordered and damped
    subtract,   // T' x count, T' = first + count: what tiles of r take from their products in from <= column < end
    diagonal,   // one: tile (first, first) of r is factored
    solve,      // first: tiles above that are solved for
    transpose,  // T x T: tiles of r become row-major
    // of the rounding kernel
    choose,  // strip: all scales, from w as it is
    // of the matrices' kernel
    add,  // tile of `count` columns from `first`: sums get the differences of from <= column < end times r
    // of the rounding kernel
    round,  // strip: column `first` of tiles
    // of the matrices' kernel
    store,  // tile of w: data and source from codes and values
  };
  Step step = Step::gather;
  std::int32_t plain = 0;
  std::int64_t first = 0, count = 0, from = 0, end = 0;
  double added = 0;  // to H's diagonal
};

}  // namespace tilewright
