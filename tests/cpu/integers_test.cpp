// SPDX-License-Identifier: Apache-2.0
// Bytes by bytes without scales (int8 by int8), whose sums are integers throughout.
#include <fmt/format.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "cpu_test.h"
#include "operands.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("sums of bytes without scales are exact, in integers, up to what 32 bits hold") {
  TILEWRIGHT_NEEDS_KERNELS();
  const auto check = [](const std::string& text, int every, const auto& fill) {
    Operands o(text);
    INFO(text);
    const Gemm& g = *o.problem.as<Gemm>();
    std::vector<std::int8_t> w(static_cast<std::size_t>(g.n * g.k)), x(static_cast<std::size_t>(g.m * g.k));
    std::vector<std::int32_t> bias(static_cast<std::size_t>(g.n));
    fill(x, w, bias);
    for (std::size_t i = 0; i < o.spans.size(); ++i) {
      const std::string& name = o.task.buffers[i].name;
      if (name == "x" || name == "x.data") std::memcpy(o.spans[i].data(), x.data(), x.size());
      if (name == "w" || name == "w.data")
        pack_weights(g, {w.data(), nullptr, nullptr}, {o.spans[i].data(), nullptr, nullptr});
      if (name.starts_with("bias")) std::memcpy(o.spans[i].data(), bias.data(), o.spans[i].size());
    }
    std::vector<std::int32_t> wanted;
    for (std::int64_t row = 0; row < g.m; ++row)
      for (std::int64_t col = 0; col < g.n; ++col) {
        std::int64_t sum = bias[static_cast<std::size_t>(col)];
        for (std::int64_t i = 0; i < g.k; ++i)
          sum += x[static_cast<std::size_t>(row * g.k + i)] * w[static_cast<std::size_t>(col * g.k + i)];
        wanted.push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(sum)));
      }
    std::map<std::string, int> tested;
    for (const Family* f : families("gemm", host_arch())) {
      const std::vector<Candidate> all = f->candidates(o.problem, host_arch());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Source source = f->source(o.problem, host_arch(), all[i]);
        std::vector<Binary> binaries;
        if (source.host) binaries.push_back(built_in(source, host_arch()));
        if (!source.text.empty() && (source.host || static_cast<int>(i) % every == 0))
          binaries.push_back(compile(source, host_arch(), llvm()));
        for (const Binary& b : binaries) {
          INFO(all[i].text());
          const Device device = Device::open_cpu({.threads = 1 + static_cast<int>(i % 3), .parallel_for = {}});
          const std::vector<std::byte> y = o.run(device, b);
          REQUIRE(y.size() == wanted.size() * 4);
          REQUIRE(std::memcmp(y.data(), wanted.data(), y.size()) == 0);
          ++tested[std::string(f->name())];
        }
      }
    }
    CHECK(tested.size() >= (g.m >= 3 && host_arch().cpu->tiles ? 3 : 2));
    CHECK(tested["cpu_reference"] == 1);
  };
  std::mt19937 random(23);
  const auto any = [&](auto& x, auto& w, auto& bias) {
    for (auto& v : x) v = static_cast<std::int8_t>(random());
    for (auto& v : w) v = static_cast<std::int8_t>(random());
    for (auto& v : bias) v = static_cast<std::int32_t>(random());  // sums wrap around
  };
  for (const std::int64_t m : {1, 3, 21, 70})
    check(fmt::format("gemm x=int8 w=int8 y=int32 m={} n=80 k=96 pack=panels bias=int32", m), 3, any);
  // The largest sum, and the least.
  for (const int sign : {-128, 127})
    check("gemm x=int8 w=int8 y=int32 m=5 n=16 k=131040 pack=panels", 20, [&](auto& x, auto& w, auto& bias) {
      std::fill(x.begin(), x.end(), std::int8_t{-128});
      std::fill(w.begin(), w.end(), static_cast<std::int8_t>(sign));
      std::fill(bias.begin(), bias.end(), 0);
    });
  const Problem longer = Problem::parse("gemm x=int8 w=int8 y=f32 m=5 n=16 k=131072 pack=panels");
  for (const char* name : {"cpu_gemv", "cpu_codes"})
    CHECK(family("gemm", name).why_not(longer, host_arch()).find("k=131072 is too large: a sum of more than 131071") ==
          0);
  CHECK(family("gemm", "cpu_reference").why_not(longer, host_arch()) == "");
}

TEST_CASE("sums of bytes without scales become floats once, and what follows is as for others") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  for (const char* rest : {"y=f32 m=21 alpha=0.001 bias=f32 act=silu", "y=bf16 m=4 alpha=0.01 c=f32 beta=0.5",
                           "y=int8 m=40 y_scale=300 bias=f16", "y=f16 m=1 alpha=1e-3"}) {
    Operands o(fmt::format("gemm x=int8 w=int8 n=48 k=160 pack=panels {}", rest));
    INFO(o.problem.text());
    SameBits bits;
    int kernels = 0;
    for (const Family* f : families("gemm", host_arch())) {
      if (f == families("gemm", host_arch()).back()) continue;
      const std::vector<Candidate> all = f->candidates(o.problem, host_arch());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Source source = f->source(o.problem, host_arch(), all[i]);
        std::vector<Binary> binaries;
        if (source.host) binaries.push_back(built_in(source, host_arch()));
        if (source.host || i % 5 == 0) binaries.push_back(compile(source, host_arch(), llvm()));
        for (const Binary& b : binaries) {
          INFO(all[i].text());
          bits.require(o, device, b);
          ++kernels;
        }
      }
    }
    CHECK(kernels >= 3);
  }
}
