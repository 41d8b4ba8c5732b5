// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/convolution.h"

#include <tilewright/error.h>

#include <cstdint>
#include <cstring>

#include "ggml-impl.h"
#include "hosts/ggml/product.h"

namespace tilewright::ggml {
namespace {

// "a" or "axb" or "axbxc", from the outermost axis to the innermost, of what ggml counts from the innermost.
template <class Value>
std::string axes(int count, Value value) {
  std::string text;
  for (int i = count - 1; i >= 0; --i) text += (text.empty() ? "" : "x") + std::to_string(value(i));
  return text;
}

// How a tensor [width, height, channels, images or filters] lies: channels outside its pixels, or inside, or neither.
enum class Order { outside, inside, other };
Order order_of(const ggml_tensor* t) {
  if (ggml_is_contiguous(t)) return Order::outside;
  const std::size_t element = ggml_type_size(t->type);
  const auto extent = [&](int i) { return static_cast<std::size_t>(t->ne[i]); };
  const bool inside = t->nb[2] == element && t->nb[0] == extent(2) * element && t->nb[1] == extent(0) * t->nb[0] &&
                      t->nb[3] == extent(1) * t->nb[1];
  return inside ? Order::inside : Order::other;
}

// A tensor where kernels can read it.
const void* readable(const ggml_tensor* t, Scratch& scratch) {
  const auto* const data = static_cast<const std::byte*>(t->data);
  if (lies_in_order(t)) {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 == 0) return data;
    return std::memcpy(scratch.of(ggml_nbytes(t)), data, ggml_nbytes(t));
  }
  const std::size_t element = ggml_type_size(t->type);
  auto* const dense = static_cast<std::byte*>(scratch.of(static_cast<std::size_t>(ggml_nelements(t)) * element));
  std::byte* to = dense;
  for (std::int64_t i3 = 0; i3 < t->ne[3]; ++i3)
    for (std::int64_t i2 = 0; i2 < t->ne[2]; ++i2)
      for (std::int64_t i1 = 0; i1 < t->ne[1]; ++i1)
        for (std::int64_t i0 = 0; i0 < t->ne[0]; ++i0, to += element)
          std::memcpy(to,
                      data + static_cast<std::size_t>(i0) * t->nb[0] + static_cast<std::size_t>(i1) * t->nb[1] +
                          static_cast<std::size_t>(i2) * t->nb[2] + static_cast<std::size_t>(i3) * t->nb[3],
                      element);
  return dense;
}

}  // namespace

std::int64_t channels_of(const ggml_tensor* op) {
  return op->op == GGML_OP_CONV_3D ? ggml_get_op_params_i32(op, 9) : op->src[1]->ne[2];
}

bool lies_in_order(const ggml_tensor* t) { return order_of(t) != Order::other; }

std::string convolution_text(const ggml_tensor* op, ggml_type x_type) {
  const ggml_tensor *w = op->src[0], *x = op->src[1];
  if (!is_float(w->type) || !is_float(x->type) || !is_float(op->type)) return {};
  const Order of_w = order_of(w), of_x = order_of(x), of_y = order_of(op);
  if (of_y == Order::other || (op->op != GGML_OP_CONV_2D && of_w == Order::inside)) return {};
  const int count = op->op == GGML_OP_CONV_3D ? 3 : 2;  // axes of pixels
  const auto param = [&](int i) { return ggml_get_op_params_i32(op, i); };
  const std::int64_t in = channels_of(op);
  std::int64_t images = x->ne[3], out = w->ne[3], groups = 1;
  if (op->op == GGML_OP_CONV_3D) images = param(10), out = param(11);
  if (op->op == GGML_OP_CONV_2D_DW) groups = in;
  return std::string("conv x=") + format_of(x_type) + " w=" + format_of(w->type) + " y=" + format_of(op->type) +
         " n=" + std::to_string(images) + " c=" + std::to_string(in) +
         " in=" + axes(count, [&](int i) { return x->ne[i]; }) + " k=" + std::to_string(out) +
         " kernel=" + axes(count, [&](int i) { return w->ne[i]; }) + " stride=" + axes(count, param) +
         " pad=" + axes(count, [&](int i) { return param(count + i); }) +
         " dilation=" + axes(count, [&](int i) { return param(2 * count + i); }) + " groups=" + std::to_string(groups) +
         " x_layout=" + (of_x == Order::inside ? "ndhwc" : "ncdhw") +
         " y_layout=" + (of_y == Order::inside ? "ndhwc" : "ncdhw") +
         " w_layout=" + (of_w == Order::inside ? "ktrsc" : "kctrs");
}

Convolution::Convolution(Engine& engine, const Device& device, const std::string& text)
    : layer_(engine, Problem::parse(text), device, {.x_from = {}, .pack = false}) {
  if (std::string why = only_reference(layer_.problems().main, device.arch()); !why.empty())
    throw Error(ErrorCode::unsupported, "problem", text, "is not supported: " + why);
}

void Convolution::launch(const ggml_tensor* op) const {
  thread_local Scratch w, x;
  ConvArgs args;
  args.w.data = readable(op->src[0], w);
  args.x.data = readable(op->src[1], x);
  args.y = op->data;
  layer_.launch(nullptr, args);
}

}  // namespace tilewright::ggml
