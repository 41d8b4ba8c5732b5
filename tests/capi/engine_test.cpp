// SPDX-License-Identifier: Apache-2.0
// Engine, device and launches on the driver's double, whose launches compute what the test says.
#include <cmath>
#include <filesystem>
#include <string>

#include "capi/capi_test.h"

namespace tilewright::test {
namespace {

// The first member of every argument struct of a gemm: x {data, scales, global}, w {...}, y.
struct Seen {
  int launches = 0;
  const void* x = nullptr;
  const void* w = nullptr;
  const void* scales = nullptr;
  const void* y = nullptr;
  void* stream = nullptr;
};
void note(const FakeLaunch* launch, void* user) {
  auto& seen = *static_cast<Seen*>(user);
  const auto* pointers = static_cast<const void* const*>(launch->params[0]);
  const std::size_t count = launch->param_bytes[0] / sizeof(void*);  // a gemm's; other operations have fewer
  const auto pointer = [&](std::size_t i) { return i < count ? pointers[i] : nullptr; };
  ++seen.launches;
  seen.x = pointer(0);
  seen.w = pointer(3);
  seen.scales = pointer(4);
  seen.y = pointer(6);
  seen.stream = launch->stream;
}

struct Gpu {
  DeviceHandle device = fake_device();
  Seen seen;
  Gpu() { fake_cuda_set_launch_handler(&note, &seen); }
  ~Gpu() { fake_cuda_set_launch_handler(nullptr, nullptr); }
};

KernelHandle prepare(const EngineHandle& engine, const ProblemHandle& p, const DeviceHandle& device) {
  tw_kernel* made = nullptr;
  succeed([&](tw_error** e) { return tw_prepare(engine.get(), p.get(), device.get(), nullptr, &made, e); });
  return KernelHandle(made);
}

struct Loop {
  int calls = 0;
  int64_t blocks = 0;
};
// Backwards, so that nothing may depend on the sequence.
void backwards(void* user, int64_t count, tw_block block, void* context) {
  auto& loop = *static_cast<Loop*>(user);
  ++loop.calls, loop.blocks += count;
  for (int64_t i = count; i-- > 0;) block(context, i);
}

TEST_CASE("the CPU is a device, on its own threads or on the caller's") {
  tw_device* opened = nullptr;
  for (const int32_t threads : {-1, 1025})
    CHECK(failure([&](tw_error** e) { return tw_device_open_cpu(threads, nullptr, nullptr, &opened, e); }).field ==
          "threads");
  CHECK(failure([&](tw_error** e) { return tw_device_open_cpu(1, nullptr, nullptr, nullptr, e); }).field == "device");
  Loop loop;
  succeed([&](tw_error** e) { return tw_device_open_cpu(3, nullptr, nullptr, &opened, e); });
  const DeviceHandle own(opened);
  succeed([&](tw_error** e) { return tw_device_open_cpu(3, &backwards, &loop, &opened, e); });
  const DeviceHandle theirs(opened);
  tw_device_info info = TW_DEVICE_INFO_INIT;
  succeed([&](tw_error** e) { return tw_device_describe(own.get(), &info, e); });
  CHECK(info.ordinal == -1);
  CHECK(info.sms == 3);
  CHECK(info.memory_bytes > 0);

  // The first of the targets that it runs has no features, so it is below this one's wherever there are kernels.
  const Failure unknown =
      failure([&](tw_error** e) { return tw_device_open_cpu_target("x86-64-v9", 1, nullptr, nullptr, &opened, e); });
  CHECK(unknown.field == "target");
  const std::string all = "must be one of those that this machine's CPU runs: ";
  REQUIRE(unknown.allowed.starts_with(all));
  const std::string first = unknown.allowed.substr(all.size(), unknown.allowed.find(',') - all.size());
  tw_device_info lower = TW_DEVICE_INFO_INIT;
  succeed([&](tw_error** e) { return tw_device_open_cpu_target(first.c_str(), 2, nullptr, nullptr, &opened, e); });
  const DeviceHandle plainest(opened);
  succeed([&](tw_error** e) { return tw_device_describe(plainest.get(), &lower, e); });
  CHECK(lower.arch == first);
  CHECK(lower.sms == 2);

  // What there is for any CPU: the reference, or kernels.
  const int64_t m = 3, n = 128, k = 64;
  const ProblemHandle plain = problem("gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=1 n=128 k=64");
  const EngineHandle engine = test::engine();
  tw_problem* found = nullptr;
  succeed([&](tw_error** e) { return tw_packed(engine.get(), plain.get(), info.arch, &found, e); });
  const ProblemHandle packed(found);
  std::vector<float> values(static_cast<std::size_t>(n * k)), x(static_cast<std::size_t>(m * k));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i));
  std::vector<std::byte> w(static_cast<std::size_t>(n * k / 32 * 18)), panels = w;
  succeed([&](tw_error** e) {
    return tw_encode("q4_0", nullptr, values.data(), n, k, {w.data(), nullptr, nullptr}, e);
  });
  if (std::string(tw_problem_text(packed.get())).find("pack=panels") != std::string::npos)
    succeed([&](tw_error** e) {
      return tw_pack(engine.get(), packed.get(), own.get(), nullptr, {w.data(), nullptr, nullptr},
                     {panels.data(), nullptr, nullptr}, e);
    });
  std::vector<float> y(static_cast<std::size_t>(m * n), NAN), again = y;
  const KernelHandle by_own = prepare(engine, packed, own), by_theirs = prepare(engine, packed, theirs);
  REQUIRE(tw_launch_gemm(by_own.get(), nullptr, x.data(), panels.data(), nullptr, y.data(), m) == TW_OK);
  REQUIRE(tw_launch_gemm(by_theirs.get(), nullptr, x.data(), panels.data(), nullptr, again.data(), m) == TW_OK);
  CHECK(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) == 0);
  CHECK(loop.calls > 0);
  CHECK(loop.blocks > 1);
  std::vector<float> decoded(values.size());
  succeed([&](tw_error** e) { return tw_decode("q4_0", {w.data(), nullptr, nullptr}, n, k, decoded.data(), e); });
  for (int64_t row = 0; row < m; ++row)
    for (int64_t col = 0; col < n; ++col) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[static_cast<std::size_t>(row * k + i)]) *
               static_cast<double>(decoded[static_cast<std::size_t>(col * k + i)]);
      CHECK(std::abs(y[static_cast<std::size_t>(row * n + col)] - sum) < 0.1);  // of x in q8_1
    }
  int on_gpu = 0;
  CHECK(launch_failure(tw_launch_gemm(by_own.get(), &on_gpu, x.data(), panels.data(), nullptr, y.data(), m)).field ==
        "stream");
}

TEST_CASE("a device is described, its memory is copied and bounded") {
  const Gpu gpu;
  CHECK(tw_device_count(paths::fake_cuda().c_str()) == 2);
  CHECK(tw_device_count("/no/such/driver") == 0);
  tw_device_info info = TW_DEVICE_INFO_INIT;
  succeed([&](tw_error** e) { return tw_device_describe(gpu.device.get(), &info, e); });
  CHECK(std::string(info.arch) == "sm_90a");
  CHECK(info.sms == 132);
  CHECK(info.ordinal == 0);
  tw_device* none = nullptr;
  CHECK(failure([&](tw_error** e) { return tw_device_open(9, paths::fake_cuda().c_str(), &none, e); }).status ==
        TW_INVALID_ARGUMENT);
  CHECK(failure([&](tw_error** e) { return tw_device_open(0, "/no/such/driver", &none, e); }).status ==
        TW_LIBRARY_MISSING);

  const MemoryHandle m = memory(gpu.device, 64);
  CHECK(tw_memory_size(m.get()) == 64);
  const char text[] = "as it was written";
  char back[sizeof text] = {};
  succeed([&](tw_error** e) { return tw_memory_fill(m.get(), 7, e); });
  succeed([&](tw_error** e) { return tw_memory_upload(m.get(), 16, text, sizeof text, e); });
  succeed([&](tw_error** e) { return tw_memory_download(m.get(), 16, back, sizeof back, e); });
  CHECK(std::string(back) == text);
  CHECK(static_cast<const char*>(tw_memory_data(m.get()))[0] == 7);
  for (const auto& [offset, bytes] :
       {std::pair<size_t, size_t>{65, 0}, {60, 5}, {0, 65}, {~size_t{0}, 2}, {2, ~size_t{0}}}) {
    CHECK(failure([&, o = offset, b = bytes](tw_error** e) {
            return tw_memory_upload(m.get(), o, text, b, e);
          }).field == "bytes");
    CHECK(failure([&, o = offset, b = bytes](tw_error** e) {
            return tw_memory_download(m.get(), o, back, b, e);
          }).field == "bytes");
  }
  CHECK(failure([&](tw_error** e) { return tw_memory_upload(m.get(), 0, nullptr, 1, e); }).field == "from");

  tw_owned_stream* stream = nullptr;
  succeed([&](tw_error** e) { return tw_stream_create(gpu.device.get(), &stream, e); });
  CHECK(tw_stream_handle(stream) != nullptr);
  succeed([&](tw_error** e) { return tw_stream_synchronize(stream, e); });
  tw_stream_release(stream);
  succeed([&](tw_error** e) { return tw_device_synchronize(gpu.device.get(), e); });
  CHECK(fake_cuda_violation_count() == 0);
}

// A launch by buffers, which a test fills in by name.
struct Launch {
  Launch(const EngineHandle& engine, const Gpu& gpu, const char* text)
      : problem(test::problem(text)), kernel(prepare(engine, problem, gpu.device)) {
    buffers.resize(static_cast<std::size_t>(tw_problem_buffer_count(problem.get())));
    values.resize(static_cast<std::size_t>(tw_problem_value_count(problem.get())));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_info(i).by_default;
    rows = tw_problem_rows(problem.get());
  }
  tw_buffer_info buffer_info(std::size_t i) const {
    tw_buffer_info info = TW_BUFFER_INFO_INIT;
    succeed([&](tw_error** e) { return tw_problem_buffer(problem.get(), static_cast<std::int32_t>(i), &info, e); });
    return info;
  }
  tw_value_info value_info(std::size_t i) const {
    tw_value_info info = TW_VALUE_INFO_INIT;
    succeed([&](tw_error** e) { return tw_problem_value(problem.get(), static_cast<std::int32_t>(i), &info, e); });
    return info;
  }
  std::string names() const {
    std::string all;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      all += std::string(buffer_info(i).name) + (buffer_info(i).optional ? "? " : " ");
    for (std::size_t i = 0; i < values.size(); ++i) all += std::string("+") + value_info(i).name + " ";
    return all;
  }
  void*& operator[](std::string_view name) {
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (name == buffer_info(i).name) return buffers[i];
    FAIL("no buffer " << name << " among " << names());
    return buffers.front();
  }
  tw_value& value(std::string_view name) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (name == value_info(i).name) return values[i];
    FAIL("no value " << name << " among " << names());
    return values.front();
  }
  tw_status operator()() const {
    return tw_launch_buffers(kernel.get(), nullptr, buffers.data(), buffers.size(), rows, values.data(), values.size());
  }
  std::string refused() const {
    const auto failure = launch_failure((*this)());
    CHECK(failure.status == TW_INVALID_ARGUMENT);
    return failure.field;
  }

  ProblemHandle problem;
  KernelHandle kernel;
  std::vector<void*> buffers;
  std::vector<tw_value> values;
  std::int64_t rows;
};

TEST_CASE("a convolution is launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), w = memory(gpu.device, 8192), y = memory(gpu.device, 4096);
  Launch launch(en, gpu, "conv x=f16 w=f16 y=f16 n=1 c=8 in=4x9x9 k=8 kernel=3 cache=2 residual=f16");
  CHECK(launch.names() == "x.data w.data residual.data cache.data y.data +alpha +beta ");
  launch["x.data"] = tw_memory_data(x.get());
  launch["w.data"] = tw_memory_data(w.get());
  launch["y.data"] = tw_memory_data(y.get());
  CHECK(launch.refused() == "residual");
  launch["residual.data"] = tw_memory_data(y.get());
  CHECK(launch.refused() == "cache");
  launch["cache.data"] = tw_memory_data(x.get());
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  launch.rows = 3;
  CHECK(launch.refused() == "rows");
  tw_gemm_args gemm = TW_GEMM_ARGS_INIT;
  CHECK(launch_failure(tw_launch_gemm_args(launch.kernel.get(), nullptr, &gemm)).status == TW_INVALID_ARGUMENT);
}

TEST_CASE("a convolution of fake quantized input takes amax") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), w = memory(gpu.device, 8192), y = memory(gpu.device, 4096);
  Launch launch(en, gpu, "conv x=f16 w=f16 y=f16 n=1 c=16 in=9x9 k=8 kernel=3 quant_act=e2m1/16 order=trsc");
  launch["x.data"] = tw_memory_data(x.get());
  launch["w.data"] = tw_memory_data(w.get());
  launch["y.data"] = tw_memory_data(y.get());
  CHECK(launch.refused() == "amax");
  launch["amax.data"] = tw_memory_data(x.get());
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
}

TEST_CASE("a transpose is launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), y = memory(gpu.device, 4096);
  Launch launch(en, gpu, "transpose x=int8 rows=32 cols=128");
  CHECK(launch.names() == "x.data y.data ");
  launch["x.data"] = tw_memory_data(x.get());
  gpu.seen.launches = 0;
  CHECK(launch.refused() == "y");
  launch["y.data"] = tw_memory_data(y.get());
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  CHECK(gpu.seen.x == launch["x.data"]);
  launch["x.data"] = static_cast<char*>(tw_memory_data(x.get())) + 8;
  CHECK(launch.refused() == "x");
  CHECK(gpu.seen.launches == 1);
}

TEST_CASE("an amax is launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), amax = memory(gpu.device, 4), workspace = memory(gpu.device, 8);
  Launch launch(en, gpu, "amax x=f16 rows=2 cols=64");
  CHECK(launch.names() == "x.data amax.data workspace ");
  launch["x.data"] = tw_memory_data(x.get());
  gpu.seen.launches = 0;
  CHECK(launch.refused() == "amax");
  launch["amax.data"] = tw_memory_data(amax.get());
  CHECK(launch.refused() == "workspace");
  launch["workspace"] = tw_memory_data(workspace.get());
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  CHECK(gpu.seen.x == launch["x.data"]);
  launch["workspace"] = static_cast<char*>(tw_memory_data(workspace.get())) + 4;
  CHECK(launch.refused() == "workspace");
  launch["workspace"] = tw_memory_data(workspace.get());
  launch.rows = 0;
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  launch.rows = -1;
  CHECK(launch.refused() == "rows");
}

TEST_CASE("a cast is launched with its seed") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), y = memory(gpu.device, 4096), scales = memory(gpu.device, 64);
  Launch launch(en, gpu, "cast x=f16 y=e4m3_row rows=2 cols=64 rounding=stochastic");
  CHECK(launch.names() == "x.data y.data y.scales +seed ");
  CHECK((launch.value_info(0).is_integer == 1 && launch.value_info(0).by_default.integer == 0));
  launch["x.data"] = tw_memory_data(x.get());
  launch["y.data"] = tw_memory_data(y.get());
  launch["y.scales"] = tw_memory_data(scales.get());
  launch.value("seed").integer = -2;  // 64 bits, whatever their sign
  gpu.seen.launches = 0;
  static struct {  // CastArgs
    const void *x[3], *y[3];
    std::int64_t rows;
    std::uint64_t seed;
  } seen;
  fake_cuda_set_launch_handler([](const FakeLaunch* l, void*) { std::memcpy(&seen, l->params[0], sizeof seen); },
                               nullptr);
  REQUIRE(launch() == TW_OK);
  CHECK(seen.seed == static_cast<std::uint64_t>(-2));
  CHECK((seen.rows == 2 && seen.x[0] == launch["x.data"] && seen.y[1] == launch["y.scales"]));
  CHECK((seen.x[1] == nullptr && seen.y[2] == nullptr));
  REQUIRE(tw_launch_buffers(launch.kernel.get(), nullptr, launch.buffers.data(), 3, 1, nullptr, 0) == TW_OK);
  CHECK((seen.seed == 0 && seen.rows == 1));
}

TEST_CASE("a fused cast is launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), y = memory(gpu.device, 4096), scales = memory(gpu.device, 64);
  Launch launch(en, gpu, "fused_cast x=f16 y=e4m3_row rows=2 cols=64 bias=f32 residual=add norm=rms weight=f16");
  void* const memory = tw_memory_data(x.get());
  launch["x.data"] = memory;
  launch["y.data"] = tw_memory_data(y.get());
  launch["y.scales"] = tw_memory_data(scales.get());
  gpu.seen.launches = 0;
  CHECK(launch.refused() == "bias");
  launch["bias.data"] = memory;
  CHECK(launch.refused() == "weight");
  launch["weight.data"] = memory;
  CHECK(launch.refused() == "residual");
  launch["residual.data"] = memory;
  CHECK(launch.refused() == "residual_out");
  launch["residual_out.data"] = memory;
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  CHECK(gpu.seen.x == memory);
  launch["x.data"] = static_cast<char*>(memory) + 8;
  CHECK(launch.refused() == "x");
}

TEST_CASE("a fake_quant is launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), words = memory(gpu.device, 64), work = memory(gpu.device, 32776);
  float* const scale = static_cast<float*>(tw_memory_data(words.get()));
  CHECK(Launch(en, gpu, "fake_quant x=f16 rows=2 cols=64").names() == "x.data y.data scale zero_point? ");
  Launch launch(en, gpu, "fake_quant x=f16 rows=2 cols=64 grad=learned");
  CHECK(launch.names() == "x.data dy.data y.data scale zero_point? dscale workspace +factor ");
  CHECK((launch.value_info(0).is_integer == 0 && launch.value_info(0).by_default.number == 1));
  launch["x.data"] = launch["y.data"] = tw_memory_data(x.get());
  gpu.seen.launches = 0;
  CHECK(launch.refused() == "dy");
  launch["dy.data"] = tw_memory_data(x.get());
  CHECK(launch.refused() == "scale");
  launch["scale"] = scale;
  CHECK(launch.refused() == "dscale");
  launch["dscale"] = scale + 4;
  CHECK(launch.refused() == "workspace");
  launch["workspace"] = tw_memory_data(work.get());
  launch.value("factor").number = 1e60;  // no float
  CHECK(launch.refused() == "factor");
  launch.value("factor").number = 0.5;
  REQUIRE(launch() == TW_OK);  // without zero points
  CHECK(gpu.seen.launches == 1);
}

TEST_CASE("loss scaling is launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), words = memory(gpu.device, 64);
  float* const word = static_cast<float*>(tw_memory_data(words.get()));
  const tw_unscale_tensor tensors[] = {{tw_memory_data(x.get()), 20}, {nullptr, 0}};
  tw_unscale_piece pieces[3] = {};
  std::size_t count = 0;
  tw_error* error = nullptr;
  REQUIRE(tw_unscale_pieces("f16", tensors, 2, 8, nullptr, &count, &error) == TW_OK);
  REQUIRE(count == 3);
  REQUIRE(tw_unscale_pieces("f16", tensors, 2, 8, pieces, &count, &error) == TW_OK);
  CHECK((pieces[2].elements == 4 && pieces[2].at == reinterpret_cast<std::int64_t>(tensors[0].data) + 32));
  const auto failed = [&](tw_status status) {
    CHECK(status == TW_INVALID_ARGUMENT);
    const std::string field = tw_error_field(error);
    tw_error_release(error);
    return field;
  };
  count = 2;
  CHECK(failed(tw_unscale_pieces("f16", tensors, 2, 8, pieces, &count, &error)) == "piece_count");
  CHECK(failed(tw_unscale_pieces("f16", nullptr, 0, 8, pieces, &count, &error)) == "tensors");
  CHECK(failed(tw_unscale_pieces("f16", nullptr, 1, 8, pieces, &count, &error)) == "tensors");
  CHECK(failed(tw_unscale_pieces("f16", tensors, 2, 8, pieces, nullptr, &error)) == "piece_count");
  CHECK(failed(tw_unscale_pieces(nullptr, tensors, 2, 8, pieces, &count, &error)) == "format");

  Launch launch(en, gpu, "unscale x=f16 pieces=3 elements=8");
  CHECK(launch.names() == "x.data? y.data? table scale.data found_inf.data found_before? workspace ");
  gpu.seen.launches = 0;
  CHECK(launch.refused() == "table");
  launch["table"] = tw_memory_data(x.get());
  CHECK(launch.refused() == "scale");
  launch["scale.data"] = word;
  CHECK(launch.refused() == "found_inf");
  launch["found_inf.data"] = word + 1;
  CHECK(launch.refused() == "workspace");
  launch["workspace"] = word + 3;
  CHECK(launch.refused() == "workspace");
  launch["workspace"] = word + 4;
  REQUIRE(launch() == TW_OK);
  launch.rows = 0;
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);

  Launch update(en, gpu, "update_scale interval=7");
  update["scale"] = update["new_scale"] = word;
  update["found_inf"] = word + 1;
  CHECK(update.refused() == "good_steps");
  update["good_steps"] = update["new_good_steps"] = word + 2;
  REQUIRE(update() == TW_OK);
  CHECK(gpu.seen.launches == 2);
}

TEST_CASE("fake quantizations are launched") {
  Gpu gpu;
  const EngineHandle en = engine();
  const MemoryHandle x = memory(gpu.device, 4096), amax = memory(gpu.device, 4);
  Launch launch(en, gpu, "fp4_fake_quant x=f16 y=f16 rows=2 cols=64 block=32");
  launch["x.data"] = launch["y.data"] = tw_memory_data(x.get());
  gpu.seen.launches = 0;
  CHECK(launch.refused() == "amax");
  launch["amax.data"] = tw_memory_data(amax.get());
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  CHECK(gpu.seen.x == launch["x.data"]);
  launch["y.data"] = static_cast<char*>(tw_memory_data(x.get())) + 8;
  CHECK(launch.refused() == "y");
  CHECK(gpu.seen.launches == 1);
}

TEST_CASE("a launch by buffers takes as many as there are") {
  Gpu gpu;
  const EngineHandle en = engine();
  Launch launch(en, gpu, "gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=128 bias=f32 c=f16");
  CHECK(launch.names() == "x.data w.data bias.data c.data y.data +ldx +ldy +ldc +alpha +beta ");
  const MemoryHandle x = memory(gpu.device, 1 << 16);
  for (void*& buffer : launch.buffers) buffer = tw_memory_data(x.get());
  launch["y.data"] = static_cast<char*>(tw_memory_data(x.get())) + 32768;
  gpu.seen.launches = 0;
  REQUIRE(launch() == TW_OK);
  CHECK(gpu.seen.launches == 1);
  launch.value("ldx").integer = 8;
  CHECK(launch.refused() == "ldx");
  launch.value("ldx").integer = 0;

  tw_buffer_info w = launch.buffer_info(1), y = launch.buffer_info(4);
  CHECK((std::string(w.format) == "q4_0" && std::string(w.stride).empty() && w.cols == 128 && w.line_bytes == 72));
  CHECK((std::string(y.stride) == "ldy" && y.align == 16 && y.row_bytes == 128 && y.launch_bytes == 0));
  tw_rows_info rows = TW_ROWS_INFO_INIT;
  succeed([&](tw_error** e) { return tw_problem_rows_info(launch.problem.get(), &rows, e); });
  CHECK((rows.fixed == 0 && rows.rows_per == 1 && std::string(rows.name) == "m"));

  const auto by = [&](std::size_t buffers, std::size_t values) {
    return launch_failure(tw_launch_buffers(launch.kernel.get(), nullptr, launch.buffers.data(), buffers, 2,
                                            launch.values.data(), values));
  };
  CHECK(by(4, 0).message == "buffers must be 5 (got 4): x.data, w.data, bias, c, y");
  CHECK(by(5, 2).message == "values must be 0 or 5 (got 2): ldx, ldy, ldc, alpha, beta");
  const auto none = tw_launch_buffers(launch.kernel.get(), nullptr, nullptr, 5, 2, nullptr, 0);
  CHECK(launch_failure(none).field == "buffers");
  const auto null = tw_launch_buffers(launch.kernel.get(), nullptr, launch.buffers.data(), 5, 2, nullptr, 5);
  CHECK(launch_failure(null).field == "values");
  CHECK(tw_problem_value_count(nullptr) == -1);
  tw_value_info info = TW_VALUE_INFO_INIT;
  CHECK(failure([&](tw_error** e) { return tw_problem_value(launch.problem.get(), 5, &info, e); }).field == "index");
  CHECK(gpu.seen.launches == 1);
}

TEST_CASE("a launch's rows and tables are told of grouped problems") {
  const auto rows_per = [](const char* text) {
    tw_rows_info rows = TW_ROWS_INFO_INIT;
    const ProblemHandle p = problem(text);
    succeed([&](tw_error** e) { return tw_problem_rows_info(p.get(), &rows, e); });
    tw_buffer_info last = TW_BUFFER_INFO_INIT, first = TW_BUFFER_INFO_INIT;
    succeed([&](tw_error** e) { return tw_problem_buffer(p.get(), 0, &first, e); });
    succeed([&](tw_error** e) { return tw_problem_buffer(p.get(), tw_problem_buffer_count(p.get()) - 1, &last, e); });
    CHECK((first.row_bytes == 4 * 256 && first.line_bytes == 256));
    CHECK((std::string(last.name) == "group_rows" && std::string(last.format) == "int32"));
    return std::pair(rows.rows_per, last.launch_bytes);
  };
  CHECK(rows_per("gemm x=f16 w=f16 y=f16 m=8 n=64 k=128 groups=4") == std::pair<std::int64_t, std::int64_t>(4, 20));
  CHECK(rows_per("gemm x=f16 w=f16 y=f16 m=8 n=64 k=128 groups=4 group_layout=masked") ==
        std::pair<std::int64_t, std::int64_t>(1, 16));
}

TEST_CASE("a kernel is prepared, launched in both forms, and described") {
  Gpu gpu;
  const EngineHandle en = engine();
  const ProblemHandle p = problem("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=128");
  const KernelHandle kernel = prepare(en, p, gpu.device);
  const MemoryHandle x = memory(gpu.device, 4096), w = memory(gpu.device, 8192), y = memory(gpu.device, 4096);
  tw_owned_stream* stream = nullptr;
  succeed([&](tw_error** e) { return tw_stream_create(gpu.device.get(), &stream, e); });

  REQUIRE(tw_launch_gemm(kernel.get(), tw_stream_handle(stream), tw_memory_data(x.get()), tw_memory_data(w.get()),
                         nullptr, tw_memory_data(y.get()), 2) == TW_OK);
  CHECK(gpu.seen.launches == 1);
  CHECK(gpu.seen.x == tw_memory_data(x.get()));
  CHECK(gpu.seen.w == tw_memory_data(w.get()));
  CHECK(gpu.seen.y == tw_memory_data(y.get()));
  CHECK(gpu.seen.stream == tw_stream_handle(stream));

  tw_gemm_args args = TW_GEMM_ARGS_INIT;
  args.x.data = tw_memory_data(x.get());
  args.w.data = tw_memory_data(w.get());
  args.y = tw_memory_data(y.get());
  args.m = 2;
  REQUIRE(tw_launch_gemm_args(kernel.get(), nullptr, &args) == TW_OK);
  CHECK(gpu.seen.launches == 2);
  args.m = 0;
  REQUIRE(tw_launch_gemm_args(kernel.get(), nullptr, &args) == TW_OK);
  CHECK(gpu.seen.launches == 2);

  args.m = 2;
  args.x.data = static_cast<const char*>(args.x.data) + 8;
  CHECK(launch_failure(tw_launch_gemm_args(kernel.get(), nullptr, &args)).field == "x.data");
  args.x.data = tw_memory_data(x.get());
  args.ldx = 8;
  CHECK(launch_failure(tw_launch_gemm_args(kernel.get(), nullptr, &args)).field == "ldx");
  args.ldx = 0;
  args.struct_size = 8;
  CHECK(launch_failure(tw_launch_gemm_args(kernel.get(), nullptr, &args)).field == "args.struct_size");
  CHECK(launch_failure(tw_launch_gemm(kernel.get(), nullptr, nullptr, args.w.data, nullptr, args.y, 1)).field ==
        "x.data");
  CHECK(launch_failure(tw_launch(kernel.get(), nullptr, nullptr, 8, 1, 1)).field == "params");
  CHECK(gpu.seen.launches == 2);

  tw_kernel_info info = TW_KERNEL_INFO_INIT;
  char* candidate = nullptr;
  succeed([&](tw_error** e) { return tw_kernel_describe(kernel.get(), 2, &info, &candidate, e); });
  CHECK(info.threads >= 32);
  CHECK(info.registers > 0);
  CHECK(std::string(candidate).find('=') != std::string::npos);
  tw_free(candidate);
  succeed([&](tw_error** e) { return tw_kernel_check_pointers(kernel.get(), 1, e); });
  args.struct_size = sizeof args;
  args.x.data = &args;  // host memory, not aligned to 16 perhaps: refused either way
  CHECK(launch_failure(tw_launch_gemm_args(kernel.get(), nullptr, &args)).field == "x.data");

  tw_stats stats = TW_STATS_INIT;
  succeed([&](tw_error** e) { return tw_engine_stats(en.get(), &stats, e); });
  CHECK(stats.prepared == 1);
  CHECK(stats.compiled >= 1);
  CHECK(stats.compile_seconds > 0);
  tw_stream_release(stream);
}

TEST_CASE("a kernel outlives the handles it came from") {
  Gpu gpu;
  KernelHandle kernel;
  MemoryHandle m = memory(gpu.device, 1 << 16);
  {
    const EngineHandle en = engine();
    kernel = prepare(en, problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64"), gpu.device);
  }
  gpu.device.reset();
  void* data = tw_memory_data(m.get());
  CHECK(tw_launch_gemm(kernel.get(), nullptr, data, data, nullptr, static_cast<char*>(data) + 4096, 1) == TW_OK);
  CHECK(gpu.seen.launches == 1);
}

TEST_CASE("weights are packed on the device in streams of the problem") {
  Gpu gpu;
  const EngineHandle en = engine();
  const ProblemHandle plain = problem("gemm x=f16 w=q4_0 y=f16 m=1 n=64 k=128");
  tw_problem* made = nullptr;
  succeed([&](tw_error** e) { return tw_packed(en.get(), plain.get(), "sm_90a", &made, e); });
  const ProblemHandle packed(made);
  REQUIRE(std::string(tw_problem_text(packed.get())).find("pack=tiles") != std::string::npos);
  const MemoryHandle from = memory(gpu.device, 64 * 128 / 32 * 18), data = memory(gpu.device, 4096),
                     scales = memory(gpu.device, 4096);
  succeed([&](tw_error** e) {
    return tw_pack(en.get(), packed.get(), gpu.device.get(), nullptr, {tw_memory_data(from.get()), nullptr, nullptr},
                   {tw_memory_data(data.get()), tw_memory_data(scales.get()), nullptr}, e);
  });
  CHECK(gpu.seen.launches >= 1);
  CHECK(failure([&](tw_error** e) {
          return tw_pack(en.get(), plain.get(), gpu.device.get(), nullptr, {}, {}, e);
        }).status == TW_INVALID_ARGUMENT);
}

TEST_CASE("what needs no GPU: plan, text, explanation, compiler") {
  const EngineHandle en = engine();
  const ProblemHandle p = problem("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=128");
  tw_plan* plan = nullptr;
  succeed([&](tw_error** e) { return tw_plan_create(en.get(), p.get(), "sm_90a", &plan, e); });
  REQUIRE(tw_plan_count(plan) > 1);
  double before = 0;
  for (int32_t i = 0; i < tw_plan_count(plan); ++i) {
    tw_planned planned = TW_PLANNED_INIT;
    succeed([&](tw_error** e) { return tw_plan_at(plan, i, &planned, e); });
    CHECK(std::string(planned.candidate).size() > 3);
    CHECK(planned.predicted_microseconds > 0);
    before = planned.predicted_microseconds;
  }
  CHECK(before > 0);
  tw_planned planned = TW_PLANNED_INIT;
  CHECK(failure([&](tw_error** e) { return tw_plan_at(plan, tw_plan_count(plan), &planned, e); }).field == "index");
  tw_plan_release(plan);

  char *text = nullptr, *path = nullptr;
  succeed([&](tw_error** e) { return tw_emit(en.get(), p.get(), "sm_90a", &text, e); });
  CHECK(std::string(text).find("#include") != std::string::npos);
  tw_free(text);
  succeed([&](tw_error** e) { return tw_explain(en.get(), p.get(), "sm_90a", nullptr, &text, e); });
  CHECK(std::string(text).find("ranked") != std::string::npos);
  tw_free(text);
  succeed([&](tw_error** e) { return tw_compiler(en.get(), &text, &path, e); });
  CHECK(std::string(text).find("build") != std::string::npos);
  CHECK(std::string(path).find("libnvrtc") != std::string::npos);
  tw_free(text);
  tw_free(path);
  CHECK(failure([&](tw_error** e) { return tw_emit(en.get(), p.get(), "sm_9", &text, e); }).allowed.find("sm_90a") !=
        std::string::npos);
}

TEST_CASE("a cache is prewarmed, exported, merged and imported") {
  const Scratch scratch;
  const std::string cache = scratch.file("cache.db"), copy = scratch.file("copy.db");
  const ProblemHandle p = problem("gemm x=f16 w=f16 y=f16 m=1 n=64 k=64");
  const tw_problem* problems[] = {p.get()};
  const char* archs[] = {"sm_80"};
  tw_prewarm_summary summary = TW_PREWARM_SUMMARY_INIT;
  {
    const EngineHandle en = engine(cache);
    CHECK(std::string(tw_cache_path(en.get())) == cache);
    int calls = 0;
    tw_prewarm_policy policy = TW_PREWARM_POLICY_INIT;
    policy.top = 1;
    policy.every_bucket = 0;
    policy.user = &calls;
    policy.progress = [](void* user, const char* stage, int32_t done, int32_t total) {
      CHECK(std::string(stage).size() > 2);
      CHECK(done <= total);
      ++*static_cast<int*>(user);
    };
    tw_prewarm_report* report = nullptr;
    succeed([&](tw_error** e) { return tw_prewarm(en.get(), problems, 1, archs, 1, &policy, &report, e); });
    succeed([&](tw_error** e) { return tw_prewarm_report_summary(report, &summary, e); });
    CHECK(summary.compiled >= 1);
    CHECK(summary.failed == 0);
    CHECK(summary.cancelled == 0);
    CHECK(tw_prewarm_report_failure(report, 0) == nullptr);
    CHECK(calls > 0);
    tw_prewarm_report_release(report);
    policy.top = 0;
    CHECK(failure([&](tw_error** e) {
            return tw_prewarm(en.get(), problems, 1, archs, 1, &policy, &report, e);
          }).field == "top");
    policy.top = 1;
    policy.reference = 2;
    CHECK(failure([&](tw_error** e) {
            return tw_prewarm(en.get(), problems, 1, archs, 1, &policy, &report, e);
          }).field == "reference");
    policy.reference = 0;
    policy.cancelled = [](void*) -> int32_t { return 1; };
    succeed([&](tw_error** e) { return tw_prewarm(en.get(), problems, 1, archs, 1, &policy, &report, e); });
    tw_prewarm_summary ended = TW_PREWARM_SUMMARY_INIT;
    succeed([&](tw_error** e) { return tw_prewarm_report_summary(report, &ended, e); });
    CHECK(ended.cancelled == 1);
    CHECK(ended.compiled + ended.skipped == 0);
    tw_prewarm_report_release(report);
    const char* unknown[] = {"sm_1"};
    CHECK(failure([&](tw_error** e) {
            return tw_prewarm(en.get(), problems, 1, unknown, 1, nullptr, &report, e);
          }).allowed.find("sm_80") != std::string::npos);
    char* why = nullptr;
    succeed([&](tw_error** e) { return tw_cache_unwritable(en.get(), &why, e); });
    CHECK(why == nullptr);
    succeed([&](tw_error** e) { return tw_cache_export(en.get(), copy.c_str(), 1, 0, e); });
    CHECK(failure([&](tw_error** e) { return tw_cache_export(en.get(), copy.c_str(), 1, 0, e); }).status == TW_IO);
    CHECK(failure([&](tw_error** e) { return tw_cache_export(en.get(), copy.c_str(), 2, 0, e); }).field ==
          "with_binaries");
    succeed([&](tw_error** e) { return tw_cache_export(en.get(), copy.c_str(), 1, 1, e); });
  }
  const EngineHandle other = engine();
  tw_merge_report merged = TW_MERGE_REPORT_INIT;
  succeed([&](tw_error** e) { return tw_cache_import(other.get(), copy.c_str(), &merged, e); });
  CHECK(merged.added == 0);  // prewarm() leaves neither choices nor measurements
  succeed([&](tw_error** e) { return tw_cache_merge(other.get(), copy.c_str(), &merged, e); });
  CHECK(merged.added == summary.compiled + 2);  // the list of what it compiled, and the compiler
  CHECK(failure([&](tw_error** e) {
          return tw_cache_merge(other.get(), scratch.file("none.db").c_str(), &merged, e);
        }).status == TW_IO);
}

TEST_CASE("a workload file becomes problems") {
  const Scratch scratch;
  const std::string path = scratch.file("workload.txt");
  {
    std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "w"), &std::fclose);
    std::fputs("# two\ngemm x=f16 w=f16 y=f16 m=1 n=64 k=64\ncast x=f32 y=q8_1 rows=1 cols=64\n", file.get());
  }
  tw_problem** problems = nullptr;
  size_t count = 0;
  succeed([&](tw_error** e) { return tw_read_workload(path.c_str(), &problems, &count, e); });
  REQUIRE(count == 2);
  CHECK(std::string(tw_problem_operation(problems[1])) == "cast");
  for (size_t i = 0; i < count; ++i) tw_problem_release(problems[i]);
  tw_free(problems);
  CHECK(failure([&](tw_error** e) { return tw_read_workload("/no/such", &problems, &count, e); }).status == TW_IO);
}

}  // namespace
}  // namespace tilewright::test
