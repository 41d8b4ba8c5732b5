// SPDX-License-Identifier: Apache-2.0
// Model files: GGUF and safetensors behind one handle.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <span>
#include <variant>

#include "capi/handles.h"

using namespace tilewright;
using namespace tilewright::capi;

struct tw_model : Handle {
  static constexpr char kKind[] = "model";

  struct Tensor {
    std::string name, type, format;
    std::vector<std::int64_t> dims;  // outermost first
    std::uint64_t bytes = 0;
  };

  explicit tw_model(std::variant<Gguf, Safetensors> opened);
  const Tensor& find(std::string_view name) const;
  void read(const Tensor& tensor, std::uint64_t first, std::span<std::byte> to) const;

  std::variant<Gguf, Safetensors> file;
  std::vector<Tensor> tensors;
  std::map<std::string, std::size_t, std::less<>> by_name;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::map<std::string, std::size_t, std::less<>> by_key;
};

namespace {

std::string in_words(const GgufValue& value) {
  struct Visitor {
    std::string operator()(std::uint64_t v) const { return std::to_string(v); }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const GgufArray& v) const {
      return fmt::format("array of {} elements of type {}", v.count, v.element_type);
    }
  };
  return std::visit(Visitor(), value);
}

std::variant<Gguf, Safetensors> open_model(const std::string& path) {
  std::unique_ptr<ByteSource> source = ByteSource::file(path);
  std::byte magic[4] = {};
  if (source->size() >= sizeof magic) source->read(0, magic);
  if (std::memcmp(magic, "GGUF", sizeof magic) == 0) return Gguf(std::move(source));
  return Safetensors(std::move(source));
}

tw_model::Tensor tensor_of(const GgufTensor& t) {
  return {t.name, std::string(t.type_name), std::string(t.format), {t.dims.rbegin(), t.dims.rend()}, t.bytes};
}
tw_model::Tensor tensor_of(const SafetensorsTensor& t) {
  return {t.name, std::string(t.dtype), std::string(t.format), t.shape, t.bytes};
}

std::string value_of(const GgufValue& value) { return in_words(value); }
std::string value_of(const std::string& value) { return value; }

}  // namespace

tw_model::tw_model(std::variant<Gguf, Safetensors> opened) : Handle(kKind), file(std::move(opened)) {
  std::visit(
      [&](const auto& model) {
        for (const auto& t : model.tensors()) {
          by_name.emplace(t.name, tensors.size());
          tensors.push_back(tensor_of(t));
        }
        for (const auto& [key, value] : model.metadata()) {
          by_key.emplace(key, metadata.size());
          metadata.emplace_back(key, value_of(value));
        }
      },
      file);
}

const tw_model::Tensor& tw_model::find(std::string_view name) const {
  const auto found = by_name.find(name);
  if (found != by_name.end()) return tensors[found->second];
  std::visit([&](const auto& model) { (void)model.tensor(name); }, file);  // throws, naming some that exist
  throw Error(ErrorCode::invalid_argument, "tensor", std::string(name), "is not in the file");
}

void tw_model::read(const Tensor& tensor, std::uint64_t first, std::span<std::byte> to) const {
  std::visit([&](const auto& model) { model.read(model.tensor(tensor.name), first, to); }, file);
}

namespace {

tw_tensor_info info_of(const tw_model::Tensor& t) {
  return {
      0, static_cast<int32_t>(t.dims.size()), t.dims.data(), t.bytes, t.name.c_str(), t.type.c_str(), t.format.c_str()};
}

}  // namespace

extern "C" {

tw_status tw_model_open(const char* path, tw_model** model, tw_error** error) {
  return guarded(error, [&] { create(model, "model", open_model(text(path, "path"))); });
}

int32_t tw_model_tensor_count(const tw_model* model) {
  return is_handle(model) ? static_cast<int32_t>(model->tensors.size()) : -1;
}

tw_status tw_model_tensor(const tw_model* model, int32_t index, tw_tensor_info* info, tw_error** error) {
  return guarded(error, [&] {
    const auto& tensors = handle(model).tensors;
    write_struct(info, info_of(tensors[index_of(index, tensors.size(), "index")]), "info");
  });
}

tw_status tw_model_find(const tw_model* model, const char* name, tw_tensor_info* info, tw_error** error) {
  return guarded(error, [&] { write_struct(info, info_of(handle(model).find(text(name, "name"))), "info"); });
}

tw_status tw_model_read(const tw_model* model, const char* name, uint64_t first, void* to, size_t bytes,
                        tw_error** error) {
  return guarded(error, [&] {
    const tw_model::Tensor& tensor = handle(model).find(text(name, "name"));
    if (bytes == 0) return;
    if (to == nullptr) refuse("to", "null", "must be a pointer");
    model->read(tensor, first, {static_cast<std::byte*>(to), bytes});
  });
}

int32_t tw_model_metadata_count(const tw_model* model) {
  return is_handle(model) ? static_cast<int32_t>(model->metadata.size()) : -1;
}

const char* tw_model_metadata_key(const tw_model* model, int32_t index) {
  if (model == nullptr || index < 0 || static_cast<size_t>(index) >= model->metadata.size()) return nullptr;
  return model->metadata[static_cast<size_t>(index)].first.c_str();
}

const char* tw_model_metadata(const tw_model* model, const char* key) {
  if (model == nullptr || key == nullptr) return nullptr;
  const auto found = model->by_key.find(std::string_view(key));
  return found == model->by_key.end() ? nullptr : model->metadata[found->second].second.c_str();
}

void tw_model_release(tw_model* model) { release(model); }

}  // extern "C"
