// SPDX-License-Identifier: Apache-2.0
// The operations unscale and update_scale, for the gradients of a scaled loss in mixed precision
//
//   unscale      x=bf16 pieces=131072 [elements=8192]
//   update_scale [growth=2] [backoff=0.5] [interval=2000]
//
// unscale multiplies any number of tensors by 1 / scale in one launch, and reports whether an element was infinite or
// NaN. update_scale then computes the scale for the next step. Both follow PyTorch's
// _amp_foreach_non_finite_check_and_unscale_ and _amp_update_scale_; docs/use/loss-scaling.md has the formulas. Neither
// waits for the host, so a step can be a CUDA graph. Values; any thread may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/format.h>

namespace tilewright {

struct Unscale {
  static constexpr std::string_view kOperation = "unscale";
  static constexpr std::size_t kWorkspace = 8;  // bytes
  static constexpr std::int64_t kElements = 8192;

  Format x;  // f32 f16 bf16
  std::int64_t pieces = 0;
  std::int64_t elements = kElements;  // of a piece, about; used to select kernels
  friend bool operator==(const Unscale&, const Unscale&) = default;
};

// A part of a tensor, as a kernel reads it from device memory: any contiguous elements.
struct UnscalePiece {
  std::int64_t at = 0;        // byte offset from UnscaleArgs::x and from y; an address if those are null
  std::int64_t elements = 0;  // 0 or more
  friend bool operator==(const UnscalePiece&, const UnscalePiece&) = default;
};

// A dense tensor.
struct UnscaleTensor {
  const void* data = nullptr;  // in device memory, aligned to an element
  std::int64_t elements = 0;
};

// Divides tensors of a format into pieces of at most `elements` each, in order, for a launch in place. Thread blocks
// process pieces in turns, so the work is balanced for all tensor sizes. Upload the pieces again only if tensors move.
// Empty tensors have no pieces. Throws Error: invalid_argument (no tensors, a null or misaligned address, a negative
// size, elements below 1), unsupported (x is none of f32, f16 and bf16), too_large (a tensor beyond the address space,
// more than 2^31 - 1 pieces).
TILEWRIGHT_EXPORT std::vector<UnscalePiece> unscale_pieces(Format x, std::span<const UnscaleTensor> tensors,
                                                           std::int64_t elements = Unscale::kElements);

// What a launch passes. Standard layout, as templates/operations/loss_scale/params.cuh. Device pointers.
struct UnscaleArgs {
  static constexpr std::string_view kOperation = "unscale";

  const void* x = nullptr;              // base of the pieces' offsets, 16-byte aligned. Null: pieces have addresses
  void* y = nullptr;                    // base of the results, likewise; may be x itself
  const UnscalePiece* table = nullptr;  // [pieces]
  const float* scale = nullptr;         // one float. Unless it is positive and finite, found_inf becomes 1
  float* found_inf = nullptr;           // one float: becomes 1 if an element is infinite or NaN, else 0
  const float* found_before = nullptr;  // found_inf of an earlier launch, which this launch includes in its own; null:
                                        // none. May be found_inf itself
  void* workspace = nullptr;  // Unscale::kWorkspace bytes, 8-byte aligned, that no other launch uses meanwhile. Zero
                              // when first used; every launch leaves it zero
  std::int64_t pieces = 0;    // of this call; 0 launches nothing and does not write found_inf
};

struct UpdateScale {
  static constexpr std::string_view kOperation = "update_scale";

  double growth = 2;             // more than 1: the factor after `interval` good steps in a row
  double backoff = 0.5;          // between 0 and 1: the factor after a step with found_inf
  std::int64_t interval = 2000;  // 1 to 2147483647
  friend bool operator==(const UpdateScale&, const UpdateScale&) = default;
};

// What a launch passes. Standard layout, as templates/operations/loss_scale/params.cuh. Device pointers.
struct UpdateScaleArgs {
  static constexpr std::string_view kOperation = "update_scale";

  const float* scale = nullptr;
  const std::int32_t* good_steps = nullptr;  // since the last change of the scale; 0 at first
  const float* found_inf = nullptr;          // of this step: anything but 0 is an overflow
  float* new_scale = nullptr;                // may be scale itself
  std::int32_t* new_good_steps = nullptr;    // may be good_steps itself
};

}  // namespace tilewright
