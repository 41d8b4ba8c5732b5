// SPDX-License-Identifier: Apache-2.0
// The double's memory, launches, streams, graphs and events. Work runs at once, on the calling thread.
#include <algorithm>
#include <cstring>

#include "support/fake_cuda_state.h"

using namespace fake;
using tilewright::jit::CUlaunchConfig;

namespace {

// The allocation that holds [address, address + size), else null.
Memory* memory_at(unsigned long long address, std::size_t size) {
  auto after = state().memory.upper_bound(static_cast<std::uintptr_t>(address));
  if (after == state().memory.begin()) return nullptr;
  const auto& [base, memory] = *std::prev(after);
  const std::size_t offset = static_cast<std::uintptr_t>(address) - base;
  return offset <= memory->size && size <= memory->size - offset ? memory : nullptr;
}

CUresult check_range(Entry& entry, unsigned long long address, std::size_t size, const char* what) {
  Memory* memory = memory_at(address, size);
  if (!memory) return state().violation(std::string(what) + " outside any allocation", kInvalid);
  return memory->context == entry.context ? kOk : kInvalid;
}

unsigned char* bytes_at(unsigned long long address) {
  return reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(address));
}

CUresult use_stream(Entry& entry, void* handle, Stream** stream) {
  CUresult why = kOk;
  *stream = handle ? use<Stream>(entry, handle, "stream", &why) : nullptr;
  return why;
}

}  // namespace

FAKE_API cuMemAlloc_v2(unsigned long long* out, std::size_t size) {
  Entry entry("cuMemAlloc", kContext | kNotInCapture);
  if (entry.failed) return entry.failed;
  if (size == 0) return kInvalid;
  long long used = 0;
  for (const auto& [base, memory] : state().memory) used += memory->context == entry.context ? memory->size : 0;
  if (static_cast<long long>(size) > state().devices.at(entry.context->device).memory_bytes - used) return kNoMemory;
  auto* memory = state().add<Memory>(entry.context);
  memory->bytes.reset(new (std::align_val_t{256}) unsigned char[size]);
  memory->size = size;
  const auto base = reinterpret_cast<std::uintptr_t>(memory->bytes.get());
  state().memory[base] = memory;
  *out = base;
  return kOk;
}

FAKE_API cuMemFree_v2(unsigned long long address) {
  Entry entry("cuMemFree", kContext | kNotInCapture);
  if (entry.failed) return entry.failed;
  const auto found = state().memory.find(static_cast<std::uintptr_t>(address));
  if (found == state().memory.end()) return state().violation("free of an unknown address", kInvalid);
  found->second->alive = false;
  found->second->bytes.reset();
  state().memory.erase(found);
  return kOk;
}

FAKE_API cuMemcpyHtoD_v2(unsigned long long to, const void* from, std::size_t size) {
  Entry entry("cuMemcpyHtoD", kContext | kNotInCapture);
  if (entry.failed) return entry.failed;
  if (const CUresult bad = check_range(entry, to, size, "copy to the device")) return bad;
  std::memcpy(bytes_at(to), from, size);
  return kOk;
}

FAKE_API cuMemcpyDtoH_v2(void* to, unsigned long long from, std::size_t size) {
  Entry entry("cuMemcpyDtoH", kContext | kNotInCapture);
  if (entry.failed) return entry.failed;
  if (const CUresult bad = check_range(entry, from, size, "copy to the host")) return bad;
  std::memcpy(to, bytes_at(from), size);
  return kOk;
}

FAKE_API cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, std::size_t size) {
  Entry entry("cuMemcpyDtoD", kContext | kNotInCapture);
  if (entry.failed) return entry.failed;
  if (const CUresult bad = check_range(entry, to, size, "copy on the device")) return bad;
  if (const CUresult bad = check_range(entry, from, size, "copy on the device")) return bad;
  std::memmove(bytes_at(to), bytes_at(from), size);
  return kOk;
}

FAKE_API cuMemsetD8_v2(unsigned long long to, unsigned char byte, std::size_t size) {
  Entry entry("cuMemsetD8", kContext | kNotInCapture);
  if (entry.failed) return entry.failed;
  if (const CUresult bad = check_range(entry, to, size, "fill")) return bad;
  std::memset(bytes_at(to), byte, size);
  return kOk;
}

FAKE_API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  Entry entry("cuMemGetInfo", kContext);
  if (entry.failed) return entry.failed;
  *total = *free = state().devices.at(entry.context->device).memory_bytes;
  for (const auto& [base, memory] : state().memory)
    if (memory->context == entry.context) *free -= memory->size;
  return kOk;
}

FAKE_API cuPointerGetAttributes(unsigned count, int* attributes, void** values, unsigned long long address) {
  using namespace tilewright::jit;
  Entry entry("cuPointerGetAttributes", kContext);
  if (entry.failed) return entry.failed;
  const Memory* memory = memory_at(address, 1);
  for (unsigned i = 0; i < count; ++i) {
    int value = 0;
    if (attributes[i] == kPointerMemoryType) value = memory ? kMemoryTypeDevice : 0;
    if (attributes[i] == kPointerOrdinal) value = memory ? memory->context->device : -2;
    *static_cast<int*>(values[i]) = value;
  }
  return kOk;
}

// What cuda.h demands of a map without interleaving. Exported under a name of its own, so that only
// cuGetProcAddress finds it: an older driver (fake_cuda_set_version) does not have it.
FAKE_API fake_cuTensorMapEncodeTiled(void* out, int type, unsigned rank, void* address, const std::uint64_t* size,
                                     const std::uint64_t* strides, const unsigned* box, const unsigned* steps,
                                     int interleave, int swizzle, int promotion, int fill) {
  Entry entry("cuTensorMapEncodeTiled", kContext);
  if (entry.failed) return entry.failed;
  const auto base = reinterpret_cast<std::uintptr_t>(address);
  if (reinterpret_cast<std::uintptr_t>(out) % 64 != 0) return state().violation("a misaligned tensor map", kInvalid);
  if (rank < 2 || rank > 5 || interleave != 0)
    return state().violation("a tensor map that the double does not know", kInvalid);
  constexpr int kBytes[] = {1, 2, 4};
  if (type < 0 || type > 2 || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 || fill != 0)
    return kInvalid;
  const std::uint64_t bytes = kBytes[type];
  if (!base || base % 16 != 0 || box[0] * bytes % 16 != 0) return kInvalid;
  FakeTensorMap map{FakeTensorMap::kMagic,
                    base,
                    {},
                    {},
                    {},
                    {},
                    static_cast<unsigned char>(rank),
                    static_cast<short>(type),
                    static_cast<short>(swizzle),
                    static_cast<short>(promotion)};
  std::uint64_t extent = 0;
  for (unsigned i = 0; i < rank; ++i) {
    if (size[i] == 0 || size[i] > std::uint64_t{1} << 32) return kInvalid;
    if (box[i] == 0 || box[i] > 256 || steps[i] == 0 || steps[i] > 8) return kInvalid;
    const std::uint64_t stride = i ? strides[i - 1] : bytes;
    if (i && (stride % 16 != 0 || stride >= std::uint64_t{1} << 40 || stride < size[0] * bytes)) return kInvalid;
    extent += (size[i] - 1) * stride;
    map.size[i] = size[i], map.box[i] = box[i], map.step[i] = static_cast<unsigned char>(steps[i]);
    if (i) map.stride[i - 1] = stride;
  }
  if (swizzle && box[0] * bytes > 16u << swizzle) return kInvalid;
  // The driver does not know whose memory it is; a kernel that reads there faults.
  if (const CUresult bad = check_range(entry, base, extent + bytes, "a tensor map")) return bad;
  static_assert(sizeof(map) <= 128);
  std::memset(out, 0, 128);
  std::memcpy(out, &map, sizeof(map));
  return kOk;
}

namespace {

// One launch with its parameters copied, as the driver does before it returns.
struct Prepared {
  Function* function;
  FakeLaunch launch;
  std::vector<std::vector<unsigned char>> values;

  void run() {
    State& s = state();
    std::vector<void*> params;
    for (auto& value : values) params.push_back(value.data());
    launch.params = params.data();
    launch.image = function->module->image.data();
    launch.entry = function->entry.c_str();
    if (!function->alive) {
      s.violation("a graph runs a kernel whose module was unloaded", kInvalidHandle);
      return;
    }
    s.clock += s.duration ? s.duration(&launch, s.duration_user) : 10;
    if (s.handler) s.handler(&launch, s.handler_user);
  }
};

CUresult check_config(const CUlaunchConfig& config, const Function& function, unsigned cluster) {
  const std::uint64_t threads = std::uint64_t{config.block_x} * config.block_y * config.block_z;
  const bool grid = config.grid_x && config.grid_y && config.grid_z && config.grid_x <= 2147483647u &&
                    config.grid_y <= 65535 && config.grid_z <= 65535;
  const bool good =
      grid && threads >= 1 && threads <= 1024 && config.shared_bytes <= static_cast<unsigned>(function.max_dynamic);
  if (good && (cluster == 0 || config.grid_x % cluster != 0)) return kClusterSize;
  return good ? kOk : kInvalid;
}

}  // namespace

FAKE_API cuLaunchKernelEx(const CUlaunchConfig* config, void* handle, void** params, void**) {
  Entry entry("cuLaunchKernelEx", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* function = use<Function>(entry, handle, "function", &why);
  if (!function) return why;
  unsigned cluster = 1;
  bool overlap = false;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const auto& [id, pad, value] = config->attributes[i];
    if (id == tilewright::jit::kClusterDimension) {
      cluster = value.cluster.x;
    } else if (id == tilewright::jit::kStreamSerialization) {
      overlap = value.overlap != 0;
    } else {
      return kInvalid;
    }
  }
  if (const CUresult bad = check_config(*config, *function, cluster)) return bad;
  Prepared work{function, {}, {}};
  FakeLaunch& l = work.launch;
  l.image_bytes = function->module->image.size();
  l.grid[0] = config->grid_x, l.grid[1] = config->grid_y, l.grid[2] = config->grid_z;
  l.block[0] = config->block_x, l.block[1] = config->block_y, l.block[2] = config->block_z;
  l.cluster = cluster;
  l.overlap = overlap;
  l.shared_bytes = config->shared_bytes;
  l.device = entry.context->device;
  l.stream = config->stream;
  l.param_count = function->info.params.size();
  l.param_bytes = function->info.params.data();  // functions are never freed before the reset
  for (std::size_t i = 0; i < l.param_count; ++i) {
    if (!params || !params[i]) return state().violation("a declared parameter is missing", kInvalid);
    const auto* bytes = static_cast<const unsigned char*>(params[i]);
    work.values.emplace_back(bytes, bytes + function->info.params[i]);
  }
  return submit(entry, config->stream, [work]() mutable { work.run(); });
}

FAKE_API cuStreamCreate(void** out, unsigned flags) {
  Entry entry("cuStreamCreate", kContext);
  if (entry.failed) return entry.failed;
  auto* stream = state().add<Stream>(entry.context);
  stream->flags = flags;
  state().streams.push_back(stream);
  *out = stream;
  return kOk;
}

FAKE_API cuStreamDestroy_v2(void* handle) {
  Entry entry("cuStreamDestroy", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* stream = use<Stream>(entry, handle, "stream", &why);
  if (!stream) return why;
  stream->alive = false;
  std::erase(state().streams, stream);
  return kOk;
}

FAKE_API cuStreamSynchronize(void* handle) {
  Entry entry("cuStreamSynchronize", kContext);
  if (entry.failed) return entry.failed;
  Stream* stream = nullptr;
  if (const CUresult bad = use_stream(entry, handle, &stream)) return bad;
  if (stream && stream->capture) return stream->capture = 2, kCaptureUnsupported;
  return kOk;
}

FAKE_API cuStreamIsCapturing(void* handle, int* status) {
  Entry entry("cuStreamIsCapturing", kContext);
  if (entry.failed) return entry.failed;
  Stream* stream = nullptr;
  if (const CUresult bad = use_stream(entry, handle, &stream)) return bad;
  *status = stream ? stream->capture : 0;
  if (!stream)
    for (const Stream* other : state().streams)
      if (other->context == entry.context && other->flags == 0 && other->capture == 1) return kCaptureImplicit;
  return kOk;
}

FAKE_API cuStreamBeginCapture_v2(void* handle, int mode) {
  Entry entry("cuStreamBeginCapture", kContext);
  if (entry.failed) return entry.failed;
  Stream* stream = nullptr;
  if (const CUresult bad = use_stream(entry, handle, &stream)) return bad;
  if (!stream || stream->capture) return kCaptureUnsupported;
  stream->capture = 1;
  stream->mode = mode;
  stream->thread = std::this_thread::get_id();
  return kOk;
}

FAKE_API cuStreamEndCapture(void* handle, void** out) {
  Entry entry("cuStreamEndCapture", kContext);
  *out = nullptr;
  if (entry.failed) return entry.failed;
  Stream* stream = nullptr;
  if (const CUresult bad = use_stream(entry, handle, &stream)) return bad;
  if (!stream || !stream->capture) return kInvalid;
  if (stream->mode != 2 && stream->thread != std::this_thread::get_id()) return kCaptureWrongThread;
  const bool good = stream->capture == 1;
  stream->capture = 0;
  auto nodes = std::move(stream->nodes);
  stream->nodes.clear();
  if (!good) return kCaptureInvalidated;
  auto* graph = state().add<Graph>(entry.context);
  graph->nodes = std::move(nodes);
  *out = graph;
  return kOk;
}

FAKE_API cuGraphInstantiateWithFlags(void** out, void* handle, unsigned long long) {
  Entry entry("cuGraphInstantiateWithFlags", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* graph = use<Graph>(entry, handle, "graph", &why);
  if (!graph) return why;
  auto* exec = state().add<Exec>(entry.context);
  exec->nodes = graph->nodes;
  *out = exec;
  return kOk;
}

FAKE_API cuGraphLaunch(void* handle, void* stream) {
  Entry entry("cuGraphLaunch", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* exec = use<Exec>(entry, handle, "graph", &why);
  if (!exec) return why;
  return submit(entry, stream, [exec] {
    for (auto& node : exec->nodes) node();
  });
}

FAKE_API cuGraphDestroy(void* handle) {
  Entry entry("cuGraphDestroy", kContext);
  CUresult why = entry.failed;
  auto* graph = why ? nullptr : use<Graph>(entry, handle, "graph", &why);
  if (graph) graph->alive = false;
  return why;
}

FAKE_API cuGraphExecDestroy(void* handle) {
  Entry entry("cuGraphExecDestroy", kContext);
  CUresult why = entry.failed;
  auto* exec = why ? nullptr : use<Exec>(entry, handle, "graph", &why);
  if (exec) exec->alive = false;
  return why;
}

FAKE_API cuEventCreate(void** out, unsigned) {
  Entry entry("cuEventCreate", kContext);
  if (entry.failed) return entry.failed;
  *out = state().add<Event>(entry.context);
  return kOk;
}

FAKE_API cuEventDestroy_v2(void* handle) {
  Entry entry("cuEventDestroy", kContext);
  CUresult why = entry.failed;
  auto* event = why ? nullptr : use<Event>(entry, handle, "event", &why);
  if (event) event->alive = false;
  return why;
}

FAKE_API cuEventRecord(void* handle, void* stream) {
  Entry entry("cuEventRecord", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* event = use<Event>(entry, handle, "event", &why);
  if (!event) return why;
  return submit(entry, stream, [event] {
    event->recorded = true;
    event->time = state().clock;
  });
}

FAKE_API cuEventSynchronize(void* handle) {
  Entry entry("cuEventSynchronize", kContext | kNotInCapture);
  CUresult why = entry.failed;
  if (!why) use<Event>(entry, handle, "event", &why);
  return why;
}

FAKE_API cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  Entry entry("cuEventElapsedTime", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  const auto* from = use<Event>(entry, begin, "event", &why);
  const auto* to = from ? use<Event>(entry, end, "event", &why) : nullptr;
  if (!to) return why;
  if (!from->recorded || !to->recorded) return kInvalidHandle;
  *milliseconds = static_cast<float>((to->time - from->time) / 1000);
  return kOk;
}
