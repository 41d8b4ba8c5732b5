// SPDX-License-Identifier: Apache-2.0
// Encoders that weigh columns by their importance, from arrays or from llama.cpp's imatrix files.
#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/gguf.h>
#include <tilewright/npy.h>
#include <tilewright/quantize_model.h>
#include <tilewright/safetensors.h>
#include <tilewright/store.h>
#include <tilewright/text.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "quantize/rounding/rounding.h"
#include "support/in_file.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using namespace quantize;

constexpr float kMost = 1e15f;                 // squares of weights times it are floats
constexpr std::int64_t kMostColumns = 131072;  // as of a Hessian

// llama.cpp's imatrix (tools/imatrix/imatrix.cpp, save_imatrix()): sums of squared inputs, and how many were summed.
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

class Importances {
 public:
  explicit Importances(std::span<const std::string> files) {
    for (const std::string& file : files) {
      if (file.ends_with(".npy"))
        add_npy(file);
      else if (file.ends_with(".safetensors"))
        add_safetensors(file);
      else if (file.ends_with(".gguf"))
        add_imatrix(file);
      else
        throw Error(ErrorCode::invalid_argument, "importance", file, "must end in .npy, .safetensors or .gguf");
    }
    if (all_.empty())
      throw Error(ErrorCode::invalid_argument, "importance", files.empty() ? "" : files.front(),
                  "must have at least one array of floats, or the sums of an imatrix");
  }

  // Null if there is none. Throws Error if it is not as wide as the layer.
  const std::vector<float>* find(std::string_view tensor, std::int64_t cols) const {
    const auto found = all_.find(layer_of(tensor));
    if (found == all_.end()) return nullptr;
    if (static_cast<std::int64_t>(found->second.size()) != cols)
      throw Error(ErrorCode::invalid_argument, fmt::format("importance of '{}'", printable(tensor)),
                  fmt::format("{} elements", found->second.size()), fmt::format("must have {}, one per column", cols));
    return &found->second;
  }
  std::string names() const {
    std::string names;
    for (const auto& [name, values] : all_) {
      if (names.size() > 200) return names + ", ...";
      names += (names.empty() ? "" : ", ") + printable(name);
    }
    return names;
  }
  std::string identity() const {
    std::string bytes;
    for (const auto& [name, values] : all_) {
      bytes += fmt::format("{}:{}:", name, values.size());
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    return sha256_hex(bytes);
  }

 private:
  static bool is_float(std::string_view format) { return format == "f32" || format == "f16" || format == "bf16"; }

  void add(const std::string& file, std::string_view name, std::vector<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!(values[i] >= 0 && values[i] <= kMost))
        throw must_be(fmt::format("{}: importance of '{}' [{}]", file, printable(name), i),
                      fmt::format("{}", values[i]), fmt::format("0 to {}", kMost));
    if (!all_.emplace(layer_of(name), std::move(values)).second)
      throw must_be("importance", file + ": " + printable(name), "given once for a layer");
  }
  // One element for each column, in one dimension or with others of 1 in front.
  static std::int64_t columns(const std::string& file, std::string_view name, std::span<const std::int64_t> shape) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= extent;
    if (shape.empty() || elements != shape.back() || elements < 1 || elements > kMostColumns)
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: importance of '{}'", file, printable(name)),
                  fmt::format("{} elements in {} dimensions", elements, shape.size()),
                  fmt::format("must have one for each column, up to {}", kMostColumns));
    return elements;
  }
  static std::vector<float> decode(std::string_view format, std::span<const std::byte> bytes, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    Format::parse(format).info().decode({bytes.data(), nullptr, nullptr}, 1, count, values.data());
    return values;
  }
  void add_npy(const std::string& file) {
    const Npy npy = in_file(file, [&] { return Npy::open(file); });
    const std::string name = std::filesystem::path(file).stem().string();
    const std::int64_t count = columns(file, name, npy.shape());
    std::vector<std::byte> bytes(static_cast<std::size_t>(npy.bytes()));
    npy.read(0, bytes);
    if (!npy.format().empty()) return add(file, name, decode(npy.format(), bytes, count));
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      double v = 0;
      std::memcpy(&v, bytes.data() + i * 8, 8);
      values.push_back(static_cast<float>(v));
    }
    add(file, name, std::move(values));
  }
  void add_safetensors(const std::string& file) {
    const Safetensors model = in_file(file, [&] { return Safetensors::open(file); });
    for (const SafetensorsTensor& t : model.tensors())
      if (is_float(t.format)) add(file, t.name, decode(t.format, model.read(t), columns(file, t.name, t.shape)));
  }
  void add_imatrix(const std::string& file) {
    const Gguf gguf = Gguf::open(file);
    for (const GgufTensor& t : gguf.tensors()) {
      if (!t.name.ends_with(kSums)) continue;
      const std::string name = t.name.substr(0, t.name.size() - kSums.size());
      const GgufTensor& counts =
          in_file(file, [&]() -> const GgufTensor& { return gguf.tensor(name + std::string(kCounts)); });
      const std::vector<std::int64_t> shape(t.dims.rbegin(), t.dims.rend());
      const std::int64_t count = columns(file, name, shape);  // several, of experts, are not taken
      if (t.format != "f32" || counts.format != "f32" || counts.bytes != sizeof(float))
        throw Error(ErrorCode::unsupported, fmt::format("{}: '{}'", file, printable(t.name)),
                    fmt::format("{} with {} bytes of counts", t.type_name, counts.bytes), "must be F32 with one count");
      std::vector<float> values = decode("f32", gguf.read(t), count);
      const float rows = decode("f32", gguf.read(counts), 1).front();
      for (float& v : values) v = rows > 0 ? v / rows : 1;  // as llama-quantize reads them
      add(file, name, std::move(values));
    }
  }

  std::map<std::string, std::vector<float>, std::less<>> all_;  // by name without ".weight"
};

class WeightedLayer : public QuantizedLayer {
 public:
  WeightedLayer(const FormatInfo& info, const std::vector<float>* importance, int encoder, std::int64_t cols)
      : info_(info), importance_(importance), encoder_(encoder), cols_(cols) {}
  void encode(std::int64_t, std::int64_t count, const float* w, MutableOperand to) const override {
    if (importance_)
      info_.encode_weighted(w, count, cols_, importance_->data(), to);
    else
      info_.encode(w, count, cols_, to, encoder_);
  }

 private:
  const FormatInfo& info_;
  const std::vector<float>* importance_;
  int encoder_;
  std::int64_t cols_;
};

// What encodes a layer without importance: ggml's search, if it has one for that.
const char* encoder_without(Format format) {
  const auto& all = format.info().encoders;
  const auto ggml = std::find(all.begin(), all.end(), std::string_view("ggml"));
  return ggml == all.end() ? all.front() : *ggml;
}

class Weighted : public LayerQuantizer {
 public:
  Weighted(Format format, std::span<const std::string> files, bool fallback)
      : format_(format), without_(encoder_without(format)), importances_(files), fallback_(fallback) {}
  Format format() const override { return format_; }
  std::string identity() const override {
    return fmt::format("importance {}, {} v{}{}", importances_.identity(), format_.name(),
                       format_.info().layout_version, fallback_ ? fmt::format(", else {}", without_) : "");
  }
  void check(std::string_view name, std::int64_t, std::int64_t cols) const override {
    if (!importances_.find(name, cols) && !fallback_)
      throw must_be(
          fmt::format("importance of '{}'", printable(name)), "none",
          fmt::format("an array of that name with {} elements; or skip this tensor, or ask for it to be encoded "
                      "without. There are: {}",
                      cols, importances_.names()));
  }
  std::unique_ptr<QuantizedLayer> begin(const LayerWeights& layer) const override {
    return std::make_unique<WeightedLayer>(format_.info(), importances_.find(layer.name, layer.cols),
                                           encoder_index(format_, without_), layer.cols);
  }

 private:
  Format format_;
  const char* without_;
  Importances importances_;
  bool fallback_;
};

}  // namespace

std::unique_ptr<LayerQuantizer> importance_weighted(Format format, std::span<const std::string> files, bool fallback) {
  if (!format.info().encode_weighted) {
    std::string names;
    for (const Format f : Format::all())
      if (f.info().encode_weighted) names += (names.empty() ? "" : ", ") + std::string(f.name());
    throw Error(ErrorCode::unsupported, "importance", fmt::format("of {}", format.name()), "must be one of " + names);
  }
  return std::make_unique<Weighted>(format, files, fallback);
}

}  // namespace tilewright
