// SPDX-License-Identifier: Apache-2.0
// The CUDA driver API, opened at run time and never linked. Own declarations: no CUDA header is needed to build.
// One Driver per library path, loaded once per process and never closed. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <tilewright/error.h>

namespace tilewright::jit {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUdeviceptr = unsigned long long;

// As in cuda.h; the layout is part of the driver's ABI.
struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int overlap;
  } value;
};
static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8);
struct CUlaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, stream) == 32);
struct alignas(128) CUtensorMap {
  std::uint64_t opaque[16];
};
static_assert(sizeof(CUtensorMap) == 128);

// Numbers of cuda.h that the library uses.
inline constexpr CUresult kInvalidValue = 1, kOutOfMemory = 2, kDeinitialized = 4, kNoDevice = 100,
                          kCaptureImplicit = 906;
inline constexpr int kClusterDimension = 4;     // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
inline constexpr int kStreamSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
enum TensorMapType { kMapBytes1 = 0, kMapBytes2 = 1, kMapBytes4 = 2 };  // CU_TENSOR_MAP_DATA_TYPE_UINT8, 16, 32
enum TensorMapSwizzle { kMapSwizzleNone = 0, kMapSwizzle32 = 1, kMapSwizzle64 = 2, kMapSwizzle128 = 3 };
inline constexpr int kMapInterleaveNone = 0, kMapPromote256 = 3, kMapFillZero = 0;
enum DeviceAttribute {
  kMaxThreadsPerBlock = 1,
  kMaxGridX = 5,
  kMaxGridY = 6,
  kMaxGridZ = 7,
  kRegistersPerBlock = 12,
  kMultiprocessors = 16,
  kL2Bytes = 38,
  kMajor = 75,
  kMinor = 76,
  kSharedOptin = 97
};
enum FunctionAttribute {
  kFuncMaxThreads = 0,
  kFuncShared = 1,
  kFuncLocal = 3,
  kFuncRegisters = 4,
  kFuncMaxDynamic = 8
};
enum PointerAttribute { kPointerMemoryType = 2, kPointerManaged = 8, kPointerOrdinal = 9 };
inline constexpr int kMemoryTypeDevice = 2;

// Finds one function: by cuGetProcAddress, which gives the version of it that these declarations mean, else by symbol.
class Resolver {
 public:
  explicit Resolver(const std::string& path);  // throws Error (library_missing)
  // Of functions that are this library's own.
  Resolver(std::string name, void* (*own)(const char* name)) : path_(std::move(name)), own_(own) {}
  void* find(const char* name, const char* symbol) const;
  const std::string& path() const { return path_; }
  bool own() const { return own_ != nullptr; }

 private:
  std::string path_;
  void* library_ = nullptr;
  void* (*own_)(const char*) = nullptr;
  int (*get_address_)(const char*, void**, int, std::uint64_t, int*) = nullptr;
  int version_ = 0;
};

[[noreturn]] void throw_no_function(const Resolver& resolver, const char* name);

enum class Need { required, optional };

class Modules;  // jit/modules.h

template <class... A>
struct Call {
  // `symbol`: the exported name where it differs ("cuMemAlloc_v2").
  Call(const Resolver& resolver, const char* name, const char* symbol = nullptr, Need need = Need::required)
      : name(name), function(reinterpret_cast<CUresult (*)(A...)>(resolver.find(name, symbol ? symbol : name))) {
    if (!function && need == Need::required && !resolver.own()) throw_no_function(resolver, name);
  }
  CUresult operator()(A... arguments) const { return function(arguments...); }
  explicit operator bool() const { return function != nullptr; }

  const char* name;
  CUresult (*function)(A...);
};

// Counts the forks between this process and the one that loaded the library's code: a CUDA object made under another
// count belongs to another process. A count and not a pid, because getpid() is a system call.
const std::atomic<unsigned>& fork_count();

class Driver {
 public:
  // Empty path: libcuda.so.1. Throws Error (library_missing).
  static const Driver& open(const std::string& path);
  // Of this machine's CPU (jit/cpu/driver.h). Works in a child of fork(), too. It has the functions that the library
  // calls for a device that is open, and no others.
  static const Driver& cpu();

  const std::string& path() const { return resolve_.path(); }
  Modules& modules() const { return *modules_; }  // of all contexts
  bool forked() const { return forks_.load(std::memory_order_relaxed) != forks_at_open_; }

  // Calls and throws Error (driver_failed): field = the call, value = the error's name, allowed = its text.
  template <class... A, class... B>
  void must(const Call<A...>& call, B... arguments) const {
    if (const CUresult result = call(arguments...)) [[unlikely]]
      fail(call.name, result);
  }
  [[noreturn]] void fail(const char* call, CUresult result, const std::string& doing = {}) const;

 private:
  Resolver resolve_;  // before the calls, which it finds
  const std::atomic<unsigned>& forks_ = fork_count();
  const unsigned forks_at_open_ = forks_.load();

 public:
  Call<unsigned> init{resolve_, "cuInit"};
  Call<int*> version{resolve_, "cuDriverGetVersion"};
  Call<CUresult, const char**> error_name{resolve_, "cuGetErrorName"};
  Call<CUresult, const char**> error_text{resolve_, "cuGetErrorString"};
  Call<int*> device_count{resolve_, "cuDeviceGetCount"};
  Call<CUdevice*, int> device_get{resolve_, "cuDeviceGet"};
  Call<char*, int, CUdevice> device_name{resolve_, "cuDeviceGetName"};
  Call<int*, int, CUdevice> device_attribute{resolve_, "cuDeviceGetAttribute"};
  Call<std::size_t*, CUdevice> device_memory{resolve_, "cuDeviceTotalMem", "cuDeviceTotalMem_v2"};
  Call<CUcontext*, CUdevice> primary_retain{resolve_, "cuDevicePrimaryCtxRetain"};
  Call<CUdevice> primary_release{resolve_, "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"};
  Call<CUcontext*> context_current{resolve_, "cuCtxGetCurrent"};
  Call<CUcontext> context_push{resolve_, "cuCtxPushCurrent", "cuCtxPushCurrent_v2"};
  Call<CUcontext*> context_pop{resolve_, "cuCtxPopCurrent", "cuCtxPopCurrent_v2"};
  Call<> context_synchronize{resolve_, "cuCtxSynchronize"};
  Call<CUcontext, unsigned long long*> context_id{resolve_, "cuCtxGetId", nullptr, Need::optional};  // 12.0
  Call<CUmodule*, const void*> module_load{resolve_, "cuModuleLoadData"};
  Call<CUmodule> module_unload{resolve_, "cuModuleUnload"};
  Call<CUfunction*, CUmodule, const char*> module_function{resolve_, "cuModuleGetFunction"};
  Call<int*, int, CUfunction> function_attribute{resolve_, "cuFuncGetAttribute"};
  Call<CUfunction, int, int> set_function_attribute{resolve_, "cuFuncSetAttribute"};
  Call<CUfunction, std::size_t, std::size_t*, std::size_t*> function_parameter{resolve_, "cuFuncGetParamInfo", nullptr,
                                                                               Need::optional};  // 12.4
  Call<const CUlaunchConfig*, CUfunction, void**, void**> launch{resolve_, "cuLaunchKernelEx"};
  Call<CUtensorMap*, int, unsigned, void*, const std::uint64_t*, const std::uint64_t*, const unsigned*, const unsigned*,
       int, int, int, int>
      tensor_map{resolve_, "cuTensorMapEncodeTiled", nullptr, Need::optional};  // 12.0
  Call<int*, CUfunction, const CUlaunchConfig*> active_clusters{resolve_, "cuOccupancyMaxActiveClusters", nullptr,
                                                                Need::optional};  // 11.8
  Call<CUdeviceptr*, std::size_t> memory_allocate{resolve_, "cuMemAlloc", "cuMemAlloc_v2"};
  Call<CUdeviceptr> memory_free{resolve_, "cuMemFree", "cuMemFree_v2"};
  Call<CUdeviceptr, const void*, std::size_t> copy_to_device{resolve_, "cuMemcpyHtoD", "cuMemcpyHtoD_v2"};
  Call<void*, CUdeviceptr, std::size_t> copy_to_host{resolve_, "cuMemcpyDtoH", "cuMemcpyDtoH_v2"};
  Call<CUdeviceptr, CUdeviceptr, std::size_t> copy_on_device{resolve_, "cuMemcpyDtoD", "cuMemcpyDtoD_v2"};
  Call<CUdeviceptr, unsigned char, std::size_t> memory_set{resolve_, "cuMemsetD8", "cuMemsetD8_v2"};
  Call<std::size_t*, std::size_t*> memory_info{resolve_, "cuMemGetInfo", "cuMemGetInfo_v2"};
  Call<unsigned, int*, void**, CUdeviceptr> pointer_attributes{resolve_, "cuPointerGetAttributes"};
  Call<CUstream*, unsigned> stream_create{resolve_, "cuStreamCreate"};
  Call<CUstream> stream_destroy{resolve_, "cuStreamDestroy", "cuStreamDestroy_v2"};
  Call<CUstream> stream_synchronize{resolve_, "cuStreamSynchronize"};
  Call<CUstream, int*> stream_capturing{resolve_, "cuStreamIsCapturing"};
  Call<CUstream, int> capture_begin{resolve_, "cuStreamBeginCapture", "cuStreamBeginCapture_v2"};
  Call<CUstream, CUgraph*> capture_end{resolve_, "cuStreamEndCapture"};
  Call<CUgraphExec*, CUgraph, unsigned long long> graph_instantiate{resolve_, "cuGraphInstantiateWithFlags"};
  Call<CUgraphExec, CUstream> graph_launch{resolve_, "cuGraphLaunch"};
  Call<CUgraph> graph_destroy{resolve_, "cuGraphDestroy"};
  Call<CUgraphExec> exec_destroy{resolve_, "cuGraphExecDestroy"};
  Call<CUevent*, unsigned> event_create{resolve_, "cuEventCreate"};
  Call<CUevent> event_destroy{resolve_, "cuEventDestroy", "cuEventDestroy_v2"};
  Call<CUevent, CUstream> event_record{resolve_, "cuEventRecord"};
  Call<CUevent> event_synchronize{resolve_, "cuEventSynchronize"};
  Call<float*, CUevent, CUevent> event_elapsed{resolve_, "cuEventElapsedTime"};

 private:
  explicit Driver(const std::string& path);
  Driver();
  ~Driver();

  const std::unique_ptr<Modules> modules_;
};

// True if the error of a driver call means that every further call on this context (and in this process) fails too:
// illegal addresses, launch failures, timeouts and their like.
bool is_sticky(const Error& error);

}  // namespace tilewright::jit
