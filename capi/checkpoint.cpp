// SPDX-License-Identifier: Apache-2.0
// 4-bit weights of checkpoints.
#include <fmt/format.h>

#include <span>

#include "capi/handles.h"

using namespace tilewright;
using namespace tilewright::capi;

namespace {

Checkpoint packing_of(const char* name) {
  std::string allowed;
  for (const Checkpoint c : {Checkpoint::gptq, Checkpoint::gptq_v2, Checkpoint::awq, Checkpoint::compressed_tensors}) {
    if (to_string(c) == text(name, "packing")) return c;
    allowed += (allowed.empty() ? "" : ", ") + std::string(to_string(c));
  }
  refuse("packing", name, "must be one of " + allowed);
}

TensorType type_of(const tw_checkpoint_tensor& t, const char* name) {
  const std::string_view type = text(t.type, name);
  if (type == "i32") return TensorType::i32;
  if (type == "f16") return TensorType::f16;
  if (type == "bf16") return TensorType::bf16;
  refuse(std::string(name) + ".type", std::string(type), "must be i32, f16 or bf16");
}

CheckpointTensor tensor_of(const tw_checkpoint_tensor& t, const char* name) {
  if (t.bytes == nullptr) return {};
  if (t.rows < 1 || t.cols < 1 || t.rows > (std::int64_t{1} << 47) / t.cols)
    refuse(name, fmt::format("{} x {}", t.rows, t.cols),
           "must have at least 1 row and column, and fewer than 2^47 elements");
  const TensorType type = type_of(t, name);
  const auto bytes = static_cast<std::size_t>(t.rows * t.cols) * (type == TensorType::i32 ? 4 : 2);
  return {{static_cast<const std::byte*>(t.bytes), bytes}, t.rows, t.cols, type};
}

CheckpointWeight weight_of(const tw_checkpoint_weight* given) {
  const tw_checkpoint_weight w = read_struct(given, "weight");
  CheckpointWeight weight;
  weight.packing = packing_of(w.packing);
  weight.n = w.n;
  weight.k = w.k;
  weight.bits = w.bits;
  weight.group = w.group;
  weight.codes = tensor_of(w.codes, "codes");
  weight.zeros = tensor_of(w.zeros, "zeros");
  weight.scales = tensor_of(w.scales, "scales");
  weight.g_idx = tensor_of(w.g_idx, "g_idx");
  return weight;
}

std::span<std::byte> span_of(void* data, std::size_t bytes, const char* name) {
  if (data == nullptr && bytes != 0) refuse(name, "null", fmt::format("must be memory of {} bytes", bytes));
  return {static_cast<std::byte*>(data), bytes};
}
std::span<const std::byte> span_of(const void* data, std::size_t bytes, const char* name) {
  return span_of(const_cast<void*>(data), bytes, name);
}

}  // namespace

extern "C" {

tw_status tw_import_format(const tw_checkpoint_weight* weight, int32_t index, const char** format, int32_t* count,
                           tw_error** error) {
  return guarded(error, [&] {
    const std::vector<Format> formats = import_formats(weight_of(weight));
    required(count, "count");
    required(format, "format") = formats[index_of(index, formats.size(), "index")].info().name;
    *count = static_cast<int32_t>(formats.size());
  });
}

tw_status tw_import_order(const tw_checkpoint_weight* weight, int32_t* order, int32_t* permuted, tw_error** error) {
  return guarded(error, [&] {
    const std::vector<std::int32_t> found = import_order(weight_of(weight));
    required(permuted, "permuted") = !found.empty();
    if (!found.empty()) std::copy(found.begin(), found.end(), &required(order, "order"));
  });
}

tw_status tw_import_weights(const tw_checkpoint_weight* weight, const char* format, void* data, size_t data_bytes,
                            void* scales, size_t scales_bytes, tw_error** error) {
  return guarded(error, [&] {
    import_weights(weight_of(weight), Format::parse(text(format, "format")), span_of(data, data_bytes, "data"),
                   span_of(scales, scales_bytes, "scales"));
  });
}

tw_status tw_export_weights(const char* format, const void* data, size_t data_bytes, const void* scales,
                            size_t scales_bytes, const tw_checkpoint_weight* like, const int32_t* order,
                            tw_exported* exported, tw_error** error) {
  return guarded(error, [&] {
    tw_checkpoint_weight bare = read_struct(like, "like");
    const TensorType scale_type = type_of(bare.scales, "scales");
    bare.codes.bytes = bare.zeros.bytes = bare.scales.bytes = bare.g_idx.bytes = nullptr;
    CheckpointWeight wanted = weight_of(&bare);
    wanted.scales.type = scale_type;
    CheckpointBytes to;
    std::span<const std::int32_t> indices;
    if (order) indices = {order, static_cast<std::size_t>(std::max<std::int64_t>(wanted.k, 0))};
    (void)export_weights(Format::parse(text(format, "format")), span_of(data, data_bytes, "data"),
                         span_of(scales, scales_bytes, "scales"), wanted, indices, to);
    tw_exported result = TW_EXPORTED_INIT;
    const auto copied = [](const std::vector<std::byte>& bytes, std::size_t& size) {
      size = bytes.size();
      return std::unique_ptr<char, decltype(&tw_free)>(
          bytes.empty() ? nullptr : copy_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), &tw_free);
    };
    auto codes = copied(to.codes, result.codes_bytes), zeros = copied(to.zeros, result.zeros_bytes);
    auto scale = copied(to.scales, result.scales_bytes), g_idx = copied(to.g_idx, result.g_idx_bytes);
    result.codes = codes.get();
    result.zeros = zeros.get();
    result.scales = scale.get();
    result.g_idx = g_idx.get();
    write_struct(exported, result, "exported");
    for (auto* owned : {&codes, &zeros, &scale, &g_idx}) (void)owned->release();
  });
}

tw_status tw_gather_rows(const char* format, int64_t cols, const int32_t* order, size_t count, tw_operand from,
                         tw_mutable_operand to, tw_error** error) {
  return guarded(error, [&] {
    const Format f = Format::parse(text(format, "format"));
    if (count == 0) return;
    gather_rows(f, cols, {&required(order, "order"), count}, operand(from), operand(to));
  });
}

}  // extern "C"
