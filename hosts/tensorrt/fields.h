// SPDX-License-Identifier: Apache-2.0
// Fields of a plugin: those that a model's node has, and those that an engine stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "NvInferRuntime.h"

namespace tilewright::tensorrt {

using Bytes = std::vector<std::byte>;

// Reads fields by name. Functions throw Error (invalid_argument), which names the field, if its type or number of
// elements is wrong; a field that is missing is empty.
class Fields {
 public:
  explicit Fields(const nvinfer1::PluginFieldCollection* fields) : fields_(fields) {}

  std::optional<std::string> text(std::string_view name) const;
  std::optional<std::int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::optional<Bytes> bytes(std::string_view name) const;

 private:
  const nvinfer1::PluginField* find(std::string_view name) const;
  const nvinfer1::PluginFieldCollection* fields_;
};

// What an engine stores. Owns the values, or shares them.
class SavedFields {
 public:
  void add(const char* name, std::string text);
  void add(const char* name, std::int32_t value);
  // Throws Error (too_large) beyond 2^31 - 1 bytes. `bytes` must outlive this.
  void add_view(const char* name, std::span<const std::byte> bytes);
  const nvinfer1::PluginFieldCollection* collection();

 private:
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<std::unique_ptr<std::int32_t>> integers_;
  std::vector<nvinfer1::PluginField> fields_;
  nvinfer1::PluginFieldCollection collection_;
};

}  // namespace tilewright::tensorrt
