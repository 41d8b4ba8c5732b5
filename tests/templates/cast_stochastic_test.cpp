// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding of casts on the host: the generator's published vectors; and of every format that takes part,
// that values become one of the two neighbouring codes, each as often as it should, exact ones themselves.
#include <tilewright/cast.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "operations/cast/stochastic.cuh"
#include "support/catch.h"
#include "support/refusal.h"
#include "templates/common/describe.h"
#include "templates/operations/cast/stochastic.h"

using namespace tilewright;

namespace {

std::vector<Format> formats() {
  std::vector<Format> all;
  for (const Format f : Format::all())
    if (cast::rounds_stochastically(f)) all.push_back(f);
  return all;
}

// x rounded to nearest (no seed) or by chance, and decoded.
std::vector<float> through(Format f, const std::vector<float>& x, std::int64_t rows, std::int64_t cols, int encoder,
                           const std::uint64_t* seed) {
  HostStreams streams(f, rows, cols);
  if (streams.operand.global) *streams.operand.global = f.info().global_for(4.0f);
  f.info().encode(x.data(), rows, cols, streams.operand, encoder);
  if (seed) cast::round_stochastically(f, x.data(), 0, rows, cols, streams.operand, encoder, *seed);
  std::vector<float> y(x.size());
  f.info().decode(streams.operand, rows, cols, y.data());
  return y;
}

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> of;
  std::vector<float> x(count);
  for (float& v : x) v = std::clamp(of(random), -4.0f, 4.0f);
  return x;
}

}  // namespace

TEST_CASE("stochastic rounding: Philox gives the vectors that its authors published", "[cast]") {
  // Random123's kat_vectors, philox4x32 of 10 rounds.
  const std::vector<std::vector<tw::u32>> known = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                                   {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff,
                                                    0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                                   {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822,
                                                    0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  for (const auto& k : known) {
    tw::u32 words[4] = {k[0], k[1], k[2], k[3]};
    tw::philox(words, k[4], k[5]);
    CHECK(std::vector<tw::u32>(words, words + 4) == std::vector<tw::u32>(k.begin() + 6, k.end()));
  }
}

TEST_CASE("stochastic rounding: formats that take part", "[cast]") {
  std::set<std::string> names;
  for (const Format f : formats()) names.insert(std::string(f.name()));
  for (const char* name :
       {"e4m3", "e5m2", "e4m3_tensor", "e5m2_tensor", "e4m3_row", "e4m3_g128", "int8", "int8_tensor", "int8_row",
        "int4_row", "int4_g32", "int4_g64", "int4_g128", "e2m1_row", "nvfp4", "mxfp4", "mxfp8"})
    CHECK(names.count(name) == 1);
  for (const char* name : {"f32", "f16", "bf16", "int32", "int8_asym_row", "q4_0", "q8_1", "q4_k", "e4m3_b128"})
    CHECK(names.count(name) == 0);
}

TEST_CASE("stochastic rounding: two neighbours, the mean, exact values", "[cast]") {
  constexpr std::int64_t kRows = 4, kCols = 256;
  constexpr int kSeeds = 1500;
  for (const Format f : formats())
    for (int encoder = 0; encoder < static_cast<int>(f.info().encoders.size()); ++encoder) {
      INFO(f.name() << " " << f.info().encoders[static_cast<std::size_t>(encoder)]);
      std::vector<float> x = normal(kRows * kCols, 3);
      const bool integers = f.name() == "int8" || f.name() == "int32";
      for (float& v : x) v *= integers ? 20.0f : 1.0f;
      // Some that the format holds already.
      const std::vector<float> nearest = through(f, x, kRows, kCols, encoder, nullptr);
      for (std::size_t i = 0; i < x.size(); i += 5)
        if (std::fabs(nearest[i]) < 0.9f * std::fabs(*std::max_element(x.begin(), x.end()))) x[i] = nearest[i];
      const std::vector<float> near = through(f, x, kRows, kCols, encoder, nullptr);

      std::vector<double> sum(x.size());
      std::vector<std::set<float>> seen(x.size());
      for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
        const std::vector<float> y = through(f, x, kRows, kCols, encoder, &seed);
        for (std::size_t i = 0; i < x.size(); ++i) sum[i] += y[i], seen[i].insert(y[i]);
      }
      int beyond = 0, apart = 0, biased = 0, moved = 0, between = 0;
      double error = 0, variance = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float low = *seen[i].begin(), high = *seen[i].rbegin();
        if (seen[i].size() > 2 || !seen[i].count(near[i])) ++beyond;
        if (near[i] == x[i]) {
          moved += seen[i].size() != 1;
          continue;
        }
        if (low == high) {  // never the other one: it is none (beyond the last code), or as unlikely as that
          continue;
        }
        ++between;
        if (!(low <= x[i] && x[i] <= high)) ++apart;
        const double share = (x[i] - low) / (static_cast<double>(high) - low), gap = static_cast<double>(high) - low;
        const double deviation = std::sqrt(share * (1 - share) / kSeeds) * gap;
        const double off = sum[i] / kSeeds - x[i];
        if (std::fabs(off) > 5.5 * deviation + 1e-6 * gap) ++biased;
        error += off / gap, variance += share * (1 - share) / kSeeds;
      }
      CHECK(beyond == 0);
      CHECK(moved == 0);
      CHECK(between > 400);
      CHECK(biased == 0);
      CHECK(std::fabs(error) < 4.5 * std::sqrt(variance));
      CHECK(apart == 0);
    }
}

TEST_CASE("stochastic rounding: scales, specials and single columns", "[cast]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::uint64_t seed = 9;
  for (const Format f : formats()) {
    INFO(f.name());
    const std::int64_t cols = std::max(2 * f.block(), 3);
    std::vector<float> x(static_cast<std::size_t>(cols));
    CHECK(through(f, x, 1, cols, 0, &seed) == std::vector<float>(x.size()));  // zeros stay zeros
    // Where no number is, chance changes nothing.
    for (const float special : {inf, -inf, nan}) {
      x.assign(x.size(), special);
      const std::vector<float> a = through(f, x, 1, cols, 0, nullptr), b = through(f, x, 1, cols, 0, &seed);
      CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    }
    // Beyond the last code there is no other.
    x.assign(x.size(), 0.0f);
    x[0] = 3e38f;
    const std::vector<float> y = through(f, x, 1, cols, 0, &seed);
    for (std::size_t i = 1; i < y.size(); ++i) CHECK((y[i] == 0.0f || std::isnan(y[i])));
  }
}

TEST_CASE("stochastic rounding: the problem", "[cast]") {
  const std::string text = "cast x=f32 y=e4m3_row rows=5 cols=64 rounding=stochastic";
  CHECK(Problem::parse(text).text() == text);
  CHECK(Problem::parse("cast x=f32 y=e4m3_row rows=5 cols=64 rounding=nearest").text() ==
        "cast x=f32 y=e4m3_row rows=5 cols=64");
  CHECK(refusal("cast x=f32 y=q4_0 rows=5 cols=64 rounding=stochastic").field() == "y");
  CHECK(refusal("cast x=f32 y=bf16 rows=5 cols=64 rounding=stochastic").field() == "y");
  CHECK(refusal("cast x=e4m3 y=f32 rows=5 cols=64 rounding=stochastic").field() == "y");
  CHECK(refusal("cast x=f32 y=int8_asym_row rows=5 cols=64 rounding=stochastic").field() == "y");
  CHECK(refusal("cast x=f32 y=e4m3 rows=5 cols=64 rounding=up").field() == "rounding");

  // The host's computation is judged by itself, and a code of the other side is noticed.
  const Problem problem = Problem::parse("cast x=f32 y=int8_row rows=5 cols=64 rounding=stochastic");
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  for (const Buffer& b : task.buffers)
    if (bytes.emplace_back(b.bytes); b.fill) b.fill(bytes.back(), 1);
  const std::vector<std::span<std::byte>> buffers(bytes.begin(), bytes.end());
  problem.operation().run_on_host(problem, task, buffers);
  CHECK(problem.operation().check_on_host(problem, task, buffers).wrong == "");
  const auto data = static_cast<std::size_t>(matrix(task, "y").data);
  bytes[data][7] ^= std::byte{1};
  CHECK(problem.operation().check_on_host(problem, task, buffers).wrong != "");
}
