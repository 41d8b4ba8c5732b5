// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/gpu.h"

#include <tilewright/error.h>
#include <tilewright/memory.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "ggml-impl.h"
#include "hosts/ggml/convolution.h"
#include "hosts/ggml/gpu_kernels.h"
#include "hosts/ggml/kernels.h"
#include "hosts/ggml/tensor.h"

namespace tilewright::ggml {
namespace {

constexpr std::size_t kAlign = 256;
constexpr std::size_t kVector = 16;  // bytes to which kernels want matrices aligned

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
bool is_vector(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kVector == 0; }

struct Gpu {
  Gpu(Engine& engine, const Device& device)
      : kernels(engine, device), name("TilewrightGPU" + std::to_string(device.ordinal())), about(device.name()) {}
  GpuKernels kernels;
  std::string name, about;
  std::atomic<bool> failed = false;  // a transfer: what tensors hold is not known
  ggml_backend_device device = {};
  ggml_backend_buffer_type type = {};
};
Gpu& of(ggml_backend_dev_t device) { return *static_cast<Gpu*>(device->context); }

// ggml's callbacks must not throw. Logs the exception and returns false.
template <class Do>
bool logged(const char* what, const Do& action) {
  try {
    action();
    return true;
  } catch (const std::exception& e) {
    GGML_LOG_ERROR("tilewright: %s: %s\n", what, e.what());
    return false;
  }
}

// ---- memory

// A weight tensor's matrices, packed for a layer, stored consecutively.
struct Packed {
  const void* end = nullptr;  // of the tensor
  Memory memory;
  std::size_t data_bytes = 0, matrix_bytes = 0;

  Packed(const Device& device, const Layer& by, const ggml_tensor* w)
      : end(static_cast<const std::byte*>(w->data) + ggml_nbytes(w)),
        data_bytes(aligned(by.weight_bytes(StreamName::data))),
        matrix_bytes(data_bytes + aligned(by.weight_bytes(StreamName::scales))) {
    memory = Memory(device, matrix_bytes * static_cast<std::size_t>(matrices(w)));
  }
  std::byte* matrix(std::int64_t i) const {
    return static_cast<std::byte*>(memory.data()) + static_cast<std::size_t>(i) * matrix_bytes;
  }
};

// Holds tensors in ggml's layout, and a packed copy of each weight tensor that a product has used.
class Buffer {
 public:
  Buffer(Gpu& gpu, std::size_t bytes) : gpu_(gpu), memory_(gpu.kernels.device(), std::max(bytes, kAlign)) {}

  void* data() const { return memory_.data(); }
  void set(const void* to, const void* from, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    invalidate(to, bytes);
    memory_.upload({static_cast<const std::byte*>(from), bytes}, offset(to));
  }
  void get(const void* from, void* to, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    memory_.download({static_cast<std::byte*>(to), bytes}, offset(from));
  }
  void clear(std::uint8_t value) {
    const std::lock_guard lock(mutex_);
    packed_.clear();
    memory_.fill(value);
  }
  // The matrices of a tensor of weights. The first use packs them in `stream` and waits, so that any stream may read
  // them.
  const Packed& packed(const ggml_tensor* w, const Layer& layer, const OwnedStream& stream) {
    const std::lock_guard lock(mutex_);
    const std::pair<const void*, const Layer*> key(w->data, &layer);
    if (const auto found = packed_.find(key); found != packed_.end()) return found->second;
    Packed p(gpu_.kernels.device(), layer, w);
    for (std::int64_t i = 0; i < matrices(w); ++i)
      layer.pack(stream.get(),
                 {.data = static_cast<const std::byte*>(w->data) + static_cast<std::size_t>(i) * w->nb[2]},
                 {.data = p.matrix(i), .scales = p.matrix(i) + p.data_bytes});
    stream.synchronize();
    return packed_.emplace(key, std::move(p)).first->second;
  }

 private:
  std::size_t offset(const void* p) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(p) - static_cast<const std::byte*>(memory_.data()));
  }
  // Discards packed copies that overlap these bytes.
  void invalidate(const void* from, std::size_t bytes) {
    const auto last = packed_.lower_bound({static_cast<const std::byte*>(from) + bytes, nullptr});
    for (auto i = packed_.begin(); i != last;) i = i->second.end > from ? packed_.erase(i) : std::next(i);
  }

  Gpu& gpu_;
  std::mutex mutex_;
  Memory memory_;
  std::map<std::pair<const void*, const Layer*>, Packed> packed_;  // by the tensor's address
};
Buffer& of(ggml_backend_buffer_t buffer) { return *static_cast<Buffer*>(buffer->context); }

// These callbacks cannot report a failure, so that the GPU's next graph does.
template <class Do>
void kept(const char* what, ggml_backend_buffer_t buffer, const Do& action) {
  if (!logged(what, action)) of(buffer->buft->device).failed = true;
}

std::byte* at(const ggml_tensor* t, std::size_t offset) { return static_cast<std::byte*>(t->data) + offset; }

const ggml_backend_buffer_i kBuffer = {
    .free_buffer = [](ggml_backend_buffer_t b) { delete &of(b); },
    .get_base = [](ggml_backend_buffer_t b) { return of(b).data(); },
    .init_tensor = nullptr,
    .memset_tensor =
        [](ggml_backend_buffer_t b, ggml_tensor* t, std::uint8_t value, std::size_t offset, std::size_t size) {
          kept("memset_tensor", b, [&] {
            const std::vector<std::uint8_t> bytes(size, value);
            of(b).set(at(t, offset), bytes.data(), size);
          });
        },
    .set_tensor = [](ggml_backend_buffer_t b, ggml_tensor* t, const void* data, std::size_t offset,
                     std::size_t size) { kept("set_tensor", b, [&] { of(b).set(at(t, offset), data, size); }); },
    .get_tensor = [](ggml_backend_buffer_t b, const ggml_tensor* t, void* data, std::size_t offset,
                     std::size_t size) { kept("get_tensor", b, [&] { of(b).get(at(t, offset), data, size); }); },
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = nullptr,
    .clear = [](ggml_backend_buffer_t b, std::uint8_t value) { kept("clear", b, [&] { of(b).clear(value); }); },
    .reset = nullptr,
};

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  std::unique_ptr<Buffer> buffer;
  logged("alloc_buffer", [&] { buffer = std::make_unique<Buffer>(of(type->device), size); });
  return buffer ? ggml_backend_buffer_init(type, kBuffer, buffer.release(), size) : nullptr;
}

// ---- computing

// Scratch memory that grows. Freeing it under queued kernels is safe: cuMemFree waits for them.
class DeviceScratch {
 public:
  std::byte* of(const Device& device, std::size_t bytes) {
    if (bytes > memory_.size()) memory_ = Memory(), memory_ = Memory(device, aligned(bytes + bytes / 4));
    return static_cast<std::byte*>(memory_.data());
  }
  void upload(const Device& device, std::span<const std::byte> bytes) {
    of(device, bytes.size());
    memory_.upload(bytes);
  }

 private:
  Memory memory_;
};

// Evenly spaced matrices that kernels can access; `step` is in bytes.
struct MatrixBatch {
  std::byte* data = nullptr;
  std::int64_t step = 0;
  std::byte* at(std::int64_t i) const { return data + i * step; }
};

struct Backend {
  explicit Backend(Gpu& on) : gpu(on), stream(on.kernels.device()) {}
  Gpu& gpu;
  OwnedStream stream;
  DeviceScratch w, x, y, cast, places;

  const Device& device() const { return gpu.kernels.device(); }
  void launch(const GpuProduct& product, const GemmArgs& args) {
    const Layer& layer = product.layer_for(args.m);
    layer.launch(stream.get(), args, cast.of(device(), std::max<std::size_t>(layer.scratch_bytes(args.m), 1)));
  }
  // Bytes where kernels can read them.
  const std::byte* readable(const std::byte* bytes, std::int64_t count, DeviceScratch& room);
};
Backend& of(ggml_backend_t backend) { return *static_cast<Backend*>(backend->context); }

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

const std::byte* Backend::readable(const std::byte* bytes, std::int64_t count, DeviceScratch& room) {
  if (is_vector(bytes)) return bytes;
  std::byte* const to = room.of(device(), static_cast<std::size_t>(count));
  gpu.kernels.copy(stream.get(), {{bytes}, {to}, count, 1});
  return to;
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

bool supports(ggml_backend_dev_t device, const ggml_tensor* op) {
  if (is_no_op(op)) return true;
  const ggml_tensor *w = op->src[0], *x = op->src[1];
  switch (op->op) {
    case GGML_OP_MUL_MAT:
      if (ggml_get_op_params_i32(op, 1) == GGML_HINT_SRC0_IS_HADAMARD) return false;
      [[fallthrough]];
    case GGML_OP_MUL_MAT_ID:
      if (op->type != GGML_TYPE_F32 || !dense_elements(w) || !dense_elements(x) || !ggml_is_contiguous(op))
        return false;
      break;
    case GGML_OP_CONV_2D:
    case GGML_OP_CONV_2D_DW:
    case GGML_OP_CONV_3D:
      if (ggml_is_empty(op)) return true;
      break;
    case GGML_OP_CONT:
      return op->type == w->type && ggml_is_contiguous(op) && (dense_elements(w) || ggml_blck_size(w->type) == 1);
    default: return false;
  }
  return of(device).kernels.supports(op);
}

ggml_status compute_graph(ggml_backend_t backend, ggml_cgraph* graph) {
  if (of(backend).gpu.failed) {
    GGML_LOG_ERROR("tilewright: %s: a transfer has failed, so results would be wrong\n", of(backend).gpu.name.c_str());
    return GGML_STATUS_FAILED;
  }
  for (int i = 0; i < graph->n_nodes; ++i) {
    const ggml_tensor* node = graph->nodes[i];
    if (ggml_is_empty(node) || is_no_op(node) || !(node->flags & GGML_TENSOR_FLAG_COMPUTE)) continue;
    const bool done = logged(node->name, [&] {
      switch (node->op) {
        case GGML_OP_MUL_MAT: return multiply(of(backend), node);
        case GGML_OP_MUL_MAT_ID: return multiply_by_experts(of(backend), node);
        case GGML_OP_CONT: return copy(of(backend), node->src[0], node->data);
        case GGML_OP_CONV_2D:
        case GGML_OP_CONV_2D_DW:
        case GGML_OP_CONV_3D: return convolve(of(backend), node);
        default: throw Error(ErrorCode::unsupported, "op", ggml_op_name(node->op), "is not supported");
      }
    });
    if (!done) return GGML_STATUS_FAILED;
  }
  return GGML_STATUS_SUCCESS;
}

// ---- what ggml asks for

ggml_backend_t init_backend(ggml_backend_dev_t device, const char*) {
  static ggml_guid guid = {0x51, 0x0e, 0x7a, 0x94, 0x2c, 0xb8, 0x4d, 0x0f,
                           0x8e, 0x6b, 0x1d, 0x33, 0xc7, 0x5a, 0xf0, 0x29};
  ggml_backend_i calls = {};
  calls.get_name = [](ggml_backend_t b) { return of(b).gpu.name.c_str(); };
  calls.free = [](ggml_backend_t b) {
    delete &of(b);
    delete b;
  };
  calls.synchronize = [](ggml_backend_t b) { logged("synchronize", [&] { of(b).stream.synchronize(); }); };
  calls.graph_compute = compute_graph;
  ggml_backend_t made = nullptr;
  logged("init_backend", [&] {
    auto backend = std::make_unique<Backend>(of(device));
    made = new ggml_backend{&guid, calls, device, backend.get()};
    backend.release();
  });
  return made;
}

void get_memory(ggml_backend_dev_t device, std::size_t* free, std::size_t* total) {
  *total = static_cast<std::size_t>(of(device).kernels.device().memory_bytes());
  *free = *total / 2;  // weights that are packed are there twice
}

void get_props(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  *props = {};
  props->name = of(device).name.c_str();
  props->description = of(device).about.c_str();
  props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
  get_memory(device, &props->memory_free, &props->memory_total);
  props->caps.async = true;
}

ggml_backend_device_i device_calls() {
  ggml_backend_device_i calls = {};
  calls.get_name = [](ggml_backend_dev_t d) { return of(d).name.c_str(); };
  calls.get_description = [](ggml_backend_dev_t d) { return of(d).about.c_str(); };
  calls.get_memory = get_memory;
  calls.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
  calls.get_props = get_props;
  calls.init_backend = init_backend;
  calls.get_buffer_type = [](ggml_backend_dev_t d) { return &of(d).type; };
  calls.supports_op = supports;
  calls.supports_buft = [](ggml_backend_dev_t d, ggml_backend_buffer_type_t type) { return type == &of(d).type; };
  return calls;
}

// Never destroyed: a host's buffers outlive main().
Gpu* open_gpu(ggml_backend_reg_t registration, Engine& engine, const Device& device) {
  auto gpu = std::make_unique<Gpu>(engine, device);
  gpu->device = {device_calls(), registration, gpu.get()};
  gpu->type = {{.get_name = [](ggml_backend_buffer_type_t type) { return of(type->device).name.c_str(); },
                .alloc_buffer = alloc_buffer,
                .get_alignment = [](ggml_backend_buffer_type_t) { return kAlign; },
                .get_max_size = nullptr,
                .get_alloc_size = nullptr,
                .is_host = nullptr},
               &gpu->device,
               nullptr};
  return gpu.release();
}

}  // namespace

const std::vector<ggml_backend_dev_t>& gpu_devices(ggml_backend_reg_t registration) {
  static const std::vector<ggml_backend_dev_t> devices = [&] {
    std::vector<ggml_backend_dev_t> list;
    const char* const asked = std::getenv("GGML_TILEWRIGHT_GPU");
    if (!asked || std::strcmp(asked, "1") != 0) return list;
    Kernels& kernels = Kernels::of_process();
    for (int i = 0; kernels.engine() && i < Device::count(kernels.driver()); ++i)
      logged("a GPU cannot be used", [&] {
        list.push_back(&open_gpu(registration, *kernels.engine(), Device::open(i, kernels.driver()))->device);
      });
    return list;
  }();
  return devices;
}

}  // namespace tilewright::ggml
