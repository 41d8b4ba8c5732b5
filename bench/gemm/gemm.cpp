// SPDX-License-Identifier: Apache-2.0
// `bench gemm`: the gemm kernels against cuBLASLt and against the read bandwidth, all measured in this run. What is
// asked of them is in gemm_jobs.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "bench/bench.h"
#include "bench/gemm/gemm_jobs.h"
#include "bench/rivals/cublaslt.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

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
  double sustained = 0;
};

struct Measured {
  const Row* row = nullptr;
  Shape shape{};
  std::int64_t m = 0;
  Goal goal;
  std::string problem, mark, note;
  double us = 0, low = 0, high = 0, weight_bytes = 0, tflops = 0, tbps = 0, value = 0, rival_us = 0;
  double sustained_us = 0, rival_sustained_us = 0;  // 0: not asked for
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
    const std::vector<Job> jobs = gemm_jobs(settings_);
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

  // Checks before anything is timed that the rival is there and correct: every variant on a small product.
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
    const Rotation rotation(*cuda_, device_, pieces_of(all.back().task), kColdBytes);
    for (Ours& o : all) {
      const auto launch = [&](int i) {
        const std::vector<void*> pointers = rotation.pointers(i % rotation.copies());
        o.kernel->launch(cuda_->stream(), o.task.arguments(pointers, o.m), o.m, o.task.cols);
      };
      launch(0);
      if (settings_.profile) {
        profile(job, o, "", launch);
        continue;
      }
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
    if (settings_.profile) {
      RivalTime* fastest = nullptr;
      double least = 0;
      if (other)
        for (RivalTime& t : other->times())
          if (const double us = t.replay.time(); !fastest || us < least) fastest = &t, least = us;
      if (fastest) profile(job, all.front(), fastest->name, fastest->launch);
      return;
    }
    if (other)
      for (RivalTime& t : other->times()) t.samples.clear(), t.sustained = 0;
    // Interleaved, so that whatever drifts favours nobody; the first rounds do not count.
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
    if (other && settings_.sustained > 0) {
      for (Ours& o : all) o.sustained = o.replay->sustained(settings_.sustained);
      for (RivalTime& t : other->times()) t.sustained = t.replay.sustained(settings_.sustained);
      std::this_thread::sleep_for(kRecovery);
    }
    for (Ours& o : all) conclude(job, o, all.front(), other, no_rival);
  }

  // Of one of ours, or of the rival by this name.
  void profile(const Job& job, const Ours& o, const std::string& rival, const std::function<void(int)>& launch) {
    cuda_->profiled([&] { launch(1); });
    const std::string choice = rival.empty() ? o.report.choice.candidate.text() : std::string();
    profiled_.push_back({{"label", job.row->label},
                         {"m", o.m},
                         {"n", job.shape.n},
                         {"k", job.shape.k},
                         {"problem", o.text},
                         {"rival", rival},
                         {"choice", choice}});
    fmt::print("{} m={} {}x{}: {}\n", job.row->label, o.m, job.shape.n, job.shape.k, rival.empty() ? choice : rival);
  }

  static Measured result(const Job& job, std::int64_t m, double weight_bytes) {
    Measured r;
    r.row = job.row, r.shape = job.shape, r.m = m, r.goal = goal_of(*job.row, m, weight_bytes);
    return r;
  }

  void conclude(const Job& job, const Ours& o, const Ours& first, Rival* other, const std::string& no_rival) {
    const Problem problem = Problem::parse(o.text);
    // Bytes are w's own format's: what a packing adds is read too, but is nobody's gain.
    Gemm stored = *problem.as<Gemm>();
    stored.packing = Packing::none;
    const double weight_bytes = static_cast<double>(stored.w.total_bytes(stored.n, stored.k));
    Measured r = result(job, o.m, weight_bytes);
    r.problem = o.text;
    r.us = median(o.samples), r.low = percentile(o.samples, 0.2), r.high = percentile(o.samples, 0.8);
    r.weight_bytes = weight_bytes;
    r.tflops = problem.ops() / r.us * 1e-6, r.tbps = Problem(stored).min_bytes() / r.us * 1e-6;
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
                            {"sustained_us", t.sustained},
                            {"algorithms", t.algorithms},
                            {"error", t.error}});
        if (r.rival_us == 0 || us < r.rival_us) r.rival_us = us, r.rival = t.name;
        if (t.sustained > 0 && (r.rival_sustained_us == 0 || t.sustained < r.rival_sustained_us))
          r.rival_sustained_us = t.sustained;
      }
    r.sustained_us = o.sustained;
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
    if (settings_.profile) return {{"profiled", profiled_}};
    Table table({"row", "m", "n x k", "us", "", "rival us", "rival", "reached", "in a row", "target", "", "choice"});
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
                 r.rival_us > 0 ? fmt::format("{:.1f}", r.rival_us) : "", r.rival, show(r),
                 r.sustained_us > 0 && r.rival_sustained_us > 0
                     ? fmt::format("{:.3f}x", r.rival_sustained_us / r.sustained_us)
                     : "",
                 r.goal.text, r.mark, r.us > 0 && r.note.empty() ? r.choice : r.note.substr(0, 100)});
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
                              {"sustained_us", r.sustained_us},
                              {"rival_sustained_us", r.rival_sustained_us},
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

  static constexpr std::int64_t kFewTokens = 64;
  static constexpr std::chrono::seconds kRecovery{1};  // after kernels in a row, of the clock

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
  Json profiled_ = Json::array();  // in the order of launches
  Json rival_json_;
};

}  // namespace

Json gemms(const Device& device, const Settings& settings) { return GemmBench(device, settings).run(); }

}  // namespace tilewright::bench
