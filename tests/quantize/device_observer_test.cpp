// SPDX-License-Identifier: Apache-2.0
// The observer's kernel, its text run on the CPU, against Observer, to the bit.
#include <tilewright/device_observer.h>
#include <tilewright/error.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "formats/bf16.cuh"
#include "formats/f16.cuh"
#include "formats/f32.cuh"
#include "operations/observe/cuda/kernel.cuh"
#include "quantize/calibration/device_observer.h"
#include "support/catch.h"

using namespace tilewright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// A DeviceObserver whose device is the emulator.
class Emulated {
 public:
  Emulated(const std::string& format, const ObserverOptions& options, std::int64_t most_blocks)
      : steps_(options),
        channels_(steps_.initial()),
        counts_(static_cast<std::size_t>(steps_.counters())),
        most_blocks_(most_blocks) {
    namespace o = tw::observe;
    run_ = format == "f32"   ? o::Observe<tw::fmt::f32>::run
           : format == "f16" ? o::Observe<tw::fmt::f16>::run
                             : o::Observe<tw::fmt::bf16>::run;
    ObserveState state = steps_.state();
    state.state = channels_.data(), state.counts = counts_.data(), state.infinite = &infinite_;
    std::memcpy(&state_, &state, sizeof state);
    launch_ = [this](const ObserveArgs& args, std::int64_t blocks) {
      tw::observe::Args same;
      std::memcpy(&same, &args, sizeof args);
      tw::emu::run(
          {{static_cast<unsigned>(blocks), 1, 1}, tw::observe::kThreads, 1, tw::observe::kSharedBytes, ++seed_},
          [&] { run_(same, state_); });
    };
  }
  void observe(const void* x, std::int64_t elements, std::int64_t first = 0, std::int64_t inner = 1) {
    steps_.observe(x, elements, first, inner, most_blocks_, launch_);
  }
  void end_batch() { steps_.end_batch(launch_); }
  Observer observed() const { return steps_.observed(channels_, counts_, infinite_); }

 private:
  DeviceObservation steps_;
  std::vector<ObserveChannel> channels_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t infinite_ = 0, seed_ = 0;
  std::int64_t most_blocks_;
  tw::observe::Shape state_;
  void (*run_)(const tw::observe::Args&, const tw::observe::Shape&);
  DeviceObservation::Launch launch_;
};

std::vector<std::byte> encoded(const std::string& format, const std::vector<float>& values) {
  const Format f = Format::parse(format);
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(f.stream_bytes(0, 1, count)));
  f.info().encode(values.data(), 1, count, {bytes.data(), nullptr, nullptr}, 0);
  return bytes;
}

// Batches of other magnitudes each, so that bins are joined; the first is of one sign.
void check_same(const std::string& format, const ObserverOptions& options, std::int64_t inner, std::int64_t blocks) {
  CAPTURE(format, options.channels, options.bins, inner, blocks);
  std::mt19937 random(static_cast<unsigned>(options.channels * 31 + options.bins + inner));
  std::normal_distribution<float> normal;
  Emulated device(format, options, blocks);
  Observer host(options);
  CHECK(device.observed() == host);
  std::int64_t first = 0;
  for (const float size : {1e-30f, 0.5f, 1e-3f, 40.0f, 900.0f}) {
    std::vector<float> values(700 + random() % 400);
    for (float& v : values) v = size * (size < 1e-20f ? std::fabs(normal(random)) : normal(random));
    for (const float special : {kNan, -0.0f, 0.0f, 1e-41f, -kNan}) values[random() % values.size()] = special;
    const std::vector<std::byte> bytes = encoded(format, values);
    const auto count = static_cast<std::int64_t>(values.size());
    device.observe(bytes.data(), count, first, inner);
    host.observe(Format::parse(format), bytes, first, inner);
    CHECK(device.observed() == host);
    first += count;
    if (size == 0.5f) continue;  // two tensors in a batch
    device.end_batch(), host.end_batch();
    CHECK(device.observed() == host);
  }
  CHECK(device.observed().json() == host.json());
}

std::string refusal(const auto& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("a device observes what an Observer does, to the bit", "[quantize][observe]") {
  for (const char* format : {"f32", "f16", "bf16"}) {
    for (const int bins : {0, 256, 2048, 8192}) check_same(format, {.bins = bins}, 1, 3);
    for (const std::int64_t inner : {1, 7, 400, 100000})
      check_same(format, {.channels = 5, .bins = 512, .momentum = 0.5}, inner, 2);
  }
  check_same("bf16", {.channels = 300, .bins = 256}, 2, 5);
}

TEST_CASE("a device's observer holds a NaN, a zero, the extremes", "[quantize][observe]") {
  const float least = std::numeric_limits<float>::denorm_min(), most = std::numeric_limits<float>::max();
  for (const std::vector<float>& values :
       {std::vector<float>{kNan}, {-0.0f}, {least}, {-least}, {most, least}, {-most, -least, 0}, {-1, kNan}}) {
    Emulated device("f32", {.bins = 256}, 4);
    Observer host({.bins = 256});
    for (std::size_t i = 0; i < values.size(); ++i) {  // one by one, so that bins are joined over the whole range
      device.observe(&values[i], 1, static_cast<std::int64_t>(i));
      host.observe(std::span(&values[i], 1), static_cast<std::int64_t>(i));
    }
    CHECK(device.observed() == host);
    Observer twice = host;
    twice.merge(device.observed());
    CHECK(twice.channels()[0].count == 2 * host.channels()[0].count);
  }
}

TEST_CASE("a device's observer names infinities and bad arguments", "[quantize][observe]") {
  Emulated device("f32", {}, 4);
  std::vector<float> values(5000, 1.0f);
  values[4321] = kInf, values[1234] = -kInf;
  device.observe(values.data(), 5000, 10);
  CHECK(refusal([&] { device.observed(); }) == "element 1244 must be finite or NaN (got -inf)");
  CHECK(refusal([&] { device.observe(nullptr, 1); }).find("x must have") != std::string::npos);
  CHECK(refusal([&] { device.observe(values.data(), -1); }).find("elements must be") != std::string::npos);
  CHECK(refusal([&] { device.observe(values.data(), 1, -1); }).find("first must be") != std::string::npos);
  CHECK(refusal([&] { device.observe(values.data(), 1, 0, 0); }).find("inner must be") != std::string::npos);
  CHECK(refusal([] { Emulated("f32", {.bins = 7}, 1); }).find("bins must be") != std::string::npos);
  CHECK(refusal([] { observe_task(Format::parse("int8")); }).find("int8") != std::string::npos);
}
