// SPDX-License-Identifier: Apache-2.0
// `bench conv`: the conv kernels against cuDNN's fastest plan, our own kernel for unquantized weights, the rate of a
// copy or of the single-precision units, or a larger part of the same layer, all measured in this run. What is asked of
// them is in conv_jobs.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "bench/bench.h"
#include "bench/conv_check.h"
#include "bench/conv_jobs.h"
#include "bench/cuda.h"
#include "bench/cudnn.h"

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

struct Measured {
  ConvJob job;
  double us = 0, rival_us = 0, in_a_row_us = 0, rival_in_a_row_us = 0, passes_us = 0;
  double tflops = 0, tbps = 0, value = 0, ratio = 0, error = 0, tune_seconds = 0, ops = 0;
  std::string mark = "-", note, rival, choice;
  Json rivals = Json::array(), passes = Json::array(), outcomes = Json::array(), rival_notes = Json::array();
};

class ConvBench {
 public:
  ConvBench(const Device& device, const Settings& settings)
      : settings_(settings), options_(options_of(settings)), engine_(options_), device_(device) {}

  Json run() {
    const std::vector<ConvJob> jobs = conv_jobs(settings_);
    copy_ = fastest_copy(engine_, device_);
    cuda_ = std::make_unique<Cuda>(device_, options_.driver);
    fma_tflops_ = 2.0 * device_.sms() * kLanes * cuda_->most_mhz() * 1e-6;
    fmt::print("a copy moves {:.2f} TB/s; single-precision FMAs at {:.0f} MHz: {:.1f} TF\n", copy_.tbps,
               cuda_->most_mhz(), fma_tflops_);
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
        missing(job, lost ? "the device was lost" : "not run: out of time");
        continue;
      }
      try {
        measure(job);
      } catch (const Missing& e) {
        missing(job, e.why);
      } catch (const Error& e) {
        missing(job, std::string("failed: ") + e.what());
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
    return report(why);
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

  std::unique_ptr<CudnnRival> rival(const std::string& what, const Conv& conv, Measured& r) {
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
    Measured r;
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

  void conclude(Measured& r, const Ours& own, const std::vector<Timed>& timed, const Timed& extra) {
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
    judge(r);
    const bool wants_rival = !r.job.rivals.empty() || !r.job.base.empty();
    if (r.rival_us == 0 && wants_rival && r.note.empty()) r.note = "no rival";
    add(std::move(r));
  }

  // A row without a kernel falls short; one without a rival is not judged.
  void missing(const ConvJob& job, const std::string& why) {
    Measured r;
    r.job = job, r.note = why;
    if (job.goal.value > 0 || !job.mean.empty()) r.mark = "SHORT";
    add(std::move(r));
  }

  // Where the value depends on other rows, it is judged again once they are measured.
  void judge(Measured& r) const {
    switch (r.job.goal.measure) {
      case ConvMeasure::ratio: r.value = r.ratio; break;
      case ConvMeasure::copy_rate: r.value = r.tbps / copy_.tbps; break;
      case ConvMeasure::fma_rate: r.value = r.tflops / fma_tflops_; break;
      case ConvMeasure::larger: r.value = against_larger(r); break;
    }
    if (r.job.goal.value > 0 && r.value > 0) r.mark = reaches(r.value, r.job.goal) ? "pass" : "SHORT";
  }

  static bool at_most(const ConvGoal& goal) { return goal.measure == ConvMeasure::larger; }
  static bool reaches(double value, const ConvGoal& goal) {
    return at_most(goal) ? value <= goal.value : value >= goal.value;
  }
  static std::string show(double value, ConvMeasure measure) {
    if (value == 0) return "";
    return measure == ConvMeasure::copy_rate || measure == ConvMeasure::fma_rate ? fmt::format("{:.0f} %", 100 * value)
                                                                                 : fmt::format("{:.3f}x", value);
  }
  static std::string asked(const ConvGoal& goal) {
    if (goal.value == 0) return "";
    switch (goal.measure) {
      case ConvMeasure::copy_rate: return fmt::format(">= {:.0f} % of a copy", 100 * goal.value);
      case ConvMeasure::fma_rate: return fmt::format(">= {:.0f} % of the FMA rate", 100 * goal.value);
      case ConvMeasure::larger: return fmt::format("<= {:.2f}x a larger size's time", goal.value);
      case ConvMeasure::ratio: break;
    }
    return fmt::format(">= {:.2f}x", goal.value);
  }

  void add(Measured r) {
    fmt::print("{:5} {:18} {:>4}: {}\n", r.mark, r.job.label, r.job.layer,
               r.us > 0 ? fmt::format("{:.1f} us {:.0f} TF, rival {:.1f} {} {} {} {} {}", r.us, r.tflops, r.rival_us,
                                      show(r.ratio, ConvMeasure::ratio), show(r.value, r.job.goal.measure),
                                      asked(r.job.goal), r.rival, r.note)
                        : r.note);
    results_.push_back(std::move(r));
  }

  // ---- The report

  // Time over that of the fastest larger part of the layer; 0: none was measured.
  double against_larger(const Measured& r) const {
    double least = 0;
    for (const Measured& w : results_)
      if (!r.job.whole.empty() && w.job.label == r.job.label && w.job.whole == r.job.whole && w.ops > r.ops &&
          (least == 0 || w.us < least))
        least = w.us;
    return least > 0 ? r.us / least : 0;
  }

  Json report(const std::string& why) {
    for (Measured& r : results_)
      if (r.us > 0) judge(r);
    Table table({"row", "layer", "", "us", "TF", "TB/s", "rival us", "rival", "ratio", "in a row", "of a copy", "value",
                 "asked", "", "choice"});
    Json json;
    json["copy_tbps"] = copy_.tbps;
    json["fma_tflops"] = fma_tflops_;
    json["cudnn"] = library_ ? Json{{"version", library_->version()}} : Json{{"error", why}};
    json["rows"] = Json::array();
    for (const Measured& r : results_) {
      const std::string number = r.us > 0 ? fmt::format("{:.1f}", r.us) : "-";
      table.row({r.job.label, r.job.layer, r.job.title, number, r.us > 0 ? fmt::format("{:.0f}", r.tflops) : "",
                 r.us > 0 ? fmt::format("{:.2f}", r.tbps) : "", r.rival_us > 0 ? fmt::format("{:.1f}", r.rival_us) : "",
                 r.rival.substr(0, 40), show(r.ratio, ConvMeasure::ratio),
                 r.in_a_row_us > 0 ? show(r.rival_in_a_row_us / r.in_a_row_us, ConvMeasure::ratio) : "",
                 show(r.tbps / copy_.tbps, ConvMeasure::copy_rate), show(r.value, r.job.goal.measure),
                 asked(r.job.goal), r.mark, r.us > 0 ? r.choice : r.note.substr(0, 100)});
      json["rows"].push_back({{"label", r.job.label},
                              {"layer", r.job.layer},
                              {"title", r.job.title},
                              {"problem", r.job.problem},
                              {"us", r.us},
                              {"in_a_row_us", r.in_a_row_us},
                              {"tflops", r.tflops},
                              {"tbps", r.tbps},
                              {"rival", r.rival},
                              {"rival_us", r.rival_us},
                              {"rival_in_a_row_us", r.rival_in_a_row_us},
                              {"ratio", r.ratio},
                              {"of_copy", r.tbps / copy_.tbps},
                              {"calls", r.job.calls},
                              {"passes", r.passes},
                              {"passes_us", r.passes_us},
                              {"group", r.job.goal.group},
                              {"value", r.value},
                              {"target", r.job.goal.value},
                              {"target_text", asked(r.job.goal)},
                              {"at_most", at_most(r.job.goal)},
                              {"mark", r.mark},
                              {"note", r.note},
                              {"error", r.error},
                              {"rivals", r.rivals},
                              {"rival_notes", r.rival_notes},
                              {"choice", r.choice},
                              {"tune_seconds", r.tune_seconds},
                              {"outcomes", r.outcomes}});
    }
    fmt::print("\n{}\n", table.text());
    json["summary"] = summary();
    fmt::print("{:.0f} s\n", seconds());
    return json;
  }

  // A line of the summary, and what it is made from.
  struct Group {
    std::string name;
    ConvGoal goal;
    double worst = 0, value = 0;  // of all rows together: their mean, geometric, or of times weighted by calls
    int rows = 0, judged = 0, reached = 0, without = 0, missing = 0;
    bool together = false;  // the value is asked for, not each row's
  };

  // One line for each group: of its rows, of their geometric mean, or of their times weighted by calls.
  Json summary() const {
    std::vector<std::string> groups, means, weighted;
    const auto once = [](std::vector<std::string>& list, const std::string& name) {
      if (!name.empty() && std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
    };
    for (const Measured& r : results_) {
      if (r.job.goal.value > 0) once(groups, r.job.goal.group);
      once(means, r.job.mean);
      once(weighted, r.job.weighted);
    }
    std::vector<Group> lines;
    for (const std::string& name : groups) lines.push_back(rows_of(name));
    for (const std::string& name : means) lines.push_back(mean_of(name));
    for (const std::string& name : weighted) lines.push_back(calls_of(name));
    Table table({"asked for", "worst", "mean", "target", "", "rows", "reached", "not judged", "without a kernel"});
    Json json = Json::array();
    for (const Group& g : lines) {
      // A mean of some of its rows is no mean of all.
      const std::string mark = g.without                                                         ? "SHORT"
                               : g.judged < g.rows || g.missing                                  ? "-"
                               : (g.together ? reaches(g.value, g.goal) : g.reached == g.judged) ? "pass"
                                                                                                 : "SHORT";
      const int not_judged = g.rows - g.judged - g.without;
      table.row({g.name, show(g.worst, g.goal.measure), show(g.value, g.goal.measure), asked(g.goal), mark,
                 fmt::format("{}", g.rows), g.together ? "" : fmt::format("{}", g.reached),
                 fmt::format("{}", not_judged), fmt::format("{}", g.without)});
      json.push_back({{"group", g.name},
                      {"worst", g.worst},
                      {"mean", g.value},
                      {"target", g.goal.value},
                      {"rows", g.rows},
                      {"judged", g.judged},
                      {"reached", g.reached},
                      {"without_kernel", g.without},
                      {"missing_calls", g.missing},
                      {"mark", mark}});
    }
    fmt::print("{}", table.text());
    return json;
  }

  // Adds a row to a group; false if it has no value.
  static bool count(Group& g, const Measured& r, double value) {
    ++g.rows, g.without += r.us == 0;
    if (value == 0) return false;
    ++g.judged, g.reached += reaches(value, g.goal);
    const bool worse = at_most(g.goal) ? value > g.worst : value < g.worst;
    if (g.judged == 1 || worse) g.worst = value;
    return true;
  }

  Group rows_of(const std::string& name) const {
    Group g{name, {}};
    double logarithms = 0;
    for (const Measured& r : results_) {
      if (r.job.goal.value == 0 || r.job.goal.group != name) continue;
      g.goal = r.job.goal;
      if (count(g, r, r.value)) logarithms += std::log(r.value);
    }
    if (g.judged) g.value = std::exp(logarithms / g.judged);
    return g;
  }

  Group mean_of(const std::string& name) const {
    Group g{name + ", geometric mean", {ConvMeasure::ratio, mean_asked(name), name}};
    g.together = true;
    double logarithms = 0;
    for (const Measured& r : results_)
      if (r.job.mean == name && count(g, r, r.ratio)) logarithms += std::log(r.ratio);
    if (g.judged) g.value = std::exp(logarithms / g.judged);
    return g;
  }

  Group calls_of(const std::string& name) const {
    const ConvCalls all = calls_asked(name);
    Group g{name, {ConvMeasure::ratio, all.asked, name}};
    g.together = true, g.missing = all.calls;
    double ours = 0, rival = 0;
    for (const Measured& r : results_) {
      if (r.job.weighted != name) continue;
      g.missing -= r.job.calls;
      if (count(g, r, r.ratio)) ours += r.job.calls * r.us, rival += r.job.calls * r.rival_us;
    }
    if (ours > 0) g.value = rival / ours;
    return g;
  }

  const Settings& settings_;
  const Options options_;
  Engine engine_;
  const Device& device_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  FastestCopy copy_;
  double fma_tflops_ = 0;  // what the single-precision units could do at the highest clock
  std::unique_ptr<Cuda> cuda_;
  std::unique_ptr<Cudnn> library_;
  std::map<std::string, Candidate> chosen_;                // by problem
  std::map<std::string, std::vector<std::string>> plans_;  // cuDNN's fastest, by formats and convolution
  std::vector<Measured> results_;
};

}  // namespace

Json convs(const Device& device, const Settings& settings) { return ConvBench(device, settings).run(); }

}  // namespace tilewright::bench
