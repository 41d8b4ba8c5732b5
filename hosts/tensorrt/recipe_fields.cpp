// SPDX-License-Identifier: Apache-2.0
// Recipes of nodes of a model.
#include <tilewright/error.h>

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "hosts/tensorrt/binaries.h"
#include "hosts/tensorrt/recipe_inputs.h"
#include "hosts/tensorrt/runtime.h"

namespace tilewright::tensorrt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, field, value, allowed);
}

const Arch& target_of(const Fields& fields) {
  if (const auto name = fields.text("target")) {
    const Arch& found = arch(*name);
    if (found.cpu) refuse("target", *name, "must be a GPU's, such as sm_90a");
    return found;
  }
  const std::optional<Device> device = current_device();
  if (!device) refuse("target", "", "is required where no GPU is: the name of the GPU's architecture, such as sm_90a");
  return device->arch();
}

// The bytes of a matrix [rows, cols], transposed.
Bytes transposed(const Bytes& from, std::size_t rows, std::size_t cols) {
  Bytes to(from.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
  return to;
}

struct Constants {
  std::array<const char*, 3> names;  // of the fields: data, scales, global
  Bytes w[3];
};

void check_sizes(const Constants& constants, const std::size_t (&wanted)[3], const std::string& problem) {
  for (int i = 0; i < 3; ++i)
    if (constants.w[i].size() != wanted[i])
      refuse(constants.names[static_cast<std::size_t>(i)], std::to_string(constants.w[i].size()) + " bytes",
             "must be " + std::to_string(wanted[i]) + " bytes: w of " + problem);
}

// `stated`: the problem of the node, without x_from. Its weights become constants of the recipe if there are any.
std::shared_ptr<const Recipe> make(Kind kind, Problem stated, std::optional<Format> x_from, Weights weights,
                                   Constants constants, const Fields& fields) {
  const Arch& arch = target_of(fields);
  const Gemm* g = stated.as<Gemm>();
  const bool ordered = (g ? g->packing : stated.as<Conv>()->packing) != Packing::none;
  LayerOptions options{x_from, weights != Weights::inputs && !ordered};
  const Problem problem = layer_problems(stated, arch, options).main;
  const WeightBytes bytes = weight_bytes(problem);
  if (weights == Weights::constants) {
    check_sizes(constants, ordered ? bytes.launched : bytes.stored, stated.text());
    if (!ordered) pack(problem, constants.w);
  }
  options.pack = false;
  auto recipe = std::make_shared<Recipe>(Recipe{.kind = kind,
                                                .problem = problem,
                                                .options = options,
                                                .problems = layer_problems(problem, arch, options),
                                                .arch = &arch,
                                                .weights = weights,
                                                .weight_bytes = bytes});
  recipe->data = std::move(constants.w[0]);
  recipe->scales = std::move(constants.w[1]);
  recipe->global = std::move(constants.w[2]);
  recipe->constant_inputs = fields.integer("constant_weights").value_or(0) != 0;
  add_tensors(*recipe);
  if (const std::string why = only_reference(problem, arch); !why.empty())
    throw Error(ErrorCode::unsupported, "problem", problem.text(),
                "is not supported on " + std::string(arch.name) + ": " + why);
  if (fields.integer("binaries").value_or(0)) recipe->binaries = compiled(*recipe);
  return recipe;
}

std::string problem_text(const Fields& fields, const char* example) {
  std::optional<std::string> text = fields.text("problem");
  if (!text) refuse("problem", "", "is required, such as \"" + std::string(example) + "\"");
  return *text;
}

Constants stored_weights(const Fields& fields) {
  Constants constants{{"w", "w_scales", "w_global"}, {}};
  for (std::size_t i = 0; i < 3; ++i) constants.w[i] = fields.bytes(constants.names[i]).value_or(Bytes());
  return constants;
}

std::shared_ptr<const Recipe> gemm_recipe(const Fields& fields) {
  std::string text = problem_text(fields, "gemm x=e4m3_row w=nvfp4 y=bf16 n=4096 k=4096 global=mul");
  if (text.starts_with("gemm ") && text.find(" m=") == std::string::npos) text += " m=1";  // any number of rows, anyway
  const Problem problem = Problem::parse(text);
  if (!problem.as<Gemm>()) refuse("problem", text, "must be a gemm; TilewrightConv takes a conv");
  Gemm g = *problem.as<Gemm>();
  if (g.groups)
    throw Error(ErrorCode::unsupported, "groups", std::to_string(g.groups),
                "is not supported by TilewrightGemm; leave it out");
  g.m = 1;
  std::optional<Format> x_from = std::exchange(g.x_from, {});
  if (const auto name = fields.text("x_from")) x_from = Format::parse(*name);
  Constants constants = stored_weights(fields);
  const bool given = !constants.w[0].empty();
  if (given) g.constant_weights = true;
  return make(Kind::gemm, Problem(g), x_from, given ? Weights::constants : Weights::inputs, std::move(constants),
              fields);
}

std::shared_ptr<const Recipe> w4a8_recipe(const Fields& fields) {
  const auto extent = [&](const char* name, std::int64_t multiple) {
    const std::optional<std::int64_t> value = fields.integer(name);
    if (!value) refuse(name, "", "is required");
    if (*value < multiple || *value % multiple)
      refuse(name, std::to_string(*value), "must be a positive multiple of " + std::to_string(multiple));
    return *value;
  };
  const std::int64_t k = extent("in_features", 16), n = extent("out_features", 1);
  Gemm g{Format::parse("e4m3_row"), Format::parse("nvfp4"), Format::parse("bf16")};
  g.m = 1, g.n = n, g.k = k;
  g.global = Global::mul;
  g.alpha = fields.number("alpha").value_or(1.0);

  Constants constants{{"weight_packed", "weight_scale", "weight_global"}, {}};
  for (std::size_t i = 0; i < 2; ++i) constants.w[i] = fields.bytes(constants.names[i]).value_or(Bytes());
  const bool given = !constants.w[0].empty();
  if (given) {
    const float one = 1;  // this plugin's weights have no factor for the tensor; alpha is one
    constants.w[2].resize(sizeof one);
    std::memcpy(constants.w[2].data(), &one, sizeof one);
    const auto rows = static_cast<std::size_t>(n), columns = static_cast<std::size_t>(k);
    check_sizes(constants, {rows * columns / 2, rows * columns / 16, sizeof(float)}, "[in_features, out_features]");
    constants.w[0] = transposed(constants.w[0], columns / 2, rows);
    constants.w[1] = transposed(constants.w[1], columns / 16, rows);
    g.constant_weights = true;
  }
  return make(Kind::w4a8, Problem(g), Format::parse("bf16"), given ? Weights::constants : Weights::transposed,
              std::move(constants), fields);
}

std::shared_ptr<const Recipe> conv_recipe(const Fields& fields) {
  const std::string text = problem_text(fields, "conv x=bf16 w=bf16 y=bf16 n=1 c=64 in=32x32 k=64 kernel=3x3 pad=1");
  const Problem problem = Problem::parse(text);
  if (!problem.as<Conv>()) refuse("problem", text, "must be a conv; TilewrightGemm takes a gemm");
  Conv c = *problem.as<Conv>();
  std::optional<Format> x_from;
  if (const auto name = fields.text("x_from")) x_from = Format::parse(*name);
  Constants constants = stored_weights(fields);
  const bool given = !constants.w[0].empty();
  if (given) c.constant_weights = true;
  return make(Kind::conv, Problem(c), x_from, given ? Weights::constants : Weights::inputs, std::move(constants),
              fields);
}

PluginField field(const char* name, PluginFieldType type) { return {name, nullptr, type, 1}; }
// Both end with what every plugin takes.
const PluginField kProblemFields[] = {
    field("problem", PluginFieldType::kCHAR),   field("x_from", PluginFieldType::kCHAR),
    field("w", PluginFieldType::kINT8),         field("w_scales", PluginFieldType::kINT8),
    field("w_global", PluginFieldType::kINT8),  field("target", PluginFieldType::kCHAR),
    field("binaries", PluginFieldType::kINT32),
};
const PluginField kW4a8Fields[] = {
    field("in_features", PluginFieldType::kINT32), field("out_features", PluginFieldType::kINT32),
    field("alpha", PluginFieldType::kFLOAT32),     field("weight_packed", PluginFieldType::kINT8),
    field("weight_scale", PluginFieldType::kINT8), field("constant_weights", PluginFieldType::kINT32),
    field("target", PluginFieldType::kCHAR),       field("binaries", PluginFieldType::kINT32),
};

}  // namespace

std::shared_ptr<const Recipe> recipe_of(Kind kind, const Fields& fields) {
  switch (kind) {
    case Kind::gemm: return gemm_recipe(fields);
    case Kind::w4a8: return w4a8_recipe(fields);
    case Kind::conv: break;
  }
  return conv_recipe(fields);
}

const nvinfer1::PluginFieldCollection* field_names(Kind kind) {
  const auto collection = [](std::span<const PluginField> fields) {
    return nvinfer1::PluginFieldCollection{static_cast<std::int32_t>(fields.size()), fields.data()};
  };
  static const nvinfer1::PluginFieldCollection problem = collection(kProblemFields), w4a8 = collection(kW4a8Fields);
  return kind == Kind::w4a8 ? &w4a8 : &problem;
}

}  // namespace tilewright::tensorrt
