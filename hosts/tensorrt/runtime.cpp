// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/runtime.h"

#include <tilewright/error.h>

#include <dlfcn.h>

#include <string>
#include <tuple>
#include <utility>

#include "hosts/tensorrt/log.h"

namespace tilewright::tensorrt {
namespace {

Severity severity_of(LogLevel level) {
  switch (level) {
    case LogLevel::error: return Severity::kERROR;
    case LogLevel::warning: return Severity::kWARNING;
    case LogLevel::info: return Severity::kINFO;
    case LogLevel::debug: break;
  }
  return Severity::kVERBOSE;
}

LogLevel level_of(Severity severity) {
  switch (severity) {
    case Severity::kINTERNAL_ERROR:
    case Severity::kERROR: return LogLevel::error;
    case Severity::kWARNING: return LogLevel::warning;
    case Severity::kINFO: return LogLevel::info;
    case Severity::kVERBOSE: break;
  }
  return LogLevel::debug;
}

// Functions of the driver that the library does not offer. Null where the driver lacks them.
struct Driver {
  int (*current_device)(int*) = nullptr;
  int (*is_capturing)(Stream, int*) = nullptr;
};

const Driver& driver() {
  static const Driver functions = [] {
    const std::string& path = engine().options().driver;
    Driver found;
    if (void* library = dlopen(path.empty() ? "libcuda.so.1" : path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      found.current_device = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuCtxGetDevice"));
      found.is_capturing = reinterpret_cast<int (*)(Stream, int*)>(dlsym(library, "cuStreamIsCapturing"));
    }
    return found;
  }();
  return functions;
}

}  // namespace

Engine& engine() {
  static Engine* const made = [] {
    Options options = Options::from_env();
    if (options.log)  // asked for by TILEWRIGHT_LOG: what TensorRT's logger does not take
      set_other_log([log = options.log](Severity severity, std::string_view text) { log(level_of(severity), text); });
    options.log = [](LogLevel level, std::string_view text) { say(severity_of(level), text); };
    if (!options.log_level) options.log_level = LogLevel::info;  // TensorRT's logger has a threshold of its own
    return new Engine(std::move(options));
  }();
  return *made;
}

std::optional<Device> current_device() {
  const std::string& path = engine().options().driver;
  const int count = path.empty() ? Device::count() : Device::count(path);
  if (count == 0) return {};
  int ordinal = 0;
  if (!driver().current_device || driver().current_device(&ordinal) != 0 || ordinal < 0 || ordinal >= count)
    ordinal = 0;  // no context is current
  return Device::open(ordinal, path);
}

bool capturing(Stream stream) {
  int status = 0;
  return driver().is_capturing && driver().is_capturing(stream, &status) == 0 && status != 0;
}

std::shared_ptr<const Layer> layer_of(const Device& device, const Problem& problem, const LayerOptions& options) {
  struct Slot {
    std::mutex mutex;
    std::weak_ptr<const Layer> layer;
  };
  using Id = std::tuple<int, std::string, std::string>;
  static std::mutex mutex;
  static auto* const slots = new std::map<Id, std::shared_ptr<Slot>>();
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex);
    auto& at = (*slots)[{device.ordinal(), problem.text(), std::string(options.x_from ? options.x_from->name() : "")}];
    if (!at) at = std::make_shared<Slot>();
    slot = at;
  }
  const std::lock_guard lock(slot->mutex);  // others compile meanwhile
  std::shared_ptr<const Layer> layer = slot->layer.lock();
  if (!layer) slot->layer = layer = std::make_shared<const Layer>(engine(), problem, device, options);
  return layer;
}

std::shared_ptr<Workspaces> Workspaces::of(const void* context, const Device& device) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::pair<const void*, int>, std::weak_ptr<Workspaces>>();
  const std::lock_guard lock(mutex);
  std::erase_if(*all, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<Workspaces>& at = (*all)[{context, device.ordinal()}];
  std::shared_ptr<Workspaces> found = at.lock();
  if (!found) at = found = std::make_shared<Workspaces>(device);
  return found;
}

Memory Workspaces::allocate() const {
  Memory memory(device_, bytes_);
  memory.fill(0);
  return memory;
}

void Workspaces::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= bytes_) return;
  bytes_ = bytes;
  ready_ = allocate();
  used_.clear();  // smaller ones; TensorRT attaches all plugins of a context before it runs
}

void* Workspaces::on(Stream stream) {
  const std::lock_guard lock(mutex_);
  if (const auto found = used_.find(stream); found != used_.end()) return found->second.data();
  const bool captured = capturing(stream);
  if (ready_.size() == 0) {
    if (captured)
      throw Error(ErrorCode::would_tune, "stream", "",
                  "is captured, and memory for it cannot be allocated now; call "
                  "enqueueV3() once on it before the capture");
    ready_ = allocate();
  }
  void* const memory = used_.emplace(stream, std::move(ready_)).first->second.data();
  ready_ = captured ? Memory() : allocate();
  return memory;
}

}  // namespace tilewright::tensorrt
