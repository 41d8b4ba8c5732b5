// SPDX-License-Identifier: Apache-2.0
// The double's devices, contexts, modules and memory.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "support/fake_cuda_state.h"

using namespace fake;

FAKE_API cuInit(unsigned) {
  const Entry entry("cuInit", kNoContext);
  if (entry.failed) return entry.failed;
  if (state().devices.empty()) return kNoDevice;
  state().initialized = true;
  return kOk;
}

FAKE_API cuDriverGetVersion(int* version) {
  const Entry entry("cuDriverGetVersion", kNoContext);
  *version = state().version;
  return entry.failed;
}

extern "C" int fake_cuTensorMapEncodeTiled(void*, int, unsigned, void*, const std::uint64_t*, const std::uint64_t*,
                                           const unsigned*, const unsigned*, int, int, int, int);

// As in the driver, the plain name gives the newest version of a function that is not newer than `version`.
FAKE_API cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, int* status) {
  static void* const self = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  char versioned[128];
  std::snprintf(versioned, sizeof(versioned), "%s_v2", name);
  *function = dlsym(self, versioned);
  if (!*function) *function = dlsym(self, name);
  if (std::strcmp(name, "cuTensorMapEncodeTiled") == 0 && version >= 12000)
    *function = reinterpret_cast<void*>(&fake_cuTensorMapEncodeTiled);
  if (status) *status = *function ? 0 : 1;
  return *function ? kOk : kNotFound;
}

namespace {

struct Name {
  CUresult code;
  const char *name, *text;
};
constexpr Name kNames[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing stream"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture from another thread"},
};

const Name* name_of(CUresult code) {
  for (const Name& name : kNames)
    if (name.code == code) return &name;
  return nullptr;
}

}  // namespace

FAKE_API cuGetErrorName(CUresult code, const char** name) {
  const Name* found = name_of(code);
  *name = found ? found->name : nullptr;
  return found ? kOk : kInvalid;
}

FAKE_API cuGetErrorString(CUresult code, const char** text) {
  const Name* found = name_of(code);
  *text = found ? found->text : nullptr;
  return found ? kOk : kInvalid;
}

FAKE_API cuDeviceGetCount(int* count) {
  const Entry entry("cuDeviceGetCount", kNoContext);
  if (entry.failed) return entry.failed;
  if (!state().initialized) return kNotInitialized;
  *count = static_cast<int>(state().devices.size());
  return kOk;
}

FAKE_API cuDeviceGet(int* device, int ordinal) {
  const Entry entry("cuDeviceGet", kNoContext);
  if (entry.failed) return entry.failed;
  if (ordinal < 0 || ordinal >= static_cast<int>(state().devices.size())) return kInvalidDevice;
  *device = ordinal;
  return kOk;
}

FAKE_API cuDeviceGetName(char* name, int size, int device) {
  const Entry entry("cuDeviceGetName", kNoContext);
  if (!entry.failed) std::snprintf(name, size, "%s", state().device_names.at(device).c_str());
  return entry.failed;
}

FAKE_API cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  const Entry entry("cuDeviceTotalMem", kNoContext);
  *bytes = state().devices.at(device).memory_bytes;
  return entry.failed;
}

FAKE_API cuDeviceGetAttribute(int* value, int attribute, int device) {
  using namespace tilewright::jit;
  const Entry entry("cuDeviceGetAttribute", kNoContext);
  const FakeDevice& d = state().devices.at(device);
  switch (attribute) {
    case kMaxThreadsPerBlock: *value = 1024; break;
    case kMaxGridX: *value = 2147483647; break;
    case kMaxGridY:
    case kMaxGridZ: *value = 65535; break;
    case kRegistersPerBlock: *value = d.registers; break;
    case kMultiprocessors: *value = d.sms; break;
    case kL2Bytes: *value = static_cast<int>(d.l2_bytes); break;
    case kMajor: *value = d.major; break;
    case kMinor: *value = d.minor; break;
    case kSharedOptin: *value = d.shared_optin; break;
    default: return kInvalid;
  }
  return entry.failed;
}

FAKE_API cuDevicePrimaryCtxRetain(Context** out, int device) {
  const Entry entry("cuDevicePrimaryCtxRetain", kNoContext);
  if (entry.failed) return entry.failed;
  Context* context = state().contexts.at(device).get();
  if (!context->active) {
    context->active = true;
    context->id = state().next_id++;
  }
  ++context->references;
  *out = context;
  return kOk;
}

FAKE_API cuDevicePrimaryCtxRelease_v2(int device) {
  const Entry entry("cuDevicePrimaryCtxRelease", kNoContext);
  if (entry.failed) return entry.failed;
  Context* context = state().contexts.at(device).get();
  if (!context->active) return kInvalidContext;
  if (--context->references == 0) kill(context);
  return kOk;
}

FAKE_API cuCtxGetCurrent(Context** out) {
  const Entry entry("cuCtxGetCurrent", kNoContext);
  *out = entry.context;
  return entry.failed;
}

FAKE_API cuCtxPushCurrent_v2(Context* context) {
  const Entry entry("cuCtxPushCurrent", kNoContext);
  if (entry.failed) return entry.failed;
  if (!context->active) return kDestroyed;
  context_stack().push_back(context);
  return kOk;
}

FAKE_API cuCtxPopCurrent_v2(Context** out) {
  const Entry entry("cuCtxPopCurrent", kNoContext);
  if (context_stack().empty()) return kInvalidContext;
  *out = context_stack().back();
  context_stack().pop_back();
  return entry.failed;
}

FAKE_API cuCtxGetId(Context* context, unsigned long long* id) {
  const Entry entry("cuCtxGetId", kNoContext);
  if (!context->active) return kDestroyed;
  *id = context->id;
  return entry.failed;
}

FAKE_API cuCtxSynchronize() { return Entry("cuCtxSynchronize", kContext | kNotInCapture).failed; }
FAKE_API cuProfilerStart() { return Entry("cuProfilerStart", kContext | kNotInCapture).failed; }
FAKE_API cuProfilerStop() { return Entry("cuProfilerStop", kContext | kNotInCapture).failed; }

FAKE_API cuModuleLoadData(Module** out, const void* data) {
  Entry entry("cuModuleLoadData", kContext | kNotInCapture);
  // The driver is not told the size either: it believes the headers.
  std::uint64_t sections = 0;
  std::uint16_t count = 0;
  std::memcpy(&sections, static_cast<const char*>(data) + 40, 8);
  std::memcpy(&count, static_cast<const char*>(data) + 60, 2);
  const bool elf = std::memcmp(data,
                               "\x7f"
                               "ELF",
                               4) == 0;
  std::size_t size = elf ? sections + count * 64ull : 64;
  if (elf) {  // the program table may follow the section table
    std::uint64_t programs = 0;
    std::uint16_t program_size = 0, program_count = 0;
    std::memcpy(&programs, static_cast<const char*>(data) + 32, 8);
    std::memcpy(&program_size, static_cast<const char*>(data) + 54, 2);
    std::memcpy(&program_count, static_cast<const char*>(data) + 56, 2);
    size = std::max<std::size_t>(size, programs + std::size_t{program_size} * program_count);
  }
  const auto* begin = static_cast<const std::byte*>(data);
  state().images.emplace_back(begin, begin + size);
  if (entry.failed) return entry.failed;
  auto info = tilewright::test::read_image(state().images.back());
  if (info.entries.empty()) return state().violation("a bad image reached the driver", kInvalidImage);
  const FakeDevice& device = state().devices.at(entry.context->device);
  if (info.sm / 10 != device.major || info.sm % 10 > device.minor) return kNoBinary;
  auto* module = state().add<Module>(entry.context);
  module->image = state().images.back();
  module->info = std::move(info);
  *out = module;
  return kOk;
}

FAKE_API cuModuleUnload(void* handle) {
  Entry entry("cuModuleUnload", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* module = use<Module>(entry, handle, "module", &why);
  if (!module) return why;
  module->alive = false;
  for (Function* function : module->functions) function->alive = false;
  return kOk;
}

FAKE_API cuModuleGetFunction(Function** out, void* handle, const char* name) {
  Entry entry("cuModuleGetFunction", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* module = use<Module>(entry, handle, "module", &why);
  if (!module) return why;
  const auto found = module->info.entries.find(name);
  if (found == module->info.entries.end()) return kNotFound;
  auto* function = state().add<Function>(entry.context);
  module->functions.push_back(function);
  function->module = module;
  function->entry = name;
  function->info = found->second;
  *out = function;
  return kOk;
}

FAKE_API cuFuncGetAttribute(int* value, int attribute, void* handle) {
  using namespace tilewright::jit;
  Entry entry("cuFuncGetAttribute", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* function = use<Function>(entry, handle, "function", &why);
  if (!function) return why;
  switch (attribute) {
    case kFuncMaxThreads: *value = 1024; break;
    case kFuncShared: *value = function->info.shared_bytes; break;
    case kFuncLocal: *value = 0; break;
    case kFuncRegisters: *value = function->info.registers; break;
    case kFuncMaxDynamic: *value = function->max_dynamic; break;
    default: return kInvalid;
  }
  return kOk;
}

FAKE_API cuFuncSetAttribute(void* handle, int attribute, int value) {
  Entry entry("cuFuncSetAttribute", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* function = use<Function>(entry, handle, "function", &why);
  if (!function) return why;
  const int limit = state().devices.at(entry.context->device).shared_optin - function->info.shared_bytes;
  if (attribute != tilewright::jit::kFuncMaxDynamic || value > limit) return kInvalid;
  function->max_dynamic = value;
  return kOk;
}

FAKE_API cuFuncGetParamInfo(void* handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  Entry entry("cuFuncGetParamInfo", kContext);
  if (entry.failed) return entry.failed;
  CUresult why = kOk;
  auto* function = use<Function>(entry, handle, "function", &why);
  if (!function) return why;
  if (index >= function->info.params.size()) return kInvalid;
  *offset = 0;
  *size = function->info.params[index];
  return kOk;
}
