// SPDX-License-Identifier: Apache-2.0
// Inputs of layers in .npy and .safetensors files: what there is, and the Hessian of a layer.
#pragma once

#include <tilewright/npy.h>
#include <tilewright/post_training.h>
#include <tilewright/safetensors.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::quantize {

class Activations {
 public:
  // Files and folders, as PostTraining in quantize_model.h says.
  explicit Activations(std::span<const std::string> paths);

  // Whether there are rows for this tensor. Throws Error (invalid_argument) if they are not `cols` wide.
  bool has(std::string_view tensor, std::int64_t cols) const;
  std::string names() const;  // some of them, for an error
  Hessian hessian(std::string_view tensor, std::int64_t cols, int threads,
                  const std::function<void(std::int64_t rows)>& step) const;
  // Sizes and times of the files and all arrays' names, types and shapes.
  const std::string& identity() const { return identity_; }

 private:
  struct Array {
    std::string file, format;  // "f64" is no Format
    std::vector<std::int64_t> shape;
    std::shared_ptr<const Safetensors> model;  // none: the file is a .npy
    const SafetensorsTensor* tensor = nullptr;
    std::int64_t rows(std::int64_t cols) const;
  };
  void add_folder(const std::string& path);
  void add_file(const std::string& path);
  void add(std::string name, Array array);
  const std::vector<Array>* find(std::string_view tensor) const;
  static void add_rows(Hessian& to, const Array& array, int threads, const std::function<void(std::int64_t)>& step);

  std::map<std::string, std::vector<Array>, std::less<>> arrays_;  // by name without ".weight"
  std::string identity_;
};

}  // namespace tilewright::quantize
