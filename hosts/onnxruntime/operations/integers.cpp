// SPDX-License-Identifier: Apache-2.0
// The kernels multiply signed bytes. Unsigned ones become signed by subtracting 128 from them and from their zero
// point. With a' = a - za and w' = w - zw, the sum of a' w' is the sum of a w, less za times the sum of w, which is a
// bias of each column, and less zw times the sum of a', which the rows add if some zw is not 0.
#include "hosts/onnxruntime/operations/integers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "hosts/onnxruntime/packed_kernel.h"

namespace tilewright::onnxruntime {
namespace {

constexpr ONNXTensorElementDataType kBytes = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
constexpr std::int64_t kRowsOfABlock = 8;

// What is subtracted from an element to make it signed.
int excess(ONNXTensorElementDataType type) { return type == kBytes ? 128 : 0; }

std::int32_t element(const Tensor& t, std::int64_t i) {
  return t.type == kBytes ? static_cast<const std::uint8_t*>(t.data)[i] : static_cast<const std::int8_t*>(t.data)[i];
}

// Sums of 32 bits wrap, and so do the parts that they are made of.
std::int32_t wrapped(std::int64_t value) { return static_cast<std::int32_t>(value); }

// Of the weights, w[k][n], an input of both operations with its zero point.
struct Weights {
  std::int64_t n = 0, k = 0;
  Tensor tensor;
};

Weights read_weights(const Node& node, std::size_t input) {
  const std::optional<Tensor> w = node.constant(input);
  if (!w)
    throw Error(ErrorCode::unsupported, "B", "", "is not constant, so it cannot be packed when the model is loaded");
  if (w->dims.size() != 2 || w->dims[0] < 1 || w->dims[1] < 1)
    throw Error(ErrorCode::unsupported, "B", shape_text(w->dims), "is not a matrix");
  return {.n = w->dims[1], .k = w->dims[0], .tensor = *w};
}

std::shared_ptr<const Product> product_of(Kernels& kernels, const Weights& w) {
  return kernels.product({.x = "int8",
                          .w = "int8",
                          .y = "int32",
                          .n = round_up(w.n, kPanelRows),
                          .k = round_up(w.k, 32),
                          .x_from = "",
                          .bias = "int32"});
}

// An input that has `counts` elements, as far as the graph says.
void must_have_elements(const Node& node, std::size_t input, const char* name,
                        std::initializer_list<std::int64_t> counts) {
  if (!node.has_input(input)) return;
  const std::optional<std::vector<std::int64_t>> shape = node.input_shape(input);
  const bool known = shape && std::all_of(shape->begin(), shape->end(), [](std::int64_t d) { return d >= 0; });
  std::int64_t elements = 1;
  if (known)
    for (const std::int64_t d : *shape) elements *= d;
  if (!known || shape->size() > 1 || std::find(counts.begin(), counts.end(), elements) == counts.end())
    throw Error(ErrorCode::unsupported, name, shape ? shape_text(*shape) : "",
                "is neither one number nor one for each column of B");
}

class IntegerKernel : public PackedKernel {
 protected:
  IntegerKernel(Kernels& kernels, const OrtKernelInfo* info, int weights)
      : PackedKernel(weights, {}), weights_(read_weights(KernelNode(info), static_cast<std::size_t>(weights))) {
    product_ = product_of(kernels, weights_);
    sums_.resize(static_cast<std::size_t>(weights_.n));
    for (std::int64_t i = 0; i < weights_.k; ++i)
      for (std::int64_t j = 0; j < weights_.n; ++j) sums_[static_cast<std::size_t>(j)] += signed_weight(i, j);
  }

  // Sums of a' w' in rows of stride(). `wz`: the zero point of B, null: 0. `rows(i, row)` takes each row of sums.
  template <class Rows>
  void multiply(const Tensor& a, std::int32_t zero, const Tensor* wz, const Rows& rows);

  std::int64_t n() const { return weights_.n; }
  std::vector<std::int64_t> result_dims(const Tensor& a) const {
    must_have_columns("A", a, weights_.k);
    std::vector<std::int64_t> dims = a.dims;
    dims.back() = weights_.n;
    return dims;
  }

 private:
  std::int32_t signed_weight(std::int64_t i, std::int64_t j) const {
    return element(weights_.tensor, i * weights_.n + j) - excess(weights_.tensor.type);
  }

  std::size_t packed_bytes() const override { return product_->packed_bytes(); }

  void pack(std::byte* to) override {
    const Spec& spec = product_->spec();
    std::vector<std::int8_t> rows(static_cast<std::size_t>(spec.n * spec.k));
    constexpr std::int64_t kTile = 64;  // of the transposition: what fits into the first cache
    for (std::int64_t from = 0; from < weights_.k; from += kTile)
      for (std::int64_t j = 0; j < weights_.n; ++j)
        for (std::int64_t i = from; i < std::min(from + kTile, weights_.k); ++i)
          rows[static_cast<std::size_t>(j * spec.k + i)] = static_cast<std::int8_t>(signed_weight(i, j));
    product_->pack({.data = rows.data()}, to);
  }

  Weights weights_;
  std::shared_ptr<const Product> product_;
  std::vector<std::int32_t> sums_;  // of the columns of B, signed
};

template <class Rows>
void IntegerKernel::multiply(const Tensor& a, std::int32_t zero, const Tensor* wz, const Rows& rows) {
  thread_local Scratch inputs, biases, sums;
  const Spec& spec = product_->spec();
  const std::int64_t m = a.rows(), k = weights_.k;
  if (m == 0) return;
  const auto* from = static_cast<const std::int8_t*>(a.data);
  const bool direct = excess(a.type) == 0 && spec.k == k && reinterpret_cast<std::uintptr_t>(from) % 16 == 0;
  auto* const copies =
      direct ? nullptr : reinterpret_cast<std::int8_t*>(inputs.of(static_cast<std::size_t>(m * spec.k)));
  const auto flip = static_cast<std::int8_t>(excess(a.type));
  if (!direct)
    in_parallel((m + kRowsOfABlock - 1) / kRowsOfABlock, [&](std::int64_t block) {
      for (std::int64_t i = block * kRowsOfABlock; i < std::min(m, (block + 1) * kRowsOfABlock); ++i) {
        std::int8_t* const row = copies + i * spec.k;
        for (std::int64_t j = 0; j < k; ++j) row[j] = static_cast<std::int8_t>(from[i * k + j] ^ flip);
        std::memset(row + k, 0, static_cast<std::size_t>(spec.k - k));
      }
    });
  const std::int8_t* const x = direct ? from : copies;

  const std::int32_t za = zero - excess(a.type);
  const auto weight_zero = [&](std::int64_t j) {
    return wz ? element(*wz, wz->elements() == 1 ? 0 : j) - excess(weights_.tensor.type)
              : -excess(weights_.tensor.type);
  };
  auto* const bias =
      reinterpret_cast<std::int32_t*>(biases.of(static_cast<std::size_t>(spec.n) * sizeof(std::int32_t)));
  bool zeros = false;
  for (std::int64_t j = 0; j < spec.n; ++j) {
    const std::int32_t zw = j < weights_.n ? weight_zero(j) : 0;
    zeros |= zw != 0;
    bias[j] = j < weights_.n ? wrapped(-std::int64_t{za} * (sums_[static_cast<std::size_t>(j)] - k * zw)) : 0;
  }
  auto* const y = reinterpret_cast<std::int32_t*>(sums.of(static_cast<std::size_t>(m * spec.n) * sizeof(std::int32_t)));
  product_->launch(packed(), x, m, y, bias, 1);
  in_parallel((m + kRowsOfABlock - 1) / kRowsOfABlock, [&](std::int64_t block) {
    for (std::int64_t i = block * kRowsOfABlock; i < std::min(m, (block + 1) * kRowsOfABlock); ++i) {
      std::int32_t* const row = y + i * spec.n;
      if (zeros) {
        std::int32_t sum = 0;
        for (std::int64_t j = 0; j < k; ++j) sum += x[i * spec.k + j];
        for (std::int64_t j = 0; j < weights_.n; ++j) row[j] = wrapped(row[j] - std::int64_t{weight_zero(j)} * sum);
      }
      rows(i, row);
    }
  });
}

// ---- MatMulInteger(A, B, a_zero_point, b_zero_point)

class MatMulInteger : public IntegerKernel {
 public:
  MatMulInteger(Kernels& kernels, const OrtKernelInfo* info)
      : IntegerKernel(kernels, info, 1),
        has_a_zero_(KernelNode(info).has_input(2)),
        has_b_zero_(KernelNode(info).has_input(3)) {}

 private:
  void compute(OrtKernelContext* context) override {
    const Tensor a = tensor_of(input_of(context, 0));
    std::optional<Tensor> b_zero;
    if (has_b_zero_) b_zero = tensor_of(input_of(context, 3));
    auto* const y = static_cast<std::int32_t*>(output_of(context, 0, result_dims(a)));
    multiply(a, has_a_zero_ ? element(tensor_of(input_of(context, 2)), 0) : 0, b_zero ? &*b_zero : nullptr,
             [&](std::int64_t i, const std::int32_t* sums) {
               std::memcpy(y + i * n(), sums, static_cast<std::size_t>(n()) * sizeof(std::int32_t));
             });
  }

  bool has_a_zero_, has_b_zero_;
};

// ---- QLinearMatMul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point)

template <class Y>
void requantize(const std::int32_t* sums, const float* scales, std::int64_t scale_step, std::int64_t n,
                std::int32_t zero, Y* y) {
  const auto least = static_cast<float>(std::numeric_limits<Y>::min() - zero);
  const auto most = static_cast<float>(std::numeric_limits<Y>::max() - zero);
  constexpr float kInteger = 12582912.0f;  // 1.5 * 2^23: added to a small number, it rounds it to an integer
  for (std::int64_t j = 0; j < n; ++j) {
    const float scaled = static_cast<float>(sums[j]) * scales[j * scale_step];
    const float rounded = std::clamp(scaled, least, most) + kInteger - kInteger;
    y[j] = static_cast<Y>(static_cast<std::int32_t>(rounded) + zero);
  }
}

class QLinearMatMul : public IntegerKernel {
 public:
  QLinearMatMul(Kernels& kernels, const OrtKernelInfo* info) : IntegerKernel(kernels, info, 3) {}

 private:
  void compute(OrtKernelContext* context) override {
    const Tensor a = tensor_of(input_of(context, 0)), b_zero = tensor_of(input_of(context, 5));
    const Tensor b_scale = tensor_of(input_of(context, 4)), y_zero = tensor_of(input_of(context, 7));
    const auto scalar = [&](std::size_t i) { return *static_cast<const float*>(tensor_of(input_of(context, i)).data); };
    std::vector<float> scales(static_cast<std::size_t>(b_scale.elements()));
    const float a_scale = scalar(1), y_scale = scalar(6);
    for (std::size_t j = 0; j < scales.size(); ++j)
      scales[j] = a_scale * static_cast<const float*>(b_scale.data)[j] / y_scale;
    const std::int64_t step = scales.size() == 1 ? 0 : 1;
    void* const y = output_of(context, 0, result_dims(a));
    multiply(a, element(tensor_of(input_of(context, 2)), 0), &b_zero, [&](std::int64_t i, const std::int32_t* sums) {
      if (y_zero.type == kBytes)
        requantize(sums, scales.data(), step, n(), element(y_zero, 0), static_cast<std::uint8_t*>(y) + i * n());
      else
        requantize(sums, scales.data(), step, n(), element(y_zero, 0), static_cast<std::int8_t*>(y) + i * n());
    });
  }
};

}  // namespace

void take_matmul_integer(Kernels& kernels, const Node& node) {
  const Weights w = read_weights(node, 1);
  must_have_elements(node, 2, "a_zero_point", {1});
  must_have_elements(node, 3, "b_zero_point", {1, w.n});
  product_of(kernels, w);
}

OrtStatus* create_matmul_integer(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded([&] { *kernel = new MatMulInteger(*static_cast<Kernels*>(kernels), info); });
}

void take_qlinear_matmul(Kernels& kernels, const Node& node) {
  const Weights w = read_weights(node, 3);
  for (const std::size_t scalar : {1, 2, 6, 7}) must_have_elements(node, scalar, "a scale or zero point", {1});
  must_have_elements(node, 4, "b_scale", {1, w.n});
  must_have_elements(node, 5, "b_zero_point", {1, w.n});
  for (const std::size_t scale : {1, 4, 6})
    if (node.input_type(scale) != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      throw Error(ErrorCode::unsupported, "scales", "", "are not of type float");
  product_of(kernels, w);
}

OrtStatus* create_qlinear_matmul(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded([&] { *kernel = new QLinearMatMul(*static_cast<Kernels*>(kernels), info); });
}

}  // namespace tilewright::onnxruntime
