// SPDX-License-Identifier: Apache-2.0
// A three-dimensional convolution as PyTorch programs have it: float tensors [n, c, depth, height, width] and weights
// [k, c, 3, 3, 3], stride 1, no padding unless asked for, dilation 1, products in bfloat16 (accum=fast), once as it is
// and once with activations as FP4 would keep them. A kernel for Hopper writes x and w to the workspace first, with
// channels last, so the problem has one; of fake quantized activations it writes what each output pixel sees.
// Without a GPU it shows what would run, best guess first.
#include <tilewright/tilewright.h>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

using namespace tilewright;

namespace {

struct Steps {  // of conv3d(x, w, bias), each with the default that it has there
  Axes stride = 1, padding = 0, dilation = 1;
  int fp4_block = 0;  // elements that share a scale: 16 32 64 128 256; 0: activations are not quantized
};

Problem conv3d(std::int64_t n, std::int64_t c, Axes in, std::int64_t k, Axes kernel, const Steps& steps = {}) {
  const Format f32 = Format::parse("f32");
  Conv conv{.x = f32, .w = f32, .y = f32, .n = n, .c = c, .in = in, .k = k, .kernel = kernel};
  conv.stride = steps.stride, conv.pad = steps.padding, conv.dilation = steps.dilation;
  conv.x_layout = conv.y_layout = TensorLayout::ncdhw;
  conv.w_layout = FilterLayout::kctrs;
  conv.bias = f32;
  conv.accumulation = Accumulation::fast;
  conv.quant_act = {steps.fp4_block};
  conv.workspace = steps.fp4_block ? 1 << 30 : 64 << 20;
  return Problem(conv);
}

Memory upload(const Device& device, std::size_t count, float value) {
  const std::vector<float> values(count, value);
  Memory memory(device, count * sizeof(float));
  memory.upload(std::as_bytes(std::span(values)));
  return memory;
}

void run(Engine& engine, const Problem& problem) {
  const Conv& conv = *problem.as<Conv>();
  if (Device::count() == 0) {
    std::printf("No GPU here. On an H100 or H200 these would be tried first:\n");
    const auto plans = engine.plan(problem, arch("sm_90a"));
    for (std::size_t i = 0; i < plans.size() && i < 3; ++i) std::printf("  %s\n", plans[i].candidate.text().c_str());
    return;
  }
  const Device device = Device::open(0);
  const Kernel kernel = engine.prepare(problem, device);  // compiled now, or found in the cache

  const Axes out = output_extents(conv);
  const auto size = [](const Axes& axes) { return static_cast<std::size_t>(axes.at[0] * axes.at[1] * axes.at[2]); };
  const std::size_t outputs = static_cast<std::size_t>(conv.n * conv.k) * size(out);
  const Memory x = upload(device, static_cast<std::size_t>(conv.n * conv.c) * size(conv.in), 0.5f);
  const Memory w = upload(device, static_cast<std::size_t>(conv.k * conv.c) * 27, -0.25f);
  const Memory bias = upload(device, static_cast<std::size_t>(conv.k), 2.0f);
  const Memory amax = upload(device, 1, 0.5f);  // the largest magnitude of x
  const Memory y(device, outputs * sizeof(float));
  Memory workspace(device, static_cast<std::size_t>(conv.workspace));
  workspace.fill(0);  // once: each launch leaves it ready for the next

  ConvArgs args;
  args.x.data = x.data(), args.w.data = w.data(), args.bias = bias.data(), args.y = y.data();
  args.workspace = workspace.data();
  args.amax = static_cast<const float*>(amax.data());  // of use where activations are quantized
  kernel.launch(nullptr, args);
  device.synchronize();

  std::vector<float> result(outputs);
  y.download(std::as_writable_bytes(std::span(result)));
  const double product = 0.5 * -0.25 * static_cast<double>(conv.c);
  std::printf("y[0, 0, 0, 0, 0] = %g on %s; %g was expected, from the 8 taps that are no padding\n", result[0],
              device.name().c_str(), 8 * product + 2);
}

}  // namespace

int main() {
  try {
    Engine engine;
    // A layer of Wan2.2's decoder.
    run(engine, conv3d(1, 128, {21, 60, 106}, 512, 3, {.padding = 1}));
    run(engine, conv3d(1, 128, {21, 60, 106}, 512, 3, {.padding = 1, .fp4_block = 256}));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
