// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/host/standins.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

namespace tilewright::tensorrt::host {
namespace {

using nvinfer1::DimensionOperation;
using nvinfer1::IDimensionExpr;
using nvinfer1::PluginFieldType;

constexpr std::int64_t kVaries = std::numeric_limits<std::int64_t>::min();  // -1 may be a summand

std::int64_t computed(DimensionOperation op, std::int64_t a, std::int64_t b) {
  if (a == kVaries || b == kVaries) return kVaries;
  switch (op) {
    case DimensionOperation::kSUM: return a + b;
    case DimensionOperation::kPROD: return a * b;
    case DimensionOperation::kMAX: return std::max(a, b);
    case DimensionOperation::kMIN: return std::min(a, b);
    case DimensionOperation::kSUB: return a - b;
    case DimensionOperation::kEQUAL: return a == b;
    case DimensionOperation::kLESS: return a < b;
    case DimensionOperation::kFLOOR_DIV: return a >= 0 ? a / b : -((-a + b - 1) / b);
    case DimensionOperation::kCEIL_DIV: return (a + b - 1) / b;
  }
  return kVaries;
}

class Number final : public IDimensionExpr, public nvinfer1::apiv::VDimensionExpr {
 public:
  explicit Number(std::int64_t value) : value_(value) { mImpl = this; }
  bool isConstant() const override { return value_ != kVaries; }
  std::int64_t getConstantValue() const override { return value_; }
  bool isSizeTensor() const override { return false; }

 private:
  const std::int64_t value_;
};

std::int64_t value_of(const IDimensionExpr& e) { return e.isConstant() ? e.getConstantValue() : kVaries; }

}  // namespace

Dims dims_of(const Shape& shape) {
  Dims dims = {};
  dims.nbDims = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), dims.d);
  return dims;
}

std::int64_t elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

void Logger::log(Severity severity, const char* text) noexcept {
  if (severity > Severity::kERROR) return;
  const std::lock_guard lock(mutex_);
  errors_ += (errors_.empty() ? "" : "\n") + std::string(text);
}

std::string Logger::take_errors() {
  const std::lock_guard lock(mutex_);
  return std::exchange(errors_, {});
}

struct Expressions::Impl final : nvinfer1::IExprBuilder, nvinfer1::apiv::VExprBuilder {
  Impl() { mImpl = this; }
  const IDimensionExpr* constant(std::int64_t value) override { return add(value); }
  const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& a, const IDimensionExpr& b) override {
    return add(computed(op, value_of(a), value_of(b)));
  }
  const IDimensionExpr* declareSizeTensor(std::int32_t, const IDimensionExpr&, const IDimensionExpr&) override {
    return nullptr;
  }
  const IDimensionExpr* add(std::int64_t value) {
    all.push_back(std::make_unique<Number>(value));
    return all.back().get();
  }
  std::vector<std::unique_ptr<Number>> all;
};

Expressions::Expressions() : impl_(std::make_unique<Impl>()) {}
Expressions::~Expressions() = default;
nvinfer1::IExprBuilder& Expressions::builder() { return *impl_; }

nvinfer1::DimsExprs Expressions::shape(const Shape& shape) {
  nvinfer1::DimsExprs out = {};
  out.nbDims = static_cast<std::int32_t>(shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) out.d[i] = impl_->add(shape[i] < 0 ? kVaries : shape[i]);
  return out;
}

Shape Expressions::value(const nvinfer1::DimsExprs& shape) {
  Shape out;
  for (std::int32_t i = 0; i < shape.nbDims; ++i)
    out.push_back(shape.d[i]->isConstant() ? shape.d[i]->getConstantValue() : -1);
  return out;
}

PluginHandle::PluginHandle(nvinfer1::IPluginV3* plugin) : plugin_(plugin) {
  if (!plugin) return;
  using nvinfer1::PluginCapabilityType;
  core_ = static_cast<nvinfer1::IPluginV3OneCore*>(plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
  build_ = static_cast<nvinfer1::IPluginV3OneBuild*>(plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
  runtime_ =
      static_cast<nvinfer1::IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  if (!core_ || !build_ || !runtime_) throw std::runtime_error("a plugin has not all capabilities");
}

OwnedFields OwnedFields::copy_of(const nvinfer1::PluginFieldCollection& given) {
  std::vector<Field> fields;
  for (std::int32_t i = 0; i < given.nbFields; ++i) {
    const nvinfer1::PluginField& f = given.fields[i];
    const auto length = static_cast<std::size_t>(f.length);
    const auto* data = static_cast<const std::byte*>(f.data);
    if (f.type == PluginFieldType::kCHAR) {
      fields.push_back({f.name, std::string(static_cast<const char*>(f.data), length)});
    } else if (f.type == PluginFieldType::kINT32 && length == 1) {
      std::int32_t value;
      std::memcpy(&value, data, sizeof value);
      fields.push_back({f.name, value});
    } else if (f.type == PluginFieldType::kINT8) {
      fields.push_back({f.name, std::vector<std::byte>(data, data + length)});
    } else {
      throw std::runtime_error(std::string("the plugin stores its field ") + f.name +
                               " as a type that is not expected");
    }
  }
  return OwnedFields(std::move(fields));
}

const nvinfer1::PluginFieldCollection* OwnedFields::collection() {
  views_.clear();
  for (const Field& f : fields_) {
    const char* const name = f.name.c_str();
    if (const auto* text = std::get_if<std::string>(&f.value))
      views_.emplace_back(name, text->data(), PluginFieldType::kCHAR, static_cast<std::int32_t>(text->size()));
    else if (const auto* integer = std::get_if<std::int32_t>(&f.value))
      views_.emplace_back(name, integer, PluginFieldType::kINT32, 1);
    else if (const auto* number = std::get_if<float>(&f.value))
      views_.emplace_back(name, number, PluginFieldType::kFLOAT32, 1);
    else if (const auto* bytes = std::get_if<std::vector<std::byte>>(&f.value))
      views_.emplace_back(name, bytes->data(), PluginFieldType::kINT8, static_cast<std::int32_t>(bytes->size()));
  }
  collection_ = {static_cast<std::int32_t>(views_.size()), views_.data()};
  return &collection_;
}

bool OwnedFields::operator==(const OwnedFields& other) const {
  return std::equal(fields_.begin(), fields_.end(), other.fields_.begin(), other.fields_.end(),
                    [](const Field& a, const Field& b) { return a.name == b.name && a.value == b.value; });
}

Library::Library(const std::string& path, Logger& logger) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: plugins may outlive main()
  if (!library) throw std::runtime_error(dlerror());
  const auto set = reinterpret_cast<void (*)(nvinfer1::ILoggerFinder*)>(dlsym(library, "setLoggerFinder"));
  const auto get =
      reinterpret_cast<nvinfer1::IPluginCreatorInterface* const* (*)(std::int32_t&)>(dlsym(library, "getCreators"));
  if (!set || !get) throw std::runtime_error(path + " lacks setLoggerFinder or getCreators");
  set(&logger);
  std::int32_t count = 0;
  nvinfer1::IPluginCreatorInterface* const* const all = get(count);
  for (std::int32_t i = 0; i < count; ++i) {
    if (std::string(all[i]->getInterfaceInfo().kind) != "PLUGIN CREATOR_V3ONE")
      throw std::runtime_error("a creator has another interface than PLUGIN CREATOR_V3ONE");
    creators_.push_back(static_cast<nvinfer1::IPluginCreatorV3One*>(all[i]));
  }
}

nvinfer1::IPluginCreatorV3One& Library::creator(const std::string& name) const {
  for (nvinfer1::IPluginCreatorV3One* creator : creators_)
    if (creator->getPluginName() == name) return *creator;
  throw std::runtime_error("the library has no plugin " + name);
}

}  // namespace tilewright::tensorrt::host
