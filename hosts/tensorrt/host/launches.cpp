// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/host/launches.h"

#include <tilewright/error.h>
#include <tilewright/memory.h>
#include <tilewright/operation.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>

namespace tilewright::tensorrt::host {
namespace {

constexpr int kReplays = 3;

// The driver's functions for graphs. Programs that use TensorRT have a context, as this thread has from now on.
class Graphs {
 public:
  explicit Graphs(const std::string& driver) {
    void* const library = dlopen(driver.empty() ? "libcuda.so.1" : driver.c_str(), RTLD_NOW);
    if (!library) throw Failure("the driver cannot be opened: " + std::string(dlerror()));
    int (*retain)(void**, int) = nullptr;
    int (*push)(void*) = nullptr;
    load(library, "cuDevicePrimaryCtxRetain", retain);
    load(library, "cuCtxPushCurrent_v2", push);
    void* context = nullptr;
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(push(context), "cuCtxPushCurrent");
    load(library, "cuStreamBeginCapture_v2", begin_);
    load(library, "cuStreamEndCapture", end_);
    load(library, "cuGraphInstantiateWithFlags", instantiate_);
    load(library, "cuGraphLaunch", launch_);
    load(library, "cuGraphExecDestroy", destroy_exec_);
    load(library, "cuGraphDestroy", destroy_);
  }
  template <class Action>
  void capture_and_replay(Stream stream, int replays, const Action& action) const {
    void *graph = nullptr, *exec = nullptr;
    check(begin_(stream, 1), "cuStreamBeginCapture");  // 1: of this thread
    try {
      action();
    } catch (...) {
      end_(stream, &graph);
      throw;
    }
    check(end_(stream, &graph), "cuStreamEndCapture");
    check(instantiate_(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    for (int i = 0; i < replays; ++i) check(launch_(exec, stream), "cuGraphLaunch");
    check(destroy_exec_(exec), "cuGraphExecDestroy");
    check(destroy_(graph), "cuGraphDestroy");
  }

 private:
  template <class Function>
  static void load(void* library, const char* name, Function& to) {
    to = reinterpret_cast<Function>(dlsym(library, name));
    if (!to) throw Failure(std::string("the driver lacks ") + name);
  }
  static void check(int status, const char* name) {
    if (status != 0) throw Failure(std::string(name) + " failed with " + std::to_string(status));
  }
  int (*begin_)(void*, int) = nullptr;
  int (*end_)(void*, void**) = nullptr;
  int (*instantiate_)(void**, void*, unsigned long long) = nullptr;
  int (*launch_)(void*, void*) = nullptr;
  int (*destroy_exec_)(void*) = nullptr;
  int (*destroy_)(void*) = nullptr;
};

// An execution context: the attached plugin, its stream and its memory.
struct Attached {
  Attached(const Device& device, const Case& of, nvinfer1::IPluginV3& engine, std::size_t workspace_bytes)
      : stream(device), workspace(device, std::max<std::size_t>(workspace_bytes, 16)) {
    workspace.fill(0xa5);  // what it contains must not matter
    plugin = PluginHandle(
        static_cast<nvinfer1::IPluginV3OneRuntime*>(
            engine.getCapabilityInterface(nvinfer1::PluginCapabilityType::kRUNTIME))
            ->attachToContext(&context));
    output = Memory(device, static_cast<std::size_t>(host::elements(with(of.output, of.most))) * 4);
  }
  Context context;
  OwnedStream stream;
  Memory workspace, output;
  PluginHandle plugin{nullptr};
};

// Device memory of a case's inputs. Weights are uploaded once, as constants of an engine.
class Inputs {
 public:
  Inputs(const Device& device, const Case& of, Filled& weights) : of_(of) {
    for (const Input& input : of.inputs) {
      const bool varies = std::find(input.shape.begin(), input.shape.end(), -1) != input.shape.end();
      const std::vector<std::byte> bytes = weights.bytes(input);
      const auto most = static_cast<std::size_t>(of.most);
      memory_.emplace_back(device, varies ? bytes.size() * most : bytes.size());
      if (!varies) memory_.back().upload(bytes);
      varies_.push_back(varies);
      pointers_.push_back(memory_.back().data());
    }
  }
  void upload(Filled& data) {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (varies_[i]) memory_[i].upload(data.bytes(of_.inputs[i]));
  }
  const void* const* pointers() const { return pointers_.data(); }

 private:
  const Case& of_;
  std::vector<Memory> memory_;
  std::vector<bool> varies_;
  std::vector<const void*> pointers_;
};

class Runner {
 public:
  Runner(const Library& library, Logger& logger, const Case& of, Engine& engine, const Place& place)
      : logger_(logger),
        of_(of),
        place_(place),
        device_(Device::open(0, place.driver)),
        graphs_(place.driver),
        engine_(deserialized(library, logger, of, engine)),
        weights_(filled(of.problem(of.rows_per), 1)),
        inputs_(device_, of, weights_) {
    for (auto& context : contexts_) {
      context = std::make_unique<Attached>(device_, of, *engine_, engine.workspace);
      if (!context->plugin) throw Failure("the plugin cannot be attached: " + logger.take_errors());
    }
  }

  Launches run(std::int64_t count) {
    std::mt19937 random(2026);
    std::uniform_int_distribution<std::int64_t> varies(1, of_.most);
    Launches total;
    for (std::int64_t i = 0; i < count; ++i) {
      // Small numbers are most frequent in use, and have most kernels.
      const std::int64_t v = i % 4 == 0 ? std::min<std::int64_t>(1 + i / 4 % 16, of_.most) : varies(random);
      step(v, static_cast<std::uint64_t>(i), *contexts_[static_cast<std::size_t>(i) % contexts_.size()], total);
    }
    return total;
  }

 private:
  void enqueue(Attached& context, const std::vector<nvinfer1::PluginTensorDesc>& shapes, void* output) {
    void* const outputs[] = {output};
    if (context.plugin.runtime().enqueue(shapes.data(), &shapes.back(), inputs_.pointers(), outputs,
                                         context.workspace.data(), static_cast<cudaStream_t>(context.stream.get())) != 0)
      throw Failure("enqueue failed: " + logger_.take_errors());
  }

  void step(std::int64_t v, std::uint64_t seed, Attached& context, Launches& total) {
    const Problem problem = of_.problem(v * of_.rows_per);
    Filled data = filled(problem, seed);
    inputs_.upload(data);
    const std::vector<nvinfer1::PluginTensorDesc> shapes = descriptions(of_, v);
    const auto inputs = static_cast<std::int32_t>(of_.inputs.size());
    if (context.plugin.runtime().onShapeChange(shapes.data(), inputs, &shapes.back(), 1) != 0)
      throw Failure("onShapeChange failed: " + logger_.take_errors());

    std::vector<std::byte>& y = data.of("y");
    context.output.fill(0xff);
    enqueue(context, shapes, context.output.data());
    context.stream.synchronize();
    context.output.download(y);
    ++total.launched;
    compare(problem, data, v, total);

    context.output.fill(0xff);
    graphs_.capture_and_replay(context.stream.get(), kReplays,
                               [&] { enqueue(context, shapes, context.output.data()); });
    context.stream.synchronize();
    std::vector<std::byte> again(y.size());
    context.output.download(again);
    ++total.launched, total.replayed += kReplays;
    if (!place_.is_double && again != y)
      throw Failure("a graph of " + std::to_string(v) + " rows has another result than the launch");
  }

  void compare(const Problem& problem, Filled& data, std::int64_t v, Launches& total) {
    if (place_.is_double) return;
    std::vector<std::span<std::byte>> spans(data.buffers.begin(), data.buffers.end());
    const HostCheck check = problem.operation().check_on_host(problem, data.task, spans);
    if (!check.wrong.empty())
      throw Failure("wrong with " + std::to_string(v) + " of what varies: " + check.wrong);
    if (check.of_bound) total.worst = std::max(total.worst, *check.of_bound);
    ++total.compared;
  }

  Logger& logger_;
  const Case& of_;
  const Place place_;
  const Device device_;
  const Graphs graphs_;
  PluginHandle engine_;
  Filled weights_;
  Inputs inputs_;
  std::array<std::unique_ptr<Attached>, 2> contexts_;
};

}  // namespace

Launches run(const Library& library, Logger& logger, const Case& of, Engine& engine, const Place& place,
             std::int64_t count) {
  try {
    return Runner(library, logger, of, engine, place).run(count);
  } catch (const Error& e) {
    throw Failure(e.what());
  }
}

}  // namespace tilewright::tensorrt::host
