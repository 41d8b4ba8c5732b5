// SPDX-License-Identifier: Apache-2.0
// One linear layer to 4 bits: sums of its inputs, GPTQ on the host and on a device, AWQ and rounding to nearest.
#include <fmt/format.h>

#include <span>

#include "capi/handles.h"

struct tw_hessian : tilewright::capi::Handle {
  static constexpr char kKind[] = "hessian";
  explicit tw_hessian(tilewright::Hessian h) : Handle(kKind), value(std::move(h)) {}
  tilewright::Hessian value;
};

struct tw_quantized : tilewright::capi::Handle {
  static constexpr char kKind[] = "quantized";
  explicit tw_quantized(tilewright::QuantizedLinear q) : Handle(kKind), value(std::move(q)) {}
  const tilewright::QuantizedLinear value;
};

using namespace tilewright;
using namespace tilewright::capi;

namespace {

LinearWeight layer_of(const tw_linear_weight* given) {
  const tw_linear_weight l = read_struct(given, "layer");
  if (l.n < 1 || l.k < 1 || l.n > (std::int64_t{1} << 47) / l.k)
    refuse("layer", fmt::format("n={} k={}", l.n, l.k), "must be at least 1 each, and make fewer than 2^47 elements");
  LinearWeight layer{{&required(l.w, "w"), static_cast<std::size_t>(l.n * l.k)}, l.n, l.k};
  if (l.name) layer.name = l.name;
  return layer;
}

QuantizeTarget target_of(const tw_quantize_target* given) {
  const tw_quantize_target t = read_struct(given, "target");
  return {Format::parse(text(t.format, "format")), t.group, t.encoder, t.threads};
}

bool flag(std::int32_t value, const char* name) {
  check_flag(value, name);
  return value != 0;
}

template <class T>
const T* pointer_to(const std::vector<T>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

extern "C" {

tw_status tw_hessian_create(int64_t k, tw_hessian** hessian, tw_error** error) {
  return guarded(error, [&] { create(hessian, "hessian", Hessian(k)); });
}

tw_status tw_hessian_from(int64_t k, int64_t rows, const double* values, const double* magnitudes, tw_hessian** hessian,
                          tw_error** error) {
  return guarded(error, [&] {
    const auto size = static_cast<std::size_t>(std::clamp<int64_t>(k, 0, 131072));  // beyond that the Hessian refuses k
    create(hessian, "hessian",
           Hessian(k, rows, {&required(values, "values"), size * size}, {&required(magnitudes, "magnitudes"), size}));
  });
}

tw_status tw_hessian_add(tw_hessian* hessian, const char* format, const void* x, int64_t rows, int64_t cols,
                         int32_t threads, tw_error** error) {
  return guarded(error,
                 [&] { handle(hessian).value.add(Format::parse(text(format, "format")), x, rows, cols, threads); });
}

tw_status tw_hessian_merge(tw_hessian* hessian, const tw_hessian* other, tw_error** error) {
  return guarded(error, [&] { handle(hessian).value.merge(handle(other, "other").value); });
}

tw_status tw_hessian_read(const tw_hessian* hessian, int64_t* k, int64_t* rows, double* values, double* magnitudes,
                          tw_error** error) {
  return guarded(error, [&] {
    const Hessian& h = handle(hessian).value;
    if (values) {
      const std::vector<double> all = h.values();
      std::copy(all.begin(), all.end(), values);
    }
    if (magnitudes) std::copy(h.magnitudes().begin(), h.magnitudes().end(), magnitudes);
    if (k) *k = h.k();
    if (rows) *rows = h.rows();
  });
}

void tw_hessian_release(tw_hessian* hessian) { release(hessian); }

tw_status tw_round_to_nearest(const tw_linear_weight* layer, const tw_hessian* hessian,
                              const tw_quantize_target* target, tw_quantized** quantized, tw_error** error) {
  return guarded(error, [&] {
    required(quantized, "quantized");
    create(quantized, "quantized", round_to_nearest(layer_of(layer), handle(hessian).value, target_of(target)));
  });
}

tw_status tw_gptq(tw_engine* engine, const tw_device* device, const tw_linear_weight* layer, const tw_hessian* hessian,
                  const tw_quantize_target* target, const tw_gptq_options* options, tw_quantized** quantized,
                  tw_error** error) {
  return guarded(error, [&] {
    required(quantized, "quantized");
    const tw_gptq_options initial = TW_GPTQ_OPTIONS_INIT;
    const tw_gptq_options o = read_struct(options ? options : &initial, "options");
    const GptqOptions how{flag(o.act_order, "act_order"), flag(o.static_groups, "static_groups"), o.damping};
    const LinearWeight l = layer_of(layer);
    const Hessian& h = handle(hessian).value;
    const QuantizeTarget t = target_of(target);
    if (engine == nullptr && device == nullptr)
      create(quantized, "quantized", gptq(l, h, t, how));
    else
      create(quantized, "quantized", gptq(handle(engine).value, handle(device).value, l, h, t, how));
  });
}

int64_t tw_gptq_device_bytes(int64_t n, int64_t k, int64_t group) {
  int64_t bytes = -1;
  (void)guarded(nullptr, [&] { bytes = gptq_device_bytes(n, k, group); });
  return bytes;
}

tw_status tw_awq(const tw_linear_weight* layer, const tw_hessian* hessian, const tw_quantize_target* target,
                 const tw_awq_options* options, tw_quantized** quantized, tw_error** error) {
  return guarded(error, [&] {
    required(quantized, "quantized");
    const tw_awq_options initial = TW_AWQ_OPTIONS_INIT;
    const tw_awq_options o = read_struct(options ? options : &initial, "options");
    create(
        quantized, "quantized",
        awq(layer_of(layer), handle(hessian).value, target_of(target), {o.grid, flag(o.clip, "clip"), o.search_rows}));
  });
}

tw_status tw_quantized_describe(const tw_quantized* quantized, tw_quantized_info* info, tw_error** error) {
  return guarded(error, [&] {
    const QuantizedLinear& q = handle(quantized).value;
    tw_quantized_info i = TW_QUANTIZED_INFO_INIT;
    i.format = q.format.info().name;
    i.n = q.n, i.k = q.k, i.group = q.group;
    i.data = pointer_to(q.data), i.scales = pointer_to(q.scales);
    i.data_bytes = q.data.size(), i.scales_bytes = q.scales.size();
    i.order = pointer_to(q.order);
    i.values = pointer_to(q.values);
    i.input_scales = pointer_to(q.input_scales);
    i.error = q.error, i.energy = q.energy, i.damping = q.damping, i.exponent = q.exponent;
    i.dead_columns = q.dead_columns;
    write_struct(info, i, "info");
  });
}

void tw_quantized_release(tw_quantized* quantized) { release(quantized); }

}  // extern "C"
