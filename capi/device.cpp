// SPDX-License-Identifier: Apache-2.0
// Devices, memory and streams.
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <span>

#include "capi/handles.h"

using namespace tilewright;
using namespace tilewright::capi;

namespace {

void check_range(const tw_memory& memory, std::size_t offset, std::size_t bytes) {
  if (offset > memory.value.size() || bytes > memory.value.size() - offset)
    refuse("bytes", fmt::format("{} at offset {}", bytes, offset),
           fmt::format("must lie in the memory, which has {}", memory.value.size()));
}

// The blocks of one launch, run by a caller's function. No exception may pass through that, so the first is kept.
struct Blocks {
  const std::function<void(std::int64_t)>& body;
  std::mutex failing;
  std::exception_ptr failure;

  static void run(void* blocks, std::int64_t i) {
    Blocks& b = *static_cast<Blocks*>(blocks);
    try {
      b.body(i);
    } catch (...) {
      const std::lock_guard lock(b.failing);
      if (!b.failure) b.failure = std::current_exception();
    }
  }
};

}  // namespace

extern "C" {

int32_t tw_device_count(const char* driver) {
  int count = 0;
  (void)guarded(nullptr, [&] { count = driver ? Device::count(driver) : Device::count(); });
  return count;
}

tw_status tw_device_open(int32_t ordinal, const char* driver, tw_device** device, tw_error** error) {
  return guarded(error,
                 [&] { create(device, "device", driver ? Device::open(ordinal, driver) : Device::open(ordinal)); });
}

tw_status tw_device_open_cpu(int32_t threads, tw_parallel_for parallel_for, void* user, tw_device** device,
                             tw_error** error) {
  return tw_device_open_cpu_target(nullptr, threads, parallel_for, user, device, error);
}

tw_status tw_device_open_cpu_target(const char* target, int32_t threads, tw_parallel_for parallel_for, void* user,
                                    tw_device** device, tw_error** error) {
  return guarded(error, [&] {
    CpuOptions options;
    if (target) options.target = target;
    options.threads = threads;
    if (parallel_for)
      options.parallel_for = [=](std::int64_t count, const std::function<void(std::int64_t)>& body) {
        Blocks blocks{body, {}, {}};
        parallel_for(user, count, &Blocks::run, &blocks);
        if (blocks.failure) std::rethrow_exception(blocks.failure);
      };
    create(device, "device", Device::open_cpu(options));
  });
}

tw_status tw_device_describe(const tw_device* device, tw_device_info* info, tw_error** error) {
  return guarded(error, [&] {
    const Device& d = handle(device).value;
    write_struct(info,
                 {0, d.ordinal(), d.sms(), d.l2_bytes(), d.memory_bytes(), d.name().c_str(), d.driver_version().c_str(),
                  d.arch().name},
                 "info");
  });
}

tw_status tw_device_synchronize(const tw_device* device, tw_error** error) {
  return guarded(error, [&] { handle(device).value.synchronize(); });
}
void tw_device_retain(tw_device* device) { retain(device); }
void tw_device_release(tw_device* device) { release(device); }

tw_status tw_memory_create(const tw_device* device, size_t bytes, tw_memory** memory, tw_error** error) {
  return guarded(error, [&] { create(memory, "memory", Memory(handle(device).value, bytes)); });
}
void* tw_memory_data(const tw_memory* memory) { return is_handle(memory) ? memory->value.data() : nullptr; }
size_t tw_memory_size(const tw_memory* memory) { return is_handle(memory) ? memory->value.size() : 0; }

tw_status tw_memory_upload(tw_memory* memory, size_t offset, const void* from, size_t bytes, tw_error** error) {
  return guarded(error, [&] {
    check_range(handle(memory), offset, bytes);
    if (bytes == 0) return;
    if (from == nullptr) refuse("from", "null", "must be a pointer");
    memory->value.upload({static_cast<const std::byte*>(from), bytes}, offset);
  });
}

tw_status tw_memory_download(const tw_memory* memory, size_t offset, void* to, size_t bytes, tw_error** error) {
  return guarded(error, [&] {
    check_range(handle(memory), offset, bytes);
    if (bytes == 0) return;
    if (to == nullptr) refuse("to", "null", "must be a pointer");
    memory->value.download({static_cast<std::byte*>(to), bytes}, offset);
  });
}

tw_status tw_memory_fill(tw_memory* memory, uint8_t byte, tw_error** error) {
  return guarded(error, [&] { handle(memory).value.fill(byte); });
}
void tw_memory_release(tw_memory* memory) { release(memory); }

tw_status tw_stream_create(const tw_device* device, tw_owned_stream** stream, tw_error** error) {
  return guarded(error, [&] { create(stream, "stream", OwnedStream(handle(device).value)); });
}
tw_stream tw_stream_handle(const tw_owned_stream* stream) {
  tw_stream found = nullptr;
  if (stream) (void)guarded(nullptr, [&] { found = handle(stream).value.get(); });
  return found;
}
tw_status tw_stream_synchronize(const tw_owned_stream* stream, tw_error** error) {
  return guarded(error, [&] { handle(stream).value.synchronize(); });
}
void tw_stream_release(tw_owned_stream* stream) { release(stream); }

}  // extern "C"
