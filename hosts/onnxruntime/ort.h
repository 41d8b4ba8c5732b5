// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime's C interface with exceptions inside: a status that it returns is thrown, and what is thrown becomes a
// status where ONNX Runtime called.
#pragma once

#include <tilewright/error.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hosts/onnxruntime/abi.h"

namespace tilewright::onnxruntime {

inline const OrtApi* g_api = nullptr;
inline const OrtEpApi* g_ep_api = nullptr;
inline const OrtModelEditorApi* g_model_api = nullptr;

inline constexpr const char* kName = "TilewrightExecutionProvider";

// Throws Error (driver_failed) with ONNX Runtime's words.
void check(OrtStatus* status);
// False for a status, which is released.
bool succeeded(OrtStatus* status);
// What is being handled, as a status.
OrtStatus* status_of_exception() noexcept;

template <class Body>
OrtStatus* guarded(const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_exception();
  }
}

// A tensor in host memory that ONNX Runtime owns.
struct Tensor {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<std::int64_t> dims;
  const void* data = nullptr;

  std::int64_t elements() const;
  // Of all dimensions but the last one.
  std::int64_t rows() const;
};
Tensor tensor_of(const OrtValue* value);
std::string shape_text(const std::vector<std::int64_t>& dims);  // "[2, 64]"

// Throws Error (invalid_argument), which calls the tensor by this name, if its last dimension differs.
void must_have_columns(const char* name, const Tensor& tensor, std::int64_t columns);

// The library's name of a type of floats; null for other types.
const char* float_format(ONNXTensorElementDataType type);

// A node, when a graph is partitioned and when its kernel is made.
class Node {
 public:
  virtual ~Node() = default;
  virtual std::string name() const = 0;
  virtual std::optional<std::int64_t> integer(const char* attribute) const = 0;
  virtual std::optional<std::string> text(const char* attribute) const = 0;  // that does not end with a zero
  virtual bool has_input(std::size_t index) const = 0;
  virtual ONNXTensorElementDataType input_type(std::size_t index) const = 0;
  // As far as it is known: -1 for a dimension that varies. None: not even the number of dimensions is known.
  virtual std::optional<std::vector<std::int64_t>> input_shape(std::size_t index) const = 0;
  // None: the input is computed, or there is none.
  virtual std::optional<Tensor> constant(std::size_t index) const = 0;
};

class GraphNode : public Node {
 public:
  explicit GraphNode(const OrtNode* node);
  std::string type() const;
  std::string domain() const;
  const OrtNode* producer(std::size_t input) const;  // null: it is no node of this graph
  bool is_graph_output(std::size_t output) const;
  std::size_t consumers(std::size_t output) const;
  std::optional<float> number(const char* attribute) const;
  std::vector<std::string> input_names() const;  // "" for one that is left out
  std::vector<std::string> output_names() const;
  std::string name() const override;
  std::optional<std::int64_t> integer(const char* attribute) const override;
  std::optional<std::string> text(const char* attribute) const override;
  bool has_input(std::size_t index) const override;
  ONNXTensorElementDataType input_type(std::size_t index) const override;
  std::optional<std::vector<std::int64_t>> input_shape(std::size_t index) const override;
  std::optional<Tensor> constant(std::size_t index) const override;

 private:
  const OrtNode* node_;
  std::vector<const OrtValueInfo*> inputs_;
};

class KernelNode : public Node {
 public:
  explicit KernelNode(const OrtKernelInfo* info) : info_(info) {}
  std::string name() const override;
  std::optional<std::int64_t> integer(const char* attribute) const override;
  std::optional<std::string> text(const char* attribute) const override;
  bool has_input(std::size_t index) const override;
  ONNXTensorElementDataType input_type(std::size_t index) const override;
  std::optional<std::vector<std::int64_t>> input_shape(std::size_t index) const override;
  std::optional<Tensor> constant(std::size_t index) const override;

 private:
  const OrtKernelInfo* info_;
};

std::vector<const OrtNode*> nodes_of(const OrtGraph* graph);

// A session's option; none if it is not set.
std::optional<std::string> session_entry(const OrtSessionOptions* options, const char* key);

const OrtValue* input_of(const OrtKernelContext* context, std::size_t index);
void* output_of(OrtKernelContext* context, std::size_t index, const std::vector<std::int64_t>& dims);

}  // namespace tilewright::onnxruntime
