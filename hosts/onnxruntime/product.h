// SPDX-License-Identifier: Apache-2.0
// Products of a model's activations and constant weights on this machine's CPU: y[m][n] = x[m][k] * w[n][k] + bias[n].
// A Product serves one shape and is used by all nodes of that shape; a Linear is one node's, with its weights.
#pragma once

#include <tilewright/layer.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace tilewright::onnxruntime {

inline constexpr std::size_t kAlign = 64;
inline std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
inline constexpr std::int64_t kPanelRows = 16;  // n is a multiple of

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;
Bytes allocate(std::size_t bytes);  // aligned to kAlign

// Memory that grows.
class Scratch {
 public:
  std::byte* of(std::size_t bytes);

 private:
  Bytes memory_;
  std::size_t bytes_ = 0;
};

struct Spec {
  std::string x, w, y;        // formats
  std::int64_t n = 0, k = 0;  // multiples of kPanelRows and of the formats' blocks
  std::string x_from = {};    // if launches quantize x: the format that they take
  std::string bias = {};      // its format; empty: there is none
  std::string c = {};         // that of a matrix [m][n] that is added; empty: there is none
  auto operator<=>(const Spec&) const = default;

  std::int64_t x_bytes() const;  // of an element that a launch takes
  std::int64_t y_bytes() const;
};
// Of floats by coded weights. quantizes: x to 8 bits, in blocks of 32.
Spec float_spec(const std::string& floats, const std::string& w, bool quantizes, bool bias);
std::int64_t round_up(std::int64_t value, std::int64_t multiple);

class Product {
 public:
  // Prepares the kernels for every m. Throws Error (unsupported) if no kernel but the reference computes it.
  Product(Engine& engine, const Device& launches, const Device& loads, const Spec& spec);

  const Spec& spec() const { return spec_; }
  std::size_t packed_bytes() const { return scales_at_ + aligned(layer_.weight_bytes(StreamName::scales)); }
  // `to`: packed_bytes(), aligned to kAlign.
  void pack(Operand w, std::byte* to) const;
  // Any thread. `alpha` multiplies the product, but not the bias and c.
  void launch(const std::byte* packed, const void* x, std::int64_t m, void* y, const void* bias, float alpha,
              const void* c = nullptr) const;

 private:
  Spec spec_;
  Engine* engine_;
  Device loads_;
  Layer layer_;
  std::size_t scales_at_;
};

// Of a node. Its sizes need not be those of the product.
struct Linear {
  std::shared_ptr<const Product> product = {};
  std::int64_t n = 0, k = 0;
  std::vector<std::int32_t> order =
      {};  // of the product's column i: the column of x, or -1; empty: the same, then zeros
  float alpha = 1;
  std::vector<std::byte> bias = {};  // as long as the product's n
  // If columns have offsets, y also has the sums of x over each `block` columns of the product, times other weights of
  // floats, which lie packed behind those of the product. The bias is added there.
  std::shared_ptr<const Product> offsets = {};
  std::int64_t block = 0;

  std::size_t packed_bytes() const { return product->packed_bytes() + (offsets ? offsets->packed_bytes() : 0); }
  void compute(const std::byte* packed, const void* x, std::int64_t m, void* y) const;  // any thread
};

}  // namespace tilewright::onnxruntime
