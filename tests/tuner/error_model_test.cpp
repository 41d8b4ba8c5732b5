// SPDX-License-Identifier: Apache-2.0
// Regression of the cost model's errors, and what is expected of a candidate by it.
#include "tuner/rows/error_model.h"

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "support/catch.h"

using namespace tilewright;
using namespace tilewright::tuner;

namespace {

const std::vector<Candidate> kCandidates{
    Candidate::parse("wgmma block_m=64 stages=4"), Candidate::parse("wgmma block_m=72 stages=4"),
    Candidate::parse("wgmma block_m=256 stages=2 swapped=1"), Candidate::parse("mma block_m=64 stages=4")};
const std::vector<std::int64_t> kRows{8, 64, 96, 4096};

}  // namespace

TEST_CASE("an observation teaches candidates and rows the more, the nearer they are", "[error_model]") {
  ErrorModel model(kCandidates, kRows);
  for (std::size_t c = 0; c < kCandidates.size(); ++c)
    for (std::size_t p = 0; p < kRows.size(); ++p) CHECK(model.mean(c, p) == 0);
  const double before = model.deviation(1, 1);
  model.observe(0, 1, 0.3);
  CHECK(model.mean(0, 1) == Approx(0.3).margin(0.01));
  CHECK(model.mean(1, 1) > model.mean(2, 1));
  CHECK(model.mean(0, 2) > model.mean(0, 3));
  CHECK(model.mean(0, 2) > model.mean(0, 0));
  CHECK(model.mean(3, 1) == Approx(model.mean(3, 3)));  // another family shares what is common to all
  CHECK(model.mean(3, 1) > 0);
  CHECK(model.deviation(0, 1) < model.deviation(1, 1));
  CHECK(model.deviation(1, 1) < model.deviation(2, 1));
  CHECK(model.deviation(1, 1) < before);
}

TEST_CASE("candidates with the same options share an error, whatever their tiles", "[error_model]") {
  const std::vector<Candidate> candidates{Candidate::parse("wgmma block_m=64 stages=4 schedule=2"),
                                          Candidate::parse("wgmma block_m=256 stages=2 schedule=2"),
                                          Candidate::parse("wgmma block_m=256 stages=2"),
                                          Candidate::parse("wgmma block_m=256 stages=2 schedule=1")};
  ErrorModel model(candidates, kRows);
  model.observe(0, 2, 0.7);
  CHECK(model.mean(1, 2) > 1.5 * model.mean(2, 2));
  CHECK(model.mean(3, 2) < model.mean(1, 2));
  CHECK(model.deviation(1, 2) < model.deviation(2, 2));
}

TEST_CASE("the order of observations does not matter", "[error_model]") {
  ErrorModel one(kCandidates, kRows), other(kCandidates, kRows);
  one.observe(0, 0, 0.2), one.observe(2, 3, -0.1), one.observe(1, 1, 0.05);
  other.observe(1, 1, 0.05), other.observe(0, 0, 0.2), other.observe(2, 3, -0.1);
  for (std::size_t c = 0; c < kCandidates.size(); ++c)
    for (std::size_t p = 0; p < kRows.size(); ++p) {
      CHECK(one.mean(c, p) == Approx(other.mean(c, p)).margin(1e-6));
      CHECK(one.deviation(c, p) == Approx(other.deviation(c, p)).margin(1e-6));
    }
  CHECK(one.mean(0, 0) == Approx(0.2).margin(0.02));
  CHECK(one.mean(2, 3) == Approx(-0.1).margin(0.02));
}

TEST_CASE("the expected improvement is that of samples", "[error_model]") {
  std::mt19937 random(7);
  for (const auto& [have, estimate, deviation] :
       std::vector<std::array<double, 3>>{{10, 10, 0.1}, {10, 12, 0.1}, {10, 9, 0.02}, {10, 30, 0.5}}) {
    std::normal_distribution<double> log_time(std::log(estimate), deviation);
    double sum = 0;
    constexpr int kSamples = 400000;
    for (int i = 0; i < kSamples; ++i) sum += std::max(0.0, std::log(have) - log_time(random));
    CHECK(expected_improvement(have, estimate, deviation) == Approx(sum / kSamples).epsilon(0.03).margin(1e-4));
  }
}
