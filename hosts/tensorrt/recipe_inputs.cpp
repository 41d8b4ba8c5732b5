// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/recipe_inputs.h"

#include <tilewright/error.h>
#include <tilewright/operation.h>

#include <algorithm>
#include <utility>

namespace tilewright::tensorrt {
namespace {

struct DescribedWeights {
  explicit DescribedWeights(const Problem& problem) {
    problem.operation().describe(problem, task);
    for (const Matrix& m : task.matrices)
      if (m.name == "w") w = &m;
  }
  Task task;
  const Matrix* w = nullptr;
};

std::int64_t stream_bytes(const Format& format, StreamName stream, std::int64_t rows, std::int64_t cols) {
  const auto streams = format.info().streams;
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (streams[i].stream == stream) return format.stream_bytes(static_cast<int>(i), rows, cols);
  return 0;
}

Tensor tensor(Slot slot, const char* name, std::vector<DataType> types, Tensor::Shape shape, std::int64_t bytes) {
  Tensor t{.slot = slot, .name = name, .types = std::move(types), .shape = shape};
  t.count = shape == Tensor::Shape::fixed ? bytes : elements_of(t.types.front(), bytes);
  return t;
}
Tensor floats(Slot slot, const char* name, const Format& format, Tensor::Shape shape, std::int64_t count) {
  return tensor(slot, name, types_of(format, StreamName::data), shape,
                stream_bytes(format, StreamName::data, 1, count));
}

void add_global(std::vector<Tensor>& to, const Format& x) {
  if (stream_bytes(x, StreamName::global, 1, x.block()))
    to.push_back(tensor(Slot::x_global, "x_global", {DataType::kFLOAT}, Tensor::Shape::fixed, sizeof(float)));
}

void add_weights(const Recipe& recipe, const Format& w, std::vector<Tensor>& to) {
  if (recipe.weights != Weights::inputs) return;
  const WeightBytes& bytes = recipe.weight_bytes;
  constexpr std::pair<Slot, const char*> kNames[] = {
      {Slot::w, "w"}, {Slot::w_scales, "w_scales"}, {Slot::w_global, "w_global"}};
  for (int i = 0; i < 3; ++i) {
    if (!bytes.launched[i]) continue;
    std::vector<DataType> types = types_of(w, kStreams[i]);  // or simply bytes
    if (std::find(types.begin(), types.end(), DataType::kINT8) == types.end()) types.push_back(DataType::kINT8);
    to.push_back(tensor(kNames[i].first, kNames[i].second, std::move(types), Tensor::Shape::fixed,
                        static_cast<std::int64_t>(bytes.launched[i])));
  }
}

void add_gemm(const Gemm& g, Recipe& recipe) {
  std::vector<Tensor>& to = recipe.inputs;
  if (recipe.options.x_from) {
    to.push_back(floats(Slot::x, "x", *recipe.options.x_from, Tensor::Shape::rows, g.k));
  } else {
    to.push_back(floats(Slot::x, "x", g.x, Tensor::Shape::rows, g.k));
    if (const std::int64_t bytes = stream_bytes(g.x, StreamName::scales, 1, g.k))
      to.push_back(
          tensor(Slot::x_scales, "x_scales", types_of(g.x, StreamName::scales), Tensor::Shape::per_row, bytes));
  }
  add_global(to, g.x);
  add_weights(recipe, g.w, to);
  if (g.bias) to.push_back(floats(Slot::bias, "bias", *g.bias, Tensor::Shape::fixed, g.n));
  if (g.c) to.push_back(floats(Slot::c, "c", *g.c, Tensor::Shape::rows, g.n));
  recipe.output = floats(Slot::x, "y", g.y, Tensor::Shape::rows, g.n);
}

// W4A8GemmPlugin's names and shapes.
void add_w4a8(const Gemm& g, Recipe& recipe) {
  recipe.inputs = {floats(Slot::x, "activation", *recipe.options.x_from, Tensor::Shape::rows, g.k)};
  if (recipe.weights == Weights::transposed) {
    Tensor data = tensor(Slot::w, "weight_packed", {DataType::kINT8, DataType::kFP8}, Tensor::Shape::fixed, 0);
    data.dims = {g.k / 2, g.n};
    Tensor scales = tensor(Slot::w_scales, "weight_scale", {DataType::kFP8, DataType::kINT8}, Tensor::Shape::fixed, 0);
    scales.dims = {g.k / 16, g.n};
    recipe.inputs.push_back(std::move(data));
    recipe.inputs.push_back(std::move(scales));
  }
  recipe.output = floats(Slot::x, "output", g.y, Tensor::Shape::rows, g.n);
}

Tensor image(Slot slot, const char* name, const Format& format, TensorLayout layout, std::int64_t channels, int axes) {
  Tensor t{.slot = slot, .name = name, .types = types_of(format, StreamName::data), .shape = Tensor::Shape::image};
  t.dims.assign(static_cast<std::size_t>(axes) + 2, -1);
  t.dims[layout == TensorLayout::ncdhw ? 1 : t.dims.size() - 1] = channels;
  return t;
}

void add_conv(const Conv& c, Recipe& recipe) {
  const auto refuse = [](const char* field) {
    throw Error(ErrorCode::unsupported, field, "", "is not supported by TilewrightConv; leave it out");
  };
  if (c.cache) refuse("cache");
  if (stream_bytes(c.x, StreamName::scales, 1, c.x.block())) refuse("x with scales");
  std::vector<Tensor>& to = recipe.inputs;
  to.push_back(image(Slot::x, "x", recipe.options.x_from.value_or(c.x), c.x_layout, c.c, c.in.rank));
  add_global(to, c.x);
  add_weights(recipe, c.w, to);
  if (c.bias) to.push_back(floats(Slot::bias, "bias", *c.bias, Tensor::Shape::fixed, c.k));
  if (c.residual) to.push_back(image(Slot::c, "residual", *c.residual, c.y_layout, c.k, c.in.rank));
  if (c.quant_act.block)
    to.push_back(tensor(Slot::amax, "amax", {DataType::kFLOAT}, Tensor::Shape::fixed, sizeof(float)));
  recipe.output = image(Slot::x, "y", c.y, c.y_layout, c.k, c.in.rank);
}

}  // namespace

WeightBytes weight_bytes(const Problem& problem) {
  const DescribedWeights of(problem);
  WeightBytes bytes;
  for (int i = 0; i < 3; ++i) {
    const int slot = of.w->slot(kStreams[i]);
    if (slot < 0) continue;
    bytes.launched[i] = of.task.buffers[static_cast<std::size_t>(slot)].bytes;
    bytes.stored[i] = static_cast<std::size_t>(stream_bytes(of.w->format, kStreams[i], of.w->rows, of.w->cols));
  }
  return bytes;
}

void pack(const Problem& problem, Bytes (&w)[3]) {
  const DescribedWeights of(problem);
  if (!of.w->store) return;
  const WeightBytes bytes = weight_bytes(problem);
  Bytes data(bytes.launched[0]), scales(bytes.launched[1]), global(bytes.launched[2]);
  const auto pointer = [](Bytes& b) -> void* { return b.empty() ? nullptr : b.data(); };
  const auto number = [&](Bytes& b) { return static_cast<float*>(pointer(b)); };
  of.w->store({pointer(w[0]), pointer(w[1]), number(w[2])}, {pointer(data), pointer(scales), number(global)});
  if (!global.empty()) global = w[2];
  w[0] = std::move(data), w[1] = std::move(scales), w[2] = std::move(global);
}

void add_tensors(Recipe& recipe) {
  if (const Conv* c = recipe.conv())
    add_conv(*c, recipe);
  else if (recipe.kind == Kind::w4a8)
    add_w4a8(*recipe.gemm(), recipe);
  else
    add_gemm(*recipe.gemm(), recipe);
}

}  // namespace tilewright::tensorrt
