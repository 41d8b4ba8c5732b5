// SPDX-License-Identifier: Apache-2.0
// What a plugin sees of TensorRT, in a program of our own. TensorRT itself, which runs engines on these GPUs, cannot be
// had where this is developed; its headers say how it calls a plugin.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "NvInferRuntime.h"

namespace tilewright::tensorrt::host {

using nvinfer1::DataType;
using nvinfer1::Dims;
using Shape = std::vector<std::int64_t>;  // -1: any

Dims dims_of(const Shape& shape);
std::int64_t elements(const Shape& shape);

// Keeps errors.
class Logger final : public nvinfer1::ILogger, public nvinfer1::ILoggerFinder {
 public:
  void log(Severity severity, const char* text) noexcept override;
  nvinfer1::ILogger* findLogger() override { return this; }
  std::string take_errors();

 private:
  std::mutex mutex_;
  std::string errors_;
};

// Numbers of axes; -1 is an axis that varies.
class Expressions {
 public:
  Expressions();
  ~Expressions();
  nvinfer1::IExprBuilder& builder();
  nvinfer1::DimsExprs shape(const Shape& shape);
  static Shape value(const nvinfer1::DimsExprs& shape);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

class Context final : public nvinfer1::IPluginResourceContext {
 public:
  nvinfer1::IGpuAllocator* getGpuAllocator() const noexcept override { return nullptr; }
  nvinfer1::IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }
};

// A plugin and its capabilities. Owns it.
class PluginHandle {
 public:
  explicit PluginHandle(nvinfer1::IPluginV3* plugin);
  explicit operator bool() const { return plugin_ != nullptr; }
  nvinfer1::IPluginV3& operator*() const { return *plugin_; }
  nvinfer1::IPluginV3OneCore& core() const { return *core_; }
  nvinfer1::IPluginV3OneBuild& build() const { return *build_; }
  nvinfer1::IPluginV3OneRuntime& runtime() const { return *runtime_; }

 private:
  std::unique_ptr<nvinfer1::IPluginV3> plugin_;
  nvinfer1::IPluginV3OneCore* core_ = nullptr;
  nvinfer1::IPluginV3OneBuild* build_ = nullptr;
  nvinfer1::IPluginV3OneRuntime* runtime_ = nullptr;
};

// Fields as a model's node or an engine has them; a copy of a plugin's own.
class OwnedFields {
 public:
  using Value = std::variant<std::string, std::int32_t, float, std::vector<std::byte>>;
  struct Field {
    std::string name;
    Value value;
  };
  OwnedFields() = default;
  explicit OwnedFields(std::vector<Field> fields) : fields_(std::move(fields)) {}
  static OwnedFields copy_of(const nvinfer1::PluginFieldCollection& fields);

  std::vector<Field>& fields() { return fields_; }
  const std::vector<Field>& fields() const { return fields_; }
  // Views of the values, until this changes.
  const nvinfer1::PluginFieldCollection* collection();
  bool operator==(const OwnedFields& other) const;

 private:
  std::vector<Field> fields_;
  std::vector<nvinfer1::PluginField> views_;
  nvinfer1::PluginFieldCollection collection_;
};

// The library, opened as TensorRT opens it.
class Library {
 public:
  Library(const std::string& path, Logger& logger);  // throws std::runtime_error
  nvinfer1::IPluginCreatorV3One& creator(const std::string& name) const;
  const std::vector<nvinfer1::IPluginCreatorV3One*>& creators() const { return creators_; }

 private:
  std::vector<nvinfer1::IPluginCreatorV3One*> creators_;
};

}  // namespace tilewright::tensorrt::host
