// SPDX-License-Identifier: Apache-2.0
// Rows of x that a kernel quantizes itself.
#include <tilewright/family.h>
#include <tilewright/pack.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

// Rows of floats that int8_row's encoder finds hard: quotients in the middle between two codes, scales that are
// subnormal, infinite, or 1 because the row is zero, and NaN.
TEST_CASE("rows of x are quantized to what their format's encoder makes of them") {
  TILEWRIGHT_NEEDS_KERNELS();
  constexpr std::int64_t kRows = 12, kColumns = 96;
  std::vector<float> x(kRows * kColumns);
  std::mt19937 random(31);
  const auto row = [&](std::int64_t r) { return x.data() + r * kColumns; };
  for (std::int64_t i = 0; i < kColumns; ++i) {
    row(0)[i] = 0.0f;
    row(1)[i] = static_cast<float>(i % 2 ? 1 : -1) * (static_cast<float>(i) + 0.5f);
    row(2)[i] = std::ldexp(static_cast<float>(random() % 255), -149);
    row(3)[i] = std::ldexp(static_cast<float>(random() % 63), -149);
    row(4)[i] = i == 40 ? INFINITY : 1.0f;
    row(5)[i] = i % 9 == 4 ? NAN : static_cast<float>(i) - 30.0f;
    row(6)[i] = NAN;
    row(7)[i] = std::ldexp(static_cast<float>(random() % 1000) - 500.0f, 118);
    for (std::int64_t r = 8; r < kRows; ++r)
      row(r)[i] = std::ldexp(static_cast<float>(random()) - 2147483648.0f, static_cast<int>(random() % 40) - 40);
  }
  row(1)[0] = 127.0f;
  // y = x: w is the identity, of codes 1 and scales 1.
  Operands o(gemm("int8_row", kRows, kColumns, kColumns, "x_from=f32", "int8_row"));
  std::vector<signed char> codes(kColumns * kColumns);
  std::vector<float> scales(kColumns, 1.0f);
  for (std::size_t i = 0; i < kColumns; ++i) codes[i * kColumns + i] = 1;
  std::vector<signed char> quantized(kRows * kColumns);
  std::vector<float> row_scales(kRows), wanted(kRows * kColumns);
  const Format f = Format::parse("int8_row");
  f.info().encode(x.data(), kRows, kColumns, {quantized.data(), row_scales.data(), nullptr}, 0);
  f.info().decode({quantized.data(), row_scales.data(), nullptr}, kRows, kColumns, wanted.data());
  std::size_t out = 0;
  for (std::size_t i = 0; i < o.spans.size(); ++i) {
    if (o.task.buffers[i].name == "w.data")
      pack_weights(*o.problem.as<Gemm>(), {codes.data(), scales.data(), nullptr},
                   {o.spans[i].data(), nullptr, nullptr});
    if (o.task.buffers[i].name == "x.data") std::memcpy(o.spans[i].data(), x.data(), o.spans[i].size());
    if (o.task.buffers[i].output) out = i;
  }
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  for (const Family* f : families("gemm", host_arch()))
    for (const Candidate& c : f->candidates(o.problem, host_arch())) {
      const Source source = f->source(o.problem, host_arch(), c);
      if (!source.host || source.text.empty()) continue;
      for (const Binary& b : {built_in(source, host_arch()), compile(source, host_arch(), llvm())}) {
        o.run(device, b);
        const float* const y = reinterpret_cast<const float*>(o.spans[out].data());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          INFO(c.text() << " [" << i / kColumns << "," << i % kColumns << "] " << x[i]);
          if (i / kColumns == 4)
            REQUIRE(std::isnan(y[i]));
          else
            REQUIRE(y[i] == wanted[i]);
        }
      }
    }
}
