// SPDX-License-Identifier: Apache-2.0
// The driver double: a shared library with the driver's functions, so that everything above the driver runs whole on a
// machine without a GPU. Device memory is host memory; a launch calls the test's handler; time is a scripted clock.
// Load it by Options::driver / Device::open(ordinal, paths::fake_cuda()); steer it by the functions below, which a
// test links. It is strict where the driver is not: what the driver would punish by a crash or not at all (use of a
// stale handle, copies out of bounds, double free) is refused and noted as a violation. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

struct FakeDevice {
  const char* name;  // copied
  int major, minor, sms, shared_optin, registers;
  long long memory_bytes, l2_bytes;
};

struct FakeLaunch {
  const void* image;  // bytes of the module
  std::size_t image_bytes;
  const char* entry;
  unsigned grid[3], block[3], cluster, shared_bytes;
  bool overlap;                    // programmatic stream serialization
  void** params;                   // addresses of the parameters, as given to the driver
  std::size_t param_count;         // as the image declares them
  const std::size_t* param_bytes;  // size of each
  int device;
  void* stream;
};

// What the double writes into a CUtensorMap, so that a launch shows what was encoded.
struct FakeTensorMap {
  static constexpr unsigned long long kMagic = 0x70616d726f736e74;
  unsigned long long magic, address;
  unsigned long long size[5], stride[4];  // elements, of a map of rank 2 {of a row, rows}; bytes
  unsigned box[5];
  unsigned char step[5], rank;
  short type, swizzle, promotion;
};

extern "C" {

// Back to the start: two devices like an H200, no handlers, no faults, counters zero, everything made so far is dead.
void fake_cuda_reset();
void fake_cuda_set_device_count(int count);  // 0: cuInit says that there is no device
void fake_cuda_set_device(int ordinal, const FakeDevice* device);
void fake_cuda_set_version(int version);  // 13000

// Runs for every launch (a captured one at each replay), on the launching thread, never concurrently. null: does
// nothing.
void fake_cuda_set_launch_handler(void (*handler)(const FakeLaunch*, void*), void* user);
// Microseconds that a launch takes on the scripted clock; null: 10.
void fake_cuda_set_duration(double (*duration)(const FakeLaunch*, void*), void* user);
double fake_cuda_clock();  // microseconds since the reset

// The n-th call of `function` from now (1 is the next; 0 is every call) returns `code`. A sticky code (700, 719 ...)
// also spoils the context, as on a device. kFakeAbort: the process aborts.
void fake_cuda_fail(const char* function, int nth, int code);
// Called from inside a launch handler: the kernel faults. Later calls on the context return `code`.
void fake_cuda_fault(int device, int code);
constexpr int kFakeAbort = -1;

// The device is reset, as by cudaDeviceReset() elsewhere in the process: contexts, modules, memory, streams are gone.
void fake_cuda_reset_device(int ordinal);

long fake_cuda_calls(const char* function);  // base names: "cuMemAlloc"
// Every image that ever reached cuModuleLoadData, whether accepted or not.
std::size_t fake_cuda_image_count();
const void* fake_cuda_image(std::size_t index, std::size_t* bytes);
// Live objects: "memory", "module", "stream", "event", "graph", "context".
long fake_cuda_live(const char* kind);
std::size_t fake_cuda_violation_count();
const char* fake_cuda_violation(std::size_t index);  // valid until the reset

int fake_cuda_current_device();            // of the calling thread's current context; -1: none
void fake_cuda_push_context(int ordinal);  // makes a device's primary context current, as another library would
void fake_cuda_pop_context();
}
