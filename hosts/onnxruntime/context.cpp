// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/context.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "hosts/onnxruntime/operations/matmul_nbits.h"

namespace tilewright::onnxruntime {
namespace {

constexpr const char* kAttributes[] = {"K", "N", "bits", "block_size", "accuracy_level"};
constexpr std::size_t kInputs = 6;  // of MatMulNBits
constexpr const char* kVersion = "MatMulNBits/1";

constexpr const char* kEnd = "end";  // of the kernels, which may end with zeros

[[noreturn]] void wrong(const std::string& notes) {
  throw Error(ErrorCode::invalid_argument, "notes", notes.substr(0, 200),
              "are not those that this version of Tilewright writes; compile the model again");
}

// A MatMulNBits that is described by an EPContext's notes: "MatMulNBits/1 K=64 N=16 bits=4 block_size=32
// accuracy_level=4 inputs=0,1,2,-1,-1,3", which are places in the node's own inputs.
class ContextNode : public Node {
 public:
  explicit ContextNode(const Node& node) : node_(node) {
    const std::string notes = node.text("notes").value_or("");
    std::istringstream in(notes);
    std::string version, inputs;
    if (!(in >> version) || version != kVersion) wrong(notes);
    for (std::string word; in >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) wrong(notes);
      if (word.compare(0, equals, "inputs") == 0)
        inputs = word.substr(equals + 1);
      else
        values_[word.substr(0, equals)] = integer_of(word.substr(equals + 1), notes);
    }
    std::istringstream list(inputs);
    for (int& place : places_) {
      std::string number;
      if (!std::getline(list, number, ',')) wrong(notes);
      place = static_cast<int>(integer_of(number, notes));
      if (place < -1 || (place >= 0 && !node.has_input(static_cast<std::size_t>(place)))) wrong(notes);
    }
  }

  NBitsInputs inputs() const { return {places_[0], places_[1], places_[2], places_[3], places_[4]}; }

  std::string name() const override { return node_.name(); }
  std::optional<std::int64_t> integer(const char* attribute) const override {
    const auto at = values_.find(attribute);
    return at == values_.end() ? std::nullopt : std::optional(at->second);
  }
  std::optional<std::string> text(const char*) const override { return {}; }
  bool has_input(std::size_t index) const override { return index < kInputs && places_[index] >= 0; }
  ONNXTensorElementDataType input_type(std::size_t index) const override { return node_.input_type(place(index)); }
  std::optional<std::vector<std::int64_t>> input_shape(std::size_t index) const override {
    return node_.input_shape(place(index));
  }
  std::optional<Tensor> constant(std::size_t index) const override {
    return has_input(index) ? node_.constant(place(index)) : std::nullopt;
  }

 private:
  static std::int64_t integer_of(const std::string& text, const std::string& notes) {
    std::int64_t value = 0;
    std::istringstream in(text);
    if (!(in >> value) || in.peek() != std::istringstream::traits_type::eof()) wrong(notes);
    return value;
  }
  std::size_t place(std::size_t index) const {
    if (!has_input(index)) wrong(node_.text("notes").value_or(""));
    return static_cast<std::size_t>(places_[index]);
  }

  const Node& node_;
  std::map<std::string, std::int64_t> values_;
  std::array<int, kInputs> places_{};
};

OrtOpAttr* attribute(const char* name, const std::string& value) {
  OrtOpAttr* made = nullptr;
  check(g_api->CreateOpAttr(name, value.data(), static_cast<int>(value.size()), ORT_OP_ATTR_STRING, &made));
  return made;
}

OrtOpAttr* attribute(const char* name, std::int64_t value) {
  OrtOpAttr* made = nullptr;
  check(g_api->CreateOpAttr(name, &value, 1, ORT_OP_ATTR_INT, &made));
  return made;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& names) {
  std::vector<const char*> pointers;
  for (const std::string& name : names) pointers.push_back(name.c_str());
  return pointers;
}

std::string notes_of(const OrtNode* fused, const OrtNode* node) {
  std::string notes = kVersion;
  for (const char* name : kAttributes)
    if (const std::optional<std::int64_t> value = GraphNode(node).integer(name))
      notes += std::string(" ") + name + "=" + std::to_string(*value);
  notes += " inputs=";
  for (std::size_t i = 0; i < kInputs; ++i)
    notes += (i ? "," : "") + (GraphNode(node).has_input(i) ? std::to_string(position_in(fused, node, i)) : "-1");
  return notes;
}

}  // namespace

std::size_t position_in(const OrtNode* fused, const OrtNode* node, std::size_t input) {
  const std::string name = GraphNode(node).input_names().at(input);
  const std::vector<std::string> names = GraphNode(fused).input_names();
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) throw Error(ErrorCode::invalid_argument, "fused node", name, "is not one of its inputs");
  return static_cast<std::size_t>(at - names.begin());
}

OrtNode* make_context_node(const OrtNode* fused, const OrtNode* node, const std::string* compiled) {
  const GraphNode view(fused);
  std::vector<OrtOpAttr*> attributes = {attribute("source", std::string(kName)),
                                        attribute("notes", notes_of(fused, node)),
                                        attribute("partition_name", view.name()), attribute("embed_mode", 1),
                                        attribute("main_context", compiled ? 1 : 0)};
  if (compiled) attributes.push_back(attribute("ep_cache_context", *compiled + kEnd));
  const std::vector<std::string> inputs = view.input_names(), outputs = view.output_names();
  OrtNode* made = nullptr;
  check(g_model_api->CreateNode("EPContext", "com.microsoft", view.name().c_str(), pointers_to(inputs).data(),
                                inputs.size(), pointers_to(outputs).data(), outputs.size(), attributes.data(),
                                attributes.size(), &made));
  return made;
}

std::string kernels_in(const std::string& text) {
  if (!text.ends_with(kEnd))
    throw Error(ErrorCode::invalid_argument, "ep_cache_context", "", "is cut short; compile the model again");
  return text.substr(0, text.size() - std::string_view(kEnd).size());
}

bool is_context(const Node& node) { return node.text("source") == kName; }

OrtStatus* create_context(void* kernels, const OrtKernelInfo* info, OrtKernelImpl** kernel) noexcept {
  return guarded([&] {
    const KernelNode node(info);
    const ContextNode context(node);
    *kernel = make_matmul_nbits(*static_cast<Kernels*>(kernels), context, context.inputs());
  });
}

}  // namespace tilewright::onnxruntime
