// SPDX-License-Identifier: Apache-2.0
// What a search of all numbers of rows has learned of the cost model's errors: Gaussian process regression (Rasmussen
// and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1) of log(measured / predicted) over
// candidates and numbers of rows. Says how sure an estimate is, too, which decides what is worth a binary. One thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tilewright/candidate.h>

namespace tilewright::tuner {

class ErrorModel {
 public:
  ErrorModel(std::span<const Candidate> candidates, std::span<const std::int64_t> rows);

  // A measured time of a candidate, at the number of rows of index `at`, each once.
  void observe(std::size_t candidate, std::size_t at, double log_error);

  // Of log(measured / predicted).
  double mean(std::size_t candidate, std::size_t at) const { return mean_[index(candidate, at)]; }
  double deviation(std::size_t candidate, std::size_t at) const;
  std::size_t observations() const { return projected_.size(); }

 private:
  std::size_t index(std::size_t candidate, std::size_t at) const { return candidate * rows_ + at; }
  double covariance(std::size_t candidate, std::size_t at, std::size_t other, std::size_t other_at) const;

  std::size_t rows_;
  std::vector<double> alike_, near_;     // covariance factors, by two candidates and by two numbers of rows
  std::vector<double> mean_, variance_;  // posterior, by candidate and number of rows
  // A row of the Cholesky factor applied to the covariance with every candidate and number of rows, for each
  // observation: adding one costs as many operations as there are values in here.
  std::vector<std::vector<float>> projected_;
};

// Expected value of max(0, log(have / time)) where log(time) is normal around log(estimate). (Jones, Schonlau, Welch,
// Efficient Global Optimization of Expensive Black-Box Functions, 1998, equation 15.)
double expected_improvement(double have, double estimate, double deviation);

}  // namespace tilewright::tuner
