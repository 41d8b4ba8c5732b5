// SPDX-License-Identifier: Apache-2.0
// Floats by floats: compiled and built in, against the oracle, the stated order of additions, and each other.
#include <tilewright/family.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "templates/common/describe.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

// What the kernels are to give, bit for bit: parts of 64 columns, their products added by fused operations.
TEST_CASE("products of floats are summed in the stated order") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(17);
  int compiled = 0;
  for (const char* x : kFloats)
    for (const char* w : kFloats)
      for (const std::int64_t m : {1, 2, 7, 40}) {
        const std::int64_t ks[] = {1, 7, 64, 65, 130, 200, 256, 259}, n = 16 * (1 + random() % 7), k = ks[random() % 8];
        Operands o(gemm(w, m, n, k, "", x));
        INFO(o.problem.text());
        const auto values = [&](const char* name) {
          for (const Matrix& matrix : o.task.matrices)
            if (matrix.name == name) return decoded(matrix, o.spans);
          return std::vector<float>();
        };
        const std::vector<float> xs = values("x"), ws = values("w");
        std::vector<float> wanted;
        for (std::int64_t t = 0; t < m; ++t)
          for (std::int64_t r = 0; r < n; ++r) {
            float all = 0;
            for (std::int64_t first = 0; first < k; first += 64) {
              float part = 0;
              for (std::int64_t i = first; i < std::min(first + 64, k); ++i)
                part = std::fma(ws[r * k + i], xs[t * k + i], part);
              all += part;
            }
            wanted.push_back(all);
          }
        int kernels = 0;
        for (const int threads : {1, 3}) {
          const Device device = Device::open_cpu({.threads = threads, .parallel_for = {}});
          const Family& floats = family("gemm", "cpu_floats");
          for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
            INFO(c.text());
            const Source source = floats.source(o.problem, host_arch(), c);
            std::vector<Binary> binaries;
            if (source.host) binaries.push_back(built_in(source, host_arch()));
            if (++compiled % 5 == 0) binaries.push_back(compile(source, host_arch(), llvm()));
            for (const Binary& b : binaries) {
              const std::vector<std::byte> y = o.run(device, b);
              REQUIRE(o.wrong() == "");
              REQUIRE(std::memcmp(y.data(), wanted.data(), y.size()) == 0);
              ++kernels;
            }
          }
        }
        CHECK(kernels > 0);
      }
}

TEST_CASE("random problems of floats: compiled and built-in kernels are right and give the same bits") {
  TILEWRIGHT_NEEDS_KERNELS();
  std::mt19937 random(23);
  const auto one_of = [&](auto&& list) { return list[random() % std::size(list)]; };
  const Family& floats = family("gemm", "cpu_floats");
  for (int i = 0; i < 60; ++i) {
    static constexpr const char* kBias[] = {"", " bias=f32", " bias=f16", " bias=bf16"};
    Operands o(fmt::format("gemm x={} w={} y={} m={} n={} k={} pack=panels{} alpha={}", one_of(kFloats),
                           one_of(kFloats), one_of(kFloats), 1 + random() % (i % 2 ? 9 : 200), 16 * (1 + random() % 12),
                           1 + random() % 700, one_of(kBias), random() % 2 ? "1" : "0.375"));
    INFO(o.problem.text());
    const Device device = Device::open_cpu({.threads = 1 + static_cast<int>(random() % 4), .parallel_for = {}});
    const std::vector<Candidate> all = floats.candidates(o.problem, host_arch());
    REQUIRE(!all.empty());
    const std::size_t some = random() % all.size();
    SameBits bits;
    for (std::size_t c = 0; c < all.size(); ++c) {
      const Source source = floats.source(o.problem, host_arch(), all[c]);
      std::vector<Binary> binaries;
      if (source.host) binaries.push_back(built_in(source, host_arch()));
      if (c == some) binaries.push_back(compile(source, host_arch(), llvm()));
      for (const Binary& b : binaries) {
        INFO(all[c].text());
        bits.require(o, device, b);
      }
    }
  }
}

TEST_CASE("floats: rows whose copy would be large are several launches") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  Operands o("gemm x=f16 w=f16 y=f32 m=75 n=16 k=200000 pack=panels c=f32 bias=f32");
  const Family& floats = family("gemm", "cpu_floats");
  int kernels = 0;
  for (const Candidate& c : floats.candidates(o.problem, host_arch())) {
    const Source source = floats.source(o.problem, host_arch(), c);
    if (!source.host) continue;
    CHECK(source.plan.most_rows == 32);
    o.run(device, built_in(source, host_arch()));
    CHECK(o.wrong() == "");
    if (++kernels == 2) break;
  }
  CHECK(kernels > 0);
}

TEST_CASE("floats: some kernel is built in for every number of rows") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Family& floats = family("gemm", "cpu_floats");
  for (const std::int64_t m : kBuckets) {
    const Problem problem = Problem::parse(gemm("f16", m, 48, 100, "", "f16"));
    INFO(problem.text());
    int found = 0;
    for (const Candidate& c : floats.candidates(problem, host_arch()))
      found += floats.source(problem, host_arch(), c).host != nullptr;
    CHECK(found > 0);
  }
}
