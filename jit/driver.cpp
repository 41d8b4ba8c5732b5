// SPDX-License-Identifier: Apache-2.0
#include "jit/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "jit/cpu/driver.h"
#include "jit/modules.h"
#include "jit/shared_library.h"

namespace tilewright::jit {
namespace {

// The newest API that the declarations in driver.h were written for. A driver may be older or newer.
constexpr int kApiVersion = 12040;
constexpr std::uint64_t kLegacyStream = 1;  // CU_GET_PROC_ADDRESS_LEGACY_STREAM: null is the legacy default stream

std::atomic<unsigned> forks{0};

}  // namespace

const std::atomic<unsigned>& fork_count() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks;
}

Resolver::Resolver(const std::string& path) : path_(path.empty() ? "libcuda.so.1" : path) {
  std::string why;
  library_ = open_shared_library(path_, why);
  if (!library_)
    throw Error(
        ErrorCode::library_missing, "libcuda", path_,
        fmt::format("cannot be loaded ({}); it comes with the NVIDIA driver, without which kernels can be compiled but "
                    "not run",
                    why));
  auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library_, "cuDriverGetVersion"));
  if (!get_version || get_version(&version_) != 0)
    throw Error(ErrorCode::library_missing, "libcuda", path_, "is not a CUDA driver: cuDriverGetVersion fails");
  version_ = std::min(version_, kApiVersion);
  get_address_ = reinterpret_cast<decltype(get_address_)>(dlsym(library_, "cuGetProcAddress_v2"));
}

void* Resolver::find(const char* name, const char* symbol) const {
  if (own_) return own_(name);
  void* function = nullptr;
  int status = 0;
  if (get_address_ && get_address_(name, &function, version_, kLegacyStream, &status) == 0 && function) return function;
  return dlsym(library_, symbol);
}

void throw_no_function(const Resolver& resolver, const char* name) {
  throw Error(ErrorCode::library_missing, "libcuda", resolver.path(),
              fmt::format("has no function {}; install a driver for CUDA 11.8 or newer", name));
}

Driver::Driver(const std::string& path) : resolve_(path), modules_(std::make_unique<Modules>()) {}
Driver::~Driver() = default;

namespace {
const std::atomic<unsigned> never{0};  // what the CPU's driver takes for the number of forks
}  // namespace
Driver::Driver() : resolve_("cpu", &cpu::driver_function), forks_(never), modules_(std::make_unique<Modules>()) {}

const Driver& Driver::cpu() {
  static const auto* const driver = new Driver;
  return *driver;
}

const Driver& Driver::open(const std::string& path) {
  // Never destroyed: objects with static storage may still release handles while the process exits.
  static auto* const mutex = new std::mutex;
  static auto* const drivers = new std::map<std::string, const Driver*>;
  const std::lock_guard lock(*mutex);
  auto& driver = (*drivers)[path];
  if (!driver) driver = new Driver(path);
  return *driver;
}

void Driver::fail(const char* call, CUresult result, const std::string& doing) const {
  const char* name = nullptr;
  const char* text = nullptr;
  error_name(result, &name);
  error_text(result, &text);
  throw Error(ErrorCode::driver_failed, call, name ? name : fmt::format("CUDA error {}", result),
              fmt::format("failed: {} ({}){}{}", text ? text : "unknown to this driver", result,
                          doing.empty() ? "" : " ", doing));
}

bool is_sticky(const Error& error) {
  static constexpr const char* kNames[] = {
      "CUDA_ERROR_ILLEGAL_ADDRESS",     "CUDA_ERROR_LAUNCH_TIMEOUT",        "CUDA_ERROR_HARDWARE_STACK_ERROR",
      "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_MISALIGNED_ADDRESS",    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
      "CUDA_ERROR_INVALID_PC",          "CUDA_ERROR_LAUNCH_FAILED",         "CUDA_ERROR_TENSOR_MEMORY_LEAK",
      "CUDA_ERROR_CONTAINED",           "CUDA_ERROR_MPS_CLIENT_TERMINATED", "CUDA_ERROR_ASSERT",
      "CUDA_ERROR_ECC_UNCORRECTABLE"};
  return error.code() == ErrorCode::driver_failed &&
         std::any_of(std::begin(kNames), std::end(kNames), [&](const char* n) { return error.value() == n; });
}

}  // namespace tilewright::jit
