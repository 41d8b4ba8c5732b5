// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/tensors.h"

#include <tilewright/error.h>

#include <algorithm>
#include <string_view>

namespace tilewright::tensorrt {
namespace {

struct Type {
  DataType type;
  const char* name;
  int bytes;
};
// Headers before 10.8 lack FP4.
constexpr Type kTypes[] = {
    {DataType::kFLOAT, "FLOAT", 4}, {DataType::kHALF, "HALF", 2},          {DataType::kINT8, "INT8", 1},
    {DataType::kINT32, "INT32", 4}, {DataType::kBOOL, "BOOL", 1},          {DataType::kUINT8, "UINT8", 1},
    {DataType::kFP8, "FP8", 1},     {DataType::kBF16, "BF16", 2},          {DataType::kINT64, "INT64", 8},
    {DataType::kINT4, "INT4", 0},   {static_cast<DataType>(10), "FP4", 0},
};

const std::vector<DataType> kBytes = {DataType::kINT8, DataType::kFP8};

[[noreturn]] void refuse_shape(const Tensor& tensor, const Dims& given, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, tensor.name, text_of(given), allowed);
}

bool fits(const std::vector<std::int64_t>& wanted, const Dims& given) {
  if (given.nbDims != static_cast<std::int32_t>(wanted.size())) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] >= 0 && given.d[i] >= 0 && wanted[i] != given.d[i]) return false;
  return true;
}

std::string shape_text(const std::vector<std::int64_t>& dims) {
  Dims d = {};
  d.nbDims = static_cast<std::int32_t>(dims.size());
  std::copy(dims.begin(), dims.end(), d.d);
  return text_of(d);
}

}  // namespace

const char* name_of(DataType type) {
  for (const Type& t : kTypes)
    if (t.type == type) return t.name;
  return "a type that this library does not know";
}

std::string text_of(const Dims& dims) {
  std::string text = "[";
  for (std::int32_t i = 0; i < dims.nbDims; ++i) text += (i ? ", " : "") + std::to_string(dims.d[i]);
  return text + "]";
}

std::int64_t elements(const Dims& dims) {
  if (dims.nbDims < 0 || dims.nbDims > Dims::MAX_DIMS) return -1;  // which check_shape() refuses
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < dims.nbDims; ++i) {
    if (dims.d[i] < 0) return -1;
    count *= dims.d[i];
  }
  return count;
}

std::int64_t rows_of(const Dims& dims) {
  Dims leading = dims;
  leading.nbDims = std::max(dims.nbDims - 1, 0);
  return elements(leading);
}

std::vector<DataType> types_of(const Format& format, StreamName stream) {
  const std::string_view name = format.name();
  if (stream == StreamName::global) return {DataType::kFLOAT};
  if (stream == StreamName::scales) {
    if (name == "nvfp4") return {DataType::kFP8, DataType::kINT8};
    for (const StreamSpec& spec : format.info().streams)
      if (spec.stream == stream && spec.bytes == 4 && (spec.scope == Scope::row || name.starts_with("e4m3")))
        return {DataType::kFLOAT};
    return kBytes;
  }
  if (name == "f32") return {DataType::kFLOAT};
  if (name == "f16") return {DataType::kHALF};
  if (name == "bf16") return {DataType::kBF16};
  if (name == "int32") return {DataType::kINT32};
  if (name.starts_with("e4m3")) return {DataType::kFP8, DataType::kINT8};
  return kBytes;
}

std::int64_t elements_of(DataType type, std::int64_t bytes) {
  for (const Type& t : kTypes)
    if (t.type == type && t.bytes > 0) return bytes / t.bytes;
  return bytes;
}

void check_type(const Tensor& tensor, DataType given) {
  if (std::find(tensor.types.begin(), tensor.types.end(), given) != tensor.types.end()) return;
  std::string allowed = "must be of type ";
  for (std::size_t i = 0; i < tensor.types.size(); ++i)
    allowed += std::string(i ? " or " : "") + name_of(tensor.types[i]);
  throw Error(ErrorCode::invalid_argument, tensor.name, name_of(given), allowed + "; add a Cast before this node");
}

void check_shape(const Tensor& tensor, const Dims& given, std::int64_t rows) {
  if (given.nbDims < 0 || given.nbDims > Dims::MAX_DIMS)
    throw Error(ErrorCode::invalid_argument, tensor.name, std::to_string(given.nbDims) + " axes",
                "must have 8 axes or fewer");
  switch (tensor.shape) {
    case Tensor::Shape::rows:
      if (given.nbDims < 2) refuse_shape(tensor, given, "must have at least two axes: rows, and what is in a row");
      if (given.d[given.nbDims - 1] >= 0 && given.d[given.nbDims - 1] != tensor.count)
        refuse_shape(tensor, given, "must have " + std::to_string(tensor.count) + " elements along its last axis");
      return;
    case Tensor::Shape::per_row:
      if (rows >= 0 && elements(given) >= 0 && elements(given) != rows * tensor.count)
        refuse_shape(
            tensor, given,
            "must have " + std::to_string(tensor.count) + " elements for each of " + std::to_string(rows) + " rows");
      return;
    case Tensor::Shape::fixed:
      if (tensor.dims.empty()) {
        const auto fits = [&](DataType type) { return elements(given) == elements_of(type, tensor.count); };
        if (elements(given) < 0 || std::any_of(tensor.types.begin(), tensor.types.end(), fits)) return;
        const DataType first = tensor.types.front();
        refuse_shape(
            tensor, given,
            "must have " + std::to_string(elements_of(first, tensor.count)) + " elements of type " + name_of(first));
      }
      [[fallthrough]];
    case Tensor::Shape::image:
      if (!fits(tensor.dims, given))
        refuse_shape(tensor, given,
                     "must have the shape " + shape_text(tensor.dims) +
                         (tensor.shape == Tensor::Shape::image ? ", in which -1 is any extent" : ""));
  }
}

}  // namespace tilewright::tensorrt
