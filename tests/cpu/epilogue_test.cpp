// SPDX-License-Identifier: Apache-2.0
// What follows a gemm's sums: factors, bias, activations, residuals, and types of y.
#include <tilewright/family.h>
#include <tilewright/gemm.h>
#include <tilewright/numerics.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <span>

#include "cpu_test.h"
#include "gemms.h"
#include "operands.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// Every family's built-in kernels, and one compiled one of each: equal, and right.
void check_alike(Operands& o, const Device& device) {
  std::vector<std::byte> bits;
  std::map<std::string, int> families_seen;
  for (const Family* f : families("gemm", host_arch())) {
    if (f == families("gemm", host_arch()).back()) continue;
    for (const Candidate& c : f->candidates(o.problem, host_arch())) {
      const Source source = f->source(o.problem, host_arch(), c);
      std::vector<Binary> binaries;
      if (source.host) binaries.push_back(built_in(source, host_arch()));
      if (families_seen[std::string(f->name())]++ == 0) binaries.push_back(compile(source, host_arch(), llvm()));
      for (const Binary& b : binaries) {
        INFO(o.problem.text() << " " << c.text());
        const std::vector<std::byte> y = o.run(device, b);
        REQUIRE(o.wrong() == "");
        if (bits.empty()) bits = y;
        REQUIRE(y == bits);
      }
    }
  }
  REQUIRE(!bits.empty());
}

std::span<std::byte> buffer_of(Operands& o, const char* name) {
  for (std::size_t i = 0; i < o.spans.size(); ++i)
    if (o.task.buffers[i].name == name) return o.spans[i];
  return {};
}

}  // namespace

TEST_CASE("activations, residuals and int8 with a scale follow the sums, in every family") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  int turn = 0;
  for (const char* operands : {"x=q8_1 w=q4_0", "x=int8_row w=int8_row", "x=bf16 w=f16"})
    for (const char* act : {"none", "relu", "gelu", "gelu_tanh", "silu"})
      for (const char* y : {"y=f32", "y=f16", "y=bf16", "y=int8 y_scale=0.02", "y=e4m3 y_scale=0.01", "y=e5m2"})
        for (const char* c : {"", " c=f32 beta=-0.5", " c=bf16", " c=f16 beta=3"}) {
          if (++turn % 2 && *c) continue;
          Operands o(fmt::format("gemm {} {} m={} n=48 k=64 pack=panels act={}{}{}", operands, y,
                                 turn % 3 == 0 ? 1 : 5 + turn % 40, act, c, turn % 4 ? "" : " bias=f32"));
          check_alike(o, device);
        }
}

// What is activated is the bias alone, since x is 0.
TEST_CASE("activations of every kind of number") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  constexpr std::int64_t n = 4096;
  std::vector<float> values(n);
  const float special[] = {0.0f,    -0.0f,    INFINITY, -INFINITY, NAN,     1e-45f, -1e-45f, 1e-38f, -1e-38f,
                           3.4e38f, -3.4e38f, 1e20f,    -1e20f,    87.3f,   -87.3f, 88.7f,   -88.7f, 89.5f,
                           -89.5f,  103.0f,   -103.0f,  104.5f,    -104.5f, 200.0f, -200.0f, 1e-8f,  -1e-8f,
                           6.0f,    -6.0f,    28.0f,    -28.0f,    28.3f,   -28.3f};
  for (std::size_t i = 0; i < n; ++i)
    values[i] = i < std::size(special) ? special[i] : (static_cast<float>(i) - 2000.0f) * (i % 3 ? 0.003f : 0.05f);
  for (const char* act : {"relu", "gelu", "gelu_tanh", "silu"})
    for (const char* operands : {"x=f32 w=f32", "x=q8_1 w=q8_0"}) {
      Operands o(fmt::format("gemm {} y=f32 m=1 n={} k=32 pack=panels bias=f32 act={}", operands, n, act));
      std::memset(buffer_of(o, "x.data").data(), 0, buffer_of(o, "x.data").size());
      std::memcpy(buffer_of(o, "bias.data").data(), values.data(), 4 * n);
      check_alike(o, device);
      const Activation which = o.problem.as<Gemm>()->act;
      const float* const y = reinterpret_cast<const float*>(buffer_of(o, "y.data").data());
      for (std::size_t i = 0; i < n; ++i) {
        const double wanted = activate(which, static_cast<double>(values[i]));
        INFO(act << "(" << values[i] << ") = " << y[i] << ", wanted " << wanted);
        if (std::isnan(wanted))
          REQUIRE(std::isnan(y[i]));
        else if (std::isinf(wanted))
          REQUIRE(y[i] == wanted);
        else  // stricter than the bound, which allows 9.6e-7
          REQUIRE(std::fabs(y[i] - wanted) <= 3e-7 * std::fabs(values[i]) + 1e-44);
      }
    }
}

// What is stored is the bias alone, since x is 0.
TEST_CASE("y of one byte is what its codec makes of every kind of number") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  constexpr std::int64_t n = 1 << 14;
  std::vector<float> values(n);
  std::mt19937 random(41);
  for (std::int64_t i = 0; i < n; ++i) {
    // Any float; and those around every fp8 number and the middle between two.
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (i % 4) bits = (bits & 0x80000000u) | ((bits & 0x7fu) + 90u) << 23 | ((bits >> 8 & 15u) << 19);
    if (i % 4 > 1) bits += static_cast<std::uint32_t>(i % 3) - 1;
    std::memcpy(&values[static_cast<std::size_t>(i)], &bits, 4);
  }
  const float special[] = {0.0f,    -0.0f,    INFINITY, -INFINITY, NAN,      -NAN,    448.0f,  464.0f,
                           463.99f, 57344.0f, 61440.0f, 0.5f,      1.5f,     -0.5f,   -127.5f, 127.5f,
                           -128.5f, 126.5f,   1e-45f,   -1e-45f,   0x1p-10f, 0x1p-17f};
  std::copy(std::begin(special), std::end(special), values.begin());
  for (const char* name : {"int8", "e4m3", "e5m2"})
    for (const char* operands : {"x=f32 w=f32", "x=q8_1 w=q8_0"}) {
      Operands o(fmt::format("gemm {} y={} m=1 n={} k=32 pack=panels bias=f32", operands, name, n));
      std::memset(buffer_of(o, "x.data").data(), 0, buffer_of(o, "x.data").size());
      std::memcpy(buffer_of(o, "bias.data").data(), values.data(), 4 * n);
      check_alike(o, device);
      std::vector<std::byte> wanted(n);
      Format::parse(name).info().encode(values.data(), 1, n, {wanted.data(), nullptr, nullptr}, 0);
      const auto y = buffer_of(o, "y.data");
      for (std::size_t i = 0; i < n; ++i) {
        INFO(name << " of " << values[i]);
        // A zero has no sign behind a sum.
        if (values[i] != 0) REQUIRE(y[i] == wanted[i]);
      }
    }
}

TEST_CASE("c may be y, and a launch has factors of its own") {
  TILEWRIGHT_NEEDS_KERNELS();
  const Device device = Device::open_cpu({.threads = 3, .parallel_for = {}});
  for (const char* operands : {"x=q8_1 w=q4_k", "x=f16 w=bf16"})
    for (const std::int64_t m : {2, 70}) {
      Operands o(fmt::format("gemm {} y=f32 m={} n=80 k=256 pack=panels c=f32 beta=0.5 alpha=2", operands, m));
      const auto c = buffer_of(o, "c.data"), y = buffer_of(o, "y.data");
      for (const Family* f : families("gemm", host_arch()))
        for (const Candidate& candidate : f->candidates(o.problem, host_arch())) {
          const Source source = f->source(o.problem, host_arch(), candidate);
          if (!source.host) continue;
          INFO(o.problem.text() << " " << candidate.text());
          const Binary b = built_in(source, host_arch());
          const int first[] = {0};
          const Kernel kernel(device, std::span(&b, 1), first, contract_for(o.problem));
          const auto launch = [&](const void* from, void* to, float alpha, float beta) {
            std::vector<std::byte> bytes = o.task.arguments(o.pointers, o.problem.rows());
            GemmArgs args;
            std::memcpy(&args, bytes.data(), sizeof args);
            args.c = from, args.y = to, args.alpha = alpha, args.beta = beta;
            kernel.launch(nullptr, args);
          };
          launch(c.data(), y.data(), 1, 1);
          std::vector<float> in_place(y.size() / 4), doubled(in_place.size()), none(in_place.size());
          std::memcpy(in_place.data(), c.data(), c.size());
          launch(in_place.data(), in_place.data(), 1, 1);
          CHECK(std::memcmp(in_place.data(), y.data(), y.size()) == 0);
          launch(c.data(), doubled.data(), 2, 2);
          launch(c.data(), none.data(), 0, 1);
          for (std::size_t i = 0; i < doubled.size(); ++i) {
            float once = 0, addend = 0;
            std::memcpy(&once, y.data() + 4 * i, 4);
            std::memcpy(&addend, c.data() + 4 * i, 4);
            REQUIRE(doubled[i] == 2 * once);
            REQUIRE(none[i] == 0.5f * addend);
          }
        }
    }
}
