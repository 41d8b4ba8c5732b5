// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/host/launches.h"

#include <tilewright/error.h>
#include <tilewright/memory.h>
#include <tilewright/operation.h>

#include <dlfcn.h>

#include <algorithm>
#include <optional>
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

// An execution context: the attached plugin, its stream, its memory, and the launch that it makes next.
class Attached {
 public:
  Attached(const Device& device, const Case& of, const PluginHandle& engine, std::size_t workspace,
           std::int32_t tactics, Filled& weights, Logger& logger)
      : of_(of),
        logger_(logger),
        tactics_(tactics),
        stream_(device),
        inputs_(device, of, weights),
        workspace_(device, std::max<std::size_t>(workspace, 16)),
        output_(device, static_cast<std::size_t>(elements(with(of.output, of.most))) * sizeof(float)),
        plugin_(engine.runtime().attachToContext(&context_)) {
    workspace_.fill(0xa5);  // what it contains must not matter
    if (!plugin_) throw Failure("the plugin cannot be attached: " + logger.take_errors());
  }

  void prepare(std::int64_t varies, std::uint64_t seed) {
    varies_ = varies;
    const std::int32_t tactic =
        tactics_ ? static_cast<std::int32_t>(seed / 2 % static_cast<std::uint64_t>(tactics_)) + 1 : 0;
    if (plugin_.runtime().setTactic(tactic) != 0) throw Failure("setTactic failed: " + logger_.take_errors());
    problem_ = of_.problem(varies * of_.rows_per);
    data_ = filled(*problem_, seed);
    inputs_.upload(*data_);
    shapes_ = descriptions(of_, varies);
    const auto count = static_cast<std::int32_t>(of_.inputs.size());
    if (plugin_.runtime().onShapeChange(shapes_.data(), count, &shapes_.back(), 1) != 0)
      throw Failure("onShapeChange failed: " + logger_.take_errors());
    output_.fill(0xff);
  }
  void enqueue() {
    void* const outputs[] = {output_.data()};
    if (plugin_.runtime().enqueue(shapes_.data(), &shapes_.back(), inputs_.pointers(), outputs, workspace_.data(),
                                  static_cast<cudaStream_t>(stream_.get())) != 0)
      throw Failure("enqueue failed: " + logger_.take_errors());
  }
  void capture(const Graphs& graphs, Launches& total) {
    graphs.capture_and_replay(stream_.get(), kReplays, [&] { enqueue(); });
    ++total.launched, total.replayed += kReplays;
  }
  // Waits for the launch. What a launch wrote, every other one must write.
  void finish(bool compare, Launches& total) {
    stream_.synchronize();
    if (!compare) return;
    std::vector<std::byte>& y = data_->of("y");
    const std::vector<std::byte> before = y;
    output_.download(y);
    if (checked_ && before != y)
      throw Failure("a graph and a launch of " + std::to_string(varies_) + " have different results");
    if (!std::exchange(checked_, true)) check(total);
    output_.fill(0xff);
  }
  void next() { checked_ = false; }

 private:
  void check(Launches& total) {
    std::vector<std::span<std::byte>> spans(data_->buffers.begin(), data_->buffers.end());
    const HostCheck check = problem_->operation().check_on_host(*problem_, data_->task, spans);
    if (!check.wrong.empty()) throw Failure("a launch of " + std::to_string(varies_) + " is wrong: " + check.wrong);
    if (check.of_bound) total.worst = std::max(total.worst, *check.of_bound);
    ++total.compared;
  }

  const Case& of_;
  Logger& logger_;
  const std::int32_t tactics_;
  Context context_;
  OwnedStream stream_;
  Inputs inputs_;
  Memory workspace_, output_;
  PluginHandle plugin_;
  std::int64_t varies_ = 0;
  std::optional<Problem> problem_;
  std::optional<Filled> data_;
  std::vector<nvinfer1::PluginTensorDesc> shapes_;
  bool checked_ = false;
};

// Two execution contexts, whose launches and graphs are on the device at the same time.
class Runner {
 public:
  Runner(const Library& library, Logger& logger, const Case& of, Engine& engine, const Place& place)
      : of_(of),
        compare_(!place.is_double),
        device_(Device::open(0, place.driver)),
        graphs_(place.driver),
        engine_(deserialized(library, logger, of, engine)),
        weights_(filled(of.problem(of.rows_per), 1)),
        tactics_(of.times_tactics ? engine.tactics : 0),
        one_(device_, of, engine_, engine.workspace, tactics_, weights_, logger),
        other_(device_, of, engine_, engine.workspace, tactics_, weights_, logger) {}

  Launches run(std::int64_t count) {
    std::mt19937 random(2026);
    std::uniform_int_distribution<std::int64_t> varies(1, of_.most);
    Launches total;
    total.tactics = tactics_;
    for (std::int64_t i = 0; i < count; ++i) {
      // Small numbers are most frequent in use, and have most kernels.
      const std::int64_t few = std::min<std::int64_t>(1 + i / 4 % 16, of_.most);
      step(i % 4 == 0 ? few : varies(random), varies(random), static_cast<std::uint64_t>(2 * i), total);
    }
    return total;
  }

 private:
  void step(std::int64_t a, std::int64_t b, std::uint64_t seed, Launches& total) {
    one_.prepare(a, seed);
    other_.prepare(b, seed + 1);
    for (const bool graph_first : {false, true}) {  // the second context captures before it ever launched
      for (Attached* context : {&one_, &other_}) {
        if (graph_first == (context == &one_)) {
          context->capture(graphs_, total);
        } else {
          context->enqueue();
          ++total.launched;
        }
      }
      one_.finish(compare_, total);
      other_.finish(compare_, total);
    }
    one_.next();
    other_.next();
  }

  const Case& of_;
  const bool compare_;
  const Device device_;
  const Graphs graphs_;
  const PluginHandle engine_;
  Filled weights_;
  const std::int32_t tactics_;
  Attached one_, other_;
};

}  // namespace

Launches run(const Library& library, Logger& logger, const Case& of, Engine& engine, const Place& place,
             std::int64_t count) {
  try {
    Launches total = Runner(library, logger, of, engine, place).run(count);
    if (!place.is_double) return total;
    // The double notes what a driver would punish by a crash or not at all.
    void* const driver = dlopen(place.driver.c_str(), RTLD_NOW);
    const auto violations = reinterpret_cast<std::size_t (*)()>(dlsym(driver, "fake_cuda_violation_count"));
    const auto violation = reinterpret_cast<const char* (*)(std::size_t)>(dlsym(driver, "fake_cuda_violation"));
    if (!violations || !violation) throw Failure(place.driver + " is not the double");
    if (violations() > 0) throw Failure("the driver was used wrongly: " + std::string(violation(0)));
    return total;
  } catch (const Error& e) {
    throw Failure(e.what());
  }
}

}  // namespace tilewright::tensorrt::host
