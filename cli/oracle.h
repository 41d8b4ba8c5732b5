// SPDX-License-Identifier: Apache-2.0
// Host-side matrices and the fp64 oracle of `run`. Plain and independent of every kernel: it only decodes.
#pragma once

#include <tilewright/problem.h>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/gguf.h"

namespace tilewright::cli {

struct HostMatrix {
  Format format;
  std::int64_t rows = 0, cols = 0;
  std::vector<std::vector<std::byte>> streams;  // as format.info().streams; the tensor-wide one holds the factor
  std::vector<float> values;                    // decoded
  std::string origin;                           // for humans

  MutableOperand operand();
};

// Reproducible values of the given standard deviation, not all of one magnitude.
std::vector<float> random_values(std::int64_t count, float deviation, std::uint64_t seed);
HostMatrix encoded(Format format, std::int64_t rows, std::int64_t cols, std::vector<float> source, int encoder = 0);
// The tensor's own bytes where its format is the wanted one; encoded where it holds floats. Throws Error
// (invalid_argument) if neither, or if the shape differs.
HostMatrix from_model(const Gguf& file, const std::string& name, Format wanted, std::int64_t rows, std::int64_t cols);

// The outputs that are checked: all, or an even spread that includes the first and last of both extents.
struct Sample {
  std::vector<std::int64_t> rows, cols;
  std::int64_t size() const { return static_cast<std::int64_t>(rows.size() * cols.size()); }
};
Sample choose_sample(std::int64_t m, std::int64_t n, std::int64_t k);

struct Expected {
  double value = 0;
  double bound = 0;  // largest error that a right fp32 kernel may make: templates/gemm/reference.cuh
};
// Row-major over the sample. `bias` and `added` (c) may be null.
std::vector<Expected> gemm_oracle(const Gemm& gemm, const HostMatrix& x, const HostMatrix& w, const HostMatrix* bias,
                                  const HostMatrix* added, const Sample& sample);
// The same outputs in fp32, rounded to y's format: what stands in for a kernel where there is no GPU.
std::vector<float> gemm_on_cpu(const Gemm& gemm, const HostMatrix& x, const HostMatrix& w, const HostMatrix* bias,
                               const HostMatrix* added, const Sample& sample);

struct Verdict {
  double largest = 0;   // absolute error
  double of_bound = 0;  // largest error relative to its bound
  std::string wrong;    // the first output beyond its bound; empty if none
};
Verdict judge(const std::vector<Expected>& expected, const std::vector<float>& got, const Sample& sample);

}  // namespace tilewright::cli
