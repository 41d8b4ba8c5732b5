// SPDX-License-Identifier: Apache-2.0
// The GPU suite: what CI cannot run. Every family and format on odd shapes against a double-precision product formed on
// the host, candidates against the tuner's verifier, casts and packed weights bit for bit, the warpgroup kernels of every
// pair of formats at ragged shapes and on hard data, threads, bad arguments.
//   tilewright_gpu_suite [--out FILE] [--quick | --one] [--only GROUP,...] [--verbose]
// --quick: fewer candidates. --one: one configuration of each family at odd sizes, for compute-sanitizer
// (bench/sanitize.sh). --only: groups of gemm casts pack wgmma served arguments threads. --verbose: names before they run.
// Exit code 0: all passed; 1: something failed; 4: no device (nothing is reported as passed).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "bench/report.h"

namespace tilewright::bench {
namespace {

struct Result {
  std::string name, status, detail;  // "passed", "failed"
};

enum class Extent { full, quick, one };

struct Request {
  std::string out;
  Extent extent = Extent::full;
  std::set<std::string> only;  // groups; empty: all
  bool verbose = false;
};

class Suite {
 public:
  Suite(Engine& engine, const Device& device, const Request& request)
      : engine_(engine), device_(device), request_(request) {}

  void group(const std::string& name, const std::function<void()>& body) {
    if (!request_.only.empty() && !request_.only.count(name)) return;
    const std::size_t before = results_.size();
    const auto began = std::chrono::steady_clock::now();
    // What a group prepares before its checks may throw as well.
    try {
      body();
    } catch (const std::exception& e) {
      check(name, [&] { return fmt::format("threw: {}", e.what()); });
    }
    fmt::print("{}: {} checks in {:.1f} s\n", name, results_.size() - before,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    std::fflush(stdout);
  }
  void check(const std::string& name, const std::function<std::string()>& body) {
    if (request_.verbose) fmt::print("{}\n", name), std::fflush(stdout);
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
  Extent extent() const { return request_.extent; }

 private:
  Engine& engine_;
  Device device_;
  const Request& request_;
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

// ---- the warpgroup kernels, and others one candidate at a time

// Functions on threads of their own, in the order in which they came: kernels compile while others are judged.
class Ahead {
 public:
  explicit Ahead(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Ahead() {
    {
      std::lock_guard lock(mutex_);
      waiting_.clear();
      done_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  std::future<Kernel> submit(std::function<Kernel()> make) {
    auto task = std::make_shared<std::packaged_task<Kernel()>>(std::move(make));
    std::future<Kernel> future = task->get_future();
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back([task] { (*task)(); });
    }
    wake_.notify_one();
    return future;
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return done_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      next();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  bool done_ = false;
};

int jobs_of(Suite& s) {
  if (const int asked = s.engine().options().jobs) return asked;
  return std::min(16, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

// Compiled and loaded, to serve any number of rows. The task's choice is not asked.
std::function<Kernel()> kernel_of(Suite& s, const Task& task, const Candidate& candidate) {
  return [&s, one = task, candidate]() mutable {
    one.candidates = {candidate};
    return s.engine().prepare(one, s.device());
  };
}
std::function<Kernel()> oracle_of(Suite& s, const Task& task) {
  return [&s, one = task]() mutable {
    one.source = [oracle = one.oracle](const Candidate&) { return oracle(); };
    one.candidates = {Candidate{"oracle", {}}};
    return s.engine().prepare(one, s.device());
  };
}

// Of what the library would not launch either.
std::string unacceptable(const Kernel& kernel) {
  const Resources& r = kernel.resources(1);
  return r.spill_bytes > 0 ? "spills" : r.serialized ? "serialized" : "";
}

// One gemm with its operands on the device and the oracle's word on them. Judges kernels at any m up to `rows`, by the
// rules of the tuner's verifier, with strides of the caller's choosing.
class Trial {
 public:
  static constexpr std::size_t kGuard = 4096;
  static constexpr std::byte kInputGuard{0xc3};
  static constexpr std::int64_t kMostPad = 16;
  // What compare() of the task says of y, unless a caller judges himself: values got, expected, bounds, m x n each.
  using Judge = std::function<std::string(const std::vector<float>&, const std::vector<float>&, const std::vector<float>&)>;

  Trial(Suite& s, const Problem& problem, std::int64_t rows, Kernel oracle)
      : suite_(s),
        gemm_(*problem.gemm()),
        task_(s.engine().task(problem.with_rows(rows), s.device().arch())),
        rows_(rows),
        oracle_(std::move(oracle)),
        stream_(s.device()) {
    for (const Buffer& b : task_.buffers) {
      content_.emplace_back(b.output ? 0 : b.bytes);
      memory_.emplace_back(s.device(), b.output ? 1 : b.bytes + 2 * kGuard);
      memory_.back().fill(static_cast<unsigned char>(kInputGuard));
    }
    y_ = Memory(s.device(), 2 * kGuard + static_cast<std::size_t>(rows * (gemm_.n + kMostPad)) * 4);
  }

  const Gemm& gemm() const { return gemm_; }
  const Task& task() const { return task_; }
  Stream stream() const { return stream_.get(); }
  void synchronize() const { stream_.synchronize(); }
  std::vector<std::byte>& content(std::string_view name) { return content_[index(name)]; }
  bool has(std::string_view name) const {
    return std::any_of(task_.buffers.begin(), task_.buffers.end(), [&](const Buffer& b) { return b.name == name; });
  }

  // The tuner's own random content. upload() has to follow, and consult().
  void fill(std::uint64_t seed) {
    for (std::size_t i = 0; i < content_.size(); ++i)
      if (!task_.buffers[i].output && task_.buffers[i].fill) task_.buffers[i].fill(content_[i], seed);
  }
  void upload() {
    for (std::size_t i = 0; i < content_.size(); ++i)
      if (!content_[i].empty()) memory_[i].upload(content_[i], kGuard);
  }
  // What the device holds is the content from now on.
  void adopt() {
    for (std::size_t i = 0; i < content_.size(); ++i)
      if (!content_[i].empty()) memory_[i].download(content_[i], kGuard);
  }
  void put(const std::string& name, const std::vector<std::byte>& bytes) {
    std::vector<std::byte>& to = content(name);
    std::copy_n(bytes.begin(), std::min(bytes.size(), to.size()), to.begin());
  }
  void put_x(const std::vector<float>& values, std::int64_t rows) {  // the first rows
    std::vector<std::vector<std::byte>> streams;
    const MutableOperand to = streams_of(gemm_.x, rows, gemm_.k, streams);
    gemm_.x.info().encode(values.data(), rows, gemm_.k, to, 0);
    for (std::size_t i = 0; i < streams.size(); ++i)
      put(fmt::format("x.{}", gemm_.x.info().streams[i].name), streams[i]);
  }
  void put_w(const std::vector<float>& values) {
    std::vector<std::vector<std::byte>> streams, packed;
    const MutableOperand plain = streams_of(gemm_.w, gemm_.n, gemm_.k, streams);
    float amax = 0;
    for (float v : values) amax = std::max(amax, std::fabs(v));
    if (gemm_.w.info().global_for) *plain.global = gemm_.w.info().global_for(amax);
    gemm_.w.info().encode(values.data(), gemm_.n, gemm_.k, plain, 0);
    if (gemm_.packing == Packing::none) {
      if (gemm_.global == Global::div) *plain.global = 1 / *plain.global;
      for (std::size_t i = 0; i < streams.size(); ++i)
        put(fmt::format("w.{}", gemm_.w.info().streams[i].name), streams[i]);
      return;
    }
    packed.reserve(3);
    MutableOperand tiles;
    for (const char* name : {"data", "scales", "global"}) {
      packed.emplace_back(static_cast<std::size_t>(packed_bytes(gemm_, name)));
      void* at = packed.back().empty() ? nullptr : packed.back().data();
      (*name == 'd' ? tiles.data : *name == 's' ? tiles.scales : reinterpret_cast<void*&>(tiles.global)) = at;
    }
    pack_weights(gemm_, plain, tiles);
    if (gemm_.global == Global::div && tiles.global) *tiles.global = 1 / *tiles.global;
    std::size_t i = 0;
    for (const char* name : {"w.data", "w.scales", "w.global"}) {
      if (has(name)) put(name, packed[i]);
      ++i;
    }
  }

  GemmArgs arguments(std::int64_t m) {
    std::vector<void*> pointers;
    for (std::size_t i = 0; i < memory_.size(); ++i)
      pointers.push_back(static_cast<char*>(task_.buffers[i].output ? y_.data() : memory_[i].data()) + kGuard);
    GemmArgs args;
    const std::vector<std::byte> bytes = task_.arguments(pointers, m);
    std::memcpy(&args, bytes.data(), sizeof args);
    return args;
  }

  // Throws if the oracle's values are no numbers, unless the data may be none: nothing would be judged then.
  void consult(std::int64_t rows, bool numbers = true) {
    const std::size_t cells = static_cast<std::size_t>(rows * gemm_.n);
    Memory out(suite_.device(), cells * 8);
    out.fill(0xff);
    GemmArgs args = arguments(rows);
    args.y = out.data();
    oracle_.launch(stream_.get(), args);
    stream_.synchronize();
    values_.resize(cells), bounds_.resize(cells);
    out.download(std::as_writable_bytes(std::span(values_)));
    out.download(std::as_writable_bytes(std::span(bounds_)), cells * 4);
    for (std::size_t i = 0; numbers && i < cells; ++i)
      if (!std::isfinite(values_[i]) || !std::isfinite(bounds_[i]))
        throw Error(ErrorCode::invalid_argument, "oracle", fmt::format("{} +- {}", values_[i], bounds_[i]), "a number");
  }
  const std::vector<float>& values() const { return values_; }

  // ldx = k + pad_x if that is not 0, ldy = n + pad_y if that is not 0.
  std::string judge(const Kernel& kernel, std::int64_t m, std::int64_t pad_x = 0, std::int64_t pad_y = 0,
                    bool twice = false, const Judge& own = {}) {
    const std::size_t element = static_cast<std::size_t>(gemm_.y.stream_bytes(0, 1, 1));
    const std::size_t row = static_cast<std::size_t>(gemm_.n) * element;
    const std::size_t stride = static_cast<std::size_t>(gemm_.n + pad_y) * element;
    const std::size_t used = static_cast<std::size_t>(m - 1) * stride + row;
    GemmArgs args = arguments(m);
    Memory padded;
    if (pad_x) {
      padded = pad(m, pad_x);
      args.x.data = padded.data();
      args.ldx = gemm_.k + pad_x;
    }
    if (pad_y) args.ldy = gemm_.n + pad_y;
    const std::string at = fmt::format("m={}{}{}", m, pad_x ? fmt::format(" ldx=k+{}", pad_x) : "",
                                       pad_y ? fmt::format(" ldy=n+{}", pad_y) : "");
    std::vector<std::byte> whole(used + 2 * kGuard), got(static_cast<std::size_t>(m) * row), first;
    for (int run = 0; run < (twice ? 2 : 1); ++run) {
      const std::byte poison = run ? std::byte{0x5a} : std::byte{0xff};
      y_.fill(static_cast<unsigned char>(poison));
      kernel.launch(stream_.get(), args);
      stream_.synchronize();
      y_.download(whole);
      const auto untouched = [&](std::size_t begin, std::size_t end) {
        return std::all_of(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                           whole.begin() + static_cast<std::ptrdiff_t>(end), [&](std::byte b) { return b == poison; });
      };
      if (!untouched(0, kGuard)) return at + ": wrote before y";
      if (!untouched(kGuard + used, whole.size())) return at + ": wrote behind y";
      for (std::int64_t r = 0; r < m; ++r) {
        const std::size_t from = kGuard + static_cast<std::size_t>(r) * stride;
        std::memcpy(got.data() + static_cast<std::size_t>(r) * row, whole.data() + from, row);
        if (r + 1 < m && !untouched(from + row, from + stride)) return fmt::format("{}: wrote between rows {} and {}", at, r, r + 1);
      }
      if (run == 0) {
        const std::string why = compare(got, m, own);
        if (!why.empty()) return fmt::format("{}: {}", at, why);
        first = got;
      } else if (got != first) {
        return at + ": a second run on the same inputs differs";
      }
    }
    return {};
  }

  // Empty if the kernels have left their inputs alone, and what lies beside them.
  std::string unchanged() {
    std::vector<std::byte> now;
    for (std::size_t i = 0; i < content_.size(); ++i) {
      if (content_[i].empty()) continue;
      now.resize(content_[i].size() + 2 * kGuard);
      memory_[i].download(now);
      for (std::size_t b = 0; b < now.size(); ++b) {
        const bool inside = b >= kGuard && b < kGuard + content_[i].size();
        if (now[b] != (inside ? content_[i][b - kGuard] : kInputGuard))
          return fmt::format("changed its input {} or bytes beside it", task_.buffers[i].name);
      }
    }
    return {};
  }

 private:
  std::size_t index(std::string_view name) const {
    for (std::size_t i = 0; i < task_.buffers.size(); ++i)
      if (task_.buffers[i].name == name) return i;
    throw Error(ErrorCode::invalid_argument, "buffer", std::string(name), "one of the task's");
  }
  static MutableOperand streams_of(Format f, std::int64_t rows, std::int64_t cols,
                                   std::vector<std::vector<std::byte>>& streams) {
    for (std::size_t i = 0; i < f.info().streams.size(); ++i)
      streams.emplace_back(static_cast<std::size_t>(f.stream_bytes(static_cast<int>(i), rows, cols)));
    const Operand o = operand_over(f, [&](int i) { return streams[static_cast<std::size_t>(i)].data(); });
    return {const_cast<void*>(o.data), const_cast<void*>(o.scales), const_cast<float*>(o.global)};
  }
  // The first m rows of x, further apart, NaN between them where x has one.
  Memory pad(std::int64_t m, std::int64_t by) {
    const std::size_t row = static_cast<std::size_t>(gemm_.x.stream_bytes(0, 1, gemm_.k));
    const std::size_t stride = static_cast<std::size_t>(gemm_.x.stream_bytes(0, 1, gemm_.k + by));
    std::vector<std::byte> bytes(static_cast<std::size_t>(m) * stride, std::byte{0xff});
    const std::vector<std::byte>& x = content("x.data");
    for (std::size_t r = 0; r < static_cast<std::size_t>(m); ++r) std::memcpy(bytes.data() + r * stride, x.data() + r * row, row);
    Memory out(suite_.device(), bytes.size());
    out.upload(bytes);
    return out;
  }
  std::string compare(const std::vector<std::byte>& got, std::int64_t m, const Judge& own) {
    const std::size_t cells = static_cast<std::size_t>(m * gemm_.n);
    if (values_.size() < cells) return "the oracle was not asked for so many rows";
    if (own) {
      std::vector<float> decoded(cells);
      gemm_.y.info().decode({got.data(), nullptr, nullptr}, m, gemm_.n, decoded.data());
      return own(decoded, values_, bounds_);
    }
    std::vector<std::byte> expected(cells * 8);
    std::memcpy(expected.data(), values_.data(), cells * 4);
    std::memcpy(expected.data() + cells * 4, bounds_.data(), cells * 4);
    return task_.compare(got, expected, {}, m);
  }

  Suite& suite_;
  Gemm gemm_;
  Task task_;
  std::int64_t rows_;
  Kernel oracle_;
  OwnedStream stream_;
  std::vector<std::vector<std::byte>> content_;  // one per buffer of the task, empty for y
  std::vector<Memory> memory_;
  Memory y_;
  std::vector<float> values_, bounds_;  // of as many rows as the oracle was asked for
};

// Formats that meet in a warpgroup kernel.
struct Pair {
  Format x, w;
  bool tiles = false, fast = false;
  // A problem, whose m is to be replaced. `which` turns through the kinds of output and epilogue.
  std::string text(int which, std::int64_t n, std::int64_t k, bool epilogue) const {
    constexpr const char* kY[] = {"f16", "f32", "bf16"};
    constexpr const char* kBias[] = {"", " bias=f32", "", " bias=f16", " bias=bf16"};
    constexpr const char* kAct[] = {"", " act=silu", " act=relu", " act=gelu", "", " act=gelu_tanh", ""};
    return fmt::format("gemm x={} w={} y={} m=1 n={} k={}{}{}{}{}{}{}", x.name(), w.name(), kY[which % 3], n, k,
                       global_of(w) ? which % 2 ? " global=div" : " global=mul" : "", tiles ? " pack=tiles" : "",
                       fast ? " accum=fast" : "", epilogue ? kBias[which % 5] : "", epilogue ? kAct[which % 7] : "",
                       epilogue && which % 4 == 3 ? " alpha=0.5" : "");
  }
  static bool global_of(Format f) {
    return std::any_of(f.info().streams.begin(), f.info().streams.end(),
                       [](const StreamSpec& s) { return s.scope == Scope::tensor; });
  }
  int panel() const { return 128 / x.info().streams[0].bytes; }  // columns of 128 bytes
  std::string name() const { return fmt::format("{} x {}{}", x.name(), w.name(), fast ? " fast" : ""); }
};

constexpr std::int64_t kWholeK = 2048;  // a multiple of every block, of a tile and of a stage

// Every format that has tiles, found by asking, and for what it has them.
std::vector<Pair> wgmma_pairs(Suite& s) {
  std::vector<Pair> pairs;
  for (const char* name : {"f16", "bf16", "int8_row", "e4m3_row"}) {
    const Format x = Format::parse(name);
    const auto add = [&](Pair pair) {
      pairs.push_back(pair);
      pair.fast = true;
      if (x.name() == "e4m3_row") pairs.push_back(pair);
    };
    add({x, x});
    for (Format w : Format::all()) {
      if (w == x) continue;
      const Pair pair{x, w};
      const Problem packed = s.engine().packed(Problem::parse(pair.text(0, 64, kWholeK, false)), s.device().arch());
      if (packed.gemm()->packing == Packing::tiles) add({x, w, true});
    }
  }
  return pairs;
}

// The family's candidates at m, best first.
std::vector<Candidate> legal(Suite& s, const Problem& problem, std::int64_t m, std::string_view family) {
  std::vector<Candidate> all = s.engine().task(problem.with_rows(m), s.device().arch()).candidates;
  std::erase_if(all, [&](const Candidate& c) { return c.family != family; });
  return all;
}

struct Pick {
  std::size_t problem;
  Candidate candidate;
  std::future<Kernel> kernel;
};

// Knob values that a candidate has, but for those that follow from others.
std::vector<std::string> values_of(const Candidate& c) {
  std::vector<std::string> values;
  for (const auto& [knob, value] : c.knobs)
    if (knob != "stages") values.push_back(fmt::format("{}={}", knob, value));
  return values;
}

// What a pair of formats is tested with: the first and last of some lists, then whatever has a knob's value that none
// before has, in random order, so that pairs differ in what they combine.
class Picker {
 public:
  Picker(std::vector<Pick>& picks, unsigned seed) : picks_(picks), random_(seed) {}
  void must(std::size_t problem, const Candidate& c) {
    for (const Pick& p : picks_)
      if (p.problem == problem && p.candidate == c) return;
    for (const std::string& v : values_of(c)) seen_.insert(v);
    picks_.push_back({problem, c, {}});
  }
  void offer(std::size_t problem, const std::vector<Candidate>& all) {
    for (const Candidate& c : all) pool_.emplace_back(problem, c);
  }
  void cover() {
    std::shuffle(pool_.begin(), pool_.end(), random_);
    for (;;) {
      std::size_t best = 0, most = 0;
      for (std::size_t i = 0; i < pool_.size(); ++i) {
        std::size_t fresh = 0;
        for (const std::string& v : values_of(pool_[i].second)) fresh += !seen_.count(v);
        if (fresh > most) best = i, most = fresh;
      }
      if (most == 0) return;
      must(pool_[best].first, pool_[best].second);
    }
  }

 private:
  std::vector<Pick>& picks_;
  std::mt19937 random_;
  std::vector<std::pair<std::size_t, Candidate>> pool_;
  std::set<std::string> seen_;
};

// A problem of a pair, its sizes, and the kernels that are on their way.
struct Case {
  Problem problem;
  std::vector<std::int64_t> ms;
  std::future<Kernel> oracle;
  std::int64_t rows() const { return *std::max_element(ms.begin(), ms.end()); }
};
struct Work {
  Pair pair;
  std::vector<Case> cases;
  std::vector<Pick> picks;
};

// `available`: gains the values of every list.
Work plan_work(Suite& s, const Pair& pair, int which, std::set<std::string>& available) {
  Work work{pair, {}, {}};
  const bool one = s.extent() == Extent::one;
  // Tiles are whole in both extents; the others' last panels are of a stage of their own, their last rows of a tile.
  const std::int64_t n = one ? (pair.tiles ? 192 : 200) : pair.tiles ? 576 : 584;
  const std::int64_t k = one ? (pair.tiles ? 1024 : 9 * pair.panel()) : pair.tiles ? kWholeK : 17 * pair.panel();
  const std::vector<std::int64_t> ms =
      one ? std::vector<std::int64_t>{3, 77} : std::vector<std::int64_t>{1, 3, 16, 17, 64, 77, 130, 257, 1000};
  const Problem problem = Problem::parse(pair.text(which, n, k, true));
  work.cases.push_back({problem, ms, {}});
  Picker picker(work.picks, static_cast<unsigned>(which));
  std::vector<std::vector<Candidate>> lists;
  for (std::int64_t m : ms) lists.push_back(legal(s, problem, m, "wgmma"));
  const auto must = [&](std::size_t list, bool last) {
    if (!lists[list].empty()) picker.must(0, last ? lists[list].back() : lists[list].front());
  };
  if (one) {
    must(0, false), must(1, false), must(1, true);
    return work;
  }
  must(0, false), must(4, false), must(8, false);  // m = 1, 64, 1000: what prepare() takes
  if (s.extent() == Extent::quick) return work;
  const Problem deep = Problem::parse(
      pair.text(which + 1, pair.tiles ? 192 : 200, pair.tiles ? 16384 : 16384 + pair.panel(), false));
  work.cases.push_back({deep, {1, 17, 130}, {}});
  must(static_cast<std::size_t>(which) % lists.size(), true);
  const auto offer = [&](std::size_t at, const std::vector<Candidate>& list) {
    picker.offer(at, list);
    for (const Candidate& c : list)
      for (const std::string& v : values_of(c)) available.insert(v);
  };
  for (const auto& list : lists) offer(0, list);
  for (std::int64_t m : work.cases[1].ms) {
    const std::vector<Candidate> list = legal(s, deep, m, "wgmma");
    if (m == 1 && !list.empty()) picker.must(1, list.front());
    offer(1, list);
  }
  picker.cover();
  return work;
}

// Elements of x that are no numbers. Row 1 has a NaN and so has the last, which has it in the last column; row 2 an
// infinity, where x has one.
constexpr std::int64_t kOddRows = 19;
bool put_oddities(Trial& t) {
  const std::string_view x = t.gemm().x.name();
  const std::int64_t k = t.gemm().k;
  const auto poke = [&](const char* stream, std::int64_t at, int bytes, std::uint32_t bits) {
    std::memcpy(t.content(stream).data() + at * bytes, &bits, static_cast<std::size_t>(bytes));
  };
  if (x == "int8_row") {
    poke("x.scales", 1, 4, 0x7fc00000u), poke("x.scales", kOddRows - 1, 4, 0x7fc00000u);
    return false;
  }
  const int bytes = t.gemm().x.info().streams[0].bytes;
  const std::uint32_t nan = x == "f16" ? 0x7e00u : x == "bf16" ? 0x7fc0u : 0x7fu;
  poke("x.data", k + k / 2 + 3, bytes, nan);
  poke("x.data", kOddRows * k - 1, bytes, nan);
  if (bytes == 1) return false;
  poke("x.data", 2 * k + 5, bytes, x == "f16" ? 0x7c00u : 0x7f80u);
  return true;
}
// NaN fills its token's row and no other; what an infinity leaves is infinite or NaN, and which of them is certain where
// unpacking is exact.
std::string judge_oddities(const Gemm& g, bool infinite, const std::vector<float>& got, const std::vector<float>& expected,
                           const std::vector<float>& bounds) {
  const bool exact = g.w == g.x || g.w.name() == "q4_0";
  for (std::int64_t i = 0; i < kOddRows; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * g.n + j);
      const float v = expected[at], y = got[at];
      std::string want;
      if (i == 1 || i == kOddRows - 1) {
        if (!std::isnan(v)) return fmt::format("the oracle's y[{},{}] = {}, expected NaN", i, j, v);
        if (!std::isnan(y)) want = "NaN";
      } else if (i == 2 && infinite) {
        if (g.act != Activation::none) continue;  // may make a number of an infinity, and differ in how
        if (exact ? !(y == v || (std::isnan(v) && std::isnan(y))) : std::isfinite(y)) want = fmt::format("{}", v);
      } else if (!(std::fabs(y - v) <= bounds[at])) {
        want = fmt::format("{} +- {}", v, bounds[at]);
      }
      if (!want.empty()) return fmt::format("y[{},{}] = {}, expected {}", i, j, y, want);
    }
  return {};
}

// Data that kernels do not meet in the tuner.
struct Hard {
  const char* name;
  float x, w;             // deviations
  float x_peak, w_peak;   // one element per row, in deviations; 0: none
  bool equal;             // all elements are the deviation
};
constexpr Hard kHard[] = {{"outliers", 1.0f, 0.02f, 700.0f, 60.0f, false},
                          {"equal", 1.0f, 0.0625f, 0, 0, true},
                          {"tiny scales", 1.0f, 2e-6f, 0, 0, false}};

void put_hard(Trial& t, const Hard& hard, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const std::int64_t k = t.gemm().k, rows = 64;
  const auto matrix = [&](std::int64_t count, float deviation, float peak) {
    std::vector<float> values(static_cast<std::size_t>(count * k));
    // Values of sixteen rows are enough to tell rows apart, and encoders are what takes time.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = hard.equal ? deviation : i < static_cast<std::size_t>(17 * k) ? deviation * normal(random) : values[i - static_cast<std::size_t>(17 * k)];
    if (peak > 0)
      for (std::int64_t r = 0; r < count; ++r)
        values[static_cast<std::size_t>(r * k + r * 37 % k)] = (r % 2 ? -peak : peak) * deviation;
    return values;
  };
  t.put_x(matrix(rows, hard.x, hard.x_peak), rows);
  t.put_w(matrix(t.gemm().n, hard.w, hard.w_peak));
}

void do_work(Suite& s, Work& work, unsigned seed, std::set<std::string>& covered, int& rejected,
             std::string& rejections) {
  const std::int64_t step = 16 / work.pair.x.info().streams[0].bytes;  // elements of 16 bytes
  std::vector<std::optional<Kernel>> kernels(work.picks.size());
  for (std::size_t c = 0; c < work.cases.size(); ++c) {
    Case& one = work.cases[c];
    std::optional<Trial> trial;
    s.check("wgmma oracle of " + one.problem.text(), [&] {
      trial.emplace(s, one.problem, one.rows(), one.oracle.get());
      trial->fill(1), trial->upload(), trial->consult(one.rows());
      return std::string();
    });
    if (!trial) continue;
    for (std::size_t i = 0; i < work.picks.size(); ++i) {
      Pick& pick = work.picks[i];
      if (pick.problem != c) continue;
      s.check(fmt::format("{} of {}", pick.candidate.text(), one.problem.text()), [&]() -> std::string {
        const Kernel kernel = pick.kernel.get();
        if (!unacceptable(kernel).empty()) {
          ++rejected;
          rejections += fmt::format("  {}: {} of {}\n", unacceptable(kernel), pick.candidate.text(), one.problem.text());
          return {};
        }
        kernels[i] = kernel;
        for (std::int64_t m : one.ms) {
          const std::string why = trial->judge(kernel, m, 0, 0, m == 3 || m == 17 || m == 77);
          if (!why.empty()) return why;
        }
        // Strides beyond the rows: of y such that rows start anywhere, and at 16 bytes.
        const std::int64_t large = *std::max_element(one.ms.begin(), one.ms.end(), [](auto a, auto b) {
          return (a > 130 ? 0 : a) < (b > 130 ? 0 : b);
        });
        for (const auto& [m, x, y] : std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{
                 {one.ms[1], step, 1}, {large, 3 * step, 8}, {large, 0, 3}}) {
          const std::string why = trial->judge(kernel, m, x, y);
          if (!why.empty()) return why;
        }
        const std::string why = trial->unchanged();
        if (why.empty())
          for (const std::string& v : values_of(pick.candidate)) covered.insert(v);
        return why;
      });
    }
    if (c > 0 || s.extent() == Extent::one) continue;
    const auto every = [&](const char* what, bool numbers, const std::function<std::string(const Kernel&)>& body) {
      s.check(fmt::format("wgmma on {}: {}", what, one.problem.text()), [&]() -> std::string {
        trial->upload(), trial->consult(64, numbers);
        for (std::size_t i = 0; i < work.picks.size(); ++i)
          if (work.picks[i].problem == c && kernels[i])
            if (const std::string why = body(*kernels[i]); !why.empty())
              return fmt::format("{}: {}", work.picks[i].candidate.text(), why);
        return {};
      });
    };
    const bool infinite = put_oddities(*trial);
    every("NaN and Inf", false, [&](const Kernel& kernel) {
      return trial->judge(kernel, kOddRows, 0, 0, true, [&](const auto& got, const auto& expected, const auto& bounds) {
        return judge_oddities(trial->gemm(), infinite, got, expected, bounds);
      });
    });
    for (const Hard& hard : kHard) {
      put_hard(*trial, hard, seed);
      every(hard.name, true, [&](const Kernel& kernel) {
        const std::string why = trial->judge(kernel, 5);
        return why.empty() ? trial->judge(kernel, 64) : why;
      });
    }
  }
}

void wgmma_checks(Suite& s) {
  if (!s.device().arch().wgmma) {
    fmt::print("wgmma: {} has no warpgroup matrix instructions\n", s.device().name());
    return;
  }
  std::vector<Pair> pairs = wgmma_pairs(s);
  if (s.extent() == Extent::one) {  // of each x one plain and one coded w
    std::set<std::string> met;
    std::erase_if(pairs, [&](const Pair& p) {
      return p.fast || !met.insert(fmt::format("{} {}", p.x.name(), p.tiles)).second;
    });
  }
  Ahead ahead(jobs_of(s));
  std::vector<Work> all;
  std::set<std::string> available, covered;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    all.push_back(plan_work(s, pairs[i], static_cast<int>(i), available));
    Work& work = all.back();
    std::vector<Task> tasks;
    for (Case& c : work.cases) {
      tasks.push_back(s.engine().task(c.problem.with_rows(c.rows()), s.device().arch()));
      c.oracle = ahead.submit(oracle_of(s, tasks.back()));
    }
    for (Pick& pick : work.picks) pick.kernel = ahead.submit(kernel_of(s, tasks[pick.problem], pick.candidate));
  }
  int rejected = 0, picks = 0;
  std::string rejections;
  for (std::size_t i = 0; i < all.size(); ++i) {
    do_work(s, all[i], static_cast<unsigned>(i), covered, rejected, rejections);
    picks += static_cast<int>(all[i].picks.size());
  }
  fmt::print("wgmma: {} pairs of formats, {} kernels, {} of them not judged, since the library would not launch them\n{}",
             all.size(), picks, rejected, rejections);
  if (s.extent() != Extent::full) return;
  s.check("wgmma: every knob's values were judged", [&] {
    std::string missing;
    for (const std::string& v : available)
      if (!covered.count(v)) missing += fmt::format(" {}", v);
    if (missing.empty()) fmt::print("wgmma: knobs judged: {}\n", fmt::join(covered, " "));
    return missing.empty() ? std::string() : "none of" + missing;
  });
}

// One packed copy, made on the device, under one prepared kernel at many m; the oracle of the packed problem against that
// of the same weights as stored.
void served_checks(Suite& s) {
  if (!s.device().arch().wgmma) return;
  std::vector<Pair> pairs = wgmma_pairs(s);
  std::set<std::string> met;
  std::erase_if(pairs, [&](const Pair& p) {
    const bool first = p.tiles && !p.fast && met.insert(std::string(p.x.name())).second;
    return !first && !(p.tiles && p.x.name() == "f16" && (p.w.name() == "q4_k" || p.w.name() == "nvfp4"));
  });
  Ahead ahead(jobs_of(s));
  struct Item {
    Problem packed, plain;
    std::future<Kernel> kernel, packed_oracle, plain_oracle;
  };
  constexpr std::int64_t kRows = 300;
  std::vector<Item> items;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    Pair stored = pairs[i];
    stored.tiles = false;
    const Problem plain = Problem::parse(stored.text(static_cast<int>(i), 576, kWholeK, true));
    const Problem packed = s.engine().packed(plain, s.device().arch());
    Item item{packed, plain, {}, {}, {}};
    item.kernel = ahead.submit([&s, packed] { return s.engine().prepare(packed, s.device()); });
    item.packed_oracle = ahead.submit(oracle_of(s, s.engine().task(packed.with_rows(kRows), s.device().arch())));
    item.plain_oracle = ahead.submit(oracle_of(s, s.engine().task(plain.with_rows(kRows), s.device().arch())));
    items.push_back(std::move(item));
  }
  for (Item& item : items)
    s.check("one packed copy for every m: " + item.packed.text(), [&]() -> std::string {
      Trial plain(s, item.plain, kRows, item.plain_oracle.get()), packed(s, item.packed, kRows, item.packed_oracle.get());
      const Kernel kernel = item.kernel.get();
      plain.fill(5), packed.fill(5);
      plain.upload(), packed.upload();
      const Operand from = plain.arguments(1).w, to = packed.arguments(1).w;
      s.engine().pack(packed.gemm(), s.device(), packed.stream(), from,
                      {const_cast<void*>(to.data), const_cast<void*>(to.scales), const_cast<float*>(to.global)});
      packed.synchronize();
      packed.adopt();
      plain.consult(kRows), packed.consult(kRows);
      for (std::size_t i = 0; i < plain.values().size(); ++i) {
        const float a = plain.values()[i], b = packed.values()[i];
        if (!(std::fabs(a - b) <= 1e-5f * std::fabs(a) + 1e-12f))
          return fmt::format("value {}: {} of the weights as stored, {} of the packed ones", i, a, b);
      }
      for (std::int64_t m : {1, 5, 64, 300, 5})
        if (const std::string why = packed.judge(kernel, m); !why.empty()) return why;
      return packed.unchanged();
    });
}

// Weights to tiles on the device against the host, byte for byte, and back. Every byte is random: none may be lost.
std::string pack_against_host(Suite& s, const Pack& forth) {
  Gemm g{.x = forth.x, .w = forth.w, .y = forth.x, .bias = {}};
  g.n = forth.n, g.k = forth.k, g.packing = Packing::tiles;
  std::mt19937 random(11);
  struct Streams {
    std::vector<std::vector<std::byte>> host;
    std::vector<Memory> device;
    MutableOperand on_host, on_device;
  } w, tiles, back;
  Gemm stored = g;
  stored.packing = Packing::none;
  const auto place = [&](Streams& to, const Gemm& of, bool fill) {
    to.host.reserve(3), to.device.reserve(3);
    for (const char* name : {"data", "scales", "global"}) {
      const auto bytes = static_cast<std::size_t>(packed_bytes(of, name));
      if (bytes == 0) continue;
      to.host.emplace_back(bytes);
      if (fill) std::generate(to.host.back().begin(), to.host.back().end(), [&] { return static_cast<std::byte>(random() >> 8); });
      to.device.emplace_back(s.device(), bytes + 64);
      to.device.back().fill(0xa5);
      if (fill) to.device.back().upload(to.host.back());
      const auto set = [&](MutableOperand& o, void* at) {
        (*name == 'd' ? o.data : *name == 's' ? o.scales : reinterpret_cast<void*&>(o.global)) = at;
      };
      set(to.on_host, to.host.back().data()), set(to.on_device, to.device.back().data());
    }
  };
  place(w, stored, true), place(tiles, g, false), place(back, stored, false);
  const auto differs = [](const Streams& expected, const Streams& got, const char* what) -> std::string {
    for (std::size_t i = 0; i < expected.host.size(); ++i) {
      std::vector<std::byte> bytes(expected.host[i].size() + 64);
      got.device[i].download(bytes);
      for (std::size_t b = 0; b < bytes.size(); ++b) {
        const std::byte want = b < expected.host[i].size() ? expected.host[i][b] : std::byte{0xa5};
        if (bytes[b] != want)
          return fmt::format("{} stream {} byte {} of {} is {:02x}, expected {:02x}", what, i, b, expected.host[i].size(),
                             static_cast<int>(bytes[b]), static_cast<int>(want));
      }
    }
    return {};
  };
  pack_weights(g, w.on_host, tiles.on_host);
  OwnedStream stream(s.device());
  s.engine().pack(g, s.device(), stream.get(), w.on_device, tiles.on_device);
  stream.synchronize();
  if (const std::string why = differs(tiles, tiles, "packed"); !why.empty()) return why;
  Pack inverse = forth;
  inverse.inverse = true;
  s.engine().prepare(inverse, s.device()).launch(stream.get(), PackArgs{back.on_device, tiles.on_device});
  stream.synchronize();
  if (const std::string why = differs(w, back, "unpacked"); !why.empty()) return why;
  return differs(tiles, tiles, "after unpacking, packed");
}

void pack_checks(Suite& s) {
  Ahead ahead(jobs_of(s));
  struct Item {
    Pack pack;
    std::vector<std::future<Kernel>> kernels;
  };
  std::vector<Item> items;
  std::set<std::string> met;
  // Asked of the problem itself: packing needs no warpgroup instructions.
  for (Format x : Format::all())
    for (Format w : Format::all()) {
      std::int64_t step = std::lcm<std::int64_t>(w.block(), 128 / std::max(1, x.info().streams[0].bytes));
      if (x.block() != 1) continue;
      Pack pack{w, x, 192, 3 * step};
      try {
        const Problem problem(pack);
      } catch (const Error&) {
        continue;  // no tiles for this x
      }
      if (s.extent() == Extent::one && !met.insert(std::string(x.name())).second) continue;
      for (const auto& [n, k] : std::vector<std::pair<std::int64_t, std::int64_t>>{{192, 3 * step}, {64, 5 * 2048 / step * step}}) {
        pack.n = n, pack.k = k;
        Item item{pack, {}};
        for (bool inverse : {false, true}) {
          Pack one = pack;
          one.inverse = inverse;
          item.kernels.push_back(ahead.submit([&s, one] { return s.engine().prepare(one, s.device()); }));
        }
        items.push_back(std::move(item));
      }
    }
  for (Item& item : items)
    s.check(fmt::format("{} and back", Problem(item.pack).text()), [&] {
      for (auto& kernel : item.kernels) kernel.wait();
      return pack_against_host(s, item.pack);
    });
}

void wgmma_arguments(Suite& s) {
  if (!s.device().arch().wgmma) return;
  const auto invalid = ErrorCode::invalid_argument;
  for (const char* text : {"gemm x=f16 w=q4_0 y=f16 m=64 n=128 k=512 pack=tiles", "gemm x=f16 w=f16 y=f32 m=64 n=136 k=512",
                           "gemm x=int8_row w=int8_row y=bf16 m=64 n=128 k=512"}) {
    const Problem problem = Problem::parse(text);
    const bool tiles = problem.gemm()->packing == Packing::tiles, bytes = problem.gemm()->x.name() == "int8_row";
    const Task task = s.engine().task(problem, s.device().arch());
    Trial trial(s, problem, 64, oracle_of(s, task)());
    trial.fill(3), trial.upload(), trial.consult(64);
    const Kernel kernel = kernel_of(s, task, legal(s, problem, 64, "wgmma").at(0))();
    const auto launch = [&](const std::function<void(GemmArgs&)>& change) {
      return [&, change] {
        GemmArgs args = trial.arguments(64);
        change(args);
        kernel.launch(trial.stream(), args);
      };
    };
    const auto check = [&](const char* what, const std::function<std::string()>& body) {
      s.check(fmt::format("arguments/wgmma {}: {}", what, text), body);
    };
    const auto refused = [&](const char* what, ErrorCode code, const char* field, const std::function<void(GemmArgs&)>& change) {
      check(what, [&] { return expect_error(launch(change), code, field); });
    };
    const auto shifted = [](const void* p, int by) { return static_cast<const char*>(p) + by; };
    for (int by : {1, 8}) {
      const std::string name = fmt::format("misaligned by {}", by);
      refused((name + ", x").c_str(), invalid, "x.data", [&](GemmArgs& a) { a.x.data = shifted(a.x.data, by); });
      refused((name + ", w").c_str(), invalid, tiles ? "w.data (tiles)" : "w.data",
              [&](GemmArgs& a) { a.w.data = shifted(a.w.data, by); });
      if (tiles)
        refused((name + ", scales").c_str(), invalid, "w.scales (tiles)",
                [&](GemmArgs& a) { a.w.scales = shifted(a.w.scales, by); });
      refused((name + ", y").c_str(), invalid, "y", [&](GemmArgs& a) { a.y = static_cast<char*>(a.y) + by; });
    }
    if (tiles) refused("null scales", invalid, "w.scales (tiles)", [](GemmArgs& a) { a.w.scales = nullptr; });
    refused("ldx below the row", invalid, "ldx", [](GemmArgs& a) { a.ldx = 256; });
    refused("ldy below the row", invalid, "ldy", [](GemmArgs& a) { a.ldy = 64; });
    refused("negative m", invalid, "m", [](GemmArgs& a) { a.m = -1; });
    // Rows of x that do not start at 16 bytes: a stride's rule where the contract knows it, else the driver's word.
    if (bytes)
      check("ldx of 8 bytes too many", [&]() -> std::string {
        try {
          launch([](GemmArgs& a) { a.ldx = 512 + 8; })();
        } catch (const Error& e) {
          if (e.code() == invalid && e.field() == "ldx") return {};
          if (e.code() != ErrorCode::driver_failed) return fmt::format("threw {} about {}: {}", to_string(e.code()), e.field(), e.what());
          fmt::print("note: {}: ldx that is no multiple of 16 bytes is refused by the driver alone: {}\n", text, e.what());
          return {};
        }
        return "did not throw";
      });
    else
      for (int by : {1, 4})
        refused(by == 1 ? "ldx of 2 bytes too many" : "ldx of 8 bytes too many", invalid, "ldx", [by](GemmArgs& a) { a.ldx = 512 + by; });
    check("zero rows", [&] {
      launch([](GemmArgs& a) { a.m = 0; })();
      trial.synchronize();
      return std::string();
    });
    check("after all these", [&] { return trial.judge(kernel, 61, 16, 1, true); });
  }
}

// For compute-sanitizer: the first candidate of each family, at sizes that fill no tile.
void one_of_each(Suite& s) {
  for (const char* text : {"gemm x=f16 w=q4_0 y=f16 m=1 n=200 k=512", "gemm x=q8_1 w=q4_k y=f32 m=1 n=77 k=512",
                           "gemm x=bf16 w=bf16 y=bf16 m=1 n=136 k=200 bias=f32 act=silu",
                           "gemm x=f16 w=nvfp4 y=f32 m=1 n=100 k=320 global=mul"}) {
    const Problem problem = Problem::parse(text);
    Trial trial(s, problem, 77, oracle_of(s, s.engine().task(problem.with_rows(77), s.device().arch()))());
    trial.fill(9), trial.upload(), trial.consult(77);
    for (std::int64_t m : {5, 77}) {
      const Task task = s.engine().task(problem.with_rows(m), s.device().arch());
      std::set<std::string> met;
      for (const Candidate& c : task.candidates)
        if (met.insert(c.family).second)
          s.check(fmt::format("m={} of {}: {}", m, text, c.text()), [&] { return trial.judge(kernel_of(s, task, c)(), m, 0, 1); });
    }
  }
}

void one_cast_of_each(Suite& s) {
  for (const char* text : {"cast x=f32 y=q8_1 rows=5 cols=352", "cast x=bf16 y=q4_k rows=3 cols=768",
                           "cast x=f16 y=nvfp4 rows=5 cols=112", "cast x=f32 y=e4m3_row rows=5 cols=259",
                           "cast x=q4_0 y=f16 rows=7 cols=352"})
    s.check(text, [&] { return cast_against_host(s, text); });
}

int run(const Request& request) {
  Options options = Options::from_env();
  if (Device::count(options.driver) == 0) {
    fmt::print("skipped: no CUDA device\n");
    return 4;
  }
  options.cache = ":memory:";
  Engine engine(options);
  const Device device = Device::open(0, options.driver);
  Suite suite(engine, device, request);
  const bool quick = request.extent != Extent::full, one = request.extent == Extent::one;
  suite.group("gemm", [&] { one ? one_of_each(suite) : gemm_checks(suite, quick); });
  suite.group("casts", [&] { one ? one_cast_of_each(suite) : cast_checks(suite, quick); });
  suite.group("pack", [&] { pack_checks(suite); });
  suite.group("wgmma", [&] { wgmma_checks(suite); });
  if (!one) {
    suite.group("served", [&] { served_checks(suite); });
    suite.group("arguments", [&] { bad_arguments(suite), wgmma_arguments(suite); });
    suite.group("threads", [&] { suite.check("threads and streams", [&] { return many_threads(suite); }); });
  }
  int failed = 0;
  Json rows = Json::array();
  for (const Result& r : suite.results()) {
    failed += r.status == "failed";
    rows.push_back({{"name", r.name}, {"status", r.status}, {"detail", r.detail}});
  }
  if (suite.results().empty()) throw Error(ErrorCode::invalid_argument, "--only", "", "groups, see the head of bench/gpu_suite.cpp");
  const Json env = environment(&device, options);
  write(request.out, env, rows);
  fmt::print("{} passed, {} failed on {} (driver {}, compiler {}, tree {})\n",
             suite.results().size() - static_cast<std::size_t>(failed), failed, device.name(), device.driver_version(),
             env["compiler"].get<std::string>(), env["tree_hash"].get<std::string>().substr(0, 12));
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace tilewright::bench

int main(int argc, char** argv) {
  tilewright::bench::Request request;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--out" && i + 1 < argc) {
      request.out = argv[++i];
    } else if (word == "--only" && i + 1 < argc) {
      const std::string list = argv[++i];
      for (std::size_t at = 0; at <= list.size();) {
        const std::size_t comma = std::min(list.find(',', at), list.size());
        if (comma > at) request.only.insert(list.substr(at, comma - at));
        at = comma + 1;
      }
    } else if (word == "--quick") {
      request.extent = tilewright::bench::Extent::quick;
    } else if (word == "--one") {
      request.extent = tilewright::bench::Extent::one;
    } else if (word == "--verbose") {
      request.verbose = true;
    } else {
      fmt::print(stderr, "tilewright_gpu_suite: {} is no option; see the head of bench/gpu_suite.cpp\n", word);
      return 2;
    }
  }
  try {
    return tilewright::bench::run(request);
  } catch (const std::exception& e) {
    fmt::print(stderr, "tilewright_gpu_suite: {}\n", e.what());
    return 1;
  }
}
