// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/gpu_compute.h"

#include <tilewright/error.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "hosts/ggml/convolution.h"
#include "hosts/ggml/tensor.h"

namespace tilewright::ggml::gpu {
namespace {

constexpr std::size_t kVector = 16;  // bytes to which kernels want matrices aligned

bool is_vector(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kVector == 0; }

// Evenly spaced matrices that kernels can access; `step` is in bytes.
struct MatrixBatch {
  std::byte* data = nullptr;
  std::int64_t step = 0;
  std::byte* at(std::int64_t i) const { return data + i * step; }
};

std::int64_t row_bytes(const ggml_tensor* t) { return static_cast<std::int64_t>(ggml_row_size(t->type, t->ne[0])); }

StridedCopy::Place rows_of(const ggml_tensor* t) {
  return {
      t->data,
      {static_cast<std::int64_t>(t->nb[1]), static_cast<std::int64_t>(t->nb[2]), static_cast<std::int64_t>(t->nb[3])}};
}
StridedCopy::Place dense_rows(const ggml_tensor* t, void* to) {
  const std::int64_t bytes = row_bytes(t);
  return {to, {bytes, bytes * t->ne[1], bytes * t->ne[1] * t->ne[2]}};
}

// A tensor as a batch of matrices. Each `times` consecutive matrices along axis 2 are stacked into one; 0 stacks all.
class StackedMatrices {
 public:
  StackedMatrices(const ggml_tensor* t, std::int64_t times) : t_(t), times_(times ? times : t->ne[2]) {
    const std::int64_t matrix = row_bytes(t) * t->ne[1];
    const std::int64_t count = times ? matrices(t) / times : 1;
    const std::int64_t bytes = matrix * matrices(t) / count;
    of_.data = static_cast<std::byte*>(t->data), of_.step = bytes;
    if (ggml_is_contiguous(t) && is_vector(t->data) && (count == 1 || bytes % static_cast<std::int64_t>(kVector) == 0))
      return;
    if (count > 1) of_.step = static_cast<std::int64_t>(aligned(static_cast<std::size_t>(bytes)));
    bytes_ = count * of_.step;
  }
  bool needs_copy() const { return bytes_ > 0; }  // kernels use a scratch copy
  MatrixBatch allocate(Backend& backend, DeviceScratch& room) {
    if (needs_copy()) of_.data = room.of(backend.device(), static_cast<std::size_t>(bytes_));
    return of_;
  }
  // Copies the tensor to scratch, or back if `out`.
  void move(Backend& backend, bool out) const {
    const std::int64_t row = row_bytes(t_), matrix = row * t_->ne[1];
    const auto step = [&](int axis) { return static_cast<std::int64_t>(t_->nb[axis]); };
    const std::int64_t groups = t_->ne[2] / times_;
    StridedCopy m;
    m.bytes = row, m.count = ggml_nrows(t_), m.shape = {t_->ne[1], times_, groups};
    m.from = {t_->data, {step(1), step(2), step(2) * times_, step(3)}};
    m.to = {of_.data, {row, matrix, of_.step, bytes_ == of_.step ? matrix * t_->ne[2] : of_.step * groups}};
    if (out) std::swap(m.from, m.to);
    backend.gpu.kernels.copy(backend.stream.get(), m);
  }

 private:
  const ggml_tensor* t_;
  std::int64_t times_, bytes_ = 0;  // bytes_: of the scratch copy
  MatrixBatch of_;
};

MatrixBatch readable(Backend& backend, const ggml_tensor* t, std::int64_t times, DeviceScratch& room) {
  StackedMatrices matrices(t, times);
  const MatrixBatch where = matrices.allocate(backend, room);
  if (matrices.needs_copy()) matrices.move(backend, false);
  return where;
}

// A product's w: the packed copy if w is constant and the layer packs it.
class Weights {
 public:
  Weights(Backend& backend, const ggml_tensor* w, ggml_type x) {
    const auto product = [&](bool constant) {
      return &backend.gpu.kernels.product(w->type, x, w->ne[1], w->ne[0], constant);
    };
    product_ = product(w->op == GGML_OP_NONE && !w->view_src && ggml_is_contiguous(w));
    if (product_->main->packed()) {
      packed_ = &of(w->buffer).packed(w, *product_->main, backend.stream);
      return;
    }
    if (StackedMatrices(w, 1).needs_copy())
      product_ = product(false);  // kernels of constant weights do not wait for it
    stored_ = readable(backend, w, 1, backend.w);
  }
  const GpuProduct& product() const { return *product_; }
  Operand matrix(std::int64_t i) const {
    if (packed_) return {.data = packed_->matrix(i), .scales = packed_->matrix(i) + packed_->data_bytes};
    return {.data = stored_.at(i)};
  }

 private:
  const GpuProduct* product_;
  const Packed* packed_ = nullptr;
  MatrixBatch stored_;
};

void multiply(Backend& backend, const ggml_tensor* y) {
  const ggml_tensor *w = y->src[0], *x = y->src[1];
  const Weights weights(backend, w, x->type);
  // Each matrix of w multiplies `times` consecutive matrices of x; a single matrix multiplies all of them.
  const bool only = matrices(w) == 1;
  const std::int64_t times = only ? 0 : x->ne[2] / w->ne[2], times3 = x->ne[3] / w->ne[3];
  const std::int64_t launches = only ? 1 : w->ne[2] * x->ne[3];
  const MatrixBatch rows = readable(backend, x, times, backend.x);
  StackedMatrices results(y, times);
  const MatrixBatch out = results.allocate(backend, backend.y);
  for (std::int64_t i = 0; i < launches; ++i) {
    GemmArgs args;
    args.x.data = rows.at(i);
    args.w = weights.matrix(only ? 0 : i / w->ne[2] / times3 * w->ne[2] + i % w->ne[2]);
    args.y = out.at(i);
    args.m = x->ne[1] * matrices(x) / launches;
    backend.launch(weights.product(), args);
  }
  if (results.needs_copy()) results.move(backend, true);
}

// y[:, u, t] = w[:, :, ids[u, t]] * x[:, u mod x's, t]. The host reads ids, gathers rows by expert, launches one GEMM
// per expert, and scatters the results.
void multiply_by_experts(Backend& backend, const ggml_tensor* y) {
  const ggml_tensor *w = y->src[0], *x = y->src[1], *ids = y->src[2];
  const Weights weights(backend, w, x->type);
  std::vector<std::byte> bytes(ggml_nbytes(ids));
  backend.stream.synchronize();
  of(ids->view_src ? ids->view_src->buffer : ids->buffer).get(ids->data, bytes.data(), bytes.size());

  const RowsOfExperts of_expert = rows_of_experts(ids, bytes.data(), w->ne[2]);
  // Each row's index in x, in scratch and in y. Each expert starts at a multiple of 8 rows, so its first row is 16-byte
  // aligned.
  std::vector<std::array<std::int32_t, 2>> from, between, to;
  std::vector<std::int32_t> first;
  std::int32_t room = 0;  // in rows
  for (const auto& of_one : of_expert) {
    first.push_back(room);
    for (const auto& [u, t] : of_one) {
      from.push_back({static_cast<int>(u % x->ne[1]), t});
      between.push_back({room++, 0});
      to.push_back({u, t});
    }
    room = (room + 7) / 8 * 8;
  }
  const auto count = static_cast<std::int64_t>(from.size());
  std::vector<std::array<std::int32_t, 2>> places = from;
  places.insert(places.end(), between.begin(), between.end());
  places.insert(places.end(), to.begin(), to.end());
  backend.places.upload(backend.device(), std::as_bytes(std::span(places)));
  const auto* const at = reinterpret_cast<const std::int32_t*>(backend.places.of(backend.device(), 0));

  const std::int64_t x_bytes = row_bytes(x), y_bytes = row_bytes(y);
  std::byte* const rows = backend.x.of(backend.device(), static_cast<std::size_t>(x_bytes * room));
  std::byte* const results = backend.y.of(backend.device(), static_cast<std::size_t>(y_bytes * room));
  const auto move = [&](StridedCopy::Place from, int from_list, StridedCopy::Place to, int to_list, std::int64_t row) {
    from.at = at + from_list * 2 * count, to.at = at + to_list * 2 * count;
    backend.gpu.kernels.copy(backend.stream.get(), {from, to, row, count});
  };
  move(rows_of(x), 0, {rows, {x_bytes}}, 1, x_bytes);
  for (std::size_t e = 0; e < of_expert.size(); ++e) {
    GemmArgs args;
    args.m = static_cast<std::int64_t>(of_expert[e].size());
    if (args.m == 0) continue;
    args.x.data = rows + first[e] * x_bytes;
    args.w = weights.matrix(static_cast<std::int64_t>(e));
    args.y = results + first[e] * y_bytes;
    backend.launch(weights.product(), args);
  }
  move({results, {y_bytes}}, 1, rows_of(y), 2, y_bytes);
}

// Copies x densely: by row if a row's elements are adjacent, else by element.
void copy(Backend& backend, const ggml_tensor* x, void* to) {
  StridedCopy move = {rows_of(x), dense_rows(x, to), row_bytes(x), ggml_nrows(x), {x->ne[1], x->ne[2], x->ne[3]}};
  if (!dense_elements(x)) {
    const auto shift = [](StridedCopy::Place& place, std::int64_t step) {
      std::copy_backward(place.steps.begin(), place.steps.end() - 1, place.steps.end());
      place.steps[0] = step;
    };
    move.bytes = static_cast<std::int64_t>(ggml_type_size(x->type)), move.count = ggml_nelements(x);
    shift(move.from, static_cast<std::int64_t>(x->nb[0])), shift(move.to, move.bytes);
    move.shape = {x->ne[0], x->ne[1], x->ne[2]};
  }
  backend.gpu.kernels.copy(backend.stream.get(), move);
}

void convolve(Backend& backend, const ggml_tensor* y) {
  const auto readable = [&](const ggml_tensor* t, DeviceScratch& room) -> const void* {
    const std::size_t bytes = ggml_nbytes(t);
    if (lies_in_order(t))
      return backend.readable(static_cast<std::byte*>(t->data), static_cast<std::int64_t>(bytes), room);
    void* const to = room.of(backend.device(), static_cast<std::size_t>(row_bytes(t) * ggml_nrows(t)));
    copy(backend, t, to);
    return to;
  };
  const ggml_tensor* x = y->src[1];
  const Layer& layer = backend.gpu.kernels.convolution(y);
  const std::size_t scratch = layer.scratch_bytes(ggml_nelements(x) / channels_of(y));
  ConvArgs args;
  args.w.data = readable(y->src[0], backend.w), args.x.data = readable(x, backend.x), args.y = y->data;
  layer.launch(backend.stream.get(), args, backend.cast.of(backend.device(), std::max<std::size_t>(scratch, 1)));
}

}  // namespace

std::byte* DeviceScratch::of(const Device& device, std::size_t bytes) {
  if (bytes > memory_.size()) memory_ = Memory(), memory_ = Memory(device, aligned(bytes + bytes / 4));
  return static_cast<std::byte*>(memory_.data());
}

void DeviceScratch::upload(const Device& device, std::span<const std::byte> bytes) {
  of(device, bytes.size());
  memory_.upload(bytes);
}

void Backend::launch(const GpuProduct& product, const GemmArgs& args) {
  const Layer& layer = product.layer_for(args.m);
  layer.launch(stream.get(), args, cast.of(device(), std::max<std::size_t>(layer.scratch_bytes(args.m), 1)));
}

const std::byte* Backend::readable(const std::byte* bytes, std::int64_t count, DeviceScratch& room) {
  if (is_vector(bytes)) return bytes;
  std::byte* const to = room.of(device(), static_cast<std::size_t>(count));
  gpu.kernels.copy(stream.get(), {{bytes}, {to}, count, 1});
  return to;
}

void compute(Backend& backend, const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_MUL_MAT: return multiply(backend, node);
    case GGML_OP_MUL_MAT_ID: return multiply_by_experts(backend, node);
    case GGML_OP_CONT: return copy(backend, node->src[0], node->data);
    case GGML_OP_CONV_2D:
    case GGML_OP_CONV_2D_DW:
    case GGML_OP_CONV_3D: return convolve(backend, node);
    default: throw Error(ErrorCode::unsupported, "op", ggml_op_name(node->op), "is not supported");
  }
}

}  // namespace tilewright::ggml::gpu
