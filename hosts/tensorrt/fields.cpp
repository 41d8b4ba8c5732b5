// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/fields.h"

#include <tilewright/error.h>

#include <cstring>
#include <limits>
#include <utility>

namespace tilewright::tensorrt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

[[noreturn]] void refuse(std::string_view name, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, std::string(name), value, allowed);
}

struct TypeName {
  PluginFieldType type;
  const char* name;
  std::size_t bytes;
};
constexpr TypeName kTypes[] = {
    {PluginFieldType::kFLOAT16, "FLOAT16", 2}, {PluginFieldType::kFLOAT32, "FLOAT32", 4},
    {PluginFieldType::kFLOAT64, "FLOAT64", 8}, {PluginFieldType::kINT8, "INT8", 1},
    {PluginFieldType::kINT16, "INT16", 2},     {PluginFieldType::kINT32, "INT32", 4},
    {PluginFieldType::kCHAR, "CHAR", 1},       {PluginFieldType::kUNKNOWN, "UNKNOWN", 1},
    {PluginFieldType::kBF16, "BF16", 2},       {PluginFieldType::kINT64, "INT64", 8},
    {PluginFieldType::kFP8, "FP8", 1},
};

const TypeName* type_of(const PluginField& field) {
  for (const TypeName& t : kTypes)
    if (t.type == field.type) return &t;
  return nullptr;
}

std::string shown(const PluginField& field) {
  const TypeName* type = type_of(field);
  return std::to_string(field.length) + " of " +
         (type ? type->name : "type " + std::to_string(static_cast<int>(field.type)));
}

template <class T>
T value(const PluginField& field) {
  T read;
  std::memcpy(&read, field.data, sizeof read);
  return read;
}

}  // namespace

const PluginField* Fields::find(std::string_view name) const {
  for (std::int32_t i = 0; fields_ && i < fields_->nbFields; ++i) {
    const PluginField& field = fields_->fields[i];
    if (!field.name || name != field.name) continue;
    if (field.length < 0 || (field.length > 0 && !field.data)) refuse(name, shown(field), "must have a value");
    return &field;
  }
  return nullptr;
}

std::optional<std::string> Fields::text(std::string_view name) const {
  const PluginField* field = find(name);
  if (!field) return {};
  if (field->type != PluginFieldType::kCHAR) refuse(name, shown(*field), "must be a string");
  std::string text(static_cast<const char*>(field->data), static_cast<std::size_t>(field->length));
  if (const std::size_t end = text.find('\0'); end != text.npos) text.resize(end);  // parsers count the final zero
  return text;
}

std::optional<std::int64_t> Fields::integer(std::string_view name) const {
  const PluginField* field = find(name);
  if (!field) return {};
  if (field->length == 1) switch (field->type) {
      case PluginFieldType::kINT8: return value<std::int8_t>(*field);
      case PluginFieldType::kINT16: return value<std::int16_t>(*field);
      case PluginFieldType::kINT32: return value<std::int32_t>(*field);
      case PluginFieldType::kINT64: return value<std::int64_t>(*field);
      default: break;
    }
  refuse(name, shown(*field), "must be one integer");
}

std::optional<double> Fields::number(std::string_view name) const {
  const PluginField* field = find(name);
  if (!field) return {};
  if (field->length == 1) switch (field->type) {
      case PluginFieldType::kFLOAT32: return value<float>(*field);
      case PluginFieldType::kFLOAT64: return value<double>(*field);
      case PluginFieldType::kINT32: return value<std::int32_t>(*field);
      default: break;
    }
  refuse(name, shown(*field), "must be one number");
}

std::optional<Bytes> Fields::bytes(std::string_view name) const {
  const PluginField* field = find(name);
  if (!field) return {};
  const TypeName* type = type_of(*field);
  if (!type) refuse(name, shown(*field), "must be a tensor of INT8, with the bytes of its stream");
  Bytes bytes(static_cast<std::size_t>(field->length) * type->bytes);
  if (!bytes.empty()) std::memcpy(bytes.data(), field->data, bytes.size());
  return bytes;
}

void SavedFields::add(const char* name, std::string text) {
  texts_.push_back(std::make_unique<std::string>(std::move(text)));
  const std::string& kept = *texts_.back();
  fields_.emplace_back(name, kept.data(), PluginFieldType::kCHAR, static_cast<std::int32_t>(kept.size()));
}

void SavedFields::add(const char* name, std::int32_t value) {
  integers_.push_back(std::make_unique<std::int32_t>(value));
  fields_.emplace_back(name, integers_.back().get(), PluginFieldType::kINT32, 1);
}

void SavedFields::add_view(const char* name, std::span<const std::byte> bytes) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw Error(ErrorCode::too_large, name, std::to_string(bytes.size()) + " bytes",
                "must be less than 2^31 bytes, which is the most that a field of a plugin has; pass them as inputs");
  fields_.emplace_back(name, bytes.data(), PluginFieldType::kINT8, static_cast<std::int32_t>(bytes.size()));
}

const nvinfer1::PluginFieldCollection* SavedFields::collection() {
  collection_ = {static_cast<std::int32_t>(fields_.size()), fields_.data()};
  return &collection_;
}

}  // namespace tilewright::tensorrt
