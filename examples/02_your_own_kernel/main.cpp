// SPDX-License-Identifier: Apache-2.0
// A kernel of your own, with knobs of your own, through the same compiler, tuner and cache: out = a * x + y over rows
// of floats. A Task says which candidates exist, how each is written out, what it reads and writes, and what is right.
// Without a GPU it compiles every candidate and prints what each would use.
#include <tilewright/tilewright.h>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

using namespace tilewright;

namespace {

constexpr std::int64_t kRows = 4096, kCols = 4096;

struct SaxpyArgs {  // the kernel's only parameter; the same layout on both sides
  const float* x;
  const float* y;
  float* out;
  float a;
  int pad;
  long long rows, cols;
};

constexpr const char* kText = R"(
struct Args { const float* x; const float* y; float* out; float a; int pad; long long rows, cols; };
extern "C" __global__ void __launch_bounds__(THREADS) saxpy(const Args args) {
  const long long row = blockIdx.y;
  for (int i = 0; i < ITEMS; ++i) {
    const long long col = (blockIdx.x * (long long)ITEMS + i) * THREADS + threadIdx.x;
    if (col < args.cols) {
      const long long at = row * args.cols + col;
      args.out[at] = args.a * args.x[at] + args.y[at];
    }
  }
}
)";

Source write_out(const Candidate& c) {
  const auto threads = static_cast<std::uint32_t>(c.at("threads")), items = static_cast<std::uint32_t>(c.at("items"));
  Source s;
  s.name = "example/saxpy";
  s.text = "#define THREADS " + std::to_string(threads) + "\n#define ITEMS " + std::to_string(items) + "\n" + kText;
  s.entry = "saxpy";
  s.plan.threads = threads;
  s.plan.x.per_cols = threads * items;  // blocks along x: cols / (threads * items), rounded up
  s.plan.y.per_rows = 1;                // one block row per row
  return s;
}

std::vector<Candidate> candidates() {
  std::vector<Candidate> all;
  for (std::int64_t threads : {256, 128, 512})
    for (std::int64_t items : {4, 1, 2, 8}) all.push_back({"saxpy", {{"threads", threads}, {"items", items}}});
  return all;
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    const float value = static_cast<float>(seed >> 40) * 0x1p-23f - 1;
    std::memcpy(&bytes[i], &value, 4);
  }
}

// Judged on the host: the inputs come along.
std::string compare(std::span<const std::byte> got, std::span<const std::byte>,
                    std::span<const std::vector<std::byte>> inputs, std::int64_t rows) {
  const auto at = [](std::span<const std::byte> bytes, std::int64_t i) {
    float value;
    std::memcpy(&value, &bytes[static_cast<std::size_t>(i) * 4], 4);
    return value;
  };
  for (std::int64_t i = 0; i < rows * kCols; ++i) {
    const float expected = 2.0f * at(inputs[0], i) + at(inputs[1], i);
    if (!(std::fabs(at(got, i) - expected) <= 1e-5f))
      return "out[" + std::to_string(i) + "] = " + std::to_string(at(got, i)) + ", expected " +
             std::to_string(expected);
  }
  return {};
}

Task make_task() {
  constexpr std::size_t kRowBytes = kCols * sizeof(float);
  Task t;
  t.key = "example saxpy cols=" + std::to_string(kCols);
  t.rows = kRows;
  t.cols = kCols;
  t.candidates = candidates();
  t.source = write_out;
  t.buffers = {{"x", kRowBytes * kRows, false, kRowBytes, fill},
               {"y", kRowBytes * kRows, false, kRowBytes, fill},
               {"out", kRowBytes * kRows, true, kRowBytes, {}}};
  t.arguments = [](std::span<void* const> p, std::int64_t rows) {
    const SaxpyArgs args{static_cast<const float*>(p[0]),
                         static_cast<const float*>(p[1]),
                         static_cast<float*>(p[2]),
                         2.0f,
                         0,
                         rows,
                         kCols};
    std::vector<std::byte> bytes(sizeof args);
    std::memcpy(bytes.data(), &args, sizeof args);
    return bytes;
  };
  t.verify_rows = 5;
  t.compare = compare;
  t.min_bytes = 3.0 * kRows * kRowBytes;
  return t;
}

void run() {
  const Task task = make_task();
  if (Device::count() == 0) {
    const CompileOptions options = CompileOptions::of(Options::from_env());  // compile() itself reads no environment
    std::printf("No GPU here; compiling for sm_90a with NVRTC %s:\n", compiler_version(options).c_str());
    for (const Candidate& c : task.candidates) {
      const Binary b = compile(task.source(c), arch("sm_90a"), options);
      std::printf("  %-28s %3d registers, %zu bytes, %.3f s\n", c.text().c_str(), b.resources.registers, b.image.size(),
                  b.seconds);
    }
    return;
  }
  const Device device = Device::open(0);
  Engine engine;
  const TuneReport report = engine.tune(task, device);
  for (const Outcome& o : report.outcomes)
    std::printf("  %-28s %-12s %8.2f us %s\n", o.candidate.text().c_str(), to_string(o.kind), o.microseconds,
                o.detail.c_str());
  std::printf("choice: %s, %.2f TB/s\n", report.choice.candidate.text().c_str(),
              task.min_bytes / report.choice.microseconds / 1e6);

  const Kernel kernel = engine.prepare(task, device);  // the stored choice, in any later process too
  std::vector<Memory> memory;
  std::vector<void*> pointers;
  for (const Buffer& b : task.buffers) {
    memory.emplace_back(device, b.bytes);
    memory.back().fill(0);
    pointers.push_back(memory.back().data());
  }
  kernel.launch(nullptr, task.arguments(pointers, kRows), kRows, kCols);
  device.synchronize();
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
