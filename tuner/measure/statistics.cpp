// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure/statistics.h"

#include <algorithm>
#include <cmath>

namespace tilewright::tuner {

double percentile(std::span<const double> samples, double p) {
  if (samples.empty()) return 0;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  double at = std::clamp(p, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  std::size_t below = static_cast<std::size_t>(at);
  std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

Summary summarize(std::span<const double> all, bool interrupted) {
  std::vector<double> samples(all.begin(), all.end());
  if (interrupted) {
    std::sort(samples.begin(), samples.end());
    samples.resize((samples.size() + 1) / 2);
  }
  Summary s;
  s.rounds = static_cast<int>(all.size());
  s.median = median(samples);
  s.low = percentile(samples, 0.2);
  s.high = percentile(samples, 0.8);
  if (s.median <= 0) return s;
  // The spread between the 20th and the 80th percentile of a normal distribution is 1.683 sigma, and it does not see
  // the rare huge sample that another process or an interrupt leaves. The median's standard error is 1.253 sigma /
  // sqrt(n); twice that is a 95 % interval. One sample says nothing about its noise: 100 %.
  if (samples.size() < 2) {
    s.noise = 1;
  } else {
    s.noise = 2 * 1.253 * (s.high - s.low) / 1.683 / std::sqrt(static_cast<double>(samples.size())) / s.median;
  }
  return s;
}

std::vector<int> steady(std::span<const double> clocks, double tolerance) {
  std::vector<double> known;
  for (double c : clocks)
    if (c > 0) known.push_back(c);
  // One of the samples' own: the mean of two that differ is near neither, and would leave nothing.
  std::nth_element(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2), known.end());
  const double middle = known.empty() ? 0 : known[known.size() / 2];
  std::vector<int> kept;
  for (int i = 0; i < static_cast<int>(clocks.size()); ++i)
    if (clocks[i] <= 0 || std::fabs(clocks[i] - middle) <= tolerance * middle) kept.push_back(i);
  return kept;
}

namespace {

int fastest(std::span<const Summary> candidates) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i)
    if (candidates[i].median > 0 && (best < 0 || candidates[i].median < candidates[best].median)) best = i;
  return best;
}

}  // namespace

bool enough(std::span<const Summary> contenders, const Rules& rules) {
  int best = fastest(contenders);
  if (best < 0) return true;
  for (const Summary& c : contenders) {
    if (c.rounds >= rules.most_rounds) continue;
    if (c.rounds < rules.least_rounds) return false;
    // A contender whose interval lies wholly above the best one's cannot win any more; its precision is irrelevant.
    const Summary& b = contenders[best];
    bool beaten = c.median * (1 - c.noise) > b.median * (1 + b.noise) * (1 + rules.most_band);
    if (!beaten && c.noise > rules.target_noise) return false;
  }
  return true;
}

int winner(std::span<const Summary> candidates, const Rules& rules) {
  int best = fastest(candidates);
  if (best < 0) return -1;
  // Everything within the band of the fastest is a tie, and a tie goes to the earliest in ranked order. That order is
  // computed, not measured: it is the same in every run and on every rank of a job, so two tunes agree although their
  // fastest differ by luck. The default is the first in that order, so nothing replaces it that is not faster by more
  // than the noise. The band is at least what a quiet GPU shows between runs, and at most what a choice may lose.
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
    double noise = std::hypot(candidates[i].noise, candidates[best].noise);
    double band = std::clamp(noise, rules.least_band, rules.most_band);
    if (candidates[i].median > 0 && candidates[i].median <= candidates[best].median * (1 + band)) return i;
  }
  return best;
}

}  // namespace tilewright::tuner
