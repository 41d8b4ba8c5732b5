// SPDX-License-Identifier: Apache-2.0
// Statistics of timings: their summary, when more would change nothing, and which candidate wins. Pure functions.
#pragma once

#include <span>
#include <vector>

namespace tilewright::tuner {

// p in [0, 1]; linear between order statistics. 0 for an empty set.
double percentile(std::span<const double> samples, double p);
inline double median(std::span<const double> samples) { return percentile(samples, 0.5); }

struct Summary {
  double median = 0;
  double low = 0, high = 0;  // 20th and 80th percentile
  double noise = 0;          // half-width of a ~95 % interval of the median, relative to it
  int rounds = 0;
};
// interrupted: others take the processor away now and then, which adds to a time and never takes from it, so that the
// slower half of the samples is left out.
Summary summarize(std::span<const double> samples, bool interrupted = false);

// Indices of samples whose clock is within `tolerance` (relative) of the median clock; of an even number, of the faster
// of the two in the middle, so that some sample is always kept. Clocks of 0 are unknown and always kept.
std::vector<int> steady(std::span<const double> clocks, double tolerance = 0.03);

struct Rules {
  double least_band = 0.01;  // what two runs of one kernel differ by on a quiet GPU
  double most_band = 0.02;   // a wider band would give away more than the promised 3 % of the best
  double noisy = 0.03;       // above this noise nothing is stored
  double target_noise = 0.004;
  int warm_rounds = 3, least_rounds = 5, most_rounds = 25;
  double search_share = 0.9, final_share = 1;  // of the budget, until the last candidate, and for the final rounds
};
// A CPU's launch takes as long as a GPU's whole sample, and a CPU is never quiet: what is fastest is then stored for
// what it is. A problem is to be tuned within five seconds.
inline constexpr Rules kCpuRules = {.most_band = 0.04,
                                    .noisy = 0.5,
                                    .target_noise = 0.01,
                                    .warm_rounds = 1,
                                    .least_rounds = 3,
                                    .most_rounds = 12,
                                    .search_share = 0.11,
                                    .final_share = 0.03};

// Should another round be taken of these contenders (the fastest of them and those it might be tied with)?
bool enough(std::span<const Summary> contenders, const Rules& rules = {});

// Index of the winner. candidates are in ranked order (the default first), every median > 0. -1 if empty.
int winner(std::span<const Summary> candidates, const Rules& rules = {});

}  // namespace tilewright::tuner
