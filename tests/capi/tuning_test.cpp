// SPDX-License-Identifier: Apache-2.0
// Tuning a kernel of the caller's own, described by callbacks, on the driver's double: y = 2 x over rows of floats.
#include <atomic>
#include <cstdio>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

constexpr int64_t kRows = 4, kCols = 16;
constexpr size_t kRowBytes = kCols * sizeof(float);

struct Args {  // the kernel's parameter
  const float* x;
  float* y;
  int64_t n;
};

struct Doubler {
  std::atomic<int> sources{0}, progress{0};
  int wrong_variant = -1;  // whose results are off
  bool fail_source = false, fail_fill = false, fail_arguments = false;
  bool cancel = false;

  const char* candidates[3] = {"double v=0", "double v=1", "double v=2"};
  tw_task_buffer buffers[2] = {{sizeof(tw_task_buffer), 0, 0, "x", kRowBytes* kRows, kRowBytes},
                               {sizeof(tw_task_buffer), 1, 0, "y", kRowBytes* kRows, kRowBytes}};

  static int32_t source(void* user, const char* candidate, const char** text, const char** entry,
                        tw_launch_plan* plan) {
    auto& self = *static_cast<Doubler*>(user);
    ++self.sources;
    if (self.fail_source) return 7;
    static thread_local std::string name, written;
    name = std::string("double_") + (candidate + std::strlen(candidate) - 1);
    written = "struct A { const float* x; float* y; long long n; };\nextern \"C\" __global__ void " + name +
              "(const A a) { long long i = blockIdx.x * 32ll + threadIdx.x; if (i < a.n) a.y[i] = 2 * a.x[i]; }\n";
    *text = written.c_str();
    *entry = name.c_str();
    plan->x = {1, 1, 32};
    plan->threads = 32;
    return 0;
  }
  static int32_t fill(void* user, int32_t buffer, void* bytes, size_t size, uint64_t seed) {
    CHECK(buffer == 0);
    if (static_cast<Doubler*>(user)->fail_fill) return 1;
    for (size_t i = 0; i < size / 4; ++i) static_cast<float*>(bytes)[i] = static_cast<float>((i * 7 + seed * 13) % 101);
    return 0;
  }
  static int32_t arguments(void* user, void* const* pointers, int64_t rows, void* params, size_t capacity) {
    if (static_cast<Doubler*>(user)->fail_arguments) return -1;
    CHECK(capacity >= sizeof(Args));
    const Args args = {static_cast<const float*>(pointers[0]), static_cast<float*>(pointers[1]), rows * kCols};
    std::memcpy(params, &args, sizeof args);
    return sizeof args;
  }
  static const char* compare(void*, const void* const* outputs, const void* const* inputs, int64_t rows) {
    static thread_local char wrong[80];
    for (int64_t i = 0; i < rows * kCols; ++i) {
      const float x = static_cast<const float*>(inputs[0])[i], y = static_cast<const float*>(outputs[0])[i];
      if (y == 2 * x) continue;
      std::snprintf(wrong, sizeof wrong, "y[%d] = %g, expected %g", static_cast<int>(i), y, 2 * x);
      return wrong;
    }
    return nullptr;
  }
  // The tuner launches a kernel of its own besides, which reads the clock.
  static bool ours(const FakeLaunch* launch) { return std::strncmp(launch->entry, "double_", 7) == 0; }
  static void launched(const FakeLaunch* launch, void* user) {
    if (!ours(launch)) return;
    const auto& args = *static_cast<const Args*>(launch->params[0]);
    const bool wrong =
        static_cast<Doubler*>(user)->wrong_variant == launch->entry[std::strlen(launch->entry) - 1] - '0';
    for (int64_t i = 0; i < args.n; ++i) args.y[i] = 2 * args.x[i] + (wrong ? 1.0f : 0.0f);
  }
  static double duration(const FakeLaunch* launch, void*) {
    const char variant = launch->entry[std::strlen(launch->entry) - 1];
    return ours(launch) && variant == '1' ? 5 : 10;  // the second is the fastest
  }

  tw_task_spec spec() {
    tw_task_spec s = TW_TASK_SPEC_INIT;
    s.key = "double cols=16";
    s.rows = kRows, s.cols = kCols, s.verify_rows = 3;
    s.candidates = candidates, s.candidate_count = 3;
    s.buffers = buffers, s.buffer_count = 2;
    s.min_bytes = 2.0 * kRowBytes * kRows;
    s.source = source, s.fill = fill, s.arguments = arguments, s.compare = compare;
    s.user = this;
    return s;
  }
  TaskHandle task() {
    const tw_task_spec s = spec();
    tw_task* made = nullptr;
    succeed([&](tw_error** e) { return tw_task_create(&s, &made, e); });
    return TaskHandle(made);
  }
  tw_tune_policy policy() {
    tw_tune_policy p = TW_TUNE_POLICY_INIT;
    p.cold_bytes = 1e4;
    p.jobs = 1;
    p.user = this;
    p.progress = [](void* user, const char*, int32_t, int32_t) { ++static_cast<Doubler*>(user)->progress; };
    p.cancelled = [](void* user) -> int32_t { return static_cast<Doubler*>(user)->cancel; };
    return p;
  }
};

struct Gpu {
  DeviceHandle device = fake_device();
  explicit Gpu(Doubler& d) {
    fake_cuda_set_launch_handler(&Doubler::launched, &d);
    fake_cuda_set_duration(&Doubler::duration, nullptr);
  }
  ~Gpu() { fake_cuda_reset(); }
};

ReportHandle tune(const EngineHandle& en, const TaskHandle& task, const Gpu& gpu, const tw_tune_policy& policy) {
  tw_tune_report* report = nullptr;
  succeed([&](tw_error** e) { return tw_tune_task(en.get(), task.get(), gpu.device.get(), &policy, &report, e); });
  return ReportHandle(report);
}

tw_tune_summary summary_of(const ReportHandle& report) {
  tw_tune_summary s = TW_TUNE_SUMMARY_INIT;
  succeed([&](tw_error** e) { return tw_tune_report_summary(report.get(), &s, e); });
  return s;
}

TEST_CASE("a task is tuned: the fastest right candidate is chosen, remembered and launched") {
  Doubler d;
  d.wrong_variant = 2;
  const Gpu gpu(d);
  const EngineHandle en = engine();
  const TaskHandle task = d.task();
  const ReportHandle report = tune(en, task, gpu, d.policy());
  const tw_tune_summary s = summary_of(report);
  CHECK(std::string(s.candidate) == "double v=1");
  CHECK(std::string(s.first) == "double v=0");
  CHECK(s.outcomes == 3);
  CHECK(s.ranges == 0);
  CHECK(s.measured == 2);
  CHECK(s.microseconds == Approx(5).margin(0.5));
  CHECK(d.progress > 0);
  bool wrong = false;
  for (int32_t i = 0; i < s.outcomes; ++i) {
    tw_outcome o = TW_OUTCOME_INIT;
    succeed([&](tw_error** e) { return tw_tune_report_outcome(report.get(), i, &o, e); });
    if (std::string(o.candidate) != "double v=2") continue;
    wrong = std::string(o.kind) == "wrong" && std::string(o.detail).find("expected") != std::string::npos;
  }
  CHECK(wrong);
  tw_outcome o = TW_OUTCOME_INIT;
  CHECK(failure([&](tw_error** e) { return tw_tune_report_outcome(report.get(), 3, &o, e); }).field == "index");
  tw_row_range range = TW_ROW_RANGE_INIT;
  CHECK(failure([&](tw_error** e) { return tw_tune_report_range(report.get(), 0, &range, e); }).field == "index");

  tw_kernel* made = nullptr;
  succeed([&](tw_error** e) { return tw_prepare_task(en.get(), task.get(), gpu.device.get(), &made, e); });
  const KernelHandle kernel(made);
  const MemoryHandle x = memory(gpu.device, kRowBytes), y = memory(gpu.device, kRowBytes);
  const std::vector<float> values(kCols, 21.0f);
  std::vector<float> got(kCols);
  succeed([&](tw_error** e) { return tw_memory_upload(x.get(), 0, values.data(), kRowBytes, e); });
  const Args args = {static_cast<const float*>(tw_memory_data(x.get())), static_cast<float*>(tw_memory_data(y.get())),
                     kCols};
  CHECK(launch_failure(tw_launch_buffers(kernel.get(), nullptr, nullptr, 0, 1, nullptr, 0)).field == "kernel");
  REQUIRE(tw_launch(kernel.get(), nullptr, &args, sizeof args, 1, kCols) == TW_OK);
  succeed([&](tw_error** e) { return tw_memory_download(y.get(), 0, got.data(), kRowBytes, e); });
  CHECK(got == std::vector<float>(kCols, 42.0f));
}

TEST_CASE("a search that is cancelled says so") {
  Doubler d;
  d.cancel = true;
  const Gpu gpu(d);
  CHECK(std::string(summary_of(tune(engine(), d.task(), gpu, d.policy())).stopped) == "cancelled");
}

TEST_CASE("a callback that fails is an error and no crash") {
  Doubler d;
  const Gpu gpu(d);
  const TaskHandle task = d.task();
  const tw_tune_policy policy = d.policy();
  tw_tune_report* report = nullptr;
  d.fail_fill = true;
  CHECK(failure([&](tw_error** e) {
          return tw_tune_task(engine().get(), task.get(), gpu.device.get(), &policy, &report, e);
        }).message.find("task.fill") != std::string::npos);
  d.fail_fill = false, d.fail_arguments = true;
  CHECK(failure([&](tw_error** e) {
          return tw_tune_task(engine().get(), task.get(), gpu.device.get(), &policy, &report, e);
        }).message.find("task.arguments") != std::string::npos);
  d.fail_arguments = false, d.fail_source = true;
  CHECK(failure([&](tw_error** e) {
          return tw_tune_task(engine().get(), task.get(), gpu.device.get(), &policy, &report, e);
        }).message.find("task.source") != std::string::npos);
}

TEST_CASE("a task that lacks something is refused when it is made") {
  Doubler d;
  tw_task* made = nullptr;
  const auto refused = [&](auto change) {
    tw_task_spec s = d.spec();
    change(s);
    return failure([&](tw_error** e) { return tw_task_create(&s, &made, e); }).field;
  };
  CHECK(refused([](tw_task_spec& s) { s.key = nullptr; }) == "task.key");
  CHECK(refused([](tw_task_spec& s) { s.rows = 0; }) == "task.rows");
  CHECK(refused([](tw_task_spec& s) { s.cols = -1; }) == "task.cols");
  CHECK(refused([](tw_task_spec& s) { s.verify_rows = 0; }) == "task.verify_rows");
  CHECK(refused([](tw_task_spec& s) { s.candidate_count = 0; }) == "task.candidates");
  CHECK(refused([](tw_task_spec& s) { s.candidates = nullptr; }) == "task.candidates");
  CHECK(refused([](tw_task_spec& s) { s.buffers = nullptr; }) == "task.buffers");
  CHECK(refused([](tw_task_spec& s) { s.source = nullptr; }) == "task.source");
  CHECK(refused([](tw_task_spec& s) { s.fill = nullptr; }) == "task.fill");
  CHECK(refused([](tw_task_spec& s) { s.arguments = nullptr; }) == "task.arguments");
  CHECK(refused([](tw_task_spec& s) { s.compare = nullptr; }) == "task.compare");
  CHECK(refused([&](tw_task_spec&) { d.candidates[1] = "double v="; }) == "candidate");
  d.candidates[1] = "double v=1";
  CHECK(refused([&](tw_task_spec&) { d.buffers[1].output = 3; }) == "buffers.output");
  CHECK(made == nullptr);
}

TEST_CASE("a policy out of range is refused before anything runs") {
  Doubler d;
  const Gpu gpu(d);
  const EngineHandle en = engine();
  const TaskHandle task = d.task();
  tw_tune_report* report = nullptr;
  const auto refused = [&](auto change) {
    tw_tune_policy p = d.policy();
    change(p);
    return failure([&](tw_error** e) { return tw_tune_task(en.get(), task.get(), gpu.device.get(), &p, &report, e); })
        .field;
  };
  CHECK(refused([](tw_tune_policy& p) { p.max_candidates = 0; }) == "max_candidates");
  CHECK(refused([](tw_tune_policy& p) { p.budget_seconds = -1; }) == "budget_seconds");
  CHECK(refused([](tw_tune_policy& p) { p.patience = -1; }) == "patience");
  CHECK(refused([](tw_tune_policy& p) { p.exhaustive = 2; }) == "exhaustive");
  CHECK(refused([](tw_tune_policy& p) { p.cold_bytes = -1; }) == "cold_bytes");
  CHECK(refused([](tw_tune_policy& p) { p.jobs = -1; }) == "jobs");
  CHECK(refused([](tw_tune_policy& p) { p.struct_size -= 8; }) == "policy.struct_size");
  CHECK(d.sources == 0);
}

TEST_CASE("a task is prewarmed, and a source compiled by itself") {
  Doubler d;
  const Scratch scratch;
  const EngineHandle en = engine(scratch.file("cache.db"));
  const TaskHandle task = d.task();
  const char* archs[] = {"sm_80", "sm_90a"};
  tw_prewarm_report* report = nullptr;
  succeed([&](tw_error** e) { return tw_prewarm_task(en.get(), task.get(), archs, 2, nullptr, &report, e); });
  tw_prewarm_summary s = TW_PREWARM_SUMMARY_INIT;
  succeed([&](tw_error** e) { return tw_prewarm_report_summary(report, &s, e); });
  CHECK(s.failed == 0);
  CHECK(s.compiled >= 2);
  tw_prewarm_report_release(report);

  void* image = nullptr;
  size_t bytes = 0;
  char* log = nullptr;
  tw_kernel_info info = TW_KERNEL_INFO_INIT;
  const char* text = "extern \"C\" __global__ void k(float* p) { p[threadIdx.x] += 1; }";
  succeed(
      [&](tw_error** e) { return tw_compile(en.get(), "mine", text, "k", "sm_80", &image, &bytes, &info, &log, e); });
  CHECK(bytes > 100);
  CHECK(info.registers > 0);
  tw_free(image);
  tw_free(log);
  tw_error* error = nullptr;
  REQUIRE(tw_compile(en.get(), "mine", "extern \"C\" __global__ void k() { none; }", "k", "sm_80", &image, &bytes,
                     &info, &log, &error) == TW_COMPILE_FAILED);
  CHECK(std::string(tw_error_log(error)).find("none") != std::string::npos);
  CHECK(std::string(tw_error_source(error)).find("__global__") != std::string::npos);
  tw_error_release(error);
}

TEST_CASE("a problem is tuned: with no right candidate the report does not exist") {
  Doubler d;
  const DeviceHandle device = fake_device();  // launches do nothing, so no result is right
  const ProblemHandle p = problem("gemm x=f32 w=f32 y=f32 m=1 n=64 k=64");
  tw_tune_policy policy = d.policy();
  policy.max_candidates = 1;
  tw_tune_report* report = nullptr;
  CHECK(failure([&](tw_error** e) {
          return tw_tune(engine().get(), p.get(), device.get(), &policy, &report, e);
        }).status == TW_UNSUPPORTED);
  CHECK(report == nullptr);
}

}  // namespace
}  // namespace tilewright::test
