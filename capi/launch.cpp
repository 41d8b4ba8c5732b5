// SPDX-License-Identifier: Apache-2.0
// Launches. They allocate nothing unless they fail.
#include <cstring>
#include <span>

#include "capi/handles.h"

namespace tilewright::capi {

tw_kernel_info info_of(const LaunchPlan& plan, const Resources& resources) {
  return {0, static_cast<std::int32_t>(plan.threads), resources.registers,
          resources.shared_bytes + static_cast<std::int32_t>(plan.shared_bytes), resources.spill_bytes};
}

GemmArgs gemm_args(const tw_gemm_args* args) {
  const tw_gemm_args a = read_struct(args, "args");
  GemmArgs g;
  g.x = operand(a.x);
  g.w = operand(a.w);
  g.y = a.y;
  g.bias = a.bias;
  g.m = a.m;
  g.ldx = a.ldx;
  g.ldy = a.ldy;
  g.c = a.c;
  g.ldc = a.ldc;
  g.workspace = a.workspace;
  g.alpha = a.alpha;
  g.beta = a.beta;
  g.group_rows = a.group_rows;
  return g;
}

ConvArgs conv_args(const tw_conv_args* args) {
  const tw_conv_args a = read_struct(args, "args");
  ConvArgs c;
  c.x = operand(a.x);
  c.w = operand(a.w);
  c.y = a.y;
  c.bias = a.bias;
  c.residual = a.residual;
  c.cache = a.cache;
  c.workspace = a.workspace;
  c.alpha = a.alpha;
  c.beta = a.beta;
  c.amax = a.amax;
  return c;
}

}  // namespace tilewright::capi

using namespace tilewright;
using namespace tilewright::capi;

extern "C" {

tw_status tw_launch_gemm_args(const tw_kernel* kernel, tw_stream stream, const tw_gemm_args* args) {
  return guarded(nullptr, [&] { handle(kernel).value.launch(stream, gemm_args(args)); });
}

tw_status tw_launch_gemm(const tw_kernel* kernel, tw_stream stream, const void* x, const void* w, const void* w_scales,
                         void* y, int64_t m) {
  return guarded(nullptr, [&] {
    GemmArgs g;
    g.x.data = x;
    g.w.data = w;
    g.w.scales = w_scales;
    g.y = y;
    g.m = m;
    handle(kernel).value.launch(stream, g);
  });
}

tw_status tw_launch_buffers(const tw_kernel* kernel, tw_stream stream, void* const* buffers, size_t buffer_count,
                            int64_t rows, const tw_value* values, size_t value_count) {
  return guarded(nullptr, [&] {
    static_assert(sizeof(tw_value) == sizeof(LaunchValue));
    if (buffer_count != 0) required(buffers, "buffers");
    if (value_count != 0) required(values, "values");
    handle(kernel).value.launch_buffers(stream, {buffers, buffer_count}, rows,
                                        {reinterpret_cast<const LaunchValue*>(values), value_count});
  });
}

tw_status tw_unscale_pieces(const char* format, const tw_unscale_tensor* tensors, size_t count, int64_t elements,
                            tw_unscale_piece* pieces, size_t* piece_count, tw_error** error) {
  return guarded(error, [&] {
    static_assert(sizeof(tw_unscale_tensor) == sizeof(UnscaleTensor) &&
                  sizeof(tw_unscale_piece) == sizeof(UnscalePiece));
    const Format f = Format::parse(text(format, "format"));
    if (tensors == nullptr && count != 0) refuse("tensors", "null", "must be a pointer");
    std::size_t& room = required(piece_count, "piece_count");
    const auto all = unscale_pieces(f, std::span(reinterpret_cast<const UnscaleTensor*>(tensors), count), elements);
    if (pieces != nullptr && room < all.size())
      refuse("piece_count", std::to_string(room),
             "must be at least " + std::to_string(all.size()) + ", the number of pieces");
    room = all.size();
    if (pieces != nullptr && room != 0) std::memcpy(pieces, all.data(), room * sizeof *pieces);
  });
}

tw_status tw_launch(const tw_kernel* kernel, tw_stream stream, const void* params, size_t bytes, int64_t rows,
                    int64_t cols) {
  return guarded(nullptr, [&] {
    if (params == nullptr && bytes != 0) refuse("params", "null", "must be a pointer");
    handle(kernel).value.launch(stream, std::span(static_cast<const std::byte*>(params), bytes), rows, cols);
  });
}

tw_status tw_kernel_describe(const tw_kernel* kernel, int64_t rows, tw_kernel_info* info, char** candidate,
                             tw_error** error) {
  return guarded(error, [&] {
    const Kernel& k = handle(kernel).value;
    if (rows < 0) refuse("rows", std::to_string(rows), "must be 0 or more");
    if (info) write_struct(info, info_of(k.plan(rows), k.resources(rows)), "info");
    if (candidate == nullptr) return;
    const Candidate& c = k.candidate(rows);
    *candidate = copy_text(c.family.empty() ? "" : c.text());
  });
}

tw_status tw_kernel_check_pointers(tw_kernel* kernel, int32_t on, tw_error** error) {
  return guarded(error, [&] {
    check_flag(on, "on");
    handle(kernel).value.check_pointers(on != 0);
  });
}

void tw_kernel_retain(tw_kernel* kernel) { retain(kernel); }
void tw_kernel_release(tw_kernel* kernel) { release(kernel); }

}  // extern "C"
