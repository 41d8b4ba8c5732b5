// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/gpu.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "ggml-impl.h"
#include "hosts/ggml/gpu_compute.h"
#include "hosts/ggml/gpu_memory.h"
#include "hosts/ggml/kernels.h"
#include "hosts/ggml/tensor.h"

namespace tilewright::ggml {
namespace gpu {
namespace {

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
    const bool done = logged(node->name, [&] { compute(of(backend), node); });
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
}  // namespace gpu

const std::vector<ggml_backend_dev_t>& gpu_devices(ggml_backend_reg_t registration) {
  static const std::vector<ggml_backend_dev_t> devices = [&] {
    std::vector<ggml_backend_dev_t> list;
    const char* const asked = std::getenv("GGML_TILEWRIGHT_GPU");
    if (!asked || std::strcmp(asked, "1") != 0) return list;
    Kernels& kernels = Kernels::of_process();
    for (int i = 0; kernels.engine() && i < Device::count(kernels.driver()); ++i)
      gpu::logged("a GPU cannot be used", [&] {
        list.push_back(&gpu::open_gpu(registration, *kernels.engine(), Device::open(i, kernels.driver()))->device);
      });
    return list;
  }();
  return devices;
}

}  // namespace tilewright::ggml
