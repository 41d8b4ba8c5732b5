// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure/statistics.h"

#include "support/catch.h"

using namespace tilewright::tuner;

namespace {

Summary of(double median, double noise, int rounds = 10) {
  Summary s;
  s.median = s.low = s.high = median;
  s.noise = noise;
  s.rounds = rounds;
  return s;
}

}  // namespace

TEST_CASE("percentiles interpolate and do not mind the order", "[statistics]") {
  std::vector<double> v{5, 1, 4, 2, 3};
  CHECK(median(v) == Approx(3));
  CHECK(percentile(v, 0) == Approx(1));
  CHECK(percentile(v, 1) == Approx(5));
  CHECK(percentile(v, 0.2) == Approx(1.8));
  CHECK(percentile(v, 7) == Approx(5));
  CHECK(percentile({}, 0.5) == 0);
  CHECK(median(std::vector<double>{2, 4}) == Approx(3));
}

TEST_CASE("noise ignores one outlier and shrinks with rounds", "[statistics]") {
  std::vector<double> calm(10, 100.0);
  calm[3] = 1000;
  CHECK(summarize(calm).noise == 0);
  CHECK(summarize(calm).median == 100);
  std::vector<double> few{99, 100, 101, 100, 99}, many;
  for (int i = 0; i < 8; ++i) many.insert(many.end(), few.begin(), few.end());
  CHECK(summarize(few).noise > summarize(many).noise);
  CHECK(summarize(many).noise > 0);
  // What others take away only adds to a time: a quarter of disturbed samples changes nothing.
  const std::vector<double> disturbed{100, 160, 100, 101, 100, 240, 100, 101};
  CHECK(summarize(disturbed, true).median == 100);
  CHECK(summarize(disturbed, true).noise == 0);
  CHECK(summarize(disturbed, true).rounds == 8);
  CHECK(summarize(disturbed).noise > 0.1);
  CHECK(summarize(std::vector<double>{7, 9}, true).noise == 1);
  CHECK(summarize(std::vector<double>{7}).noise == 1);
}

TEST_CASE("rounds at another clock are dropped", "[statistics]") {
  CHECK(steady(std::vector<double>{1755, 1750, 1760, 1500, 1755}) == std::vector<int>{0, 1, 2, 4});
  CHECK(steady(std::vector<double>{0, 0, 0}).size() == 3);
  CHECK(steady({}).empty());
  // Two samples at clocks far apart: one has to stand, or the candidate's time would be zero, the best of all.
  CHECK(steady(std::vector<double>{1980, 1500}) == std::vector<int>{0});
  CHECK(steady(std::vector<double>{1200, 1500, 1700, 1980}) == std::vector<int>{2});
  CHECK(steady(std::vector<double>{0, 900, 1980}) == std::vector<int>{0, 2});
}

TEST_CASE("a winner must beat the default by more than the noise", "[statistics]") {
  CHECK(winner(std::vector{of(100, 0.001), of(99.5, 0.001)}) == 0);
  CHECK(winner(std::vector{of(100, 0.001), of(97, 0.001)}) == 1);
  CHECK(winner(std::vector{of(100, 0.015), of(98.3, 0.010)}) == 0);
  // However noisy, no more than two percent are given away.
  CHECK(winner(std::vector{of(100, 0.5), of(97, 0.5)}) == 1);
  CHECK(winner(std::vector{of(110, 0), of(100.4, 0), of(100, 0)}) == 1);
  CHECK(winner(std::vector{of(0, 1), of(5, 0)}) == 1);  // never timed
  CHECK(winner({}) == -1);
}

TEST_CASE("rounds stop when more would not change the answer", "[statistics]") {
  CHECK_FALSE(enough(std::vector{of(100, 0, 3)}));
  CHECK(enough(std::vector{of(100, 0.001, 5), of(101, 0.002, 5)}));
  CHECK_FALSE(enough(std::vector{of(100, 0.001, 5), of(101, 0.02, 5)}));
  CHECK(enough(std::vector{of(100, 0.001, 5), of(150, 0.05, 5)}));   // beaten, however imprecise
  CHECK(enough(std::vector{of(100, 0.05, 25), of(101, 0.05, 25)}));  // no number of rounds would do
}
