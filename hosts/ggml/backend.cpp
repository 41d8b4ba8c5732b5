// SPDX-License-Identifier: Apache-2.0
// libggml-tilewright: a backend of ggml whose matrix products and convolutions are Tilewright's. Set GGML_BACKEND_PATH
// to it. Everything else is left to ggml's own CPU backend, which computes the whole graph with its threads and calls
// ours for the nodes that we serve: two pools of threads would wait for each other's processors.
//
// The registered device has a buffer type of its own, in which the weights of products lie packed; a host that loads a
// model asks an accelerator for its buffer type first. A backend that is made from it allocates what it computes in
// ggml's plain host memory, which ggml's kernels read: that is why there are two devices.
#include <tilewright/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "hosts/ggml/gpu.h"
#include "hosts/ggml/kernels.h"
#include "hosts/ggml/team.h"
#include "hosts/ggml/tensor.h"

namespace tilewright::ggml {
namespace {

constexpr const char* kName = "Tilewright";
constexpr std::size_t kAlign = 64;

ggml_backend_buffer_type_t packed_type();

bool is_packed(const ggml_tensor* t) { return t->buffer && t->buffer->buft == packed_type(); }

// ---- what is served

// Set by tests that ask for our kernels alone: nothing but copies is left to ggml's, and products of two activations
// are served.
bool alone() {
  static const bool set = std::getenv("GGML_TILEWRIGHT_ALONE") != nullptr;
  return set;
}

// The product of a tensor of weights, [k, n, ...]; null if there is none.
const Product* product_of(const ggml_tensor* w, int threads = 0) {
  return Kernels::of_process().product(w->type, w->ne[1], w->ne[0], threads);
}

bool can_read(const ggml_tensor* x) {
  return dense_elements(x) && (x->type == GGML_TYPE_F32 || ggml_get_type_traits(x->type)->to_float);
}

// Whether our kernels compute it.
bool serves(const ggml_tensor* op) {
  const ggml_tensor *w = op->src[0], *x = op->src[1];
  switch (op->op) {
    case GGML_OP_MUL_MAT:
      if (ggml_get_op_params_i32(op, 1) == GGML_HINT_SRC0_IS_HADAMARD) return false;
      break;
    case GGML_OP_MUL_MAT_ID: break;
    case GGML_OP_CONV_2D:
    case GGML_OP_CONV_2D_DW:
    case GGML_OP_CONV_3D: return !is_packed(w) && (ggml_is_empty(op) || Kernels::of_process().convolution(op));
    default: return false;
  }
  // A graph's own tensors would be packed again at every launch, and ggml's kernels read them as they are. A part of
  // packed weights is not where its address says.
  if (is_packed(w) ? w->view_src != nullptr : !alone()) return false;
  return op->type == GGML_TYPE_F32 && dense_elements(w) && can_read(x) && product_of(w);
}

// Whether a backend takes it: what ggml's CPU backend does too, so that a graph is one piece.
bool supports(const ggml_tensor* op) {
  if (is_no_op(op) || serves(op)) return true;
  if (alone() && op->op != GGML_OP_CONT) return false;
  for (const ggml_tensor* src : op->src)
    if (src && is_packed(src)) return false;
  return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

// ---- weights

// Memory of tensors that lie packed.
struct PackedBuffer {
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  // Bytes of tensors that the host sets in parts, until they are complete.
  struct Partial {
    std::vector<std::byte> bytes;
    std::size_t set = 0;
  };
  std::unordered_map<const ggml_tensor*, Partial> partial;
};

PackedBuffer& packed(ggml_backend_buffer_t buffer) { return *static_cast<PackedBuffer*>(buffer->context); }

void pack(const ggml_tensor* t, const std::byte* bytes) {
  const Product* product = product_of(t);
  auto* to = static_cast<std::byte*>(t->data);
  for (std::int64_t i = 0; i < matrices(t); ++i, to += product->packed_bytes())
    product->pack(bytes + static_cast<std::size_t>(i) * t->nb[2], t->nb[1], to);
}

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor* t, const void* data, std::size_t offset, std::size_t size) {
  const std::size_t all = ggml_nbytes(t);
  if (offset == 0 && size == all) return pack(t, static_cast<const std::byte*>(data));
  PackedBuffer::Partial& p = packed(buffer).partial[t];
  p.bytes.resize(all);
  std::memcpy(p.bytes.data() + offset, data, size);
  if ((p.set += size) < all) return;
  pack(t, p.bytes.data());
  packed(buffer).partial.erase(t);
}

constexpr ggml_backend_buffer_i kPackedBuffer = {
    .free_buffer = [](ggml_backend_buffer_t b) { delete static_cast<PackedBuffer*>(b->context); },
    .get_base = [](ggml_backend_buffer_t b) -> void* { return packed(b).memory.get(); },
    .init_tensor = nullptr,
    .memset_tensor = nullptr,
    .set_tensor = set_tensor,
    .get_tensor = nullptr,  // as in ggml's own buffers of packed weights: what is packed is not read back
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = nullptr,
    .clear = [](ggml_backend_buffer_t b, std::uint8_t value) { std::memset(packed(b).memory.get(), value, b->size); },
    .reset = nullptr,
};

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  const std::size_t bytes = (std::max(size, kAlign) + kAlign - 1) / kAlign * kAlign;
  auto buffer = std::make_unique<PackedBuffer>(
      PackedBuffer{{static_cast<std::byte*>(std::aligned_alloc(kAlign, bytes)), &std::free}, {}});
  if (!buffer->memory) return nullptr;
  return ggml_backend_buffer_init(type, kPackedBuffer, buffer.release(), size);
}

std::size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor* t) {
  const Product* product = product_of(t);
  return product ? product->packed_bytes() * static_cast<std::size_t>(matrices(t)) : ggml_nbytes(t);
}

// ---- computing

thread_local Scratch g_weights, g_x, g_y;

const std::byte* packed_matrix(const Product& product, const ggml_tensor* w, std::int64_t i2, std::int64_t i3) {
  if (is_packed(w))
    return static_cast<const std::byte*>(w->data) +
           static_cast<std::size_t>(i3 * w->ne[2] + i2) * product.packed_bytes();
  auto* to = static_cast<std::byte*>(g_weights.of(product.packed_bytes()));
  product.pack(static_cast<const std::byte*>(w->data) + static_cast<std::size_t>(i2) * w->nb[2] +
                   static_cast<std::size_t>(i3) * w->nb[3],
               w->nb[1], to);
  return to;
}

const char* row(const ggml_tensor* t, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
  return static_cast<const char*>(t->data) + static_cast<std::size_t>(i1) * t->nb[1] +
         static_cast<std::size_t>(i2) * t->nb[2] + static_cast<std::size_t>(i3) * t->nb[3];
}

void read_row(const ggml_tensor* x, const char* from, float* to) {
  if (x->type == GGML_TYPE_F32)
    std::memcpy(to, from, static_cast<std::size_t>(x->ne[0]) * sizeof(float));
  else
    ggml_get_type_traits(x->type)->to_float(from, to, x->ne[0]);
}

// Whether launches take the rows as they lie.
bool dense_rows(const ggml_tensor* t, const char* rows) {
  return t->type == GGML_TYPE_F32 && t->nb[1] == static_cast<std::size_t>(t->ne[0]) * sizeof(float) &&
         reinterpret_cast<std::uintptr_t>(rows) % 16 == 0;
}

// Rows of one matrix of x, dense.
const float* rows_of(const ggml_tensor* x, std::int64_t i2, std::int64_t i3) {
  if (const char* rows = row(x, 0, i2, i3); dense_rows(x, rows)) return reinterpret_cast<const float*>(rows);
  auto* to = static_cast<float*>(g_x.of(static_cast<std::size_t>(x->ne[0] * x->ne[1]) * sizeof(float)));
  for (std::int64_t i1 = 0; i1 < x->ne[1]; ++i1) read_row(x, row(x, i1, i2, i3), to + i1 * x->ne[0]);
  return to;
}

void multiply(const ggml_tensor* y, int threads) {
  const ggml_tensor *w = y->src[0], *x = y->src[1];
  const Product& product = *product_of(w, threads);
  const auto ldy = static_cast<std::int64_t>(y->nb[1] / sizeof(float));
  if (matrices(w) == 1 && ggml_is_contiguous(x) && dense_rows(x, row(x, 0, 0, 0)) && ggml_is_contiguous(y))
    return product.launch(packed_matrix(product, w, 0, 0), static_cast<const float*>(x->data), x->ne[1] * matrices(x),
                          static_cast<float*>(y->data), ldy);
  for (std::int64_t i3 = 0; i3 < w->ne[3]; ++i3)
    for (std::int64_t i2 = 0; i2 < w->ne[2]; ++i2) {
      const std::byte* matrix = packed_matrix(product, w, i2, i3);
      const std::int64_t times2 = x->ne[2] / w->ne[2], times3 = x->ne[3] / w->ne[3];
      for (std::int64_t x3 = i3 * times3; x3 < (i3 + 1) * times3; ++x3)
        for (std::int64_t x2 = i2 * times2; x2 < (i2 + 1) * times2; ++x2)
          product.launch(matrix, rows_of(x, x2, x3), x->ne[1],
                         reinterpret_cast<float*>(const_cast<char*>(row(y, 0, x2, x3))), ldy);
    }
}

// y[:, u, t] = w[:, :, ids[u, t]] * x[:, u mod x's, t]: the rows of an expert are gathered, multiplied and scattered.
void multiply_by_experts(const ggml_tensor* y, int threads) {
  const ggml_tensor *w = y->src[0], *x = y->src[1], *ids = y->src[2];
  const Product& product = *product_of(w, threads);
  const RowsOfExperts of_expert = rows_of_experts(ids, ids->data, w->ne[2]);
  for (std::size_t e = 0; e < of_expert.size(); ++e) {
    const auto& places = of_expert[e];
    if (places.empty()) continue;
    auto* from = static_cast<float*>(g_x.of(places.size() * static_cast<std::size_t>(w->ne[0]) * sizeof(float)));
    auto* to = static_cast<float*>(g_y.of(places.size() * static_cast<std::size_t>(w->ne[1]) * sizeof(float)));
    for (std::size_t i = 0; i < places.size(); ++i)
      read_row(x, row(x, places[i][0] % x->ne[1], places[i][1], 0), from + static_cast<std::int64_t>(i) * w->ne[0]);
    product.launch(packed_matrix(product, w, static_cast<std::int64_t>(e), 0), from,
                   static_cast<std::int64_t>(places.size()), to, w->ne[1]);
    for (std::size_t i = 0; i < places.size(); ++i)
      std::memcpy(const_cast<char*>(row(y, places[i][0], places[i][1], 0)),
                  to + static_cast<std::int64_t>(i) * w->ne[1], static_cast<std::size_t>(w->ne[1]) * sizeof(float));
  }
}

void compute(const ggml_tensor* node, int threads) {
  switch (node->op) {
    case GGML_OP_MUL_MAT: multiply(node, threads); break;
    case GGML_OP_MUL_MAT_ID: multiply_by_experts(node, threads); break;
    default: Kernels::of_process().convolution(node, threads)->launch(node);
  }
}

// A node that ggml's CPU backend meets as an operation of its caller's, and what its threads need to compute it.
struct Node {
  Node(ggml_tensor* of, int threads) : node(of), original(*of), threads(threads) {
    const ggml_custom_op_params params = {&Node::run, GGML_N_TASKS_MAX, this};
    node->op = GGML_OP_CUSTOM;
    std::memcpy(node->op_params, &params, sizeof params);
  }
  ~Node() {
    node->op = original.op;
    std::memcpy(node->op_params, original.op_params, sizeof original.op_params);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  static void run(ggml_tensor*, int thread, int, void* self) {
    Node& n = *static_cast<Node*>(self);
    if (thread != 0) return n.team.help();
    g_team = &n.team;
    try {
      compute(&n.original, n.threads);
    } catch (const std::exception& e) {
      GGML_LOG_ERROR("tilewright: %s: %s\n", n.original.name, e.what());
      n.failed = true;
    }
    g_team = nullptr;
    n.team.finish();
  }

  ggml_tensor* node;
  const ggml_tensor original;
  int threads;
  Team team;
  bool failed = false;
};

// A backend: ggml's own for CPUs, whose threads compute everything.
struct Backend {
  ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  int threads = GGML_DEFAULT_N_THREADS;
  ~Backend() { ggml_backend_free(cpu); }
};
Backend& of(ggml_backend_t backend) { return *static_cast<Backend*>(backend->context); }

template <class Function>
Function cpu_function(const char* name) {
  const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(reg, name));
}

ggml_backend_dev_t computing_device();

// For all backends of the library: one of a GPU has no threads.
void set_threads(ggml_backend_t backend, int threads) {
  if (backend->device != computing_device()) return;
  of(backend).threads = threads;
  cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(of(backend).cpu, threads);
}

ggml_status compute_graph(ggml_backend_t backend, ggml_cgraph* graph) {
  std::deque<Node> nodes;
  for (int i = 0; i < graph->n_nodes; ++i) {
    ggml_tensor* node = graph->nodes[i];
    if (!ggml_is_empty(node) && serves(node)) nodes.emplace_back(node, of(backend).threads);
  }
  const ggml_status status = ggml_backend_graph_compute(of(backend).cpu, graph);
  const bool failed = std::any_of(nodes.begin(), nodes.end(), [](const Node& n) { return n.failed; });
  return failed ? GGML_STATUS_FAILED : status;
}

// ---- what ggml asks for

ggml_backend_t init_backend(ggml_backend_dev_t, const char*) {
  static ggml_guid guid = {0x8d, 0x1f, 0x5a, 0x3e, 0x70, 0x42, 0x4c, 0x9b,
                           0x9a, 0x61, 0x2b, 0x7e, 0x10, 0xc4, 0x55, 0x31};
  ggml_backend_i calls = {};
  calls.get_name = [](ggml_backend_t) { return kName; };
  calls.free = [](ggml_backend_t backend) {
    delete &of(backend);
    delete backend;
  };
  calls.graph_compute = compute_graph;
  return new ggml_backend{&guid, calls, computing_device(), new Backend()};
}

void get_props(ggml_backend_dev_t, ggml_backend_dev_props* props) {
  *props = {};
  props->name = kName;
  props->description = "Tilewright's kernels for this CPU";
  props->type = GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

ggml_backend_device_i device_calls() {
  ggml_backend_device_i calls = {};
  calls.get_name = [](ggml_backend_dev_t) { return kName; };
  calls.get_description = [](ggml_backend_dev_t) { return "Tilewright's kernels for this CPU"; };
  calls.get_memory = [](ggml_backend_dev_t, std::size_t* free, std::size_t* total) { *free = *total = 0; };
  calls.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; };
  calls.get_props = get_props;
  calls.init_backend = init_backend;
  calls.get_buffer_type = [](ggml_backend_dev_t) { return packed_type(); };
  calls.supports_op = [](ggml_backend_dev_t, const ggml_tensor* op) { return serves(op) || is_no_op(op); };
  calls.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == packed_type() || ggml_backend_buft_is_host(type);
  };
  return calls;
}

ggml_backend_reg_t registration();

ggml_backend_dev_t registered_device() {
  static ggml_backend_device device = {device_calls(), registration(), nullptr};
  return &device;
}

ggml_backend_dev_t computing_device() {
  static ggml_backend_device device = [] {
    ggml_backend_device d = {device_calls(), registration(), nullptr};
    d.iface.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
    d.iface.supports_op = [](ggml_backend_dev_t, const ggml_tensor* op) { return supports(op); };
    return d;
  }();
  return &device;
}

ggml_backend_buffer_type_t packed_type() {
  static ggml_backend_buffer_type type = {{.get_name = [](ggml_backend_buffer_type_t) { return kName; },
                                           .alloc_buffer = alloc_buffer,
                                           .get_alignment = [](ggml_backend_buffer_type_t) { return kAlign; },
                                           .get_max_size = nullptr,
                                           .get_alloc_size = alloc_size,
                                           .is_host = nullptr},
                                          registered_device(),
                                          nullptr};
  return &type;
}

void* get_proc_address(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(&set_threads);
  return nullptr;
}

ggml_backend_reg_t registration() {
  static ggml_backend_reg reg = {
      GGML_BACKEND_API_VERSION,
      {.get_name = [](ggml_backend_reg_t) { return kName; },
       .get_device_count = [](ggml_backend_reg_t r) { return 1 + gpu_devices(r).size(); },
       .get_device = [](ggml_backend_reg_t r,
                        std::size_t i) { return i == 0 ? registered_device() : gpu_devices(r).at(i - 1); },
       .get_proc_address = get_proc_address},
      nullptr};
  return &reg;
}

// ggml's structs change while its number of the interface stays, so only the version that this was built with will do.
ggml_backend_reg_t checked_registration() {
  if (std::strcmp(ggml_version(), TILEWRIGHT_GGML_VERSION) == 0) return registration();
  GGML_LOG_ERROR(
      "tilewright: this library was built for ggml %s and cannot be loaded into ggml %s; build it again "
      "with the sources of %s\n",
      TILEWRIGHT_GGML_VERSION, ggml_version(), ggml_version());
  return nullptr;
}

}  // namespace
}  // namespace tilewright::ggml

GGML_BACKEND_DL_IMPL(tilewright::ggml::checked_registration)
