// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/plugin.h"

#include <tilewright/error.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "hosts/tensorrt/log.h"
#include "hosts/tensorrt/shapes.h"

namespace tilewright::tensorrt {
namespace {

using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginTensorDesc;

// What is fixed of the shapes of a profile: -1 for the rest.
std::vector<Dims> shapes_of(const DynamicPluginTensorDesc* in, std::int32_t count) {
  std::vector<Dims> shapes;
  for (std::int32_t i = 0; i < count; ++i) shapes.push_back(in[i].desc.dims);
  return shapes;
}

void check_outputs(std::int32_t outputs) {
  if (outputs != 1) throw Error(ErrorCode::invalid_argument, "outputs", std::to_string(outputs), "must be 1");
}

}  // namespace

nvinfer1::IPluginCapability* Plugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept {
  switch (type) {
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

nvinfer1::IPluginV3* Plugin::clone() noexcept {
  return guarded<nvinfer1::IPluginV3*>(getPluginName(), nullptr, [&] { return new Plugin(*this); });
}

std::int32_t Plugin::configurePlugin(const DynamicPluginTensorDesc* in, std::int32_t inputs,
                                     const DynamicPluginTensorDesc*, std::int32_t outputs) noexcept {
  return status(getPluginName(), [&] {
    check_outputs(outputs);
    std::vector<DataType> types;
    for (std::int32_t i = 0; i < inputs; ++i) types.push_back(in[i].desc.type);
    recipe_->check_types(types.data(), inputs);
    recipe_->check_shapes(shapes_of(in, inputs).data(), inputs);
    tactics_ = tactics_for(*recipe_, in[0].opt);
    tactic_ = 0;
  });
}

std::int32_t Plugin::getOutputDataTypes(DataType* to, std::int32_t outputs, const DataType* types,
                                        std::int32_t inputs) const noexcept {
  return status(getPluginName(), [&] {
    check_outputs(outputs);
    recipe_->check_types(types, inputs);
    to[0] = recipe_->output.types.front();
  });
}

std::int32_t Plugin::getOutputShapes(const nvinfer1::DimsExprs* in, std::int32_t inputs, const nvinfer1::DimsExprs*,
                                     std::int32_t, nvinfer1::DimsExprs* out, std::int32_t outputs,
                                     nvinfer1::IExprBuilder& builder) noexcept {
  return status(getPluginName(), [&] {
    check_outputs(outputs);
    std::vector<Dims> known;
    for (std::int32_t i = 0; i < inputs; ++i) known.push_back(known_extents(in[i]));
    recipe_->check_shapes(known.data(), inputs);
    *out = output_shape(*recipe_, in[0], builder);
  });
}

bool Plugin::supportsFormatCombination(std::int32_t position, const DynamicPluginTensorDesc* all, std::int32_t inputs,
                                       std::int32_t outputs) noexcept {
  const auto count = static_cast<std::int32_t>(recipe_->inputs.size());
  if (inputs != count || outputs != 1 || position < 0 || position > count) return false;
  const PluginTensorDesc& desc = all[position].desc;
  const std::vector<DataType>& types =
      position < count ? recipe_->inputs[static_cast<std::size_t>(position)].types : recipe_->output.types;
  // An output has one type: getOutputDataTypes() said which.
  const auto end = position < count ? types.end() : types.begin() + 1;
  return desc.format == nvinfer1::PluginFormat::kLINEAR && std::find(types.begin(), end, desc.type) != end;
}

std::size_t Plugin::getWorkspaceSize(const DynamicPluginTensorDesc* in, std::int32_t inputs,
                                     const DynamicPluginTensorDesc*, std::int32_t) const noexcept {
  return guarded<std::size_t>(getPluginName(), 0, [&]() -> std::size_t {
    if (inputs < 1) return 0;
    const Dims& most = elements(in[0].max) >= 0 && in[0].max.nbDims > 0 ? in[0].max : in[0].desc.dims;
    return scratch_of(*recipe_, most).bytes;
  });
}

const char* Plugin::getTimingCacheID() noexcept {
  return guarded<const char*>(getPluginName(), nullptr, [&] {
    if (timing_.empty()) timing_ = timing_identity(*recipe_);
    return timing_.c_str();
  });
}

std::int32_t Plugin::getValidTactics(std::int32_t* to, std::int32_t count) noexcept {
  return status(getPluginName(), [&] {
    if (count != getNbTactics())
      throw Error(ErrorCode::invalid_argument, "tactics", std::to_string(count),
                  "must be " + std::to_string(getNbTactics()) + ", as many as there are");
    std::iota(to, to + count, Tactics::kTable);
  });
}

std::int32_t Plugin::setTactic(std::int32_t tactic) noexcept {
  return status(getPluginName(), [&] {
    const Tactics& known = tactics_ ? *tactics_ : Tactics();
    const std::string& candidate = known.candidate(tactic);
    if (execution_) execution_->set_candidate(candidate, known.rows);
    tactic_ = tactic;
  });
}

std::int32_t Plugin::onShapeChange(const PluginTensorDesc* in, std::int32_t inputs, const PluginTensorDesc*,
                                   std::int32_t outputs) noexcept {
  return status(getPluginName(), [&] {
    check_outputs(outputs);
    std::vector<Dims> shapes;
    for (std::int32_t i = 0; i < inputs; ++i) shapes.push_back(in[i].dims);
    if (execution_)
      execution_->set_shapes(shapes.data(), inputs);
    else
      recipe_->check_shapes(shapes.data(), inputs);
  });
}

std::int32_t Plugin::enqueue(const PluginTensorDesc* in, const PluginTensorDesc*, const void* const* inputs,
                             void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
  return status(getPluginName(), [&] {
    if (!execution_) throw Error(ErrorCode::invalid_argument, "plugin", "", "is not attached to an execution context");
    execution_->launch(in, inputs, outputs[0], workspace, stream);
  });
}

nvinfer1::IPluginV3* Plugin::attachToContext(nvinfer1::IPluginResourceContext* context) noexcept {
  return guarded<nvinfer1::IPluginV3*>(getPluginName(), nullptr, [&] {
    auto attached = std::make_unique<Plugin>(*this);
    attached->execution_.emplace(recipe_, weights_, context);
    if (tactics_) attached->execution_->set_candidate(tactics_->candidate(tactic_), tactics_->rows);
    return attached.release();
  });
}

const nvinfer1::PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  return guarded<const nvinfer1::PluginFieldCollection*>(getPluginName(), nullptr, [&] {
    saved_.emplace();
    save(*recipe_, *saved_);
    if (tactics_) save(*tactics_, *saved_);
    return saved_->collection();
  });
}

}  // namespace tilewright::tensorrt
