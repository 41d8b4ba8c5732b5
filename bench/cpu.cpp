// SPDX-License-Identifier: Apache-2.0
// `bench cpu`: this machine's kernels, as they are built in and as they are tuned, beside a loop that only reads the
// weights and beside ggml's CPU backend. Every contender has the same number of threads. They are timed in turns, since
// neighbours and clocks change: a ratio of one run counts. Then what a kernel costs before and around its work.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include <tilewright/memory.h>

#include "bench/bench.h"
#include "bench/rivals/ggml.h"

namespace tilewright::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTurns = 3;
constexpr double kTurnSeconds = 0.25;
constexpr std::int64_t kN = 4096;
// Weights that are to come from memory: as many bytes as a cache of this machine cannot keep, taken in turn.
constexpr std::int64_t kCaches = 4, kLeastBytes = 512 << 20;

double seconds_since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

// ---- contenders: each computes for about `seconds` and returns the microseconds of each piece of work

template <class Work>
std::vector<double> repeat(double seconds, const Work& work) {
  std::vector<double> us;
  for (const auto begin = Clock::now(); us.size() < 3 || seconds_since(begin) < seconds;) {
    const auto from = Clock::now();
    work(us.size());
    us.push_back(seconds_since(from) * 1e6);
  }
  return us;
}

using Vector [[gnu::vector_size(32)]] = std::uint64_t;
#if defined(__x86_64__)
#define TW_READS __attribute__((target("avx2")))
#else
#define TW_READS
#endif
// Sums up; eight loads are under way at a time.
TW_READS std::uint64_t read_all(const std::byte* from, std::size_t bytes) {
  Vector sums[8] = {};
  const auto* const at = reinterpret_cast<const Vector*>(from);
  for (std::size_t i = 0; i + 8 <= bytes / sizeof(Vector); i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += at[i + static_cast<std::size_t>(j)];
  std::uint64_t sum = 0;
  for (const Vector& each : sums) sum += each[0] + each[1] + each[2] + each[3];
  return sum;
}

// GB/s at which so many threads read the copies, one after the other, each thread its part.
double read_gbps(int threads, const std::vector<Memory>& copies, double seconds) {
  std::vector<std::thread> workers;
  std::vector<double> speeds(static_cast<std::size_t>(threads));
  for (std::size_t t = 0; t < speeds.size(); ++t)
    workers.emplace_back([&, t] {
      std::uint64_t sum = 0;
      double bytes = 0;
      const auto begin = Clock::now();
      do {
        for (const Memory& m : copies) {
          const std::size_t part = m.size() / speeds.size() / 64 * 64;
          sum += read_all(static_cast<const std::byte*>(m.data()) + t * part, part);
          __asm__ volatile("" : "+r"(sum));  // is used, whatever the compiler thinks of a second reading
          bytes += static_cast<double>(part);
        }
      } while (seconds_since(begin) < seconds);
      speeds[t] = bytes / seconds_since(begin) * 1e-9;
    });
  for (std::thread& w : workers) w.join();
  double sum = 0;
  for (const double s : speeds) sum += s;
  return sum;
}

// A task's buffers in memory, w of it several times: launches take its copies in turn.
class Operands {
 public:
  Operands(const Device& device, const Task& task, std::int64_t rows, std::int64_t least_bytes) {
    std::vector<void*> pointers;
    std::size_t w = 0;
    for (const Buffer& b : task.buffers) {
      std::vector<std::byte> bytes(b.bytes);
      if (!b.output && b.fill) b.fill(bytes, 1);
      memory_.emplace_back(device, b.bytes).upload(bytes);
      pointers.push_back(memory_.back().data());
      if (b.name == "w.data") w = memory_.size() - 1;
    }
    copies_.push_back(std::move(memory_[w]));
    for (std::size_t i = 1; i * copies_[0].size() < static_cast<std::size_t>(least_bytes); ++i)
      copies_.emplace_back(device, copies_[0].size()).copy_from(copies_[0]);
    for (const Memory& each : copies_) {
      pointers[w] = each.data();
      arguments_.push_back(task.arguments(pointers, rows));
    }
  }
  const std::vector<Memory>& weights() const { return copies_; }
  std::vector<double> run(const Kernel& kernel, const Problem& problem, double seconds) const {
    return repeat(seconds, [&](std::size_t i) {
      kernel.launch(nullptr, arguments_[i % arguments_.size()], problem.rows(), problem.cols());
    });
  }

 private:
  std::vector<Memory> memory_, copies_;
  std::vector<std::vector<std::byte>> arguments_;
};

void append(std::vector<double>& to, const std::vector<double>& more) { to.insert(to.end(), more.begin(), more.end()); }

// ---- products

// Of the forms that a product of floats by such weights may have here, the first that has kernels. As ggml's: x is
// rounded to what w is.
std::optional<Problem> with_kernels(const Engine& engine, const Arch& arch, const char* w, std::int64_t m,
                                    std::int64_t k) {
  for (const std::string& x : {std::string("q8_1"), std::string(w)}) try {
      const Problem plain =
          Problem::parse(fmt::format("gemm x={} x_from=f32 w={} y=f32 m={} n={} k={}", x, w, m, kN, k));
      const Problem problem = engine.packed(plain, arch);
      if (engine.plan(problem, arch).front().candidate.family != "cpu_reference") return problem;
    } catch (const Error&) {  // there is no such problem
    }
  return {};
}

struct Row {
  const char* w;
  std::int64_t m, k;
  bool memory;  // weights from DRAM
};
std::vector<Row> rows() {
  std::vector<Row> list;
  for (const std::int64_t k : {4096, 14336})
    for (const bool memory : {false, true}) list.push_back({"q4_0", 1, k, memory});
  for (const std::int64_t k : {4096, 14336}) list.push_back({"q4_0", 512, k, false});
  for (const char* w : {"q8_0", "q4_k", "q6_k", "ggml_mxfp4", "f16", "bf16"})
    for (const std::int64_t k : {4096, 14336}) list.push_back({w, 256, k, false});
  return list;
}

class Products {
 public:
  Products(Engine& tuned, Engine& built_in, const Device& device, const Ggml* ggml, const Settings& settings)
      : tuned_(tuned), built_in_(built_in), device_(device), ggml_(ggml), settings_(settings) {}

  Json run(const Row& row) {
    Json out = {{"w", row.w}, {"m", row.m}, {"n", kN}, {"k", row.k}, {"weights", row.memory ? "memory" : "cache"}};
    const std::optional<Problem> problem = with_kernels(tuned_, device_.arch(), row.w, row.m, row.k);
    if (!problem) {
      out["missing"] = fmt::format("no kernel for w={} on {} yet", row.w, device_.arch().name);
      show(row, {out["missing"]});
      return out;
    }
    TunePolicy policy;
    policy.max_candidates = settings_.candidates;
    policy.budget_seconds = settings_.tune_seconds;
    const TuneReport report = tuned_.tune(*problem, device_, policy);
    const Kernel fast = tuned_.prepare(*problem, device_);
    const Kernel plain = built_in_.prepare(*problem, device_);
    const bool has_built_in = plain.candidate(row.m).family != "cpu_reference";
    const std::int64_t most = device_.memory_bytes() / 8;  // ggml has as many again, by each type of buffer
    const std::int64_t least = row.memory ? std::min(most, std::max(kLeastBytes, kCaches * device_.l2_bytes())) : 0;
    const Operands operands(device_, tuned_.task(*problem, device_.arch()), row.m, least);
    std::vector<GgmlProduct> rivals;
    if (ggml_) rivals = ggml_->products(device_.sms(), ggml_name(row.w), row.m, kN, row.k, operands.weights().size());

    std::vector<double> fast_us, plain_us, read;
    std::vector<std::vector<double>> rival_us(rivals.size());
    for (int turn = 0; turn < kTurns; ++turn) {
      append(fast_us, operands.run(fast, *problem, kTurnSeconds));
      for (std::size_t i = 0; i < rivals.size(); ++i) append(rival_us[i], rivals[i].run(kTurnSeconds));
      if (has_built_in) append(plain_us, operands.run(plain, *problem, kTurnSeconds));
      if (row.m == 1) read.push_back(read_gbps(device_.sms(), operands.weights(), kTurnSeconds));
    }

    const double us = median(fast_us), ops = problem->ops();
    out["problem"] = problem->text();
    out["choice"] = report.choice.candidate.text();
    if (report.measured > 0) out["tuned_in_seconds"] = report.seconds;  // else an earlier row did it
    out["tuned_us"] = us;
    out["tuned_gflops"] = ops / us * 1e-3;
    if (has_built_in) {
      out["built_in_us"] = median(plain_us);
      out["built_in_of_tuned"] = us / median(plain_us);
    }
    if (row.m == 1) {
      out["w_gbps"] = static_cast<double>(operands.weights()[0].size()) / us * 1e-3;
      out["read_gbps"] = median(read);
      out["of_read"] = out["w_gbps"].get<double>() / median(read);
    }
    for (std::size_t i = 0; i < rivals.size(); ++i) {
      if (rival_us[i].empty()) continue;  // it crashed
      const double theirs = median(rival_us[i]);
      out["ggml"][rivals[i].buffer()] = theirs;
      if (!out.contains("ggml_us") || theirs < out["ggml_us"].get<double>()) {
        out["ggml_us"] = theirs;
        out["ggml_buffer"] = rivals[i].buffer();
      }
    }
    if (out.contains("ggml_us")) out["ratio"] = out["ggml_us"].get<double>() / us;
    show(row, cells(out, ops));
    return out;
  }

 private:
  static std::string ggml_name(const std::string& w) { return w.starts_with("ggml_") ? w.substr(5) : w; }

  static std::vector<std::string> cells(const Json& row, double ops) {
    const auto gflops = [&](const char* us) {
      return row.contains(us) ? fmt::format("{:.0f}", ops / row[us].get<double>() * 1e-3) : "-";
    };
    const auto number = [&](const char* name) {
      return row.contains(name) ? fmt::format("{:.2f}", row[name].get<double>()) : "-";
    };
    return {gflops("tuned_us"),
            gflops("built_in_us"),
            number("built_in_of_tuned"),
            number("w_gbps"),
            number("of_read"),
            gflops("ggml_us"),
            row.contains("ggml_buffer") ? row["ggml_buffer"].get<std::string>() : "-",
            number("ratio"),
            number("tuned_in_seconds")};
  }
  // Each row as soon as it is known: the whole takes minutes.
  void show(const Row& row, const std::vector<std::string>& cells) {
    if (!std::exchange(headed_, true))
      fmt::print("{:<11}{:>4}{:>7}  {:<7}{:>8}{:>10}{:>9}{:>8}{:>8}{:>8}  {:<11}{:>7}{:>9}\n", "w", "m", "k", "from",
                 "tuned", "built in", "of tuned", "GB/s", "of read", "ggml", "buffer", "ratio", "tuning s");
    std::string line = fmt::format("{:<11}{:>4}{:>7}  {:<7}", row.w, row.m, row.k, row.memory ? "memory" : "cache");
    if (cells.size() == 1)
      line += "  " + cells[0];
    else
      line += fmt::format("{:>8}{:>10}{:>9}{:>8}{:>8}{:>8}  {:<11}{:>7}{:>9}", cells[0], cells[1], cells[2], cells[3],
                          cells[4], cells[5], cells[6], cells[7], cells[8]);
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  Engine& tuned_;
  Engine& built_in_;
  const Device& device_;
  const Ggml* const ggml_;
  const Settings& settings_;
  bool headed_ = false;
};

// ---- costs

// Milliseconds to compile a candidate of q4_0's, and to load what came out, medians over all that are legal for one
// token and for 512. Null where there is no compiler.
Json compile_costs(Engine& engine, const Device& device) try {
  std::vector<double> compiles, loads;
  std::size_t bytes = 0;
  for (const int m : {1, 512}) {
    const Problem problem =
        Problem::parse(fmt::format("gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m={} n=4096 k=4096 pack=panels", m));
    const Task task = engine.task(problem, device.arch());
    for (const Candidate& candidate : task.candidates) {
      const Source source = task.source(candidate);
      if (source.text.empty()) continue;
      const auto from = Clock::now();
      const Binary binary = compile(source, device.arch(), CompileOptions::of(engine.options()));
      compiles.push_back(seconds_since(from) * 1e3);
      bytes = std::max(bytes, binary.image.size());
      for (int i = 0; i < 5; ++i) {
        const auto begin = Clock::now();
        const Kernel kernel(device, binary);
        loads.push_back(seconds_since(begin) * 1e3);
      }
    }
  }
  if (compiles.empty()) return nullptr;
  return {{"kernels", compiles.size()},
          {"compile_ms", median(compiles)},
          {"compile_ms_most", *std::max_element(compiles.begin(), compiles.end())},
          {"load_ms", median(loads)},
          {"largest_object", bytes}};
} catch (const Error& e) {
  if (e.code() != ErrorCode::library_missing) throw;
  return nullptr;
}

// Microseconds of a launch that has a block for each thread and next to nothing to compute in it; launches follow each
// other, so that the threads are still spinning.
Json launch_costs_of(Engine& engine, const Device& device) {
  const Problem problem =
      Problem::parse(fmt::format("gemm x=q8_1 x_from=f32 w=q4_0 y=f32 m=1 n={} k=32 pack=panels", 64 * device.sms()));
  const Kernel kernel = engine.prepare(problem, device);
  const Operands operands(device, engine.task(problem, device.arch()), 1, 0);
  std::vector<double> us = operands.run(kernel, problem, kTurnSeconds);
  std::sort(us.begin(), us.end());
  return {{"problem", problem.text()},
          {"kernel", kernel.candidate(1).text()},
          {"us", us[us.size() / 2]},
          {"us_of_95_percent", us[us.size() * 95 / 100]}};
}

}  // namespace

Device cpu_device(const Settings& settings) {
  return Device::open_cpu({.threads = settings.threads, .parallel_for = {}, .target = settings.target});
}

Json cpu(const Settings& settings) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine tuned(options);
  options.cache = ":memory:";
  options.llvm = "/nonexistent";  // leaves what is built in
  Engine built_in(options);
  const Device device = cpu_device(settings);
  std::optional<Ggml> ggml;
  if (!settings.ggml.empty()) ggml.emplace(settings.ggml, device.arch());
  fmt::print("{}, {}, {} thread{}; GFLOP/s; ggml: {}\n", device.name(), device.arch().name, device.sms(),
             device.sms() == 1 ? "" : "s", ggml ? ggml->version() : "not given");
  Json out = {{"threads", device.sms()}, {"cache_bytes", device.l2_bytes()}};
  if (ggml) {
    out["ggml"] = ggml->version();
    out["ggml_options"] = ggml_options(device.arch());
  }
  Products products(tuned, built_in, device, ggml ? &*ggml : nullptr, settings);
  std::vector<double> logs;
  const auto begin = Clock::now();
  for (const Row& row : rows()) {
    const std::string label = fmt::format("w={} m={} k={}", row.w, row.m, row.k);
    if (!settings.rows.empty() && label.find(settings.rows) == label.npos) continue;
    if (seconds_since(begin) > settings.seconds) {
      fmt::print("left out, as --seconds {:g} are over: {}\n", settings.seconds, label);
      continue;
    }
    out["rows"].push_back(products.run(row));
    const Json& last = out["rows"].back();
    if (row.m == 256 && last.contains("ratio")) logs.push_back(std::log(last["ratio"].get<double>()));
  }
  if (!logs.empty()) {
    double sum = 0;
    for (const double l : logs) sum += l;
    out["mean_ratio_256"] = std::exp(sum / static_cast<double>(logs.size()));
    fmt::print("geometric mean of the ratios at m = 256: {:.2f}, of {} rows\n", out["mean_ratio_256"].get<double>(),
               logs.size());
  }
  if (!settings.rows.empty()) return out;
  if (const Json costs = compile_costs(tuned, device); !costs.is_null()) {
    out["compile"] = costs;
    fmt::print("compile one of {} kernels: {:.1f} ms, at most {:.1f}; load: {:.3f} ms; objects of up to {} bytes\n",
               costs["kernels"].get<int>(), costs["compile_ms"].get<double>(), costs["compile_ms_most"].get<double>(),
               costs["load_ms"].get<double>(), costs["largest_object"].get<int>());
  }
  out["launch"] = launch_costs_of(tuned, device);
  fmt::print("launch, threads spinning: {:.2f} us, 95 % within {:.2f}\n", out["launch"]["us"].get<double>(),
             out["launch"]["us_of_95_percent"].get<double>());
  return out;
}

}  // namespace tilewright::bench
