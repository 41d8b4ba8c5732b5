// SPDX-License-Identifier: Apache-2.0
// A server's inner loop: one prepared kernel serves every batch size from 1 to 64, launched by several threads, each on
// a stream and with a workspace of its own. Every answer is compared with those of one launch of all rows.
#include <tilewright/tilewright.h>
#include <cmath>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tilewright;

namespace {

constexpr int kThreads = 4;
constexpr std::int64_t kMost = 64, kN = 1024, kK = 2048;
constexpr std::size_t kWorkspace = 33 << 20;

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

// w as the problem wants it: if it has packed weights, reordered on the device, once.
struct Weight {
  Memory data, scales;
};

Weight load(Engine& engine, const Device& device, const Gemm& g, Memory stored) {
  if (g.packing == Packing::none) return {std::move(stored), {}};
  Weight tiles{Memory(device, packed_bytes(g, StreamName::data)), Memory(device, packed_bytes(g, StreamName::scales))};
  engine.pack(g, device, nullptr, {stored.data(), nullptr, nullptr}, {tiles.data.data(), tiles.scales.data(), nullptr});
  device.synchronize();
  return tiles;
}

// What the launches of one stream use. Launches that run at the same time must not share a workspace.
struct Lane {
  OwnedStream stream;
  Memory y, workspace;
  explicit Lane(const Device& device)
      : stream(device), y(device, static_cast<std::size_t>(kMost * kN) * sizeof(float)), workspace(device, kWorkspace) {
    workspace.fill(0);
  }
};

std::vector<float> answer(const Kernel& kernel, const Lane& lane, const Memory& x, const Weight& w, std::int64_t m) {
  GemmArgs args;
  args.x.data = x.data();
  args.w = {w.data.data(), w.scales.data(), nullptr};
  args.y = lane.y.data();
  args.m = m;
  args.workspace = lane.workspace.data();
  kernel.launch(lane.stream.get(), args);  // picks the kernel for m; compiles and allocates nothing
  lane.stream.synchronize();
  std::vector<float> out(static_cast<std::size_t>(m * kN));
  lane.y.download(std::as_writable_bytes(std::span(out)));
  return out;
}

void serve(const Device& device, const Kernel& kernel, const Memory& x, const Weight& w,
           const std::vector<float>& expected, int thread) {
  const Lane lane(device);
  for (std::int64_t m = 1 + thread; m <= kMost; m += kThreads) {
    const auto out = answer(kernel, lane, x, w, m);
    for (std::size_t i = 0; i < out.size(); ++i)
      // Buckets differ in kernel, and so in the order of their sums.
      if (!(std::fabs(out[i] - expected[i]) <= 1e-2f + 1e-4f * std::fabs(expected[i])))
        throw std::runtime_error("m=" + std::to_string(m) + ": y[" + std::to_string(i) +
                                 "] = " + std::to_string(out[i]) + ", expected " + std::to_string(expected[i]));
  }
}

void run() {
  const Problem asked = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=64 n=1024 k=2048 weights=constant workspace=" +
                                       std::to_string(kWorkspace));
  const Device device = Device::count() > 0 ? Device::open(0) : Device::open_cpu();
  Engine engine;
  const Problem problem = engine.packed(asked, device.arch());
  const Kernel kernel = engine.prepare(problem, device);
  const Gemm& g = *problem.as<Gemm>();
  const Memory x = upload(device, g.x, kMost, kK, 1);
  const Weight w = load(engine, device, g, upload(device, g.w, kN, kK, 2));
  const auto expected = answer(kernel, Lane(device), x, w, kMost);

  std::mutex mutex;
  std::string wrong;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        try {
          serve(device, kernel, x, w, expected, t);
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
