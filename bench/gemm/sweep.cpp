// SPDX-License-Identifier: Apache-2.0
// `bench sweep`: every candidate of a problem, or those of a list, at several numbers of tokens, beside cuBLASLt's best
// there. What it measures is what the choice by number of rows is judged and fitted on.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "bench/bench.h"
#include "bench/gemm/gemm_jobs.h"
#include "bench/rivals/cublaslt.h"
#include "bench/rivals/cuda.h"

namespace tilewright::bench {
namespace {

constexpr double kNear = 1.15;  // of the fastest first launch: such candidates are timed properly
constexpr int kSweepRounds = 3;

struct Contender {
  Candidate candidate;
  std::optional<Kernel> kernel;
  std::int64_t most_rows = 0;  // the largest number of rows whose list has it
};

// The lists of all numbers of rows, each candidate once; the reference is left out.
std::vector<Contender> offered(const Problem& problem, const Arch& arch, std::span<const std::int64_t> ms) {
  std::vector<Contender> all;
  const auto list = families(problem.op());
  for (const std::int64_t m : ms) {
    const Problem at = problem.with_rows(m);
    for (const Family* f : list.first(list.size() - 1))
      for (Candidate& c : f->candidates(at, arch)) {
        auto found = std::find_if(all.begin(), all.end(), [&](const Contender& o) { return o.candidate == c; });
        if (found == all.end()) found = all.insert(all.end(), {std::move(c), {}, m});
        found->most_rows = std::max(found->most_rows, m);
      }
  }
  return all;
}

std::vector<Contender> listed(const std::string& path, std::int64_t most_rows) {
  std::ifstream in(path);
  if (!in) throw Error(ErrorCode::io, "list", path, "must be a file of candidates, one a line");
  std::vector<Contender> all;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) all.push_back({Candidate::parse(line), {}, most_rows});
  return all;
}

Json times(const Device& device, const Settings& settings, const std::string& text, const std::string& rival) {
  Options options = Options::from_env();
  options.cache = settings.cache.empty() ? ":memory:" : settings.cache;
  Engine engine(options);
  const std::vector<std::int64_t> ms = numbers_of("m", settings.ms);
  if (ms.empty()) throw Error(ErrorCode::invalid_argument, "m", "", "must be numbers of tokens: --m 64,200,1024");
  const Problem problem = Problem::parse(text).with_rows(ms.back());
  std::vector<Contender> all =
      settings.list.empty() ? offered(problem, device.arch(), ms) : listed(settings.list, ms.back());

  Task task = engine.task(problem, device.arch());
  task.candidates.clear();
  for (const Contender& c : all) task.candidates.push_back(c.candidate);
  PrewarmPolicy policy;
  policy.top = static_cast<int>(all.size());
  policy.worker = settings.self;
  const Arch* arch = &device.arch();
  const PrewarmReport built = engine.prewarm(task, {&arch, 1}, policy);
  fmt::print("{}: {} candidates, {} compiled in {:.1f} s, {} failed\n", text, all.size(), built.compiled, built.seconds,
             built.failed);
  for (Contender& c : all) {
    Task one = task;
    one.candidates = {c.candidate};
    try {
      Kernel kernel = engine.prepare(one, device);
      if (kernel.resources(1).spill_bytes == 0 && !kernel.resources(1).serialized) c.kernel = std::move(kernel);
    } catch (const Error& e) {
      fmt::print("  {}: {}\n", c.candidate.text(), e.what());
    }
  }

  const Cuda cuda(device, options.driver);
  std::string why;
  const std::unique_ptr<CublasLt> library = CublasLt::open(device, options.nvrtc, why);
  task.rows = ms.back();
  const Rotation rotation(cuda, device, pieces_of(task), kColdBytes);
  Json rows = Json::array();
  const Gemm* g = problem.as<Gemm>();
  for (const std::int64_t m : ms) {
    struct Timed {
      const Contender* contender;
      double once = 0, us = 0, sustained = 0;
      std::optional<Replay> replay;
    };
    std::vector<Timed> timed;
    const auto launch = [&](const Contender& c, int i) {
      const std::vector<void*> pointers = rotation.pointers(i % rotation.copies());
      c.kernel->launch(cuda.stream(), task.arguments(pointers, m), m, task.cols);
    };
    double least = 1e30;
    for (const Contender& c : all) {
      // As Kernel serves them: up to the rows they are listed for; tiles of many tokens serve all.
      if (!c.kernel || (m > c.most_rows && c.most_rows <= 64)) continue;
      Timed t{&c, 0, 0, 0, {}};
      launch(c, 0);
      t.once = 1e30;
      for (int i = 1; i <= 3; ++i) t.once = std::min(t.once, cuda.microseconds([&] { launch(c, i); }));
      least = std::min(least, t.once);
      timed.push_back(std::move(t));
    }
    std::optional<Rival> other;
    if (library && !rival.empty() && g) other.emplace(*library, cuda, device, engine, rival, m, g->n, g->k, kColdBytes);
    for (Timed& t : timed)
      if (t.once <= kNear * least + 2)
        t.replay.emplace(cuda, rotation.launches(t.once), [&](int i) { launch(*t.contender, i); });
    std::vector<std::vector<double>> samples(timed.size());
    for (int round = -1; round < kSweepRounds; ++round) {
      for (std::size_t i = 0; i < timed.size(); ++i)
        if (timed[i].replay)
          if (const double us = timed[i].replay->time(); round >= 0) samples[i].push_back(us);
      if (other)
        for (RivalTime& t : other->times())
          if (const double us = t.replay.time(); round >= 0) t.samples.push_back(us);
    }
    Json row = {{"m", m}, {"times", Json::array()}, {"rivals", Json::array()}};
    double best = 1e30, best_rival = 1e30;
    std::string name, rival_name;
    for (std::size_t i = 0; i < timed.size(); ++i) {
      Timed& t = timed[i];
      if (t.replay) t.us = median(samples[i]);
      if (t.replay && t.us < best) best = t.us, name = t.contender->candidate.text();
    }
    double sustained = 0, rival_sustained = 0;
    for (Timed& t : timed) {
      if (settings.sustained > 0 && t.replay && t.us <= 1.03 * best) {
        t.sustained = t.replay->sustained(settings.sustained);
        if (sustained == 0 || t.sustained < sustained) sustained = t.sustained;
      }
      row["times"].push_back(
          {{"candidate", t.contender->candidate.text()}, {"once", t.once}, {"us", t.us}, {"sustained", t.sustained}});
    }
    if (other)
      for (RivalTime& t : other->times()) {
        const double us = median(t.samples);
        if (settings.sustained > 0) {
          t.sustained = t.replay.sustained(settings.sustained);
          if (rival_sustained == 0 || t.sustained < rival_sustained) rival_sustained = t.sustained;
        }
        if (us < best_rival) best_rival = us, rival_name = t.name;
        row["rivals"].push_back(
            {{"name", t.name}, {"us", us}, {"algorithms", t.algorithms}, {"sustained", t.sustained}});
      }
    fmt::print("m={:<5} {:8.2f} us  {:8.2f} {:5.3f}x  in a row {:5.3f}x  {} | {}\n", m, best, best_rival,
               best_rival / best, sustained > 0 ? rival_sustained / sustained : 0.0, name, rival_name);
    std::fflush(stdout);
    rows.push_back(std::move(row));
  }
  return {{"problem", text}, {"rows", rows}};
}

}  // namespace

Json sweep(const Device& device, const Settings& settings) {
  Json out = Json::array();
  for (const std::string& text : split(settings.problem, '|')) {
    const auto at = text.find('@');  // PROBLEM@RIVAL
    out.push_back(times(device, settings, text.substr(0, at), at == text.npos ? "" : text.substr(at + 1)));
  }
  return out;
}

}  // namespace tilewright::bench
