// SPDX-License-Identifier: Apache-2.0
// Sources of the configurations: compressed-tensors (src/compressed_tensors/quantization/quant_config.py,
// quant_args.py, config/base.py), GPTQModel (gptqmodel/quantization/config.py), AutoAWQ (awq/models/_config.py).
#include "quantize/model/packer.h"

#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/gguf.h>
#include <tilewright/text.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/must_be.h"

namespace tilewright::quantize {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWeight = ".weight";

bool is_float(std::string_view format) { return format == "f32" || format == "f16" || format == "bf16"; }
bool is_integers(Format f) { return f.info().checkpoint == CheckpointForm::integers; }
std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}
std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// What each container takes, of the formats that the library has.
bool takes(Container container, Format format) {
  if (is_float(format.name())) return true;
  return container == Container::gguf ? format.info().gguf : format.info().checkpoint != CheckpointForm::none;
}

// The streams of each row are the bytes of the output's tensors.
class InPlace : public Sink {
 public:
  InPlace(std::vector<OutputTensor> outputs, Format format, std::int64_t cols, Write write)
      : outputs_(std::move(outputs)), format_(format), cols_(cols), write_(std::move(write)) {}
  void rows(std::int64_t count, Operand from) override {
    const auto streams = format_.info().streams;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].scope == Scope::tensor) {
        global_ = *from.global;
        continue;
      }
      const std::int64_t bytes = format_.stream_bytes(static_cast<int>(i), count, cols_);
      write_(outputs_[i].name,
             {static_cast<const std::byte*>(from.at(streams[i].stream)), static_cast<std::size_t>(bytes)});
    }
  }
  void end() override {
    const auto streams = format_.info().streams;
    const float inverse = 1 / global_;
    for (std::size_t i = 0; i < streams.size(); ++i)
      if (streams[i].scope == Scope::tensor) write_(outputs_[i].name, std::as_bytes(std::span(&inverse, 1)));
  }

 private:
  std::vector<OutputTensor> outputs_;
  Format format_;
  std::int64_t cols_;
  Write write_;
  float global_ = 1;
};

// Packings that mix rows, and so need all of them.
class Exported : public Sink {
 public:
  Exported(std::string base, Format format, const CheckpointWeight& like, std::vector<std::int32_t> order,
           std::vector<float> pre_quant_scale, Write write)
      : base_(std::move(base)),
        format_(format),
        like_(like),
        order_(std::move(order)),
        pre_quant_scale_(std::move(pre_quant_scale)),
        write_(std::move(write)) {
    for (int i = 0; i < 2; ++i) streams_[i].reserve(static_cast<std::size_t>(format.stream_bytes(i, like.n, like.k)));
  }
  void rows(std::int64_t count, Operand from) override {
    for (int i = 0; i < 2; ++i) {
      const auto* bytes = static_cast<const std::byte*>(i == 0 ? from.data : from.scales);
      streams_[i].insert(streams_[i].end(), bytes, bytes + format_.stream_bytes(i, count, like_.k));
    }
  }
  void end() override {
    CheckpointBytes to;
    export_weights(format_, streams_[0], streams_[1], like_, order_, to);
    const bool compressed = like_.packing == Checkpoint::compressed_tensors;
    const auto write = [&](const char* ours, const char* theirs, const std::vector<std::byte>& bytes) {
      if (!bytes.empty()) write_(base_ + (compressed ? theirs : ours), bytes);
    };
    write("qweight", "weight_packed", to.codes);
    write("qzeros", "weight_zero_point", to.zeros);
    write("scales", "weight_scale", to.scales);
    write("g_idx", "weight_g_idx", to.g_idx);
    const std::int64_t shape[] = {like_.n, like_.k};
    if (compressed) write_(base_ + "weight_shape", std::as_bytes(std::span(shape)));
    if (!pre_quant_scale_.empty()) write_(base_ + "pre_quant_scale", std::as_bytes(std::span(pre_quant_scale_)));
  }

 private:
  std::string base_;
  Format format_;
  CheckpointWeight like_;
  std::vector<std::int32_t> order_;
  std::vector<float> pre_quant_scale_;
  Write write_;
  std::vector<std::byte> streams_[2];
};

// "model.layers.0.mlp.up_proj." of its weight.
std::string base_of(const std::string& name) { return name.substr(0, name.size() - kWeight.size() + 1); }

}  // namespace

Container container_of(const std::string& output) {
  if (output.ends_with(".gguf")) return Container::gguf;
  if (output.ends_with(".safetensors")) return Container::safetensors;
  throw Error(ErrorCode::invalid_argument, "output", output, "must end in .gguf or .safetensors");
}

Packer::Packer(Container container, const LayerQuantizer& quantizer, const std::string& packing)
    : container_(container),
      format_(quantizer.format()),
      reorders_(quantizer.reorders()),
      scales_inputs_(quantizer.scales_inputs()) {
  const std::string_view name = format_.name();
  const char* where = container == Container::gguf ? "GGUF" : "safetensors";
  if (!takes(container, format_)) {
    std::string names;
    for (const Format f : Format::all())
      if (takes(container, f)) names += (names.empty() ? "" : ", ") + std::string(f.name());
    throw Error(ErrorCode::unsupported, "format", std::string(name),
                fmt::format("must be one of {} in {}", names, where));
  }
  if (container == Container::safetensors && is_integers(format_)) {
    constexpr Checkpoint kAll[] = {Checkpoint::compressed_tensors, Checkpoint::gptq, Checkpoint::gptq_v2,
                                   Checkpoint::awq};
    std::string names;
    for (const Checkpoint c : kAll) {
      if (bits() != 4 && c != Checkpoint::gptq && c != Checkpoint::gptq_v2) continue;
      names += (names.empty() ? "" : ", ") + std::string(to_string(c));
      if (packing == to_string(c) || (packing.empty() && !checkpoint_)) checkpoint_ = c;
    }
    if (!checkpoint_) throw must_be("packing", packing, "one of " + names);
    if (checkpoint_ == Checkpoint::awq && reorders_)
      throw Error(ErrorCode::unsupported, "packing", packing,
                  "must be gptq or compressed_tensors: awq has no order of columns");
  } else {
    if (!packing.empty() && !(container == Container::safetensors && packing == "compressed_tensors"))
      throw must_be(
          "packing", packing,
          fmt::format("left out: only integers in groups have one, in safetensors, and this is {} in {}", name, where));
    if (reorders_ || scales_inputs_)
      throw Error(ErrorCode::unsupported, "format", std::string(name),
                  fmt::format("must be integers in groups, such as int4_g128, in safetensors, which can say {}",
                              reorders_ ? "in which order columns are" : "what inputs are multiplied by"));
  }
}

bool Packer::in_place() const { return !checkpoint_; }

std::string Packer::unsuitable(const InputTensor& t) const {
  if (!is_float(t.format)) return fmt::format("type {}", t.type);
  if (t.shape.size() != 2) return fmt::format("{} dimension{}", t.shape.size(), t.shape.size() == 1 ? "" : "s");
  if (t.bytes == 0) return "no elements";
  if (t.cols() % format_.block()) return fmt::format("{} columns, no multiple of {}", t.cols(), format_.block());
  if (container_ == Container::gguf || is_float(format_.name())) return "";
  if (!t.name.ends_with(kWeight)) return "a name that does not end in .weight";
  const int words = bits() == 4 ? 8 : 32;
  if (checkpoint_ && *checkpoint_ != Checkpoint::compressed_tensors && t.rows() % words)
    return fmt::format("{} rows, no multiple of {}", t.rows(), words);
  if (checkpoint_ && std::max(t.rows(), t.cols()) > INT32_MAX) return "more than 2^31 - 1 rows or columns";
  return "";
}

std::vector<OutputTensor> Packer::outputs(const InputTensor& t) const {
  const std::int64_t n = t.rows(), k = t.cols();
  const std::string_view name = format_.name();
  if (container_ == Container::gguf) return {{t.name, std::string(name), t.shape}};
  if (is_float(name)) return {{t.name, upper(std::string(name)), t.shape}};
  if (rows())
    return {{t.name, is(CheckpointForm::fp8_rows) ? "F8_E4M3" : "I8", t.shape}, {t.name + "_scale", "F32", {n, 1}}};
  if (!checkpoint_)
    return {{t.name + "_packed", "U8", {n, k / 2}},
            {t.name + "_scale", "F8_E4M3", {n, k / 16}},
            {t.name + "_global_scale", "F32", {1}}};
  const std::int64_t groups = k / group();
  const std::string base = base_of(t.name);
  std::vector<OutputTensor> all;
  switch (*checkpoint_) {
    case Checkpoint::compressed_tensors:
      all = {{t.name + "_packed", "I32", {n, k / 8}},
             {t.name + "_scale", "F16", {n, groups}},
             {t.name + "_shape", "I64", {2}}};
      if (!symmetric()) all.push_back({t.name + "_zero_point", "I32", {(n + 7) / 8, groups}});
      if (reorders_) all.push_back({t.name + "_g_idx", "I32", {k}});
      break;
    case Checkpoint::awq:
      all = {{base + "qweight", "I32", {k, n / 8}},
             {base + "qzeros", "I32", {groups, n / 8}},
             {base + "scales", "F16", {groups, n}}};
      break;
    default:
      all = {{base + "qweight", "I32", {k * bits() / 32, n}},
             {base + "qzeros", "I32", {groups, n * bits() / 32}},
             {base + "scales", "F16", {groups, n}},
             {base + "g_idx", "I32", {k}}};
  }
  if (scales_inputs_) all.push_back({base + "pre_quant_scale", "F32", {k}});
  return all;
}

std::unique_ptr<Sink> Packer::sink(const InputTensor& t, const QuantizedLayer& layer, Sink::Write write) const {
  if (in_place()) return std::make_unique<InPlace>(outputs(t), format_, t.cols(), std::move(write));
  std::vector<std::int32_t> order(layer.order().begin(), layer.order().end());
  if (reorders_ && order.empty() && *checkpoint_ == Checkpoint::compressed_tensors) {
    order.resize(static_cast<std::size_t>(t.cols()));  // its g_idx was declared
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<float> pre_quant_scale;
  if (scales_inputs_) pre_quant_scale.assign(static_cast<std::size_t>(t.cols()), 1.0f);
  for (std::size_t j = 0; j < layer.input_scales().size(); ++j) pre_quant_scale[j] /= layer.input_scales()[j];
  CheckpointWeight like;
  like.packing = *checkpoint_;
  like.n = t.rows();
  like.k = t.cols();
  like.bits = bits();
  like.group = group();
  like.scales.type = TensorType::f16;
  return std::make_unique<Exported>(base_of(t.name), format_, like, std::move(order), std::move(pre_quant_scale),
                                    std::move(write));
}

OutputTensor Packer::copied(const InputTensor& t) const {
  if (container_ == Container::gguf) {
    const std::string type = gguf_type(t.type) ? t.type : lower(t.type);
    if (!gguf_type(type))
      throw Error(ErrorCode::unsupported, fmt::format("tensor '{}' type", printable(t.name)), t.type,
                  "is not a type of GGUF; write .safetensors instead");
    return {t.name, type, t.shape.empty() ? std::vector<std::int64_t>{1} : t.shape};
  }
  constexpr const char* kShared[] = {"f32", "f16", "bf16", "i8", "i16", "i32", "i64", "f64"};
  const bool from_gguf = std::any_of(t.type.begin(), t.type.end(), [](unsigned char c) { return std::islower(c); });
  if (!from_gguf) return {t.name, t.type, t.shape};
  if (std::find(std::begin(kShared), std::end(kShared), t.type) == std::end(kShared))
    throw Error(ErrorCode::unsupported, fmt::format("tensor '{}' type", printable(t.name)), t.type,
                "is not a type of safetensors; write .gguf instead");
  return {t.name, upper(t.type), t.shape};
}

std::string Packer::text() const {
  const char* container = container_ == Container::gguf ? "gguf" : "safetensors";
  return checkpoint_ ? fmt::format("{} {}", container, to_string(*checkpoint_)) : container;
}

std::string Packer::config_file() const {
  if (container_ == Container::gguf || is_float(format_.name())) return "";
  if (!checkpoint_ || *checkpoint_ == Checkpoint::compressed_tensors) return "quantization_config.json";
  return *checkpoint_ == Checkpoint::awq ? "quant_config.json" : "quantize_config.json";
}

std::string Packer::config(const std::vector<std::string>& kept) const {
  if (config_file().empty()) return "";
  if (checkpoint_ == Checkpoint::awq)
    return Json{
        {"quant_method", "awq"}, {"version", "gemm"},       {"bits", 4},          {"w_bit", 4},
        {"group_size", group()}, {"q_group_size", group()}, {"zero_point", true}, {"modules_to_not_convert", kept}}
        .dump(2, ' ', false, Json::error_handler_t::replace);
  if (checkpoint_ && *checkpoint_ != Checkpoint::compressed_tensors)
    return Json{{"quant_method", "gptq"},
                {"checkpoint_format", to_string(*checkpoint_)},
                {"bits", bits()},
                {"group_size", group()},
                {"sym", symmetric()},
                {"desc_act", reorders_},
                {"lm_head", false},
                {"pack_dtype", "int32"},
                {"modules_to_not_convert", kept}}
        .dump(2, ' ', false, Json::error_handler_t::replace);
  const bool rows = this->rows(), nvfp4 = is(CheckpointForm::nvfp4), floats = nvfp4 || is(CheckpointForm::fp8_rows);
  Json weights = {{"num_bits", rows ? 8 : 4},
                  {"type", floats ? "float" : "int"},
                  {"symmetric", symmetric()},
                  {"strategy", rows    ? "channel"
                               : nvfp4 ? "tensor_group"
                                       : "group"},
                  {"group_size", rows ? Json() : Json(group())},
                  {"dynamic", false},
                  {"actorder", reorders_ ? Json("group") : Json()}};
  // Eight-bit weights are multiplied with eight-bit activations, scaled as they come.
  Json activations;
  if (rows)
    activations = {{"num_bits", 8},
                   {"type", floats ? "float" : "int"},
                   {"symmetric", true},
                   {"strategy", "token"},
                   {"dynamic", true}};
  const char* format = nvfp4    ? "nvfp4-pack-quantized"
                       : !rows  ? "pack-quantized"
                       : floats ? "float-quantized"
                                : "int-quantized";
  Json group_0 = {{"targets", {"Linear"}},
                  {"weights", weights},
                  {"input_activations", activations},
                  {"output_activations", nullptr},
                  {"format", format}};
  return Json{{"quantization_config",
               {{"quant_method", "compressed-tensors"},
                {"quantization_status", "compressed"},
                {"format", format},
                {"config_groups", {{"group_0", group_0}}},
                {"ignore", kept},
                {"kv_cache_scheme", nullptr}}}}
      .dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tilewright::quantize
