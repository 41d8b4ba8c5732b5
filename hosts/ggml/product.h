// SPDX-License-Identifier: Apache-2.0
// Matrix products of ggml tensors on this machine's CPU: y[m][n] = x[m][k] * w[n][k], x and y of floats, w of a ggml
// type. A Product serves one (type, n, k); it is prepared once for every m and used by all tensors of that shape.
#pragma once

#include <tilewright/layer.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ggml.h"

namespace tilewright::ggml {

// Tilewright's name of a type; null if it has no such format.
const char* format_of(ggml_type type);
bool is_float(ggml_type type);

// Memory that grows and is aligned as kernels like it.
class Scratch {
 public:
  void* of(std::size_t bytes);

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

class Product {
 public:
  // Throws Error (unsupported) if no kernel but the reference computes it.
  Product(Engine& engine, const Device& device, ggml_type type, std::int64_t n, std::int64_t k);

  // Of a matrix in the order that launches take, a multiple of 64.
  std::size_t packed_bytes() const { return packed_bytes_; }
  // `w`: rows of the type, `stride` bytes apart. `to`: packed_bytes(), aligned to 64 bytes.
  void pack(const std::byte* w, std::size_t stride, std::byte* to) const;
  // `x`: m rows of k floats, dense. `y`: m rows of n floats, `ldy` floats apart. Any thread.
  void launch(const std::byte* packed, const float* x, std::int64_t m, float* y, std::int64_t ldy) const;

 private:
  std::int64_t n_, rows_;  // rows_: n, rounded up to whole panels
  std::size_t row_bytes_, packed_bytes_;
  Layer layer_;
};

}  // namespace tilewright::ggml
