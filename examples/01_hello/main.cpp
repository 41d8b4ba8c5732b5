// SPDX-License-Identifier: Apache-2.0
// A quantized matrix product by description: y[m, n] = x[m, k] w[n, k]^T with x in Q8_1 and w in Q4_0, as an inference
// engine should ask for it: constant weights, packed where that is faster, and a workspace.
// Without a GPU this machine's CPU computes.
#include <tilewright/tilewright.h>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace tilewright;

namespace {

// Encodes floats on the host and uploads the bytes.
Memory upload(const Device& device, Format format, std::int64_t rows, std::int64_t cols,
              const std::vector<float>& values) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(format.total_bytes(rows, cols)));
  format.info().encode(values.data(), rows, cols, {bytes.data(), nullptr, nullptr}, 0);
  Memory memory(device, bytes.size());
  memory.upload(bytes);
  return memory;
}

struct Weight {
  Memory data, scales;  // scales: only of packed weights, since Q4_0's blocks hold theirs
};

// Weights as the problem wants them: if it has pack=tiles, reordered on the device, once.
Weight load(Engine& engine, const Device& device, const Gemm& g, Memory stored) {
  if (g.packing == Packing::none) return {std::move(stored), {}};
  Weight tiles{Memory(device, packed_bytes(g, StreamName::data)), Memory(device, packed_bytes(g, StreamName::scales))};
  engine.pack(g, device, nullptr, {stored.data(), nullptr, nullptr}, {tiles.data.data(), tiles.scales.data(), nullptr});
  device.synchronize();
  return tiles;
}

void run() {
  const Problem asked =
      Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336 weights=constant workspace=34603008");
  Engine engine;
  const Device device = Device::count() > 0 ? Device::open(0) : Device::open_cpu();
  const Problem problem = engine.packed(asked, device.arch());
  const Kernel kernel = engine.prepare(problem, device);  // compiled now, or found in the cache

  const Gemm& g = *problem.as<Gemm>();
  const Memory x = upload(device, g.x, g.m, g.k, std::vector<float>(static_cast<std::size_t>(g.m * g.k), 0.5f));
  const Weight w = load(engine, device, g,
                        upload(device, g.w, g.n, g.k, std::vector<float>(static_cast<std::size_t>(g.n * g.k), -0.25f)));
  const Memory y(device, static_cast<std::size_t>(g.m * g.n) * sizeof(float));
  Memory workspace(device, static_cast<std::size_t>(g.workspace));
  workspace.fill(0);  // once: each launch leaves it ready for the next

  GemmArgs args;
  args.x.data = x.data();
  args.w = {w.data.data(), w.scales.data(), nullptr};
  args.y = y.data();
  args.m = g.m;
  args.workspace = workspace.data();
  kernel.launch(nullptr, args);
  device.synchronize();

  std::vector<float> result(static_cast<std::size_t>(g.m * g.n));
  y.download(std::as_writable_bytes(std::span(result)));
  const double expected = 0.5 * -0.25 * static_cast<double>(g.k);  // but for x's rounding to 8 bits
  for (const float y_value : result)
    if (!(std::fabs(y_value - expected) <= 0.01 * std::fabs(expected)))
      throw std::runtime_error("y has " + std::to_string(y_value) + ", expected " + std::to_string(expected));
  std::printf("y = %g everywhere on %s, as expected, by %s\n", result[0], device.name().c_str(),
              kernel.candidate(g.m).text().c_str());
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
