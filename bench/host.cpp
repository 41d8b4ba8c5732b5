// SPDX-License-Identifier: Apache-2.0
// Host costs: a prepare() answered from memory, the bucket choice, a launch against cuLaunchKernelEx alone, and the
// start of a second process, whose kernels are in the store.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <tilewright/memory.h>
#include <tilewright/operation.h>

#include "bench/bench.h"

namespace tilewright::bench {
namespace {

using Clock = std::chrono::steady_clock;
double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// The raw side of the comparison: the same cubin loaded and launched through the driver, with nothing in between.
struct RawLaunch {
  struct Config {  // CUlaunchConfig
    unsigned gx, gy, gz, bx, by, bz, shared;
    void* stream;
    void* attributes;
    unsigned attribute_count;
  };
  int (*load)(void**, const void*) = nullptr;
  int (*get)(void**, void*, const char*) = nullptr;
  int (*set)(void*, int, int) = nullptr;
  int (*launch)(const Config*, void*, void**, void**) = nullptr;
  void* module = nullptr;
  void* function = nullptr;

  explicit RawLaunch(const Binary& binary) {
    void* lib = dlopen("libcuda.so.1", RTLD_NOW);
    const auto symbol = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(lib, name));
    };
    int (*retain)(void**, int) = nullptr;
    int (*make_current)(void*) = nullptr;
    symbol(retain, "cuDevicePrimaryCtxRetain");
    symbol(make_current, "cuCtxSetCurrent");
    void* context = nullptr;
    if (!retain || retain(&context, 0) || make_current(context))
      throw Error(ErrorCode::driver_failed, "cuCtxSetCurrent", "", "failed");
    symbol(load, "cuModuleLoadData");
    symbol(get, "cuModuleGetFunction");
    symbol(set, "cuFuncSetAttribute");
    symbol(launch, "cuLaunchKernelEx");
    if (!load || load(&module, binary.image.data()) || get(&function, module, binary.entry.c_str()))
      throw Error(ErrorCode::driver_failed, "cuModuleLoadData", "", "failed");
    if (binary.plan.shared_bytes > 48 * 1024) set(function, 8, static_cast<int>(binary.plan.shared_bytes));
  }
};

}  // namespace

Json launch_costs(const Device& device) {
  Options options = Options::from_env();
  options.cache = ":memory:";
  Engine engine(options);
  const Problem problem = Problem::parse("gemm x=f16 w=f16 y=f16 m=1 n=64 k=256");
  const Kernel kernel = engine.prepare(problem, device);
  Memory x(device, 256 * 2 * 64), w(device, 64 * 256 * 2), y(device, 64 * 64 * 2);
  x.fill(0), w.fill(0);
  OwnedStream stream(device);
  GemmArgs args;
  args.x.data = x.data(), args.w.data = w.data(), args.y = y.data(), args.m = 1;

  const Source source = engine.emit(problem.with_rows(1), device.arch());
  const Binary binary = compile(source, device.arch(), CompileOptions::of(options));
  RawLaunch raw(binary);
  std::vector<std::byte> constants = problem.operation().contract(problem).constants;
  void* parameters[] = {&args, constants.data()};
  const LaunchPlan& plan = binary.plan;
  // As cuda.h lays it out: an attribute is an id, padding, and 64 bytes of value.
  struct Attribute {
    unsigned id, pad;
    unsigned value[16];
  } cluster{4, 0, {plan.cluster, 1, 1}};
  RawLaunch::Config config{static_cast<unsigned>(plan.x.blocks(1, 64)),
                           static_cast<unsigned>(plan.y.blocks(1, 64)),
                           static_cast<unsigned>(plan.z.blocks(1, 64)),
                           plan.threads,
                           1,
                           1,
                           plan.shared_bytes,
                           stream.get(),
                           plan.cluster > 1 ? &cluster : nullptr,
                           plan.cluster > 1 ? 1u : 0u};

  // Interleaved batches, each short enough not to fill the launch queue; the median over batches.
  constexpr int kBatch = 200, kBatches = 400;
  std::vector<double> ours, theirs;
  for (int b = 0; b < kBatches; ++b) {
    auto start = Clock::now();
    for (int i = 0; i < kBatch; ++i) kernel.launch(stream.get(), args);
    ours.push_back(ns_since(start) / kBatch);
    stream.synchronize();
    start = Clock::now();
    for (int i = 0; i < kBatch; ++i)
      if (raw.launch(&config, raw.function, parameters, nullptr))
        throw Error(ErrorCode::driver_failed, "cuLaunchKernelEx", "", "failed");
    theirs.push_back(ns_since(start) / kBatch);
    stream.synchronize();
  }
  std::vector<double> hits, buckets;
  for (int b = 0; b < 50; ++b) {
    auto start = Clock::now();
    for (int i = 0; i < 10000; ++i) (void)engine.prepare(problem, device);
    hits.push_back(ns_since(start) / 10000);
    start = Clock::now();
    volatile std::uint32_t sink = 0;
    for (int i = 0; i < 10000; ++i) sink = kernel.plan(i & 4095).threads;
    (void)sink;
    buckets.push_back(ns_since(start) / 10000);
  }
  const double launch = median(ours), reference = median(theirs);
  Table table({"host cost", "measured", "must reach", ""});
  const auto mark = [](bool ok) { return std::string(ok ? "pass" : "short"); };
  table.row(
      {"prepare() hit in memory", fmt::format("{:.0f} ns", median(hits)), "<= 200 ns", mark(median(hits) <= 200)});
  table.row({"bucket choice", fmt::format("{:.1f} ns", median(buckets)), "<= 50 ns", mark(median(buckets) <= 50)});
  table.row({"launch() / cuLaunchKernelEx",
             fmt::format("{:.0f} / {:.0f} ns = {:.3f}", launch, reference, launch / reference), "<= 1.05",
             mark(launch <= 1.05 * reference)});
  fmt::print("{}", table.text());
  return {{"prepare_hit_ns", median(hits)},
          {"bucket_ns", median(buckets)},
          {"launch_ns", launch},
          {"raw_launch_ns", reference},
          {"launch_ratio", launch / reference}};
}

int startup_child(const Settings& settings, bool one) {
  Options options = Options::from_env();
  const Device device = Device::open(0, options.driver);  // the context is not ours to count
  device.synchronize();
  const auto start = Clock::now();
  options.cache = settings.cache;
  Engine engine(options);
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=4096 k=14336");
  const Kernel kernel =
      one ? engine.prepare(engine.task(problem, device.arch()), device) : engine.prepare(problem, device);
  const double ms = ns_since(start) * 1e-6;
  fmt::print("{} {} {}\n", ms, engine.stats().compiled, engine.stats().cache_hits);
  return 0;
}

namespace {

struct Start {
  double ms = 0;
  long compiled = 0, hits = 0;
};
Start start_child(const Settings& settings, const char* step, const std::string& dir) {
  Start s;
  FILE* child = popen(fmt::format("'{}' --child {} --cache '{}/cache.db'", settings.self, step, dir).c_str(), "r");
  if (!child || std::fscanf(child, "%lf %ld %ld", &s.ms, &s.compiled, &s.hits) != 3)
    throw Error(ErrorCode::io, "child", settings.self, "must report");
  pclose(child);
  return s;
}

}  // namespace

Json startup(const Settings& settings, const Device&) {
  const std::string dir =
      fmt::format("{}/tilewright-startup-{}", std::filesystem::temp_directory_path().string(), getpid());
  std::filesystem::create_directory(dir);
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all);
  Json out;
  for (const auto& [step, what] :
       {std::pair{"startup-one", "one kernel"}, std::pair{"startup", "all 13 row buckets"}}) {
    const Start first = start_child(settings, step, dir);
    std::vector<double> later;
    Start last;
    for (int i = 0; i < 15; ++i) later.push_back((last = start_child(settings, step, dir)).ms);
    fmt::print(
        "{}: first process {:.1f} ms; second {:.2f} ms (min {:.2f}) beyond context creation, {} compiles, {} binaries "
        "from the store; must be <= 5 ms: {}\n",
        what, first.ms, median(later), *std::min_element(later.begin(), later.end()), last.compiled, last.hits,
        median(later) <= 5 && last.compiled == 0 ? "pass" : "short");
    out[step] = {
        {"first_ms", first.ms}, {"second_ms", median(later)}, {"compiled", last.compiled}, {"binaries", last.hits}};
  }
  std::filesystem::remove_all(dir);
  return out;
}

}  // namespace tilewright::bench
