// SPDX-License-Identifier: Apache-2.0
// The jobs of `bench gemm`: rows of problems with their targets, and which of them, in which shapes and order, a run
// measures.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace tilewright::bench {

enum class Target {
  ratio,      // speed over the rival's, at least
  teraflops,  // at least
  decode,     // m = 1: of the read bandwidth, by the weights' size; larger m: time over that of m = 1, at most
};

struct Row {
  const char* group;  // the row of targets that it belongs to
  const char* label;
  const char*
      text;  // the problem but for m, n and k; one whose formats the library does not know is a row without a kernel
  std::vector<std::int64_t> ms;
  Target target;
  double value;       // of decode: bits of a weight, which tell its size while the library does not know the format
  const char* rival;  // what of Rival; "" for none
};

struct Shape {
  std::int64_t n, k;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

constexpr std::size_t kProblemWorkspace = 32u << 20;  // half of what the rival is given

// The one place that writes a problem.
std::string problem_text(const Row& row, Shape shape, std::int64_t m, const std::string& pack);

struct Goal {
  double value = 0;
  std::string group, text;
  bool at_most = false;
};

// The target at this m and for weights of this size; a value of 0: none.
Goal goal_of(const Row& row, std::int64_t m, double weight_bytes);

struct Job {
  const Row* row;
  Shape shape;
  std::vector<std::int64_t> ms;  // timed side by side
};

// Lists of the command line. Throw Error naming the part that is none.
std::vector<Shape> shapes_of(const std::string& text);  // "N,K;N,K" or "judged"
std::vector<std::int64_t> numbers_of(const char* field, const std::string& text);

// First every row's first shape, then every row's second: a run that is cut short has seen every row. Throws Error
// naming what of the settings is no list of rows, shapes or m.
std::vector<Job> gemm_jobs(const Settings& settings);

}  // namespace tilewright::bench
