// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/recipe.h"

#include <tilewright/error.h>
#include <tilewright/operation.h>
#include <tilewright/store.h>
#include <tilewright/version.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "hosts/tensorrt/recipe_inputs.h"
#include "hosts/tensorrt/runtime.h"

namespace tilewright::tensorrt {
namespace {

constexpr const char* kLibrary = "library";
constexpr const char* kProblem = "problem";
constexpr const char* kFrom = "x_from";
constexpr const char* kTarget = "target";
constexpr const char* kWeights = "weights";
constexpr const char* kConstant = "constant_weights";
constexpr const char* kData = "w";
constexpr const char* kScales = "w_scales";
constexpr const char* kGlobal = "w_global";
constexpr const char* kBinaries = "binaries";

Format weight_format(const Problem& problem) {
  return problem.as<Gemm>() ? problem.as<Gemm>()->w : problem.as<Conv>()->w;
}

// What stored weights depend on besides the problem.
std::string library_of(const Problem& problem) {
  return std::string(TILEWRIGHT_VERSION_STRING) + " layout " +
         std::to_string(weight_format(problem).info().layout_version);
}

[[noreturn]] void damaged(const char* field, const std::string& value) {
  throw Error(ErrorCode::invalid_argument, field, value, "is not what this library stores; build the engine again");
}

}  // namespace

const char* plugin_name(Kind kind) {
  switch (kind) {
    case Kind::gemm: return "TilewrightGemm";
    case Kind::w4a8: return "W4A8GemmPlugin";
    case Kind::conv: break;
  }
  return "TilewrightConv";
}

void Recipe::check_types(const DataType* types, std::int32_t count) const {
  if (count != static_cast<std::int32_t>(inputs.size())) {
    std::string names;
    for (const Tensor& t : inputs) names += (names.empty() ? "" : ", ") + t.name;
    throw Error(ErrorCode::invalid_argument, "inputs", std::to_string(count),
                "must be the " + std::to_string(inputs.size()) + " tensors " + names);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) check_type(inputs[i], types[i]);
}

void Recipe::check_shapes(const Dims* shapes, std::int32_t count) const {
  const std::int64_t rows = count > 0 && gemm() ? rows_of(shapes[0]) : -1;
  for (std::size_t i = 0; i < inputs.size() && static_cast<std::int32_t>(i) < count; ++i)
    check_shape(inputs[i], shapes[i], rows);
}

Problem Recipe::with_shape(const Dims& x) const {
  if (!conv()) return problem;
  Conv c = *conv();
  const auto at = [&](std::int32_t axis) { return std::max<std::int64_t>(x.d[axis], 1); };
  c.n = at(0);
  for (int i = 0; i < c.in.rank; ++i)
    c.in.at[static_cast<std::size_t>(i)] = at(i + (c.x_layout == TensorLayout::ncdhw ? 2 : 1));
  return Problem(c);
}

void save(const Recipe& recipe, SavedFields& to) {
  to.add(kLibrary, library_of(recipe.problem));
  to.add(kProblem, recipe.problem.text());
  if (recipe.options.x_from) to.add(kFrom, std::string(recipe.options.x_from->name()));
  to.add(kTarget, recipe.arch->name);
  to.add(kWeights, static_cast<std::int32_t>(recipe.weights));
  to.add(kConstant, recipe.constant_inputs ? 1 : 0);
  if (!recipe.data.empty()) to.add_view(kData, recipe.data);
  if (!recipe.scales.empty()) to.add_view(kScales, recipe.scales);
  if (!recipe.global.empty()) to.add_view(kGlobal, recipe.global);
  if (!recipe.binaries.empty()) to.add_view(kBinaries, recipe.binaries);
}

std::shared_ptr<const Recipe> restored(Kind kind, const Fields& fields) {
  const auto text = [&](const char* name) {
    std::optional<std::string> value = fields.text(name);
    if (!value) damaged(name, "");
    return *value;
  };
  const std::string target = text(kTarget), library = text(kLibrary);
  const Problem problem = Problem::parse(text(kProblem));
  if (problem.op() != (kind == Kind::conv ? "conv" : "gemm")) damaged(kProblem, problem.text());
  if (library != library_of(problem))
    throw Error(ErrorCode::unsupported, kLibrary, library,
                "is not " + library_of(problem) + ", which this process has loaded; build the engine again");
  LayerOptions options{{}, false};
  if (const auto from = fields.text(kFrom)) options.x_from = Format::parse(*from);
  const std::int64_t weights = fields.integer(kWeights).value_or(-1);
  if (weights < 0 || weights > static_cast<int>(Weights::transposed)) damaged(kWeights, std::to_string(weights));

  const Arch& arch = tilewright::arch(target);
  auto recipe = std::make_shared<Recipe>(Recipe{.kind = kind,
                                                .problem = problem,
                                                .options = options,
                                                .problems = layer_problems(problem, arch, options),
                                                .arch = &arch,
                                                .weights = static_cast<Weights>(weights),
                                                .weight_bytes = weight_bytes(problem)});
  recipe->constant_inputs = fields.integer(kConstant).value_or(0) != 0;
  recipe->data = fields.bytes(kData).value_or(Bytes());
  recipe->scales = fields.bytes(kScales).value_or(Bytes());
  recipe->global = fields.bytes(kGlobal).value_or(Bytes());
  recipe->binaries = fields.bytes(kBinaries).value_or(Bytes());
  if (recipe->weights == Weights::constants) {
    const WeightBytes& bytes = recipe->weight_bytes;
    const Bytes* const stored[] = {&recipe->data, &recipe->scales, &recipe->global};
    const char* const names[] = {kData, kScales, kGlobal};
    for (int i = 0; i < 3; ++i)
      if (stored[i]->size() != bytes.launched[i]) damaged(names[i], std::to_string(stored[i]->size()) + " bytes");
  }
  add_tensors(*recipe);
  return recipe;
}

std::string timing_identity(const Recipe& recipe) {
  std::string text = std::string(plugin_name(recipe.kind)) + " " + recipe.problem.text() + " " + recipe.arch->name +
                     " " + library_of(recipe.problem);
  if (recipe.options.x_from) text += " x_from=" + std::string(recipe.options.x_from->name());
  const Source source = engine().emit(recipe.problem, *recipe.arch);
  text += source.entry;
  text += source.text;
  for (const Header& header : source.headers) text += header.text.view();
  return "tilewright " + sha256_hex(text);
}

}  // namespace tilewright::tensorrt
