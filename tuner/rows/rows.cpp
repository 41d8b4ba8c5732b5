// SPDX-License-Identifier: Apache-2.0
#include "tuner/rows/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/family.h>

namespace tilewright::tuner {
namespace {

constexpr std::int64_t kBetweenBuckets[] = {96, 192, 384, 768, 1536, 3072};
constexpr double kWorthBinary = 1.08;   // times the time without it
constexpr std::size_t kMostBeyond = 4;  // candidates that each launch above kMostStepRows compares

// Between the times at `below` and `above` rows, in octaves.
double interpolate(double rows, double below, double at_below, double above, double at_above) {
  const double share = std::log2(rows / below) / std::log2(above / below);
  return at_below + (at_above - at_below) * share;
}

}  // namespace

std::vector<std::int64_t> tuning_rows() {
  std::vector<std::int64_t> rows{1, 2, 4};
  for (std::int64_t r = 8; r <= kMostStepRows;
       r += r < 256 ? 8 : std::int64_t{1} << (59 - __builtin_clzll(static_cast<unsigned long long>(r))))
    rows.push_back(r);
  return rows;
}

// ---- stored form

CandidateList RowTable::list(const Problem& problem, std::string inputs) const {
  return {problem.with_rows(1).text(), candidates, std::move(inputs), {steps.begin(), steps.end()}};
}

std::optional<RowTable> RowTable::of(CandidateList list) {
  const auto missing = [&](std::uint8_t step) { return step >= list.candidates.size(); };
  RowTable table;
  if (list.candidates.size() > kMostCandidates || list.steps.size() != table.steps.size() ||
      std::any_of(list.steps.begin(), list.steps.end(), missing))
    return {};
  table.candidates = std::move(list.candidates);
  std::copy(list.steps.begin(), list.steps.end(), table.steps.begin());
  return table;
}

void RowTable::drop_unused(bool keep_measured) {
  std::vector<int> place(candidates.size(), -1);
  std::vector<RowCandidate> kept;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const bool used = std::find(steps.begin(), steps.end(), i) != steps.end();
    if (!used && !(keep_measured && !candidates[i].times.empty())) continue;
    place[i] = static_cast<int>(kept.size());
    kept.push_back(std::move(candidates[i]));
  }
  candidates = std::move(kept);
  for (std::uint8_t& s : steps) s = static_cast<std::uint8_t>(place[s]);
}

// ---- estimates

const RowModel::Point& RowModel::point(const Candidate& candidate, std::int64_t rows) {
  auto& points = known_[candidate.text()];
  auto found = points.find(rows);
  if (found != points.end()) return found->second;
  Point p;
  p.traits = family(problem_.op(), candidate.family).traits(problem_.with_rows(rows), arch_, candidate);
  p.prediction = predict(p.traits, device_);
  return points.emplace(rows, std::move(p)).first->second;
}

double RowModel::estimate(const RowCandidate& c, std::int64_t rows) {
  const auto exact = c.times.find(rows);
  if (exact != c.times.end()) return exact->second;
  const double model = predicted(c.candidate, rows);
  if (c.times.empty()) return model * std::exp(mean_error_);
  const auto error = [&](const std::pair<const std::int64_t, double>& time) {
    return std::log(time.second / predicted(c.candidate, time.first));
  };
  const auto above = c.times.lower_bound(rows);
  double us;
  if (above == c.times.begin())
    us = model * std::exp(error(*above));
  else if (above == c.times.end())
    us = model * std::exp(error(*std::prev(above)));
  else
    us = model * std::exp(interpolate(static_cast<double>(rows), static_cast<double>(std::prev(above)->first),
                                      error(*std::prev(above)), static_cast<double>(above->first), error(*above)));
  // More rows are more work for the same kernel, unless fewer leave part of a tile beyond the matrix.
  double least = 0, most = std::numeric_limits<double>::infinity();
  for (const auto& [at, time] : c.times) {
    const double there = predicted(c.candidate, at);
    if (at < rows && there <= model) least = std::max(least, time);
    if (at > rows && there >= model) most = std::min(most, time);
  }
  return std::clamp(us, std::min(least, most), most);
}

void RowModel::learn(const std::vector<RowCandidate>& candidates) {
  double sum = 0;
  int count = 0;
  for (const RowCandidate& c : candidates)
    for (const auto& [rows, us] : c.times) sum += std::log(us / predicted(c.candidate, rows)), ++count;
  mean_error_ = count ? sum / count : 0;
}

jit::WaveCost RowModel::wave_cost(const RowCandidate& c) {
  const Point& p = point(c.candidate, kMostStepRows);
  jit::WaveCost cost;
  cost.tile_rows = std::max(1, p.traits.tile_rows);
  const double tiles_down = std::ceil(static_cast<double>(kMostStepRows) / static_cast<double>(cost.tile_rows));
  const double across = std::ceil(static_cast<double>(problem_.cols()) / std::max(1, p.traits.tile_cols));
  // Parts of k are blocks of their own, unless blocks share the tiles of a wave.
  const double parts = p.traits.last_wave == 1 ? std::max(1.0, std::round(p.traits.blocks / (tiles_down * across))) : 1;
  cost.tiles_across = static_cast<std::int64_t>(across * parts);
  cost.concurrent = std::max<std::int64_t>(1, static_cast<std::int64_t>(p.prediction.concurrent));
  cost.last_wave = p.traits.last_wave;
  cost.microseconds = 1;
  cost.microseconds = estimate(c, kMostStepRows) / std::max(1e-3, cost.at(kMostStepRows));
  return cost;
}

// ---- decisions

void add_between_buckets(RowTable& table, RowModel& model,
                         const std::function<std::optional<Candidate>(std::int64_t rows)>& first) {
  model.learn(table.candidates);
  for (const std::int64_t rows : kBetweenBuckets) {
    double least = std::numeric_limits<double>::infinity();
    for (const RowCandidate& c : table.candidates) least = std::min(least, model.estimate(c, rows));
    const std::optional<Candidate> candidate = first(rows);
    if (candidate && least >= kWorthBinary * model.estimate({*candidate, rows, {}}, rows))
      table.candidates.push_back({*candidate, rows, {}});
  }
}

namespace {

using Estimates = std::vector<std::array<double, kRowSteps>>;  // by candidate

void assign(RowTable& table, const Estimates& us, const std::vector<bool>& dropped, double stay) {
  std::size_t last = us.size();
  for (int s = 0; s < kRowSteps; ++s) {
    const auto step = static_cast<std::size_t>(s);
    std::size_t best = us.size();
    for (std::size_t c = 0; c < us.size(); ++c)
      if (!dropped[c] && (best == us.size() || us[c][step] < us[best][step])) best = c;
    if (last < us.size() && us[last][step] <= us[best][step] * (1 + stay)) best = last;
    table.steps[step] = static_cast<std::uint8_t>(best);
    last = best;
  }
}

}  // namespace

void decide(RowTable& table, RowModel& model) {
  model.learn(table.candidates);
  Estimates us(table.candidates.size());
  std::array<double, kRowSteps> least;
  least.fill(std::numeric_limits<double>::infinity());
  for (std::size_t c = 0; c < us.size(); ++c)
    for (int s = 0; s < kRowSteps; ++s) {
      const auto step = static_cast<std::size_t>(s);
      us[c][step] = model.estimate(table.candidates[c], step_rows(s));
      least[step] = std::min(least[step], us[c][step]);
    }
  std::vector<bool> dropped(us.size(), false);
  assign(table, us, dropped, model.stay());
  // Rows of a candidate that goes are given to those that serve already: another in its place would save no binary.
  for (std::size_t c = 0; c < us.size(); ++c)
    dropped[c] = std::find(table.steps.begin(), table.steps.end(), c) == table.steps.end();
  for (;;) {
    // The candidate whose loss is least, judged against the best of all, so that losses do not add up.
    std::size_t dearest = us.size();
    double lowest = model.thin_loss();
    for (std::size_t c = 0; c < us.size(); ++c) {
      if (dropped[c] || std::find(table.steps.begin(), table.steps.end(), c) == table.steps.end()) continue;
      double loss = 0;
      for (std::size_t step = 0; step < kRowSteps && loss <= lowest; ++step) {
        if (table.steps[step] != c) continue;
        double other = std::numeric_limits<double>::infinity();
        for (std::size_t d = 0; d < us.size(); ++d)
          if (d != c && !dropped[d]) other = std::min(other, us[d][step]);
        loss = std::max(loss, other / least[step] - 1);
      }
      if (loss < lowest) lowest = loss, dearest = c;
    }
    if (dearest == us.size()) break;
    dropped[dearest] = true;
    assign(table, us, dropped, model.stay());
  }
}

jit::Serving serving_of(const RowTable& table, std::vector<jit::BinaryPtr> binaries, RowModel& model) {
  jit::Serving serving{std::move(binaries), {}, table.steps, {}};
  for (const RowCandidate& c : table.candidates) serving.candidates.push_back(c.candidate);
  // What serves the most rows of the steps competes for those above.
  constexpr std::int64_t kFrom = kMostStepRows / 2;
  std::vector<bool> taken(table.candidates.size(), false);
  for (int step = row_step(kFrom); step < kRowSteps; ++step) {
    const std::uint8_t index = table.steps[static_cast<std::size_t>(step)];
    if (taken[index]) continue;
    taken[index] = true;
    serving.beyond.push_back(model.wave_cost(table.candidates[index]));
    serving.beyond.back().entry = index;
  }
  if (serving.beyond.size() > kMostBeyond) {
    const auto at_most = [](const jit::WaveCost& a, const jit::WaveCost& b) {
      return a.at(kMostStepRows) < b.at(kMostStepRows);
    };
    std::stable_sort(serving.beyond.begin(), serving.beyond.end(), at_most);
    serving.beyond.resize(kMostBeyond);
  }
  return serving;
}

namespace {

// At one of those rows, or at the number that a search looks at just below or above them.
bool measured_near(const RowCandidate& c, std::int64_t first, std::int64_t last) {
  const std::vector<std::int64_t> tuned = tuning_rows();
  const auto below = std::upper_bound(tuned.begin(), tuned.end(), first);
  const auto above = std::lower_bound(tuned.begin(), tuned.end(), last);
  const auto time = c.times.lower_bound(below == tuned.begin() ? first : *std::prev(below));
  return time != c.times.end() && time->first <= (above == tuned.end() ? last : *above);
}

}  // namespace

std::vector<RowRange> ranges_of(const RowTable& table, RowModel& model) {
  std::vector<RowRange> ranges;
  for (int s = 0; s < kRowSteps; ++s) {
    const std::uint8_t index = table.steps[static_cast<std::size_t>(s)];
    const RowCandidate& c = table.candidates[index];
    if (s > 0 && table.steps[static_cast<std::size_t>(s - 1)] == index) {
      ranges.back().last = s + 1 < kRowSteps ? step_rows(s) : 0;
    } else {
      RowRange r;
      r.first = s ? step_rows(s - 1) + 1 : 1, r.last = s + 1 < kRowSteps ? step_rows(s) : 0;
      r.candidate = c.candidate;
      ranges.push_back(std::move(r));
    }
    RowRange& r = ranges.back();
    r.microseconds = model.estimate(c, s + 1 < kRowSteps ? step_rows(s) : kMostStepRows);
    r.measured = r.measured || measured_near(c, r.first, r.last ? r.last : kMostStepRows);
  }
  return ranges;
}

}  // namespace tilewright::tuner
