// SPDX-License-Identifier: Apache-2.0
// `bench conv`: measures the conv kernels and cuDNN's fastest plan, our own kernel for unquantized weights, the rate of
// a copy or of the single-precision units, or a larger part of the same layer, all in this run. What is asked of them
// is in conv_jobs.cpp, what is concluded in conv_report.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>

#include "bench/bench.h"
#include "bench/conv/conv_check.h"
#include "bench/conv/conv_jobs.h"
#include "bench/conv/conv_report.h"
#include "bench/rivals/cuda.h"
#include "bench/rivals/cudnn.h"

namespace tilewright::bench {
namespace {

constexpr int kElements = 16;            // of y, compared with the host
constexpr std::size_t kFinalists = 3;    // candidates that are timed as the result is
constexpr double kTolerance = 0.02;      // of |y| + the norm of its products: shows what is wrong, not what is rounded
constexpr double kFastTolerance = 0.15;  // of sums that keep some 14 bits
constexpr double kFourBitTolerance = 0.5;  // of x in four bits, which the host's sums are not
constexpr int kPoison = 0xff;              // no number, in any float format
constexpr int kLanes = 128;                // of a multiprocessor, each a single-precision FMA in a cycle
constexpr double kRoundSeconds = 6;        // of all rounds of a job: slow kernels get fewer
constexpr double kInARowMost = 0.1e6;      // microseconds of a replay that is also timed in a row

struct Missing {
  std::string why;
};

// Something that is timed: one of our kernels, or a plan of the rival's.
struct Timed {
  std::string name;
  const Replay* replay = nullptr;
  std::vector<double> samples;
  double us = 0, in_a_row = 0, error = 0;
  int algorithms = 0;
};

// The passes beside a convolution as copies of their bytes, one launch each, over operands of their own.
struct TimedPasses {
  std::vector<Pass> passes = {};
  std::unique_ptr<Rotation> rotation = {};
  std::optional<Kernel> copy = {};
  std::optional<Replay> replay = {};
};

// One of our kernels over its rotating operands.
struct Ours {
  Problem problem;
  Task task;
  std::vector<ExpectedOutput> expected;
  std::unique_ptr<Rotation> rotation;
  Candidate choice = {};
  std::optional<Kernel> kernel = {};
  std::optional<Replay> replay = {};
  bool four_bits = false;
  double error = 0, tune_seconds = 0;
  Json outcomes = Json::array();

  void launch(const Cuda& cuda, const Kernel& k, int i) const {
    k.launch(cuda.stream(), task.arguments(rotation->pointers(i % rotation->copies()), problem.rows()), problem.rows(),
             problem.cols());
  }
};

class ConvBench {
 public:
  ConvBench(const Device& device, const Settings& settings)
      : settings_(settings), options_(options_of(settings)), engine_(options_), device_(device) {}

  Json run() {
    const std::vector<ConvJob> jobs = conv_jobs(settings_);
    copy_ = fastest_copy(engine_, device_);
    cuda_ = std::make_unique<Cuda>(device_, options_.driver);
    const double fma_tflops = 2.0 * device_.sms() * kLanes * cuda_->most_mhz() * 1e-6;
    report_.emplace(copy_.tbps, fma_tflops);
    fmt::print("a copy moves {:.2f} TB/s; single-precision FMAs at {:.0f} MHz: {:.1f} TF\n", copy_.tbps,
               cuda_->most_mhz(), fma_tflops);
    std::string why;
    try {
      library_ = Cudnn::open(device_, options_.nvrtc, why);
    } catch (const Error& e) {  // no memory for its workspace
      why = e.what();
    }
    if (library_)
      fmt::print("cuDNN {} ({})\n", library_->version(), library_->path());
    else
      fmt::print("cuDNN: {}. Ratios to it have no rival and are not judged.\n", why);
    std::fflush(stdout);
    bool lost = false;
    double longest = 0;
    for (const ConvJob& job : jobs) {
      const double began = seconds();
      if (lost || began + longest > settings_.seconds) {
        report_->missing(job, lost ? "the device was lost" : "not run: out of time");
        continue;
      }
      try {
        measure(job);
      } catch (const Missing& e) {
        report_->missing(job, e.why);
      } catch (const Error& e) {
        report_->missing(job, std::string("failed: ") + e.what());
        try {
          device_.synchronize();
          cuda_->synchronize();
        } catch (const Error&) {
          lost = true;
        }
      }
      longest = std::max(longest, seconds() - began);
      std::fflush(stdout);
    }
    Json json = report_->finish();
    json["cudnn"] = library_ ? Json{{"version", library_->version()}} : Json{{"error", why}};
    fmt::print("{:.0f} s\n", seconds());
    return json;
  }

 private:
  static Options options_of(const Settings& settings) {
    Options options = Options::from_env();
    options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
    return options;
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }

  // ---- Ours

  // Operands alone are a launch's memory: the copies together are cold, not the weights.
  static std::vector<Piece> cold_pieces(const Task& task) {
    std::vector<Piece> pieces = pieces_of(task);
    for (Piece& p : pieces) p.weights = !p.scratch;
    return pieces;
  }

  Problem problem_of(const std::string& text) const {
    try {
      return Problem::parse(text);
    } catch (const Error& e) {
      throw Missing{std::string("no kernel: ") + e.what()};
    }
  }

  std::vector<Candidate> candidates_of(const Problem& problem) const {
    std::vector<Candidate> all;
    try {
      for (const Planned& p : engine_.plan(problem, device_.arch()))
        if (p.candidate.family != "reference") all.push_back(p.candidate);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      throw Missing{std::string("no kernel: ") + e.what()};
    }
    if (all.empty()) throw Missing{"no kernel: the reference alone computes it"};
    return all;
  }

  Kernel kernel_of(const Task& task, const Candidate& candidate) {
    Task one = task;
    one.candidates = {candidate};
    return engine_.prepare(one, device_);
  }

  // Chosen once for a problem, timed with each job that needs it.
  std::unique_ptr<Ours> ours(const std::string& text, bool four_bits = false) {
    const Problem problem = problem_of(text);
    if (!problem.as<Conv>()) throw Missing{"no conv: " + text};
    const std::vector<Candidate> candidates = candidates_of(problem);
    auto o = std::make_unique<Ours>(Ours{problem, engine_.task(problem, device_.arch()), {}, nullptr});
    o->four_bits = four_bits;
    o->expected = expected_outputs(*problem.as<Conv>(), o->task, kElements);
    o->rotation = std::make_unique<Rotation>(*cuda_, device_, cold_pieces(o->task), kColdBytes);
    const double began = seconds();
    auto known = chosen_.find(problem.text());
    if (known == chosen_.end()) {
      known = chosen_.emplace(problem.text(), settings_.tuned ? tuned(*o) : fastest(*o, candidates)).first;
      o->tune_seconds = seconds() - began;
    }
    o->choice = known->second;
    o->kernel = kernel_of(o->task, o->choice);
    o->error = error_of(*o, *o->kernel);
    if (!(o->error <= tolerance(*o)))
      throw Missing{fmt::format("{} is off by {:.3g} from the host's sums", o->choice.text(), o->error)};
    o->replay.emplace(replay_of(*o, *o->kernel));
    return o;
  }

  Candidate tuned(Ours& o) {
    TunePolicy policy;
    policy.max_candidates = settings_.candidates;
    policy.budget_seconds = settings_.tune_seconds;
    const TuneReport report = engine_.tune(o.problem, device_, policy);
    for (const Outcome& c : report.outcomes) add_outcome(o, c.candidate, to_string(c.kind), c.microseconds, c.detail);
    if (report.choice.candidate.family == "reference") throw Missing{"no kernel: every candidate failed"};
    return report.choice.candidate;
  }

  // The first candidates by single launches, then the fastest of these by replays. Engine::tune would compare whole
  // outputs with the reference's, which for half a gigabyte takes longer than all of this; bench/suite/conv.cpp does.
  Candidate fastest(Ours& o, std::vector<Candidate> candidates) {
    const double until = seconds() + settings_.tune_seconds;
    candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(settings_.candidates)));
    Task task = o.task;
    task.candidates = candidates;
    task.source = [&o, this](const Candidate& c) {
      return family(o.problem.op(), c.family).source(o.problem, device_.arch(), c);
    };
    PrewarmPolicy policy;
    policy.top = static_cast<int>(candidates.size());
    policy.worker = settings_.self;
    const Arch* arch = &device_.arch();
    engine_.prewarm(task, {&arch, 1}, policy);
    struct Once {
      Candidate candidate;
      Kernel kernel;
      double us;
    };
    std::vector<Once> all;
    for (const Candidate& c : candidates) {
      if (!all.empty() && seconds() > until) break;
      try {
        Kernel kernel = kernel_of(task, c);
        const Resources& resources = kernel.resources(o.problem.rows());
        if (resources.spill_bytes > 0 || resources.serialized) {
          add_outcome(o, c, "rejected", 0, resources.serialized ? "serialized" : "spills");
          continue;
        }
        o.launch(*cuda_, kernel, 0);
        double us = 1e30;
        for (int i = 1; i <= 2; ++i) us = std::min(us, cuda_->microseconds([&] { o.launch(*cuda_, kernel, i); }));
        add_outcome(o, c, "measured", us, "");
        all.push_back({c, std::move(kernel), us});
      } catch (const Error& e) {
        cuda_->synchronize();  // throws if the device is lost
        add_outcome(o, c, "failed", 0, e.what());
      }
    }
    std::sort(all.begin(), all.end(), [](const Once& a, const Once& b) { return a.us < b.us; });
    const Candidate* best = nullptr;
    double least = 0;
    for (std::size_t i = 0, right = 0; i < all.size() && right < kFinalists; ++i) {
      if (const double error = error_of(o, all[i].kernel); !(error <= tolerance(o))) {
        add_outcome(o, all[i].candidate, "wrong", 0, fmt::format("off by {:.3g}", error));
        continue;
      }
      ++right;
      const double us = all.size() == 1 ? all[i].us : replay_of(o, all[i].kernel).time();
      if (!best || us < least) best = &all[i].candidate, least = us;
    }
    if (!best)
      throw Missing{"no kernel: every candidate failed" +
                    (o.outcomes.empty() ? "" : "; the last: " + o.outcomes.back()["detail"].get<std::string>())};
    return *best;
  }

  void add_outcome(Ours& o, const Candidate& c, const std::string& kind, double us, const std::string& detail) const {
    o.outcomes.push_back({{"candidate", c.text()}, {"kind", kind}, {"us", us}, {"detail", detail}});
    if (settings_.each)
      fmt::print("    {:10.1f} us {:7.0f} TF  {} {} {}\n", us, us > 0 ? o.problem.ops() / us * 1e-6 : 0.0, c.text(),
                 kind == "measured" ? "" : kind, detail);
  }

  static double tolerance(const Ours& o) {
    if (o.four_bits) return kFourBitTolerance;
    return o.problem.as<Conv>()->accumulation == Accumulation::fast ? kFastTolerance : kTolerance;
  }

  Replay replay_of(const Ours& o, const Kernel& kernel) const {
    o.launch(*cuda_, kernel, 0);
    const double once = cuda_->microseconds([&] { o.launch(*cuda_, kernel, o.rotation->copies() - 1); });
    return Replay(*cuda_, o.rotation->launches(once), [&](int i) { o.launch(*cuda_, kernel, i); });
  }

  double error_of(const Ours& o, const Kernel& kernel) const {
    const Format y = o.problem.as<Conv>()->y;
    const auto bytes = static_cast<std::size_t>(y.stream_bytes(0, 1, 1));
    int piece = 0;
    while (!o.task.buffers[static_cast<std::size_t>(piece)].output) ++piece;
    cuda_->set(o.rotation->at(0, piece), kPoison, o.task.buffers[static_cast<std::size_t>(piece)].bytes);
    o.launch(*cuda_, kernel, 0);
    cuda_->synchronize();
    return worst_error(o.expected, [&](std::size_t i) {
      std::byte element[8];
      o.rotation->download(std::span(element).first(bytes), piece, i * bytes);
      float value = 0;
      y.info().decode({element, nullptr, nullptr}, 1, 1, &value);
      return static_cast<double>(value);
    });
  }

  // ---- A job

  std::unique_ptr<CudnnRival> rival(const std::string& what, const Conv& conv, ConvResult& r) {
    const std::string key = what + " " + Problem(conv).text();
    auto found = std::make_unique<CudnnRival>(*library_, *cuda_, device_, engine_, what, conv, kColdBytes,
                                              settings_.rival_seconds, plans_[key]);
    for (const std::string& note : found->notes()) {
      r.rival_notes.push_back(note);
      if (found->times().empty()) r.note += (r.note.empty() ? "" : "; ") + note;
    }
    if (plans_[key].empty())
      for (const RivalTime& t : found->times()) plans_[key].push_back(t.name);
    return found;
  }

  // Extents, axes and layouts alone: what two rows of a layer have in common.
  static Conv shape_of(Conv conv) {
    conv.x = conv.w = conv.y = Format::parse("f32");
    conv.global = Global::none, conv.accumulation = Accumulation::full, conv.workspace = 0;
    conv.constant_weights = false;
    conv.cache = 0, conv.bias = {}, conv.residual = {};
    return conv;
  }

  TimedPasses passes(const Conv& conv) {
    TimedPasses p{passes_of(conv)};
    std::size_t most = 0;
    for (const Pass& pass : p.passes) most = std::max(most, pass.bytes);
    Task task = probe_task(copy_probe(device_, most));
    task.candidates = {copy_.candidate};
    std::vector<Piece> pieces = pieces_of(task);
    for (Piece& piece : pieces) piece.weights = true;
    p.rotation = std::make_unique<Rotation>(*cuda_, device_, pieces, kColdBytes);
    p.copy = engine_.prepare(task, device_);
    const auto launch = [&](int i) {
      const int copy = i % p.rotation->copies();
      for (const Pass& pass : p.passes)
        p.copy->launch(cuda_->stream(), probe_arguments(p.rotation->at(copy, 1), p.rotation->at(copy, 0), pass.bytes),
                       1, 1);
    };
    launch(0);
    const double once = cuda_->microseconds([&] { launch(p.rotation->copies() - 1); });
    p.replay.emplace(*cuda_, p.rotation->launches(once), launch);
    return p;
  }

  void measure(const ConvJob& job) {
    ConvResult r;
    r.job = job;
    const std::unique_ptr<Ours> own = ours(job.problem, job.four_bits);
    const std::unique_ptr<Ours> base = job.base.empty() ? nullptr : ours(job.base);
    std::vector<std::unique_ptr<CudnnRival>> rivals;
    if (library_)
      for (const std::string& what : job.rivals) {
        try {
          rivals.push_back(rival(what, shape_of(*own->problem.as<Conv>()), r));
        } catch (const Error& e) {
          cuda_->synchronize();  // throws if the device is lost
          r.note += (r.note.empty() ? "" : "; ") + std::string(e.what());
        }
      }

    std::vector<Timed> timed;
    timed.push_back({own->choice.text(), &*own->replay, {}, 0, 0, own->error, 0});
    if (base) timed.push_back({base->problem.text(), &*base->replay, {}, 0, 0, base->error, 0});
    for (const auto& rival : rivals)
      for (const RivalTime& t : rival->times()) timed.push_back({t.name, &t.replay, {}, 0, 0, t.error, t.algorithms});
    TimedPasses beside;
    if (job.in_passes) {
      beside = passes(*own->problem.as<Conv>());
      timed.push_back({"passes", &*beside.replay, {}, 0, 0, 0, 0});
    }
    time_all(timed);
    Timed extra;  // of every rival
    if (job.in_passes) {
      extra = timed.back();
      timed.pop_back();
      for (const Pass& pass : beside.passes) r.passes.push_back({{"name", pass.name}, {"bytes", pass.bytes}});
    }
    conclude(r, *own, timed, extra);
  }

  // Interleaved, so that whatever drifts favours nobody; the first rounds do not count.
  void time_all(std::vector<Timed>& timed) const {
    int rounds = settings_.rounds;
    for (int round = -kWarmRounds; round < rounds; ++round) {
      const double began = seconds();
      for (Timed& t : timed) {
        const double us = t.replay->time();
        if (round >= 0) t.samples.push_back(us);
      }
      if (round < 0) rounds = std::clamp(static_cast<int>(kRoundSeconds / (seconds() - began)), 3, settings_.rounds);
    }
    for (Timed& t : timed) t.us = median(t.samples);
    for (Timed& t : timed)
      if (t.us * t.replay->launches() <= kInARowMost)
        t.in_a_row = settings_.sustained > 0 ? t.replay->sustained(settings_.sustained) : t.replay->in_a_row();
  }

  void conclude(ConvResult& r, const Ours& own, const std::vector<Timed>& timed, const Timed& extra) {
    const Timed& mine = timed.front();
    r.us = mine.us, r.in_a_row_us = mine.in_a_row, r.error = mine.error;
    r.ops = own.problem.ops();
    r.tflops = r.ops / r.us * 1e-6, r.tbps = own.problem.min_bytes() / r.us * 1e-6;
    r.choice = mine.name, r.tune_seconds = own.tune_seconds, r.outcomes = own.outcomes;
    r.passes_us = extra.us;
    for (std::size_t i = 1; i < timed.size(); ++i) {
      const Timed& t = timed[i];
      r.rivals.push_back({{"name", t.name},
                          {"us", t.us},
                          {"in_a_row_us", t.in_a_row},
                          {"algorithms", t.algorithms},
                          {"error", t.error}});
      if (r.rival_us == 0 || t.us < r.rival_us) r.rival_us = t.us, r.rival = t.name;
      if (t.in_a_row > 0 && (r.rival_in_a_row_us == 0 || t.in_a_row < r.rival_in_a_row_us))
        r.rival_in_a_row_us = t.in_a_row;
    }
    if (r.rival_us > 0) r.rival_us += extra.us;
    if (r.rival_in_a_row_us > 0)
      r.rival_in_a_row_us = extra.in_a_row > 0 || extra.us == 0 ? r.rival_in_a_row_us + extra.in_a_row : 0;
    r.ratio = r.rival_us / r.us;
    report_->add(std::move(r));
  }

  const Settings& settings_;
  const Options options_;
  Engine engine_;
  const Device& device_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  FastestCopy copy_;
  std::unique_ptr<Cuda> cuda_;
  std::unique_ptr<Cudnn> library_;
  std::map<std::string, Candidate> chosen_;                // by problem
  std::map<std::string, std::vector<std::string>> plans_;  // cuDNN's fastest, by formats and convolution
  std::optional<ConvReport> report_;
};

}  // namespace

Json convs(const Device& device, const Settings& settings) { return ConvBench(device, settings).run(); }

}  // namespace tilewright::bench
