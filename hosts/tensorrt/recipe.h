// SPDX-License-Identifier: Apache-2.0
// Recipe: all that a plugin is. It is made from the fields of a model's node when an engine is built, stored in the
// engine, and made again from what was stored. Immutable; all copies of a plugin share one.
#pragma once

#include <tilewright/arch.h>
#include <tilewright/conv.h>
#include <tilewright/gemm.h>
#include <tilewright/layer.h>
#include <tilewright/problem.h>

#include <memory>
#include <string>
#include <vector>

#include "hosts/tensorrt/fields.h"
#include "hosts/tensorrt/tensors.h"

namespace tilewright::tensorrt {

enum class Kind { gemm, w4a8, conv };
const char* plugin_name(Kind kind);

enum class Weights {
  constants,   // fields of the node: packed when the engine is built, and stored in it once
  inputs,      // tensors in the order of the problem
  transposed,  // tensors [k, n], which launches reorder
};

// Bytes of w's streams (data, scales, global): as its format stores them, and in the problem's order.
struct WeightBytes {
  std::size_t stored[3] = {}, launched[3] = {};
};

struct Recipe {
  Kind kind;
  Problem problem;         // of the kernel, with pack= and workspace=; a gemm has one row
  LayerOptions options;    // for a Layer of `problem`, or of the same problem with other extents
  LayerProblems problems;  // of that layer
  const Arch* arch;
  Weights weights;
  WeightBytes weight_bytes = {};
  bool constant_inputs = false;               // of transposed weights: they never change
  Bytes data = {}, scales = {}, global = {};  // of constant weights, in the order of launches
  Bytes binaries = {};                        // a cache file with the compiled kernels; empty: the engine has none
  std::vector<Tensor> inputs = {};
  Tensor output = {};

  const Gemm* gemm() const { return problem.as<Gemm>(); }
  const Conv* conv() const { return problem.as<Conv>(); }
  // Throws Error (invalid_argument), which names the tensor.
  void check_types(const DataType* types, std::int32_t count) const;
  void check_shapes(const Dims* shapes, std::int32_t count) const;
  // The problem for an x of this shape: a convolution's images and extents are those of x. -1 counts as 1.
  Problem with_shape(const Dims& x) const;
};

// From the fields of a node. Throws Error: invalid_argument, unsupported, too_large.
std::shared_ptr<const Recipe> recipe_of(Kind kind, const Fields& fields);
// Names of the fields that a node may have.
const nvinfer1::PluginFieldCollection* field_names(Kind kind);

// What an engine stores, and from it. `to` has views of the recipe.
void save(const Recipe& recipe, SavedFields& to);
std::shared_ptr<const Recipe> restored(Kind kind, const Fields& fields);

// Identifies the problem, the target, and the text of the kernel that will probably be used: two plugins with the same
// identity take the same time.
std::string timing_identity(const Recipe& recipe);

}  // namespace tilewright::tensorrt
