// SPDX-License-Identifier: Apache-2.0
// The GPU suite: what CI cannot run. Every family and format on odd shapes against a double-precision product formed on
// the host, candidates against the tuner's verifier, casts bit for bit, capture, threads, bad pointers.
//   tilewright_gpu_suite [--out FILE] [--quick]
// Exit code 0: all passed; 1: something failed; 4: no device (nothing is reported as passed).
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "bench/report.h"

namespace tilewright::bench {
namespace {

struct Result {
  std::string name, status, detail;  // "passed", "failed"
};

class Suite {
 public:
  Suite(Engine& engine, const Device& device) : engine_(engine), device_(device) {}

  void check(const std::string& name, const std::function<std::string()>& body) {
    std::string why;
    try {
      why = body();
    } catch (const std::exception& e) {
      why = fmt::format("threw: {}", e.what());
    }
    results_.push_back({name, why.empty() ? "passed" : "failed", why});
    if (!why.empty()) fmt::print("FAILED {}: {}\n", name, why);
  }
  const std::vector<Result>& results() const { return results_; }
  Engine& engine() { return engine_; }
  const Device& device() const { return device_; }

 private:
  Engine& engine_;
  Device device_;
  std::vector<Result> results_;
};

// A matrix in a format, on the host and on the device.
struct Matrix {
  std::vector<float> decoded;
  std::vector<std::vector<std::byte>> streams;
  std::vector<Memory> device;
  Operand operand;
};

Operand operand_over(Format f, const std::function<void*(int)>& pointer) {
  Operand o;
  for (std::size_t i = 0; i < f.info().streams.size(); ++i) {
    const std::string_view name = f.info().streams[i].name;
    if (name == "data")
      o.data = pointer(static_cast<int>(i));
    else if (name == "scales")
      o.scales = pointer(static_cast<int>(i));
    else
      o.global = static_cast<const float*>(pointer(static_cast<int>(i)));
  }
  return o;
}

Matrix make(const Device& device, Format f, std::int64_t rows, std::int64_t cols, unsigned seed, float spread = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  float amax = 0;
  for (float& v : values) v = normal(random), amax = std::max(amax, std::fabs(v));
  Matrix m;
  for (std::size_t i = 0; i < f.info().streams.size(); ++i)
    m.streams.emplace_back(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), rows, cols)));
  const Operand host = operand_over(f, [&](int i) { return m.streams[static_cast<std::size_t>(i)].data(); });
  const MutableOperand writable{const_cast<void*>(host.data), const_cast<void*>(host.scales),
                                const_cast<float*>(host.global)};
  if (f.info().global_for) *writable.global = f.info().global_for(amax);
  f.info().encode(values.data(), rows, cols, writable, 0);
  m.decoded.resize(values.size());
  f.info().decode(host, rows, cols, m.decoded.data());
  for (const auto& s : m.streams) {
    m.device.emplace_back(device, s.size() + 16);
    m.device.back().upload(s);
  }
  m.operand = operand_over(f, [&](int i) { return m.device[static_cast<std::size_t>(i)].data(); });
  return m;
}

double activate(Activation a, double v) {
  switch (a) {
    case Activation::relu: return v > 0 ? v : 0;
    case Activation::gelu: return 0.5 * v * (1 + std::erf(v * std::sqrt(0.5)));
    case Activation::gelu_tanh: return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case Activation::silu: return v / (1 + std::exp(-v));
    default: return v;
  }
}

// The stated bound of templates/gemm/reference.cuh, restated.
double bound_of(const Gemm& g, double magnitude, double linear, double bias, double y) {
  const double u = g.y.name() == "f32" ? 5.97e-8 : g.y.name() == "f16" ? 4.89e-4 : 3.91e-3;
  return 1.2 * std::fabs(g.alpha) * magnitude * (static_cast<double>(g.k) / 4 + 64) * 5.97e-8 +
         9.6e-7 * (std::fabs(linear + bias) + std::fabs(linear) + std::fabs(bias)) + u * std::fabs(y) + 6e-8;
}

// One prepared kernel at several m against the host's double product.
std::string gemm_against_host(Suite& s, const std::string& text, std::vector<std::int64_t> ms) {
  const Problem problem = Problem::parse(text);
  const Gemm& g = *problem.gemm();
  const Kernel kernel = s.engine().prepare(problem, s.device());
  const std::int64_t m_max = *std::max_element(ms.begin(), ms.end());
  Matrix x = make(s.device(), g.x, m_max, g.k, 1), w = make(s.device(), g.w, g.n, g.k, 2, 0.1f);
  if (g.global == Global::div)  // the same weights, their scale handed over as its reciprocal
    for (std::size_t i = 0; i < w.device.size(); ++i)
      if (w.device[i].data() == w.operand.global) {
        float scale;
        std::memcpy(&scale, w.streams[i].data(), sizeof scale);
        scale = 1.0f / scale;
        w.device[i].upload({reinterpret_cast<const std::byte*>(&scale), sizeof scale});
      }
  Matrix bias;
  if (g.bias) bias = make(s.device(), *g.bias, 1, g.n, 3);
  const std::size_t y_bytes = static_cast<std::size_t>(g.y.total_bytes(m_max, g.n));
  Memory y(s.device(), y_bytes + 256);
  OwnedStream stream(s.device());
  for (std::int64_t m : ms) {
    y.fill(0xff);
    GemmArgs args;
    args.x = x.operand, args.w = w.operand, args.y = y.data(), args.m = m;
    args.bias = g.bias ? bias.operand.data : nullptr;
    kernel.launch(stream.get(), args);
    stream.synchronize();
    std::vector<std::byte> bytes(y_bytes + 256);
    y.download(bytes);
    std::vector<float> got(static_cast<std::size_t>(m * g.n));
    g.y.info().decode({bytes.data(), nullptr, nullptr}, m, g.n, got.data());
    for (std::size_t i = static_cast<std::size_t>(g.y.total_bytes(m, g.n)); i < bytes.size(); ++i)
      if (bytes[i] != std::byte{0xff}) return fmt::format("m={}: wrote beyond y", m);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < g.n; ++j) {
        double sum = 0, magnitude = 0;
        for (std::int64_t k = 0; k < g.k; ++k) {
          const double p = static_cast<double>(x.decoded[static_cast<std::size_t>(i * g.k + k)]) *
                           w.decoded[static_cast<std::size_t>(j * g.k + k)];
          sum += p, magnitude += std::fabs(p);
        }
        const double b = g.bias ? bias.decoded[static_cast<std::size_t>(j)] : 0.0;
        const double expected = activate(g.act, g.alpha * sum + b);
        const double bound = bound_of(g, magnitude, g.alpha * sum, b, expected);
        const double value = got[static_cast<std::size_t>(i * g.n + j)];
        if (!(std::fabs(value - expected) <= bound))
          return fmt::format("m={}: y[{},{}] = {}, expected {} +- {}", m, i, j, value, expected, bound);
      }
  }
  return {};
}

// The tuner's own judge over a sample of candidates: none may be wrong or fail.
std::string candidates_verify(Suite& s, const std::string& text, int most) {
  const Problem problem = Problem::parse(text);
  Task task = s.engine().task(problem, s.device().arch());
  // A spread over the ranked list, so that every region of the space is met.
  std::vector<Candidate> sample;
  const std::size_t n = task.candidates.size(), step = std::max<std::size_t>(1, n / static_cast<std::size_t>(most));
  for (std::size_t i = 0; i < n; i += step) sample.push_back(task.candidates[i]);
  task.candidates = sample;
  TunePolicy policy;
  policy.exhaustive = policy.retune = true;
  policy.cold_bytes = 1e6;
  const TuneReport report = s.engine().tune(task, s.device(), policy);
  int measured = 0;
  for (const Outcome& o : report.outcomes) {
    if (o.kind == OutcomeKind::wrong || o.kind == OutcomeKind::failed || o.kind == OutcomeKind::not_compiled)
      return fmt::format("{}: {}: {}", o.candidate.text(), to_string(o.kind), o.detail);
    measured += o.kind == OutcomeKind::measured;
  }
  return measured ? "" : "no candidate was measured";
}

std::string cast_against_host(Suite& s, const std::string& text) {
  const Problem problem = Problem::parse(text);
  const Cast& c = *problem.cast();
  const Kernel kernel = s.engine().prepare(problem, s.device());
  Matrix x = make(s.device(), c.x, c.rows, c.cols, 7, 3.0f);
  std::vector<std::vector<std::byte>> expected;
  for (std::size_t i = 0; i < c.y.info().streams.size(); ++i)
    expected.emplace_back(static_cast<std::size_t>(c.y.stream_bytes(static_cast<int>(i), c.rows, c.cols)));
  const Operand host = operand_over(c.y, [&](int i) { return expected[static_cast<std::size_t>(i)].data(); });
  if (host.global) *const_cast<float*>(host.global) = 0.01f;
  c.y.info().encode(x.decoded.data(), c.rows, c.cols,
                    {const_cast<void*>(host.data), const_cast<void*>(host.scales), const_cast<float*>(host.global)},
                    c.encoder);
  std::vector<Memory> out;
  for (const auto& e : expected) {
    out.emplace_back(s.device(), e.size() + 64);
    out.back().fill(0xa5);
  }
  const Operand y = operand_over(c.y, [&](int i) { return out[static_cast<std::size_t>(i)].data(); });
  if (y.global) {
    const float g = 0.01f;
    for (std::size_t i = 0; i < out.size(); ++i)
      if (out[i].data() == y.global) out[i].upload({reinterpret_cast<const std::byte*>(&g), 4});
  }
  CastArgs args;
  args.x = x.operand, args.y = {const_cast<void*>(y.data), const_cast<void*>(y.scales), const_cast<float*>(y.global)},
  args.rows = c.rows;
  OwnedStream stream(s.device());
  kernel.launch(stream.get(), args);
  stream.synchronize();
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::vector<std::byte> got(expected[i].size() + 64);
    out[i].download(got);
    for (std::size_t b = 0; b < got.size(); ++b) {
      const std::byte want = b < expected[i].size() ? expected[i][b] : std::byte{0xa5};
      if (got[b] != want)
        return fmt::format("{} byte {} is {:02x}, expected {:02x}", c.y.info().streams[i].name, b,
                           static_cast<int>(got[b]), static_cast<int>(want));
    }
  }
  return {};
}

std::string expect_error(const std::function<void()>& body, ErrorCode code, std::string_view field) {
  try {
    body();
  } catch (const Error& e) {
    if (e.code() != code || e.field() != field)
      return fmt::format("threw {} about {}: {}", to_string(e.code()), e.field(), e.what());
    return {};
  }
  return "did not throw";
}

void bad_arguments(Suite& s) {
  const Problem problem = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=4 n=64 k=256");
  Kernel kernel = s.engine().prepare(problem, s.device());
  kernel.check_pointers(true);
  Matrix x = make(s.device(), Format::parse("f16"), 4, 256, 1), w = make(s.device(), Format::parse("q4_0"), 64, 256, 2);
  Memory y(s.device(), 4 * 64 * 2);
  OwnedStream stream(s.device());
  GemmArgs good;
  good.x = x.operand, good.w = w.operand, good.y = y.data(), good.m = 4;
  const auto launch = [&](const std::function<void(GemmArgs&)>& change) {
    return [&, change] {
      GemmArgs args = good;
      change(args);
      kernel.launch(stream.get(), args);
    };
  };
  std::vector<std::byte> host(4096);
  const auto invalid = ErrorCode::invalid_argument;
  s.check("arguments/null",
          [&] { return expect_error(launch([](GemmArgs& a) { a.w.data = nullptr; }), invalid, "w.data"); });
  for (int by : {1, 2, 4, 8})
    s.check(fmt::format("arguments/misaligned by {}", by), [&] {
      return expect_error(launch([by](GemmArgs& a) { a.x.data = static_cast<const char*>(a.x.data) + by; }), invalid,
                          "x.data");
    });
  s.check("arguments/host pointer", [&] {
    return expect_error(launch([&](GemmArgs& a) {
                          a.y = host.data() + (16 - reinterpret_cast<std::uintptr_t>(host.data()) % 16) % 16;
                        }),
                        invalid, "y");
  });
  s.check("arguments/ldx below the row",
          [&] { return expect_error(launch([](GemmArgs& a) { a.ldx = 128; }), invalid, "ldx"); });
  s.check("arguments/negative m", [&] { return expect_error(launch([](GemmArgs& a) { a.m = -1; }), invalid, "m"); });
  s.check("arguments/zero rows", [&] {
    launch([](GemmArgs& a) { a.m = 0; })();
    stream.synchronize();
    return std::string();
  });
}

std::string many_threads(Suite& s) {
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=512 k=1024");
  const Kernel kernel = s.engine().prepare(problem, s.device());
  Matrix x = make(s.device(), Format::parse("q8_1"), 64, 1024, 1),
         w = make(s.device(), Format::parse("q4_0"), 512, 1024, 2);
  const auto run = [&](std::int64_t m, std::vector<std::byte>& out) {
    Memory y(s.device(), 64 * 512 * 4);
    OwnedStream stream(s.device());
    GemmArgs args;
    args.x = x.operand, args.w = w.operand, args.y = y.data(), args.m = m;
    for (int i = 0; i < 50; ++i) kernel.launch(stream.get(), args);
    stream.synchronize();
    out.resize(static_cast<std::size_t>(m) * 512 * 4);
    y.download(out);
  };
  std::vector<std::vector<std::byte>> alone(8), together(8);
  for (int i = 0; i < 8; ++i) run(1 << (i % 7), alone[static_cast<std::size_t>(i)]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { run(1 << (i % 7), together[static_cast<std::size_t>(i)]); });
  for (auto& t : threads) t.join();
  for (std::size_t i = 0; i < 8; ++i)
    if (alone[i] != together[i]) return fmt::format("m={} differs between one thread and eight", 1 << (i % 7));
  return {};
}

void gemm_checks(Suite& s, bool quick) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"f32", "f32"},   {"f16", "f16"},   {"bf16", "bf16"},         {"f32", "f16"},    {"f16", "bf16"},
      {"q8_1", "q4_0"}, {"q8_1", "q8_0"}, {"q8_1", "q4_k"},         {"q8_1", "nvfp4"}, {"q8_0", "q4_0"},
      {"f16", "q4_0"},  {"f16", "q8_0"},  {"f16", "q4_k"},          {"f16", "nvfp4"},  {"bf16", "q4_0"},
      {"bf16", "q8_0"}, {"bf16", "q4_k"}, {"bf16", "nvfp4"},        {"f32", "q4_0"},   {"f32", "q4_k"},
      {"f32", "nvfp4"}, {"f32", "q8_0"},  {"e4m3_row", "e4m3_row"}, {"q4_k", "q8_0"},  {"nvfp4", "nvfp4"}};
  for (const auto& [x, w] : pairs) {
    const bool global = x == "nvfp4" || w == "nvfp4";
    const int block = std::max(Format::parse(x).block(), Format::parse(w).block());
    for (const auto& [n, blocks] : std::vector<std::pair<int, int>>{{37, 1}, {128, 5}, {200, 8}}) {
      const int k = block == 1 ? blocks * 129 : block * blocks;
      const std::string text =
          fmt::format("gemm x={} w={} y=f32 m=1 n={} k={}{}", x, w, n, k, global ? " global=mul" : "");
      s.check(text, [&] { return gemm_against_host(s, text, {1, 2, 3, 5, 8, 13, 16, 33, 70}); });
    }
  }
  for (const char* epilogue : {"y=f16 bias=f16 act=gelu", "y=bf16 bias=f32 act=silu", "y=f32 bias=bf16 act=relu",
                               "y=f16 act=gelu_tanh alpha=0.5"}) {
    std::string fields = epilogue;
    const std::size_t space = fields.find(' ');
    const std::string text =
        fmt::format("gemm x=f16 w=q4_0 {} m=1 n=100 k=512{}", fields.substr(0, space), fields.substr(space));
    s.check(text, [&] { return gemm_against_host(s, text, {1, 4, 17, 40}); });
  }
  const std::string divided = "gemm x=f16 w=nvfp4 y=f32 m=1 n=40 k=64 global=div";
  s.check(divided, [&] { return gemm_against_host(s, divided, {1, 20}); });
  const int most = quick ? 4 : 24;
  for (const char* formats :
       {"x=q8_1 w=q4_0 y=f32", "x=q8_1 w=q4_k y=f32", "x=q8_1 w=q8_0 y=f16", "x=q8_1 w=nvfp4 y=bf16 global=mul",
        "x=f16 w=f16 y=f16", "x=bf16 w=bf16 y=bf16", "x=f16 w=q4_0 y=f16", "x=bf16 w=q4_k y=bf16",
        "x=f16 w=nvfp4 y=f16 global=mul", "x=f32 w=f32 y=f32"}) {
    std::string f = formats, global;
    if (const auto at = f.find(" global"); at != std::string::npos) global = f.substr(at), f = f.substr(0, at);
    for (const char* shape :
         {"m=1 n=1000 k=4096", "m=7 n=555 k=2304", "m=16 n=4096 k=1024", "m=100 n=384 k=1536", "m=600 n=1100 k=768"}) {
      const std::string text = fmt::format("gemm {} {}{}", f, shape, global);
      s.check("candidates of " + text, [&] { return candidates_verify(s, text, most); });
    }
  }
}

void cast_checks(Suite& s, bool quick) {
  for (Format a : Format::all())
    for (const char* plain : {"f32", "f16", "bf16"})
      for (const auto& [rows, blocks] : std::vector<std::pair<int, int>>{{1, 1}, {3, 7}, {130, 33}}) {
        const int cols = a.block() == 1 ? blocks * 37 : a.block() * blocks;
        for (int encoder = 0; encoder < static_cast<int>(a.info().encoders.size()); ++encoder) {
          const std::string to = fmt::format(
              "cast x={} y={} rows={} cols={}{}", plain, a.name(), rows, cols,
              encoder ? fmt::format(" encoder={}", a.info().encoders[static_cast<std::size_t>(encoder)]) : "");
          s.check(to, [&] { return cast_against_host(s, to); });
        }
        if (a.name() == plain) continue;
        const std::string from = fmt::format("cast x={} y={} rows={} cols={}", a.name(), plain, rows, cols);
        s.check(from, [&] { return cast_against_host(s, from); });
      }
  for (const char* y : {"q8_1", "q4_0", "q4_k", "nvfp4", "e4m3_row", "bf16"}) {
    const std::string text = fmt::format("cast x=f32 y={} rows=65 cols=2304", y);
    s.check("candidates of " + text, [&] { return candidates_verify(s, text, quick ? 4 : 24); });
  }
}

int run(const std::string& out, bool quick) {
  if (Device::count() == 0) {
    fmt::print("skipped: no CUDA device\n");
    return 4;
  }
  Options options = Options::from_env();
  options.cache = ":memory:";
  Engine engine(options);
  const Device device = Device::open(0);
  Suite suite(engine, device);
  gemm_checks(suite, quick);
  cast_checks(suite, quick);
  bad_arguments(suite);
  suite.check("threads and streams", [&] { return many_threads(suite); });
  int failed = 0;
  Json rows = Json::array();
  for (const Result& r : suite.results()) {
    failed += r.status == "failed";
    rows.push_back({{"name", r.name}, {"status", r.status}, {"detail", r.detail}});
  }
  const Json env = environment(&device, options);
  write(out, env, rows);
  fmt::print("{} passed, {} failed on {} (driver {}, compiler {}, tree {})\n",
             suite.results().size() - static_cast<std::size_t>(failed), failed, device.name(), device.driver_version(),
             env["compiler"].get<std::string>(), env["tree_hash"].get<std::string>().substr(0, 12));
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace tilewright::bench

int main(int argc, char** argv) {
  std::string out;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--out" && i + 1 < argc)
      out = argv[++i];
    else if (std::string_view(argv[i]) == "--quick")
      quick = true;
  }
  try {
    return tilewright::bench::run(out, quick);
  } catch (const std::exception& e) {
    fmt::print(stderr, "tilewright_gpu_suite: {}\n", e.what());
    return 1;
  }
}
