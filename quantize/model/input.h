// SPDX-License-Identifier: Apache-2.0
// The model that is read: one list of tensors, whatever files they lie in.
#pragma once

#include <tilewright/gguf.h>
#include <tilewright/safetensors.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tilewright::quantize {

struct InputTensor {
  std::string name;
  std::string type;                 // as the file says
  std::string format;               // Tilewright's name of the same bytes; empty if it has none
  std::vector<std::int64_t> shape;  // outermost first
  std::uint64_t bytes = 0;
  std::size_t file = 0, index = 0;  // where it lies
  std::int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  std::int64_t rows() const;
};

class Input {
 public:
  explicit Input(std::span<const std::string> paths);

  const std::vector<InputTensor>& tensors() const { return tensors_; }
  void read(const InputTensor& tensor, std::uint64_t first, std::span<std::byte> to) const;
  std::vector<std::pair<std::string, std::string>> metadata() const;  // of safetensors
  const Gguf* gguf() const { return gguf_.empty() ? nullptr : &gguf_.front(); }
  // The name of the file among those read that `path` names too, by whatever name; empty if there is none.
  std::string file_at(const std::string& path) const;
  // Sizes and times of the files and all tensors' names, types, shapes and places.
  const std::string& identity() const { return identity_; }

 private:
  void add_safetensors(const std::string& path);
  void add_gguf(const std::string& path);
  void add_identity(const std::string& path);

  std::vector<Safetensors> safetensors_;
  std::vector<Gguf> gguf_;
  std::vector<InputTensor> tensors_;
  std::vector<std::string> files_;  // the index included
  std::string identity_;
};

}  // namespace tilewright::quantize
