// SPDX-License-Identifier: Apache-2.0
// A server's inner loop: one layer serves every batch size from 1 to 64, launched by several threads, each on a stream
// of its own. Every answer is compared with those of one launch of all rows.
#include <tilewright/tilewright.h>
#include <cmath>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace tilewright;

namespace {

constexpr int kThreads = 4;
constexpr std::int64_t kMost = 64, kN = 1024, kK = 2048;

std::vector<float> values(std::int64_t count, unsigned seed) {
  std::vector<float> v(static_cast<std::size_t>(count));
  for (float& f : v) {
    seed = seed * 1664525u + 1013904223u;
    f = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return v;
}

Memory upload(const Device& device, Format format, std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(format.total_bytes(rows, cols)));
  format.info().encode(values(rows * cols, seed).data(), rows, cols, {bytes.data(), nullptr, nullptr}, 0);
  Memory memory(device, bytes.size());
  memory.upload(bytes);
  return memory;
}

// What the launches of one stream use.
struct Lane {
  OwnedStream stream;
  Memory y, scratch;
  Lane(const Device& device, const Layer& layer)
      : stream(device),
        y(device, static_cast<std::size_t>(kMost * kN) * sizeof(float)),
        scratch(device, layer.scratch_bytes(kMost)) {}
};

std::vector<float> answer(const Layer& layer, const Lane& lane, const Memory& x, std::int64_t m) {
  GemmArgs args;
  args.x.data = x.data();
  args.y = lane.y.data();
  args.m = m;
  layer.launch(lane.stream.get(), args, lane.scratch.data());  // picks the kernels for m; compiles nothing
  lane.stream.synchronize();
  std::vector<float> out(static_cast<std::size_t>(m * kN));
  lane.y.download(std::as_writable_bytes(std::span(out)));
  return out;
}

void serve(const Device& device, const Layer& layer, const Memory& x, const std::vector<float>& expected, int thread) {
  const Lane lane(device, layer);
  for (std::int64_t m = 1 + thread; m <= kMost; m += kThreads) {
    const auto out = answer(layer, lane, x, m);
    for (std::size_t i = 0; i < out.size(); ++i)
      // Buckets differ in kernel, and so in the order of their sums.
      if (!(std::fabs(out[i] - expected[i]) <= 1e-2f + 1e-4f * std::fabs(expected[i])))
        throw std::runtime_error("m=" + std::to_string(m) + ": y[" + std::to_string(i) +
                                 "] = " + std::to_string(out[i]) + ", expected " + std::to_string(expected[i]));
  }
}

void run() {
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=1024 k=2048 weights=constant");
  const Device device = Device::count() > 0 ? Device::open(0) : Device::open_cpu();
  Engine engine;
  Layer layer(engine, problem, device, {.x_from = Format::parse("f32")});
  const Memory x = upload(device, Format::parse("f32"), kMost, kK, 1);
  const Memory w = upload(device, Format::parse("q4_0"), kN, kK, 2);
  layer.load(nullptr, {w.data(), nullptr, nullptr});
  device.synchronize();
  const auto expected = answer(layer, Lane(device, layer), x, kMost);

  std::mutex mutex;
  std::string wrong;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        try {
          serve(device, layer, x, expected, t);
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          wrong = e.what();
        }
      });
  }
  if (!wrong.empty()) throw std::runtime_error(wrong);
  std::printf("m = 1 to %d from %d threads and streams on %s: all right, %lld compiled\n", int(kMost), kThreads,
              device.name().c_str(), static_cast<long long>(engine.stats().compiled));
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
