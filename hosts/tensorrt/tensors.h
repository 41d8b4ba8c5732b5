// SPDX-License-Identifier: Apache-2.0
// Tensors that a plugin takes and returns: their types and shapes.
#pragma once

#include <tilewright/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "NvInferRuntime.h"

namespace tilewright::tensorrt {

using nvinfer1::DataType;
using nvinfer1::Dims;

// Which argument of a launch a tensor is.
enum class Slot { x, x_scales, x_global, w, w_scales, w_global, bias, c, amax };
inline constexpr int kSlots = 9;

struct Tensor {
  enum class Shape {
    rows,     // any axes, then `count` elements of each row
    per_row,  // `count` elements for each row of the first tensor, in any shape
    fixed,    // `dims`, or if there are none, `count` bytes in any shape
    image,    // `dims`, in which -1 is any extent
  };
  Slot slot = Slot::x;          // of an input
  std::string name;             // "x_scales"
  std::vector<DataType> types;  // any of these; the first one is what documentation names
  Shape shape = Shape::fixed;
  std::int64_t count = 0;
  std::vector<std::int64_t> dims = {};
};

const char* name_of(DataType type);
// As messages show it: "[-1, 4096]".
std::string text_of(const Dims& dims);
std::int64_t elements(const Dims& dims);  // -1: not known yet
// Rows of a tensor whose last axis is a row; -1: not known yet.
std::int64_t rows_of(const Dims& dims);

// TensorRT's type of a stream of a matrix. What TensorRT has no type for are bytes, INT8 or FP8: TensorRT-RTX refuses
// models that have both.
std::vector<DataType> types_of(const Format& format, StreamName stream);
// Elements of this type in so many bytes.
std::int64_t elements_of(DataType type, std::int64_t bytes);

// Throws Error (invalid_argument), which names the tensor. rows: of the first tensor; -1: not known yet.
void check_type(const Tensor& tensor, DataType given);
void check_shape(const Tensor& tensor, const Dims& given, std::int64_t rows);

}  // namespace tilewright::tensorrt
