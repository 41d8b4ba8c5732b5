// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/cuda.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include <tilewright/error.h>

namespace tilewright::bench {
namespace {

constexpr int kCaptureRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: what a library does while it launches is its own
constexpr int kClockRate = 13;      // CU_DEVICE_ATTRIBUTE_CLOCK_RATE
constexpr double kGraphMicroseconds = 2000;
constexpr double kRestShare = 2;     // of a sample's work (docs/internals/measurement.md, Rested)
constexpr int kMostLaunches = 2048;  // in one graph
constexpr int kMostCopies = 512;
constexpr double kFreeShare = 0.8;
constexpr std::size_t kAlign = 256;

template <class... A>
struct Function {
  Function(void* library, const char* symbol)
      : name(symbol), call(reinterpret_cast<int (*)(A...)>(dlsym(library, symbol))) {
    if (!call) throw Error(ErrorCode::library_missing, "libcuda", symbol, "is not a function of the driver");
  }
  void operator()(A... arguments) const {
    if (const int result = call(arguments...))
      throw Error(ErrorCode::driver_failed, name, fmt::format("CUDA error {}", result), "failed");
  }
  const char* name;
  int (*call)(A...);
};

void* open_driver(const std::string& path) {
  void* library = dlopen(path.empty() ? "libcuda.so.1" : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Error(ErrorCode::library_missing, "libcuda", path, "cannot be opened");
  return library;
}

}  // namespace

struct Cuda::Driver {
  explicit Driver(const std::string& path) : library(open_driver(path)) {}

  using Address = unsigned long long;
  void* library;
  Function<int*, int> device_get{library, "cuDeviceGet"};
  Function<int*, int, int> device_attribute{library, "cuDeviceGetAttribute"};
  Function<void**, int> primary_retain{library, "cuDevicePrimaryCtxRetain"};
  Function<int> primary_release{library, "cuDevicePrimaryCtxRelease_v2"};
  Function<void*> context_push{library, "cuCtxPushCurrent_v2"};
  Function<void**> context_pop{library, "cuCtxPopCurrent_v2"};
  Function<Address, Address, std::size_t> copy{library, "cuMemcpyDtoD_v2"};
  Function<Address, unsigned char, std::size_t> set{library, "cuMemsetD8_v2"};
  Function<> synchronize{library, "cuCtxSynchronize"};
  Function<std::size_t*, std::size_t*> memory_info{library, "cuMemGetInfo_v2"};
  Function<void*, int> capture_begin{library, "cuStreamBeginCapture_v2"};
  Function<void*, void**> capture_end{library, "cuStreamEndCapture"};
  Function<void**, void*, unsigned long long> instantiate{library, "cuGraphInstantiateWithFlags"};
  Function<void*, void*> graph_launch{library, "cuGraphLaunch"};
  Function<void*> graph_destroy{library, "cuGraphDestroy"};
  Function<void*> exec_destroy{library, "cuGraphExecDestroy"};
  Function<void**, unsigned> event_create{library, "cuEventCreate"};
  Function<void*> event_destroy{library, "cuEventDestroy_v2"};
  Function<void*, void*> event_record{library, "cuEventRecord"};
  Function<void*> event_synchronize{library, "cuEventSynchronize"};
  Function<float*, void*, void*> event_elapsed{library, "cuEventElapsedTime"};
  Function<> profiler_start{library, "cuProfilerStart"};
  Function<> profiler_stop{library, "cuProfilerStop"};
};

Cuda::Cuda(const Device& device, const std::string& driver)
    : driver_(std::make_unique<Driver>(driver)), stream_(device), ordinal_(device.ordinal()) {
  int handle = 0;
  void* context = nullptr;
  driver_->device_get(&handle, ordinal_);
  driver_->primary_retain(&context, handle);
  driver_->context_push(context);
  driver_->event_create(&start_, 0u);
  driver_->event_create(&stop_, 0u);
}

Cuda::~Cuda() {
  driver_->event_destroy.call(start_);
  driver_->event_destroy.call(stop_);
  void* popped = nullptr;
  driver_->context_pop.call(&popped);
  int handle = 0;
  if (driver_->device_get.call(&handle, ordinal_) == 0) driver_->primary_release.call(handle);
}

void Cuda::copy(void* to, const void* from, std::size_t bytes) const {
  driver_->copy(reinterpret_cast<Driver::Address>(to), reinterpret_cast<Driver::Address>(from), bytes);
  driver_->synchronize();  // a copy on the device returns before it is done
}

void Cuda::set(void* at, int byte, std::size_t bytes) const {
  driver_->set(reinterpret_cast<Driver::Address>(at), static_cast<unsigned char>(byte), bytes);
  driver_->synchronize();
}

void Cuda::synchronize() const { driver_->synchronize(); }

std::size_t Cuda::free_bytes() const {
  std::size_t free = 0, total = 0;
  driver_->memory_info(&free, &total);
  return free;
}

double Cuda::most_mhz() const {
  int handle = 0, khz = 0;
  driver_->device_get(&handle, ordinal_);
  driver_->device_attribute(&khz, kClockRate, handle);
  return khz / 1000.0;
}

double Cuda::microseconds(const std::function<void()>& enqueue) const {
  driver_->event_record(start_, stream());
  enqueue();
  driver_->event_record(stop_, stream());
  driver_->event_synchronize(stop_);
  float milliseconds = 0;
  driver_->event_elapsed(&milliseconds, start_, stop_);
  return 1000.0 * milliseconds;
}

void Cuda::profiled(const std::function<void()>& enqueue) const {
  driver_->synchronize();
  driver_->profiler_start();
  enqueue();
  driver_->synchronize();
  driver_->profiler_stop();
}

Replay::Replay(const Cuda& cuda, int launches, const std::function<void(int)>& launch)
    : cuda_(&cuda), launches_(launches) {
  const Cuda::Driver& driver = cuda.driver();
  driver.capture_begin(cuda.stream(), kCaptureRelaxed);
  try {
    for (int i = 0; i < launches; ++i) launch(i);
  } catch (...) {
    // The stream must leave capture mode whatever happened.
    if (driver.capture_end.call(cuda.stream(), &graph_) == 0 && graph_) driver.graph_destroy.call(graph_);
    throw;
  }
  driver.capture_end(cuda.stream(), &graph_);
  if (const int result = driver.instantiate.call(&exec_, graph_, 0ull)) {
    driver.graph_destroy.call(graph_);
    throw Error(ErrorCode::driver_failed, driver.instantiate.name, fmt::format("CUDA error {}", result), "failed");
  }
  driver.graph_launch(exec_, cuda.stream());  // uploads the graph
  driver.synchronize();
}

Replay::Replay(Replay&& other) noexcept
    : cuda_(other.cuda_),
      graph_(std::exchange(other.graph_, nullptr)),
      exec_(std::exchange(other.exec_, nullptr)),
      launches_(other.launches_) {}

Replay& Replay::operator=(Replay&& other) noexcept {
  std::swap(cuda_, other.cuda_);
  std::swap(graph_, other.graph_);
  std::swap(exec_, other.exec_);
  std::swap(launches_, other.launches_);
  return *this;
}

Replay::~Replay() {
  if (!exec_) return;
  cuda_->driver().exec_destroy.call(exec_);
  cuda_->driver().graph_destroy.call(graph_);
}

double Replay::once() const {
  return cuda_->microseconds([&] { enqueue(); });
}
void Replay::enqueue() const { cuda_->driver().graph_launch(exec_, cuda_->stream()); }

double Replay::time() const {
  enqueue();
  const double us = once();
  std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(2 * kRestShare * us));
  return us / launches_;
}

double Replay::sustained(double seconds) const {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double sum = 0;
  int count = 0;
  for (double at = 0; at < seconds || count == 0; at = std::chrono::duration<double>(Clock::now() - begin).count()) {
    const double us = once();
    if (at >= seconds / 2) sum += us, ++count;
  }
  return sum / count / launches_;
}

double Replay::in_a_row() const {
  constexpr int kReplays = 16;
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i)
    if (const double us = once(); 2 * i >= kReplays) times.push_back(us / launches_);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<Piece> pieces_of(const Task& task) {
  std::vector<Piece> pieces;
  for (const Buffer& b : task.buffers) {
    Piece p;
    p.bytes = b.row_bytes ? b.row_bytes * static_cast<std::size_t>(task.rows) : b.bytes;
    if (!b.output && b.fill) p.fill = [fill = b.fill](std::span<std::byte> bytes) { fill(bytes, 1); };
    p.weights = b.name.starts_with("w."), p.scratch = b.scratch;
    pieces.push_back(std::move(p));
  }
  return pieces;
}

Rotation::Rotation(const Cuda& cuda, const Device& device, std::span<const Piece> pieces, double cold_bytes) {
  std::size_t scratch = 0, weight_bytes = 0;
  for (const Piece& p : pieces) {
    std::size_t& end = p.scratch ? scratch : stride_;
    offsets_.push_back(end);
    scratch_.push_back(p.scratch);
    end += (std::max<std::size_t>(1, p.bytes) + kAlign - 1) / kAlign * kAlign;
    if (p.weights) weight_bytes += p.bytes;
  }
  const double wanted = std::floor(cold_bytes / static_cast<double>(std::max<std::size_t>(1, weight_bytes))) + 2;
  const double room = std::floor((kFreeShare * static_cast<double>(cuda.free_bytes()) - static_cast<double>(scratch)) /
                                 static_cast<double>(stride_));
  if (room < 2) throw Error(ErrorCode::too_large, "buffers", fmt::format("{} bytes", stride_), "must fit twice");
  copies_ = static_cast<int>(std::min({wanted, double(kMostCopies), room}));
  arena_ = Memory(device, stride_ * static_cast<std::size_t>(copies_) + scratch);
  if (scratch) arena_.upload(std::vector<std::byte>(scratch), stride_ * static_cast<std::size_t>(copies_));
  std::vector<std::byte> content(stride_);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].fill) pieces[i].fill(std::span(content).subspan(offsets_[i], pieces[i].bytes));
  arena_.upload(content, 0);
  for (int c = 1; c < copies_; ++c)
    cuda.copy(static_cast<char*>(arena_.data()) + stride_ * static_cast<std::size_t>(c), arena_.data(), stride_);
}

void* Rotation::at(int copy, int piece) const {
  const int place = scratch_[static_cast<std::size_t>(piece)] ? copies_ : copy;
  return static_cast<char*>(arena_.data()) + stride_ * static_cast<std::size_t>(place) +
         offsets_[static_cast<std::size_t>(piece)];
}

std::vector<void*> Rotation::pointers(int copy) const {
  std::vector<void*> p;
  for (std::size_t i = 0; i < offsets_.size(); ++i) p.push_back(at(copy, static_cast<int>(i)));
  return p;
}

void Rotation::download(std::span<std::byte> to, int piece, std::size_t offset) const {
  arena_.download(to, offsets_[static_cast<std::size_t>(piece)] + offset);
}

int Rotation::launches(double microseconds) const {
  const double walk = std::max(0.5, microseconds) * copies_;
  const int most = std::max(1, kMostLaunches / copies_);
  return copies_ * std::clamp(static_cast<int>(std::ceil(kGraphMicroseconds / walk)), 1, most);
}

}  // namespace tilewright::bench
