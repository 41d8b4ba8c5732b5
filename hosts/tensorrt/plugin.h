// SPDX-License-Identifier: Apache-2.0
// The plugins, as TensorRT sees them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "hosts/tensorrt/launch.h"
#include "hosts/tensorrt/recipe.h"
#include "hosts/tensorrt/tactics.h"

namespace tilewright::tensorrt {

// One class serves all kinds: what differs is in the recipe.
class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  explicit Plugin(std::shared_ptr<const Recipe> recipe, std::shared_ptr<const Tactics> tactics = nullptr)
      : recipe_(std::move(recipe)), weights_(std::make_shared<DeviceWeights>()), tactics_(std::move(tactics)) {}
  // A copy that shares the recipe and the weights, and is attached to nothing.
  Plugin(const Plugin& other)
      : recipe_(other.recipe_), weights_(other.weights_), tactics_(other.tactics_), tactic_(other.tactic_) {}
  Plugin& operator=(const Plugin&) = delete;

  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  nvinfer1::IPluginV3* clone() noexcept override;

  // ---- core
  const char* getPluginName() const noexcept override { return plugin_name(recipe_->kind); }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

  // ---- build
  std::int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* in, std::int32_t inputs,
                               const nvinfer1::DynamicPluginTensorDesc* out, std::int32_t outputs) noexcept override;
  std::int32_t getOutputDataTypes(DataType* to, std::int32_t outputs, const DataType* types,
                                  std::int32_t inputs) const noexcept override;
  std::int32_t getOutputShapes(const nvinfer1::DimsExprs* in, std::int32_t inputs, const nvinfer1::DimsExprs* shapes,
                               std::int32_t shape_inputs, nvinfer1::DimsExprs* out, std::int32_t outputs,
                               nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(std::int32_t position, const nvinfer1::DynamicPluginTensorDesc* all,
                                 std::int32_t inputs, std::int32_t outputs) noexcept override;
  std::int32_t getNbOutputs() const noexcept override { return 1; }
  std::size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* in, std::int32_t inputs,
                               const nvinfer1::DynamicPluginTensorDesc* out,
                               std::int32_t outputs) const noexcept override;
  const char* getTimingCacheID() noexcept override;
  std::int32_t getNbTactics() noexcept override { return tactics_ ? tactics_->count() : 0; }
  std::int32_t getValidTactics(std::int32_t* to, std::int32_t count) noexcept override;

  // ---- runtime
  std::int32_t setTactic(std::int32_t tactic) noexcept override;
  std::int32_t onShapeChange(const nvinfer1::PluginTensorDesc* in, std::int32_t inputs,
                             const nvinfer1::PluginTensorDesc* out, std::int32_t outputs) noexcept override;
  std::int32_t enqueue(const nvinfer1::PluginTensorDesc* in, const nvinfer1::PluginTensorDesc* out,
                       const void* const* inputs, void* const* outputs, void* workspace,
                       cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override;

 private:
  const std::shared_ptr<const Recipe> recipe_;
  const std::shared_ptr<DeviceWeights> weights_;
  std::shared_ptr<const Tactics> tactics_;  // of the latest profile; may be null
  std::int32_t tactic_ = 0;
  std::optional<Execution> execution_;  // of a plugin that is attached
  std::optional<SavedFields> saved_;
  std::string timing_;
};

}  // namespace tilewright::tensorrt
