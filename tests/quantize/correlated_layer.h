// SPDX-License-Identifier: Apache-2.0
// A layer whose inputs GPTQ has something to make of, for tests on the host and of the device's kernels.
#pragma once

#include <tilewright/post_training.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tilewright::test {

struct Layer {
  std::int64_t n, k;
  std::vector<float> w;
  Hessian hessian;
  LinearWeight weight() const { return {w, n, k, "down"}; }
};

// Inputs of many sizes that are correlated: each column has a share of the one before it. Dead columns are always 0.
inline Layer correlated(std::int64_t n, std::int64_t k, std::int64_t rows, unsigned seed,
                        const std::vector<std::int64_t>& dead = {}) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Layer layer{n, k, {}, Hessian(k)};
  for (std::int64_t i = 0; i < n * k; ++i) layer.w.push_back(normal(random) * 0.02f);
  std::vector<float> x(at(rows * k)), size(at(k));
  for (float& s : size) s = std::exp(normal(random));
  for (const std::int64_t j : dead) size[at(j)] = 0;
  for (std::int64_t t = 0; t < rows; ++t) {
    float before = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      before = 0.9f * before + normal(random);
      x[at(t * k + j)] = before * size[at(j)];
    }
  }
  layer.hessian.add(Format::parse("f32"), x.data(), rows, k, 1);
  return layer;
}

}  // namespace tilewright::test
