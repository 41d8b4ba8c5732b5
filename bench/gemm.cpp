// SPDX-License-Identifier: Apache-2.0
// `bench gemm`: the gemm kernels against cuBLASLt and against the read bandwidth, all measured in this run. What is
// asked of them is the table `rows()`; everything else here reads it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "bench/bench.h"
#include "bench/cublaslt.h"
#include "bench/cuda.h"

namespace tilewright::bench {
namespace {

// ---- The table

enum class Target {
  ratio,      // speed over the rival's, at least
  teraflops,  // at least
  decode,     // m = 1: of the read bandwidth, by the weights' size; larger m: time over that of m = 1, at most
};

struct Row {
  const char* group;  // the row of targets that it belongs to
  const char* label;
  const char* text;   // the problem but for m, n and k; one whose formats the library does not know is a row without a kernel
  std::vector<std::int64_t> ms;
  Target target;
  double value;       // of decode: bits of a weight, which tell its size while the library does not know the format
  const char* rival;  // what of Rival; "" for none
};

const std::vector<Row>& rows() {
  using enum Target;
  static const std::vector<std::int64_t> both{1024, 4096}, decoded{1, 16, 64};
  static const std::vector<Row> table = {
      {"bf16, fp16", "bf16", "x=bf16 w=bf16 y=bf16", both, ratio, 0.97, "bf16"},
      {"bf16, fp16", "fp16", "x=f16 w=f16 y=f16", both, ratio, 0.97, "fp16"},
      {"fp8 rows x channels", "fp8 rows x channels", "x=e4m3_row w=e4m3_row y=bf16 accum=fast", both, ratio, 1.0, "fp8+rows"},
      // Sums in single precision, which the rival's fast accumulation gives up: not judged against it.
      {"", "fp8, full accumulation", "x=e4m3_row w=e4m3_row y=bf16", both, ratio, 0, "fp8+rows"},
      {"fp8 128-blocks", "fp8 128-blocks", "x=e4m3_g128 w=e4m3_b128 y=bf16", {4096}, ratio, 0.9, "fp8"},
      {"int8 to bf16", "int8 to bf16", "x=int8_row w=int8_row y=bf16", both, ratio, 1.7, "int8"},
      // What cuBLASLt does when it may round its result to eight bits, for which bf16 is no substitute: not judged.
      {"", "int8, rival rounds to int8", "x=int8_row w=int8_row y=bf16", both, ratio, 0, "int8+int8"},
      {"int4-g128 x 16-bit", "int4-g128 x f16", "x=f16 w=int4_g128 y=f16", both, ratio, 0.92, "bf16"},
      {"int4-g128 x 16-bit", "int4-g128 x bf16", "x=bf16 w=int4_g128 y=bf16", both, ratio, 0.92, "bf16"},
      {"q4_0, nvfp4 x 16-bit", "q4_0 x f16", "x=f16 w=q4_0 y=f16", both, ratio, 0.85, "bf16"},
      {"q4_0, nvfp4 x 16-bit", "nvfp4 x f16", "x=f16 w=nvfp4 y=f16 global=mul", both, ratio, 0.85, "bf16"},
      {"block formats x 16-bit", "q4_k x f16", "x=f16 w=q4_k y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q5_k x f16", "x=f16 w=q5_k y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q6_k x f16", "x=f16 w=q6_k y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q8_0 x f16", "x=f16 w=q8_0 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q4_1 x f16", "x=f16 w=q4_1 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q5_0 x f16", "x=f16 w=q5_0 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "q5_1 x f16", "x=f16 w=q5_1 y=f16", {1024}, ratio, 0.75, "bf16"},
      {"block formats x 16-bit", "mxfp4 x bf16", "x=bf16 w=mxfp4 y=bf16", {1024}, ratio, 0.75, "bf16"},
      {"q4_0 x q8_1, faithful", "q4_0 x q8_1", "x=q8_1 w=q4_0 y=f32", {1024}, teraflops, 350, ""},
      {"int4-g128 x fp8 or int8", "int4-g128 x int8", "x=int8_row w=int4_g128 y=bf16", both, ratio, 0.8, "fp8"},
      {"int4-g128 x fp8 or int8", "int4-g128 x fp8", "x=e4m3_row w=int4_g128 y=bf16", both, ratio, 0.8, "fp8"},
      {"int4 or e2m1 per channel x fp8", "int4 rows x int8", "x=int8_row w=int4_row y=bf16", both, ratio, 0.97, "fp8"},
      {"int4 or e2m1 per channel x fp8", "int4 rows x fp8", "x=e4m3_row w=int4_row y=bf16 accum=fast", both, ratio, 0.97, "fp8"},
      {"int4 or e2m1 per channel x fp8", "e2m1 rows x fp8", "x=e4m3_row w=e2m1_row y=bf16 accum=fast", both, ratio, 0.97, "fp8"},
      // Lossy: NVFP4 weights cast to fp8 rows at load, so the kernel is that of fp8 rows x channels.
      {"nvfp4 x fp8, lossy", "nvfp4 as fp8 rows x fp8", "x=e4m3_row w=e4m3_row y=bf16 accum=fast", {1024}, ratio, 0.9, "fp8"},
      // Decode: 16-bit weights at m = 1 alone, the others at 16 and 64 as well.
      {"", "bf16", "x=bf16 w=bf16 y=bf16", {1}, decode, 16, ""},
      {"", "fp16", "x=f16 w=f16 y=f16", {1}, decode, 16, ""},
      {"", "q4_0 x f16", "x=f16 w=q4_0 y=f16", decoded, decode, 4.5, ""},
      {"", "q4_0 x q8_1", "x=q8_1 w=q4_0 y=f32", decoded, decode, 4.5, ""},
      {"", "q8_0 x f16", "x=f16 w=q8_0 y=f16", decoded, decode, 8.5, ""},
      {"", "q4_k x f16", "x=f16 w=q4_k y=f16", decoded, decode, 4.5, ""},
      {"", "nvfp4 x f16", "x=f16 w=nvfp4 y=f16 global=mul", decoded, decode, 4.5, ""},
      {"", "fp8 rows x channels", "x=e4m3_row w=e4m3_row y=bf16", decoded, decode, 8, ""},
      {"", "int8 to bf16", "x=int8_row w=int8_row y=bf16", decoded, decode, 8, ""},
      {"", "int4-g128 x f16", "x=f16 w=int4_g128 y=f16", decoded, decode, 4.125, ""},
      {"", "int4-g128 x int8", "x=int8_row w=int4_g128 y=bf16", decoded, decode, 4.125, ""},
      {"", "int4-g128 x fp8", "x=e4m3_row w=int4_g128 y=bf16", decoded, decode, 4.125, ""},
      {"", "q5_k x f16", "x=f16 w=q5_k y=f16", decoded, decode, 5.5, ""},
      {"", "q6_k x f16", "x=f16 w=q6_k y=f16", decoded, decode, 6.5625, ""},
      {"", "q4_1 x f16", "x=f16 w=q4_1 y=f16", decoded, decode, 5, ""},
      {"", "q5_0 x f16", "x=f16 w=q5_0 y=f16", decoded, decode, 5.5, ""},
      {"", "q5_1 x f16", "x=f16 w=q5_1 y=f16", decoded, decode, 6, ""},
      {"", "mxfp4 x bf16", "x=bf16 w=mxfp4 y=bf16", decoded, decode, 4.25, ""},
  };
  return table;
}

struct Shape {
  std::int64_t n, k;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

// Kernels are tuned on 4096x14336 and 28672x4096 (--shapes names them). What is judged is another set: all of it with
// --shapes judged; by default a row gets two of `large`, or one of `small`, turn by turn.
const std::vector<Shape> kJudged{{6144, 4096},  {4096, 4096},  {10240, 8192}, {8192, 8192},
                                 {57344, 8192}, {8192, 28672}, {5120, 13824}, {3584, 18944}};
const std::vector<Shape> kLarge{{10240, 8192}, {6144, 4096}, {5120, 13824}, {3584, 18944}, {8192, 8192}};
const std::vector<Shape> kSmall{{8192, 28672}, {8192, 8192}, {57344, 8192}, {4096, 4096}, {10240, 8192}};

// The one place that writes a problem.
std::string problem_text(const Row& row, Shape shape, std::int64_t m, const std::string& pack) {
  return fmt::format("gemm {} m={} n={} k={}{}", row.text, m, shape.n, shape.k, pack.empty() ? "" : " pack=" + pack);
}

struct Goal {
  double value = 0;
  std::string group, text;
  bool at_most = false;
};

// What is asked at this m and of weights of this size; a value of 0: nothing.
Goal goal_of(const Row& row, std::int64_t m, double weight_bytes) {
  switch (row.target) {
    case Target::ratio: return {row.value, row.group, fmt::format(">= {:.2f}x", row.value), false};
    case Target::teraflops: return {row.value, row.group, fmt::format(">= {:.0f} TF", row.value), false};
    case Target::decode: break;
  }
  if (m == 16) return {1.15, "m=16 over m=1", "<= 1.15x", true};
  if (m == 64) return {1.35, "m=64 over m=1", "<= 1.35x", true};
  if (m != 1) return {};
  if (weight_bytes >= 100e6) return {0.85, "m=1, weights >= 100 MB", ">= 85 %", false};
  if (weight_bytes >= 30e6) return {0.75, "m=1, weights 30-100 MB", ">= 75 %", false};
  if (weight_bytes >= 8e6) return {0.50, "m=1, weights 8-30 MB", ">= 50 %", false};
  return {};
}

// ---- Choices of the command line

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) {
    const auto begin = part.find_first_not_of(' ');
    if (begin != part.npos) parts.push_back(part.substr(begin, part.find_last_not_of(' ') - begin + 1));
  }
  return parts;
}

std::int64_t number(const char* field, const std::string& text) {
  std::size_t end = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &end);
  } catch (const std::exception&) {
  }
  if (value < 1 || end != text.size()) throw Error(ErrorCode::invalid_argument, field, text, "a positive number");
  return value;
}

std::vector<Shape> shapes_of(const std::string& text) {
  if (text == "judged") return kJudged;
  std::vector<Shape> shapes;
  for (const std::string& part : split(text, ';')) {
    const std::vector<std::string> both = split(part, part.find('x') == part.npos ? ',' : 'x');
    if (both.size() != 2) throw Error(ErrorCode::invalid_argument, "shapes", part, "N,K;N,K;... or 'judged'");
    shapes.push_back({number("shapes", both[0]), number("shapes", both[1])});
  }
  return shapes;
}

struct Job {
  const Row* row;
  Shape shape;
  std::vector<std::int64_t> ms;  // timed side by side
};

// First every row's first shape, then every row's second: a run that is cut short has seen every row.
std::vector<Job> jobs_of(const Settings& settings) {
  const std::vector<Shape> asked = shapes_of(settings.shapes);
  std::set<std::int64_t> ms;
  for (const std::string& m : split(settings.ms, ',')) ms.insert(number("m", m));
  std::map<std::size_t, std::vector<Job>> passes;
  int large = 0, small = 0;
  for (const Row& row : rows()) {
    const bool decode = row.target == Target::decode;
    std::vector<Shape> shapes = asked;
    if (shapes.empty() && decode) shapes = {kSmall[static_cast<std::size_t>(small++) % kSmall.size()]};
    if (shapes.empty())
      for (int i = 0; i < 2; ++i) shapes.push_back(kLarge[static_cast<std::size_t>(large++) % kLarge.size()]);
    const std::string name = fmt::format("{} {}; {}; {}", decode ? "decode" : "large", row.label, row.group, row.text);
    const std::vector<std::string> wanted = split(settings.rows, '|');
    if (!wanted.empty() &&
        std::none_of(wanted.begin(), wanted.end(), [&](const std::string& w) { return name.find(w) != name.npos; }))
      continue;
    std::vector<std::int64_t> of_row;
    for (std::int64_t m : row.ms)
      if (ms.empty() || ms.count(m)) of_row.push_back(m);
    if (of_row.empty()) continue;
    if (decode && of_row.front() != 1) of_row.insert(of_row.begin(), 1);  // what the others are measured by
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (decode) passes[i].push_back({&row, shapes[i], of_row});
      if (!decode)
        for (std::int64_t m : of_row) passes[i].push_back({&row, shapes[i], {m}});
    }
  }
  std::vector<Job> jobs;
  for (auto& [pass, list] : passes) jobs.insert(jobs.end(), list.begin(), list.end());
  return jobs;
}

// ---- Measuring

double percentile(std::vector<double> v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[static_cast<std::size_t>(p * static_cast<double>(v.size() - 1) + 0.5)];
}

struct Missing {
  std::string why;
};

// One of our kernels, tuned.
struct Ours {
  std::int64_t m = 0;
  std::string text;
  TuneReport report;
  Task task;
  std::optional<Kernel> kernel;
  std::optional<Replay> replay;
  std::vector<double> samples;
};

struct Measured {
  const Row* row = nullptr;
  Shape shape{};
  std::int64_t m = 0;
  Goal goal;
  std::string problem, mark, note;
  double us = 0, low = 0, high = 0, weight_bytes = 0, tflops = 0, tbps = 0, value = 0, rival_us = 0;
  std::string rival;
  Json rivals = Json::array(), outcomes = Json::array();
  std::string choice, first;
  double tune_seconds = 0;
};

class GemmBench {
 public:
  GemmBench(const Device& device, const Settings& settings)
      : settings_(settings), options_(options_of(settings)), engine_(options_), device_(device) {}

  Json run() {
    const std::vector<Job> jobs = jobs_of(settings_);
    ceiling_ = read_ceiling(engine_, device_);
    fmt::print("read ceiling {:.2f} TB/s\n", ceiling_);
    cuda_ = std::make_unique<Cuda>(device_, options_.driver);
    open_rival();
    std::fflush(stdout);
    bool lost = false;
    double longest = 0;
    for (const Job& job : jobs) {
      const double began = seconds();
      if (lost || began + longest > settings_.seconds) {
        for (std::int64_t m : job.ms) missing(job, m, lost ? "the device was lost" : "not run: out of time");
        continue;
      }
      try {
        measure(job);
      } catch (const Missing& e) {
        for (std::int64_t m : job.ms) missing(job, m, e.why);
      } catch (const Error& e) {
        for (std::int64_t m : job.ms) missing(job, m, std::string("failed: ") + e.what());
        try {
          device_.synchronize();
        } catch (const Error&) {
          lost = true;
        }
      }
      longest = std::max(longest, seconds() - began);
      std::fflush(stdout);
    }
    rivals_.clear();
    return report();
  }

 private:
  static Options options_of(const Settings& settings) {
    Options options = Options::from_env();
    options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
    return options;
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

  // Says at once whether the rival is there and computes what it should: every variant on a small product.
  void open_rival() {
    std::string why;
    library_ = CublasLt::open(device_, options_.nvrtc, why);
    if (!library_) {
      fmt::print("cuBLASLt: {}. Ratios have no rival and do not pass.\n", why);
      rival_json_ = {{"error", why}};
      return;
    }
    rival_json_ = {{"version", library_->version()}};
    fmt::print("cuBLASLt {} ({}), 16 elements of m=256 n=1024 k=1024 against the host's products:\n",
               library_->version(), library_->path());
    for (const char* what : {"bf16", "fp16", "fp8+rows", "int8", "int8+int8"}) {
      try {
        Rival rival(*library_, *cuda_, device_, engine_, what, 256, 1024, 1024, 1e6);
        std::string last;
        for (const RivalTime& t : rival.times()) {
          if (std::exchange(last, t.name) == t.name) continue;  // its second algorithm
          fmt::print("  {}: agrees (off by {:.1e}), {} algorithms\n", t.name, t.error, t.algorithms);
          rival_json_["checks"].push_back({{"name", t.name}, {"error", t.error}, {"algorithms", t.algorithms}});
        }
        for (const std::string& note : rival.notes()) {
          fmt::print("  {}\n", note);
          rival_json_["notes"].push_back(note);
        }
      } catch (const Error& e) {
        if (e.code() == ErrorCode::driver_failed) device_.synchronize();  // throws if the device is lost
        fmt::print("  {}: {}\n", what, e.what());
        rival_json_["notes"].push_back(fmt::format("{}: {}", what, e.what()));
      }
    }
  }

  // The rival's inputs and graphs stay for the other rows of the shape, until their memory is needed.
  Rival* rival(const std::string& what, Shape shape, std::int64_t m) {
    if (what.empty() || !library_) return nullptr;
    const std::string key = fmt::format("{} {} {} {}", what, m, shape.n, shape.k);
    for (auto& [name, kept] : rivals_)
      if (name == key) return kept.get();
    std::size_t held = 0;
    for (auto& [name, kept] : rivals_) held += kept->bytes();
    while (!rivals_.empty() && held > static_cast<std::size_t>(device_.memory_bytes()) / 5) {
      held -= rivals_.front().second->bytes();
      rivals_.pop_front();
    }
    rivals_.emplace_back(
        key, std::make_unique<Rival>(*library_, *cuda_, device_, engine_, what, m, shape.n, shape.k, kColdBytes));
    return rivals_.back().second.get();
  }

  // Many tokens: packed if there is a way. Few: as Engine::packed says, which has all numbers of rows in mind.
  Problem problem_of(const Job& job, std::int64_t m) const {
    std::string why;
    for (const std::string& pack : {settings_.pack, std::string()}) {
      try {
        if (m <= kFewTokens && !pack.empty()) {
          const Problem plain = Problem::parse(problem_text(*job.row, job.shape, m, ""));
          if (engine_.packed(plain, device_.arch()) == plain) continue;
        }
        return Problem::parse(problem_text(*job.row, job.shape, m, pack));
      } catch (const Error& e) {
        why = e.what();
      }
    }
    throw Missing{"no kernel: " + why};
  }

  Ours tuned(const Job& job, std::int64_t m) {
    const Problem problem = problem_of(job, m);
    Ours ours;
    ours.m = m;
    ours.text = problem.text();
    try {
      const std::vector<Planned> planned = engine_.plan(problem, device_.arch());
      if (std::all_of(planned.begin(), planned.end(),
                      [](const Planned& p) { return p.candidate.family == "reference"; }))
        throw Missing{"no kernel: the reference alone computes it"};
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      throw Missing{std::string("no kernel: ") + e.what()};
    }
    TunePolicy policy;
    policy.max_candidates = settings_.candidates;
    policy.budget_seconds = settings_.tune_seconds;
    ours.report = engine_.tune(problem, device_, policy);
    if (ours.report.choice.candidate.family == "reference") {
      std::string why = "no kernel: every candidate failed";
      for (const Outcome& o : ours.report.outcomes)
        if (o.kind != OutcomeKind::measured) {
          why += fmt::format("; {}: {} {}", o.candidate.text(), to_string(o.kind), o.detail);
          break;
        }
      throw Missing{why};
    }
    ours.task = engine_.task(problem, device_.arch());
    ours.task.candidates = {ours.report.choice.candidate};
    ours.kernel = engine_.prepare(ours.task, device_);
    return ours;
  }

  void measure(const Job& job) {
    std::vector<Ours> all;
    for (std::int64_t m : job.ms) {
      try {
        all.push_back(tuned(job, m));
      } catch (const Missing& e) {
        if (m == job.ms.front()) throw;  // without it the others have nothing to be measured by
        missing(job, m, e.why);
      }
    }
    // All of the job's kernels run over the inputs of the largest m.
    const Task& largest = all.back().task;
    std::vector<Piece> pieces;
    for (const Buffer& b : largest.buffers) {
      Piece p;
      p.bytes = b.row_bytes ? b.row_bytes * static_cast<std::size_t>(largest.rows) : b.bytes;
      if (!b.output && b.fill) p.fill = [fill = b.fill](std::span<std::byte> bytes) { fill(bytes, 1); };
      p.weights = b.name.starts_with("w.");
      pieces.push_back(std::move(p));
    }
    const Rotation rotation(*cuda_, device_, pieces, kColdBytes);
    for (Ours& o : all) {
      const auto launch = [&](int i) {
        const std::vector<void*> pointers = rotation.pointers(i % rotation.copies());
        o.kernel->launch(cuda_->stream(), o.task.arguments(pointers, o.m), o.m, o.task.cols);
      };
      launch(0);
      cuda_->microseconds([&] { launch(1); });
      const double once = cuda_->microseconds([&] { launch(rotation.copies() - 1); });
      o.replay.emplace(*cuda_, rotation.launches(once), launch);
    }
    Rival* other = nullptr;
    std::string no_rival;
    try {
      other = rival(job.row->rival, job.shape, job.ms.front());
    } catch (const Error& e) {
      if (e.code() == ErrorCode::driver_failed) device_.synchronize();
      no_rival = e.what();
    }
    if (other)
      for (RivalTime& t : other->times()) t.samples.clear();
    // Interleaved, so that a chip that warms up favours nobody; the first rounds only warm it up.
    for (int round = -kWarmRounds; round < settings_.rounds; ++round) {
      for (Ours& o : all) {
        const double us = o.replay->time();
        if (round >= 0) o.samples.push_back(us);
      }
      if (other)
        for (RivalTime& t : other->times()) {
          const double us = t.replay.time();
          if (round >= 0) t.samples.push_back(us);
        }
    }
    for (Ours& o : all) conclude(job, o, all.front(), static_cast<double>(rotation.weight_bytes()), other, no_rival);
  }

  static Measured result(const Job& job, std::int64_t m, double weight_bytes) {
    Measured r;
    r.row = job.row, r.shape = job.shape, r.m = m, r.goal = goal_of(*job.row, m, weight_bytes);
    return r;
  }

  void conclude(const Job& job, const Ours& o, const Ours& first, double weight_bytes, Rival* other,
                const std::string& no_rival) {
    Measured r = result(job, o.m, weight_bytes);
    r.problem = o.text;
    const Problem problem = Problem::parse(o.text);
    r.us = median(o.samples), r.low = percentile(o.samples, 0.2), r.high = percentile(o.samples, 0.8);
    r.weight_bytes = weight_bytes;
    r.tflops = problem.ops() / r.us * 1e-6, r.tbps = problem.min_bytes() / r.us * 1e-6;
    r.choice = o.report.choice.candidate.text(), r.first = o.report.first.text(), r.tune_seconds = o.report.seconds;
    for (const Outcome& c : o.report.outcomes)
      r.outcomes.push_back({{"candidate", c.candidate.text()},
                            {"kind", to_string(c.kind)},
                            {"us", c.microseconds},
                            {"detail", c.detail}});
    if (other)
      for (const RivalTime& t : other->times()) {
        const double us = median(t.samples);
        r.rivals.push_back({{"name", t.name},
                            {"us", us},
                            {"low", percentile(t.samples, 0.2)},
                            {"high", percentile(t.samples, 0.8)},
                            {"algorithms", t.algorithms},
                            {"error", t.error}});
        if (r.rival_us == 0 || us < r.rival_us) r.rival_us = us, r.rival = t.name;
      }
    switch (job.row->target) {
      case Target::ratio:
        if (r.rival_us > 0)
          r.value = r.rival_us / r.us;
        else
          r.note = no_rival.empty() ? "no rival" : "no rival: " + no_rival;
        break;
      case Target::teraflops: r.value = r.tflops; break;
      case Target::decode: r.value = o.m == 1 ? r.tbps / ceiling_ : r.us / median(first.samples); break;
    }
    if (r.goal.value == 0)
      r.mark = "-";
    else
      r.mark = r.value > 0 && (r.goal.at_most ? r.value <= r.goal.value : r.value >= r.goal.value) ? "pass" : "SHORT";
    add(std::move(r));
  }

  void missing(const Job& job, std::int64_t m, const std::string& why) {
    Measured r = result(job, m, job.row->value / 8 * static_cast<double>(job.shape.n * job.shape.k));
    r.problem = problem_text(*job.row, job.shape, m, "");
    r.mark = "SHORT", r.note = why;
    if (r.goal.value == 0) r.mark = "-";
    add(std::move(r));
  }

  static std::string show(const Measured& r) {
    if (r.value == 0) return "";
    if (r.row->target == Target::teraflops) return fmt::format("{:.0f} TF", r.value);
    if (r.row->target == Target::decode && r.m == 1) return fmt::format("{:.0f} %", 100 * r.value);
    return fmt::format("{:.3f}x", r.value);
  }

  void add(Measured r) {
    fmt::print("{:6} {:24} m={:<5} {}x{}: {}\n", r.mark, r.row->label, r.m, r.shape.n, r.shape.k,
               r.us > 0 ? fmt::format("{:.1f} us {} {} {}", r.us, show(r), r.goal.text, r.note) : r.note);
    results_.push_back(std::move(r));
  }

  Json report() {
    Table table({"row", "m", "n x k", "us", "", "rival us", "rival", "reached", "target", "", "choice"});
    Json json;
    json["read_ceiling_tbps"] = ceiling_;
    json["cublaslt"] = rival_json_;
    json["rows"] = Json::array();
    for (const Measured& r : results_) {
      const bool by_bytes = r.row->target == Target::decode;
      table.row({r.row->label, fmt::format("{}", r.m), fmt::format("{}x{}", r.shape.n, r.shape.k),
                 r.us > 0 ? fmt::format("{:.1f}", r.us) : "-",
                 r.us == 0  ? ""
                 : by_bytes ? fmt::format("{:.2f} TB/s", r.tbps)
                            : fmt::format("{:.0f} TF", r.tflops),
                 r.rival_us > 0 ? fmt::format("{:.1f}", r.rival_us) : "", r.rival, show(r), r.goal.text, r.mark,
                 r.us > 0 && r.note.empty() ? r.choice : r.note.substr(0, 100)});
      json["rows"].push_back({{"group", r.goal.group},
                              {"label", r.row->label},
                              {"problem", r.problem},
                              {"m", r.m},
                              {"n", r.shape.n},
                              {"k", r.shape.k},
                              {"us", r.us},
                              {"low", r.low},
                              {"high", r.high},
                              {"tflops", r.tflops},
                              {"tbps", r.tbps},
                              {"weight_bytes", r.weight_bytes},
                              {"value", r.value},
                              {"target", r.goal.value},
                              {"at_most", r.goal.at_most},
                              {"target_text", r.goal.text},
                              {"mark", r.mark},
                              {"note", r.note},
                              {"rival", r.rival},
                              {"rival_us", r.rival_us},
                              {"rivals", r.rivals},
                              {"choice", r.choice},
                              {"first", r.first},
                              {"tune_seconds", r.tune_seconds},
                              {"outcomes", r.outcomes}});
    }
    fmt::print("\n{}\n", table.text());
    json["summary"] = summary();
    fmt::print("{:.0f} s\n", seconds());
    return json;
  }

  // One line for each row of targets.
  Json summary() {
    std::vector<std::string> groups;
    for (const Measured& r : results_)
      if (r.goal.value > 0 && std::find(groups.begin(), groups.end(), r.goal.group) == groups.end())
        groups.push_back(r.goal.group);
    Table table({"targets", "worst", "median", "target", "", "measured", "short", "without a result"});
    Json json = Json::array();
    for (const std::string& group : groups) {
      std::vector<const Measured*> had;
      int asked = 0, passed = 0;
      Goal goal;
      for (const Measured& r : results_)
        if (r.goal.value > 0 && r.goal.group == group) {
          goal = r.goal, ++asked, passed += r.mark == "pass";
          if (r.value > 0) had.push_back(&r);
        }
      std::sort(had.begin(), had.end(), [](const Measured* a, const Measured* b) { return a->value < b->value; });
      if (goal.at_most) std::reverse(had.begin(), had.end());
      const Measured* worst = had.empty() ? nullptr : had.front();
      const Measured* middle = had.empty() ? nullptr : had[had.size() / 2];
      const std::string mark = passed == asked ? "pass" : "SHORT";
      table.row({group, worst ? show(*worst) : "-", middle ? show(*middle) : "-", goal.text, mark,
                 fmt::format("{}", had.size()), fmt::format("{}", static_cast<int>(had.size()) - passed),
                 fmt::format("{}", asked - static_cast<int>(had.size()))});
      json.push_back({{"group", group},
                      {"worst", worst ? worst->value : 0},
                      {"median", middle ? middle->value : 0},
                      {"target", goal.value},
                      {"at_most", goal.at_most},
                      {"asked", asked},
                      {"measured", had.size()},
                      {"passed", passed},
                      {"mark", mark}});
    }
    fmt::print("{}", table.text());
    return json;
  }

  static constexpr double kColdBytes = 4e8;
  static constexpr std::int64_t kFewTokens = 64;
  static constexpr int kWarmRounds = 2;

  const Settings& settings_;
  const Options options_;
  Engine engine_;
  const Device& device_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double ceiling_ = 0;
  std::unique_ptr<Cuda> cuda_;
  std::unique_ptr<CublasLt> library_;
  std::list<std::pair<std::string, std::unique_ptr<Rival>>> rivals_;  // oldest first
  std::vector<Measured> results_;
  Json rival_json_;
};

}  // namespace

Json gemms(const Device& device, const Settings& settings) { return GemmBench(device, settings).run(); }

}  // namespace tilewright::bench
