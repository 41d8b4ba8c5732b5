// SPDX-License-Identifier: Apache-2.0
// A quantized matrix product by description: y[m, n] = x[m, k] w[n, k]^T with x in Q8_1 and w in Q4_0.
// Without a GPU it shows what would run, best guess first.
#include <tilewright/tilewright.h>
#include <cstdio>
#include <exception>
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

void run() {
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=2 n=4096 k=14336");
  const Gemm& g = *problem.as<Gemm>();
  Engine engine;
  if (Device::count() == 0) {
    std::printf("No GPU here. On an H100 or H200 these would be tried first:\n");
    const auto plans = engine.plan(problem, arch("sm_90a"));
    for (std::size_t i = 0; i < plans.size() && i < 3; ++i) std::printf("  %s\n", plans[i].candidate.text().c_str());
    return;
  }
  const Device device = Device::open(0);
  const Kernel kernel = engine.prepare(problem, device);  // compiled now, or found in the cache

  const Memory x = upload(device, g.x, g.m, g.k, std::vector<float>(static_cast<std::size_t>(g.m * g.k), 0.5f));
  const Memory w = upload(device, g.w, g.n, g.k, std::vector<float>(static_cast<std::size_t>(g.n * g.k), -0.25f));
  const Memory y(device, static_cast<std::size_t>(g.m * g.n) * sizeof(float));

  GemmArgs args;
  args.x.data = x.data();
  args.w.data = w.data();
  args.y = y.data();
  args.m = g.m;
  kernel.launch(nullptr, args);
  device.synchronize();

  std::vector<float> result(static_cast<std::size_t>(g.m * g.n));
  y.download(std::as_writable_bytes(std::span(result)));
  std::printf("y[0,0] = %g on %s; about %g was expected\n", result[0], device.name().c_str(),
              0.5 * -0.25 * static_cast<double>(g.k));
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
