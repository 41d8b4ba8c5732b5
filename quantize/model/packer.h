// SPDX-License-Identifier: Apache-2.0
// Which tensors of the output a layer becomes, with which bytes, and what loaders are told about it.
#pragma once

#include <tilewright/format.h>
#include <tilewright/import.h>
#include <tilewright/quantize_model.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quantize/model/input.h"

namespace tilewright::quantize {

enum class Container { gguf, safetensors };
Container container_of(const std::string& output);  // by its ending; throws Error

struct OutputTensor {
  std::string name;
  std::string type;                 // safetensors' dtype, or ggml's name of the type
  std::vector<std::int64_t> shape;  // outermost first
};

// Takes a layer's rows in order.
class Sink {
 public:
  using Write = std::function<void(const std::string& tensor, std::span<const std::byte> bytes)>;
  virtual ~Sink() = default;
  virtual void rows(std::int64_t count, Operand streams) = 0;
  virtual void end() = 0;
};

class Packer {
 public:
  // Throws Error (unsupported) if the container cannot hold the format, (invalid_argument) for an unknown packing.
  Packer(Container container, const LayerQuantizer& quantizer, const std::string& packing);

  std::string unsuitable(const InputTensor& tensor) const;  // why it cannot be quantized, or ""
  std::vector<OutputTensor> outputs(const InputTensor& tensor) const;
  std::unique_ptr<Sink> sink(const InputTensor& tensor, const QuantizedLayer& layer, Sink::Write write) const;
  // The tensor as it is. Throws Error (unsupported) if the container has no type for it.
  OutputTensor copied(const InputTensor& tensor) const;

  std::string text() const;  // for the journal
  // For loaders: the configuration, and the name of the file that holds it; empty if there is nothing to say.
  std::string config(const std::vector<std::string>& kept_modules) const;
  std::string config_file() const;

 private:
  bool in_place() const;  // streams are written as they are
  std::int64_t group() const { return format_.block(); }
  int bits() const { return format_.info().bits; }
  bool symmetric() const { return !format_.info().integer_grid || !format_.info().integer_grid->zero_points; }
  bool is(CheckpointForm form) const { return format_.info().checkpoint == form; }
  bool rows() const { return is(CheckpointForm::fp8_rows) || is(CheckpointForm::int8_rows); }

  Container container_;
  Format format_;
  bool reorders_, scales_inputs_;
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace tilewright::quantize
