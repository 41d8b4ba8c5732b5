// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/operations/nbits.h"

#include <tilewright/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "hosts/onnxruntime/kernels.h"

namespace tilewright::onnxruntime {
namespace {

constexpr float kLargestHalf = 65504, kLeastNormalHalf = 6.103515625e-5f;

[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& why) {
  throw Error(ErrorCode::unsupported, field, value, why);
}

std::int64_t required(const Node& node, const char* attribute) {
  const std::optional<std::int64_t> value = node.integer(attribute);
  if (!value) throw Error(ErrorCode::invalid_argument, attribute, "", "is missing; MatMulNBits needs it");
  return *value;
}

void must_have(const char* name, const Tensor& t, std::int64_t elements) {
  if (t.elements() != elements)
    throw Error(ErrorCode::invalid_argument, name, shape_text(t.dims),
                "has the wrong number of elements; N, K, bits and block_size ask for " + std::to_string(elements));
}

Tensor constant(const Node& node, std::size_t index, const char* name) {
  std::optional<Tensor> tensor = node.constant(index);
  if (!tensor) refuse(name, "", "is not constant, so it cannot be packed when the model is loaded");
  return *tensor;
}

std::optional<Tensor> optional_constant(const Node& node, std::size_t index, const char* name) {
  if (!node.has_input(index)) return {};
  return constant(node, index, name);
}

std::vector<float> floats_of(const Tensor& t) {
  std::vector<float> values(static_cast<std::size_t>(t.elements()));
  Format::parse(float_format(t.type)).info().decode({.data = t.data}, 1, t.elements(), values.data());
  return values;
}

// Columns by their group, each group padded to a whole block.
std::vector<std::int32_t> order_of(const NBits& w) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(w.blocks * w.block), -1);
  std::vector<std::int64_t> used(static_cast<std::size_t>(w.blocks), 0);
  bool same = true;
  for (std::int64_t i = 0; i < w.k; ++i) {
    const std::int32_t group = static_cast<const std::int32_t*>(w.groups->data)[i];
    if (group < 0 || group >= w.blocks)
      throw Error(ErrorCode::invalid_argument, "g_idx", std::to_string(group),
                  "is not one of the " + std::to_string(w.blocks) + " groups, counted from 0");
    std::int64_t& in_group = used[static_cast<std::size_t>(group)];
    if (in_group == w.block) refuse("g_idx", std::to_string(group), "is the group of more than block_size columns");
    same &= group * w.block + in_group == i;
    order[static_cast<std::size_t>(group * w.block + in_group++)] = static_cast<std::int32_t>(i);
  }
  if (same) order.clear();
  return order;
}

// Whether all zero points are the middle of the codes. If not, they must be codes of 4 bits.
bool symmetric(const NBits& w) {
  bool middle = true;
  for (std::int64_t row = 0; w.zeros && row < w.n; ++row)
    for (std::int64_t b = 0; b < w.blocks; ++b) {
      const float zero = w.zero(row, b);
      middle &= zero == static_cast<float>(1 << (w.bits - 1));
      if (!(zero >= 0 && zero <= 15 && zero == std::floor(zero)) && w.bits < 8)
        refuse("zero_points", std::to_string(zero), "is not an integer from 0 to 15");
    }
  return middle;
}

// A power of two by which the scales are divided, so that halves hold them; 0 if they do already.
int exponent_of(const NBits& w, bool floats) {
  float largest = 0, least = kLargestHalf;
  for (const float scale : floats_of(w.scales)) {
    if (!std::isfinite(scale)) refuse("scales", std::to_string(scale), "is not finite");
    const float size = std::abs(scale);
    largest = std::max(largest, size);
    if (size != 0) least = std::min(least, size);
  }
  if (floats || (largest <= kLargestHalf / 2 && least >= kLeastNormalHalf)) return 0;
  const int exponent = std::ilogb(largest) - 14;
  if (std::scalbn(least, -exponent) < kLeastNormalHalf)
    refuse("scales", std::to_string(least), "is too small beside the largest scale: half precision cannot hold both");
  return exponent;
}

// The stream of scales; of formats that have them among the codes, these scales one after the other.
std::vector<std::byte> scales_of(const NBits& w, const Storage& s) {
  const std::vector<float> scales = floats_of(w.scales);
  const std::int64_t groups = s.by_rows ? 1 : s.cols / s.group, repeat = s.by_rows ? 1 : w.block / s.group;
  std::vector<float> records;  // a scale, and the zero point if the format has them
  records.reserve(static_cast<std::size_t>(s.rows * groups * (s.zeros ? 2 : 1)));
  for (std::int64_t row = 0; row < s.rows; ++row)
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t b = g / repeat;
      const bool exists = row < w.n;
      records.push_back(exists ? std::scalbn(scales[static_cast<std::size_t>(row * w.blocks + b)], -s.exponent) : 0);
      if (s.zeros) records.push_back(exists ? w.zero(row, b) : 0);
    }
  std::vector<std::byte> stored(records.size() * (s.by_rows ? 4 : 2));
  Format::parse(s.by_rows ? "f32" : "f16")
      .info()
      .encode(records.data(), 1, std::ssize(records), {.data = stored.data()}, 0);
  return stored;
}

// The streams of the format. `data` may be the model's own tensor.
struct Streams {
  std::vector<std::byte> memory, scales;
  const void* data = nullptr;
};

Streams streams_of(const NBits& w, const Storage& s) {
  Streams to;
  to.scales = scales_of(w, s);
  const bool bytes = w.bits == 8, blocks = bytes && !s.by_rows;
  const std::int64_t groups = s.cols / 32, row_bytes = blocks ? groups * 34 : s.cols / (bytes ? 1 : 2);
  if (w.bits == 4 && s.order.empty() && s.rows == w.n && s.cols == w.blocks * w.block) {
    to.data = w.codes.data;
    return to;
  }
  to.memory.resize(static_cast<std::size_t>(s.rows * row_bytes));
  to.data = to.memory.data();
  // Codes of 2 bits keep their values as codes of 4, whose middle is 8. Signed bytes are less by 128.
  const std::uint32_t shift = w.bits == 2 && !s.zeros ? 8 - 2 : 0, flip = bytes && !w.fp8 ? 0x80 : 0;
  const std::int64_t columns = s.order.empty() ? w.k : s.cols;
  for (std::int64_t row = 0; row < w.n; ++row) {
    auto* const codes = reinterpret_cast<std::uint8_t*>(to.memory.data()) + row * row_bytes;
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int64_t column = s.order.empty() ? i : s.order[static_cast<std::size_t>(i)];
      const std::uint32_t code = column < 0 ? 0 : w.code(row, column) + shift;
      if (!bytes)
        codes[i / 2] |= static_cast<std::uint8_t>(code << (i % 2 * 4));
      else
        codes[blocks ? i / 32 * 34 + 2 + i % 32 : i] = static_cast<std::uint8_t>(column < 0 ? 0 : code ^ flip);
    }
    for (std::int64_t g = 0; blocks && g < groups; ++g)
      std::memcpy(codes + g * 34, to.scales.data() + (row * groups + g) * 2, 2);
  }
  if (blocks) to.scales.clear();
  return to;
}

}  // namespace

std::uint32_t NBits::code(std::int64_t row, std::int64_t column) const {
  const auto* bytes =
      static_cast<const std::uint8_t*>(codes.data) + (row * blocks + column / block) * (block * bits / 8);
  const std::int64_t bit = column % block * bits;
  return static_cast<std::uint32_t>(bytes[bit / 8] >> bit % 8) & ((1u << bits) - 1);
}

float NBits::zero(std::int64_t row, std::int64_t b) const {
  if (!zeros) return static_cast<float>(1 << (bits - 1));
  if (zeros->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) {
    const std::int64_t bit = b * bits;
    const auto* bytes = static_cast<const std::uint8_t*>(zeros->data) + row * ((blocks * bits + 7) / 8);
    return static_cast<float>((bytes[bit / 8] >> bit % 8) & ((1u << bits) - 1));
  }
  const Format format = Format::parse(float_format(zeros->type));
  float value = 0;
  format.info().decode(
      {.data = static_cast<const std::byte*>(zeros->data) +
               static_cast<std::size_t>(row * blocks + b) * static_cast<std::size_t>(format.bits_per_element() / 8)},
      1, 1, &value);
  return value;
}

NBits read_nbits(const Node& node) {
  NBits w;
  w.n = required(node, "N"), w.k = required(node, "K"), w.block = required(node, "block_size");
  w.bits = node.integer("bits").value_or(4);
  if (w.n < 1 || w.k < 1 || w.n > INT32_MAX - 1024 || w.k > INT32_MAX - 1024)
    throw Error(ErrorCode::invalid_argument, "N, K", std::to_string(w.n) + ", " + std::to_string(w.k),
                "must be from 1 to 2^31 - 1025");
  if (w.bits != 2 && w.bits != 4 && w.bits != 8) refuse("bits", std::to_string(w.bits), "is not 2, 4 or 8");
  if (w.block < 16 || (w.block & (w.block - 1)) != 0 || w.block > (1 << 20))
    throw Error(ErrorCode::invalid_argument, "block_size", std::to_string(w.block), "must be a power of two from 16");
  if (w.block < 32) refuse("block_size", std::to_string(w.block), "is less than 32, and no format has such blocks");
  if (node.integer("weight_prepacked").value_or(0) != 0) refuse("weight_prepacked", "1", "is a layout of CUDA's");
  w.blocks = (w.k + w.block - 1) / w.block;
  w.quantizes = node.integer("accuracy_level").value_or(0) == 4;
  w.type = node.input_type(0);
  if (w.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && w.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
    refuse("A", "", "is neither float nor float16");
  w.codes = constant(node, 1, "B");
  w.scales = constant(node, 2, "scales");
  w.zeros = optional_constant(node, 3, "zero_points");
  w.groups = optional_constant(node, 4, "g_idx");
  w.bias = optional_constant(node, 5, "bias");
  must_have("B", w.codes, w.n * w.blocks * (w.block * w.bits / 8));
  if (w.codes.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8) refuse("B", "", "is not of type uint8");
  must_have("scales", w.scales, w.n * w.blocks);
  if (w.scales.type != w.type) refuse("scales", "", "is not of A's type");
  if (w.zeros && w.zeros->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8)
    must_have("zero_points", *w.zeros, w.n * ((w.blocks * w.bits + 7) / 8));
  else if (w.zeros && float_format(w.zeros->type))
    must_have("zero_points", *w.zeros, w.n * w.blocks);
  else if (w.zeros)
    refuse("zero_points", "", "is neither uint8 nor floats");
  if (w.groups) {
    if (w.groups->type != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) refuse("g_idx", "", "is not of type int32");
    if (w.groups->elements() == w.blocks * w.block) w.groups->dims = {w.k};  // padded to whole blocks
    must_have("g_idx", *w.groups, w.k);
  }
  if (w.bias) {
    must_have("bias", *w.bias, w.n);
    if (w.bias->type != w.type) refuse("bias", "", "is not of A's type");
  }
  return w;
}

Storage storage_of(const NBits& w) {
  Storage s;
  const bool middle = symmetric(w);
  s.offsets = w.bits == 8 && !middle;
  s.zeros = w.bits < 8 && !middle;
  s.by_rows = w.blocks == 1 && !s.zeros && w.bits != 2;
  s.group = s.by_rows ? 32 : w.bits == 8 ? 32 : static_cast<int>(std::min<std::int64_t>(w.block, 128));
  if (s.by_rows)
    s.format = w.fp8 ? "e4m3_row" : w.bits == 8 ? "int8_row" : "int4_row";
  else if (w.fp8)
    refuse("scales", shape_text(w.scales.dims), "are more than one for a row, and no format of FP8 has such blocks");
  else
    s.format = w.bits == 8 ? "q8_0" : (middle ? "int4_g" : "uint4_g") + std::to_string(s.group);
  s.rows = round_up(w.n, kPanelRows);
  s.cols = s.by_rows ? round_up(w.k, 32) : w.blocks * w.block;
  if (w.groups) s.order = order_of(w);
  if (s.by_rows) s.order.clear();  // one group
  s.exponent = exponent_of(w, s.by_rows);
  return s;
}

Spec spec_of(const NBits& w, const Storage& s) {
  Spec spec = float_spec(float_format(w.type), s.format, w.quantizes && !w.fp8, w.bias && !s.offsets);
  spec.n = s.rows, spec.k = s.cols;
  if (s.offsets) spec.c = "f32";
  return spec;
}

Linear linear_of(Kernels& kernels, const NBits& w, const Storage& s) {
  Linear linear{.product = kernels.product(spec_of(w, s)),
                .n = w.n,
                .k = w.k,
                .order = s.order,
                .alpha = std::scalbn(1.0f, s.exponent)};
  if (s.offsets) {
    Spec spec = float_spec("f32", "f32", false, w.bias.has_value());
    spec.n = s.rows, spec.k = w.blocks;
    linear.offsets = kernels.product(spec);
    linear.block = s.by_rows ? s.cols : w.block;
  }
  if (!w.bias) return linear;
  std::vector<float> bias = floats_of(*w.bias);
  bias.resize(static_cast<std::size_t>(s.rows));
  const Format format = Format::parse((s.offsets ? linear.offsets : linear.product)->spec().bias);
  linear.bias.resize(static_cast<std::size_t>(format.total_bytes(1, s.rows)));
  format.info().encode(bias.data(), 1, s.rows, {.data = linear.bias.data()}, 0);
  return linear;
}

void pack(const Linear& linear, const NBits& w, const Storage& s, std::byte* to) {
  const Streams streams = streams_of(w, s);
  linear.product->pack({.data = streams.data, .scales = streams.scales.data()}, to);
  if (!s.offsets) return;
  std::vector<float> offsets = floats_of(w.scales);  // w = (code - 128) scale + (128 - zero) scale
  for (std::int64_t row = 0; row < w.n; ++row)
    for (std::int64_t b = 0; b < w.blocks; ++b)
      offsets[static_cast<std::size_t>(row * w.blocks + b)] *= 128 - w.zero(row, b);
  offsets.resize(static_cast<std::size_t>(s.rows * w.blocks));
  linear.offsets->pack({.data = offsets.data()}, to + linear.product->packed_bytes());
}

}  // namespace tilewright::onnxruntime
