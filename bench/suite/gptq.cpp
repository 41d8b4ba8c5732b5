// SPDX-License-Identifier: Apache-2.0
// GPTQ on the device against gptq() on the host, bit for bit.
#include <fmt/format.h>
#include <tilewright/gptq.h>

#include <cmath>
#include <limits>
#include <random>

#include "bench/suite/suite.h"

namespace tilewright::bench {
namespace {

struct Layer {
  std::int64_t n, k;
  std::vector<float> w;
  Hessian hessian;
  LinearWeight weight() const { return {w, n, k, "layer"}; }
};

// Each input has a share of the one before it; every 97th is always 0.
Layer correlated(std::int64_t n, std::int64_t k, std::int64_t rows) {
  std::mt19937 random(static_cast<unsigned>(n + k));
  std::normal_distribution<float> normal;
  Layer layer{n, k, std::vector<float>(static_cast<std::size_t>(n * k)), Hessian(k)};
  for (float& v : layer.w) v = normal(random) * 0.02f;
  std::vector<float> x, size;
  for (std::int64_t j = 0; j < k; ++j) size.push_back(j % 97 == 96 ? 0 : std::exp(normal(random)));
  for (std::int64_t t = 0; t < rows; ++t) {
    float before = 0;
    for (const float s : size) {
      before = 0.9f * before + normal(random);
      x.push_back(before * s);
    }
  }
  layer.hessian.add(Format::parse("f32"), x.data(), rows, k);
  return layer;
}

template <class T>
std::string first_difference(const char* what, const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) return fmt::format("{} has {} elements", what, got.size());
  std::size_t count = 0, first = 0;
  for (std::size_t i = got.size(); i-- > 0;)
    if (got[i] != expected[i]) ++count, first = i;
  return count ? fmt::format("{} differs in {} of {} elements, first in {}", what, count, got.size(), first) : "";
}

std::string against_host(Suite& s, const Layer& layer, const QuantizeTarget& target, const GptqOptions& options) {
  const QuantizedLinear got = gptq(s.engine(), s.device(), layer.weight(), layer.hessian, target, options),
                        expected = gptq(layer.weight(), layer.hessian, target, options);
  for (const std::string& why :
       {first_difference("data", got.data, expected.data), first_difference("scales", got.scales, expected.scales),
        first_difference("values", got.values, expected.values), first_difference("order", got.order, expected.order)})
    if (!why.empty()) return why;
  if (got.error != expected.error) return fmt::format("error {}, expected {}", got.error, expected.error);
  if (got.energy != expected.energy) return fmt::format("energy {}, expected {}", got.energy, expected.energy);
  if (got.damping != expected.damping || got.dead_columns != expected.dead_columns)
    return fmt::format("damping {}, expected {}; {} dead columns, expected {}", got.damping, expected.damping,
                       got.dead_columns, expected.dead_columns);
  return {};
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

void gptq_checks(Suite& s) {
  const bool one = s.extent() == Extent::one;
  const auto check = [&](const Layer& layer, const char* format, std::int64_t group, int encoder, bool act_order,
                         bool static_groups, double damping = 0.01) {
    s.check(fmt::format("gptq {} x {} {} group {} encoder {}{}{} damping {}", layer.n, layer.k, format, group, encoder,
                        act_order ? " act-order" : "", static_groups ? " static" : "", damping),
            [&] {
              return against_host(s, layer, {.format = Format::parse(format), .group = group, .encoder = encoder},
                                  {act_order, static_groups, damping});
            });
  };
  const Layer small = correlated(70, 384, 800);
  if (one) return check(small, "uint4_g64", 192, 0, true, false);
  for (const char* format : {"int4_row", "int4_g128", "int4_g64", "int4_g32", "uint4_g128", "uint4_g64", "uint4_g32"})
    for (int encoder = 0; encoder < static_cast<int>(Format::parse(format).info().encoders.size()); ++encoder)
      for (const bool act_order : {false, true})
        for (const bool static_groups : {false, true}) check(small, format, 0, encoder, act_order, static_groups);
  const Layer odd = correlated(333, 1504, 4000);
  for (const std::int64_t group : {0, 96, 416, 992, -1}) check(odd, "uint4_g32", group, 0, group == 96, false);
  const Layer large = correlated(1000, 4096, s.extent() == Extent::full ? 10000 : 1000);
  check(large, "int4_g128", 0, 1, false, false);
  check(large, "uint4_g128", 0, 0, true, false);
  const Layer singular = correlated(128, 512, 100);
  for (const double damping : {0.0, 0.01, 1.0}) check(singular, "int4_g64", 0, 0, false, false, damping);

  s.check("gptq names what it refuses", [&]() -> std::string {
    Layer bad = small;
    bad.w[static_cast<std::size_t>(69 * small.k + 300)] = 1e30f;
    std::vector<double> indefinite = small.hessian.values();
    indefinite[static_cast<std::size_t>(small.k)] = 1e9;
    const Hessian h(small.k, 1, indefinite, small.hessian.magnitudes());
    const QuantizeTarget target{.format = Format::parse("int4_g64")};
    for (const auto& [layer, hessian] : {std::pair<const Layer*, const Hessian*>(&bad, &bad.hessian), {&small, &h}}) {
      const std::string got = error_of([&] { gptq(s.engine(), s.device(), layer->weight(), *hessian, target); }),
                        expected = error_of([&] { gptq(layer->weight(), *hessian, target); });
      if (got != expected || got == "none") return fmt::format("'{}', expected '{}'", got, expected);
    }
    return {};
  });
}

}  // namespace tilewright::bench
