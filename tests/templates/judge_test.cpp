// SPDX-License-Identifier: Apache-2.0
// Tests what counts as a right result, and factors that a kernel cannot hold.
#include <tilewright/error.h>
#include <tilewright/gemm.h>
#include <tilewright/operation.h>
#include <tilewright/problem.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "templates/operations/gemm/judge.h"

using namespace tilewright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::string refused(const std::string& fields) {
  try {
    Problem::parse("gemm x=f16 w=q4_0 y=f16 m=1 n=64 k=64 " + fields);
  } catch (const Error& e) {
    return e.field();
  }
  return "";
}

// A gemm on the host: its buffers with random operands and the right result.
struct OnHost {
  Problem problem;
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> buffers;

  explicit OnHost(const std::string& text) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes, std::byte{0xff});
      if (b.fill && !b.output) b.fill(bytes.back(), 1);
    }
    for (std::vector<std::byte>& b : bytes) buffers.emplace_back(b);
    problem.operation().run_on_host(problem, task, buffers);
  }
  std::span<std::byte> y() const {
    for (const Matrix& m : task.matrices)
      if (m.name == "y") return buffers[static_cast<std::size_t>(m.data)];
    FAIL("no y");
    return {};
  }
  HostCheck check() const { return problem.operation().check_on_host(problem, task, buffers); }
};

}  // namespace

TEST_CASE("check_on_host() calls an infinity wrong wherever it is planted", "[judge]") {
  struct Planted {
    const char* y;
    float value;
    const char* text;
  };
  for (const auto& [y, value, text] :
       {Planted{"f32", -kInf, " = -inf, "}, Planted{"f16", kInf, " = inf, "}, Planted{"bf16", -kInf, " = -inf, "},
        Planted{"f32", std::nanf(""), " = nan, "}}) {
    const OnHost host(std::string("gemm x=f16 w=q4_0 m=3 n=65 k=64 y=") + y);
    INFO(host.problem.text() << text);
    const HostCheck right = host.check();
    CHECK(right.wrong.empty());
    CHECK(right.checked == 3 * 65);
    CHECK(right.infinite == 0);
    std::byte code[4];
    host.problem.as<Gemm>()->y.info().encode(&value, 1, 1, {code, nullptr, nullptr}, 0);
    const std::size_t size = host.y().size() / (3 * 65);
    for (const std::size_t at : {0, 100, 3 * 65 - 1}) {
      std::byte kept[4];
      std::byte* place = host.y().data() + at * size;
      std::memcpy(kept, place, size);
      std::memcpy(place, code, size);
      const HostCheck check = host.check();
      const std::string where = "y[" + std::to_string(at / 65) + "," + std::to_string(at % 65) + "]" + text;
      CHECK(check.wrong.rfind(where, 0) == 0);
      CHECK(check.of_bound == std::numeric_limits<double>::infinity());
      CHECK(check.infinite == 0);
      std::memcpy(place, kept, size);
    }
    CHECK(host.check().wrong.empty());
  }
}

TEST_CASE("an infinity is right only where the bound lets the exact value round to it", "[judge]") {
  const Format f16 = Format::parse("f16"), f32 = Format::parse("f32");
  CHECK(gemm::judge(f16, kInf, 70000, 1).right);
  CHECK_FALSE(gemm::judge(f16, -kInf, 70000, 1).right);  // the other sign
  CHECK_FALSE(gemm::judge(f16, kInf, 60000, 1).right);   // f16 holds it
  CHECK(gemm::judge(f16, kInf, 65500, 100).right);
  CHECK_FALSE(gemm::judge(f32, kInf, 70000, 1).right);
  CHECK_FALSE(gemm::judge(f32, -kInf, 1, 0.5).right);
  CHECK(gemm::judge(f32, kInf, 1e39, 1).right);
  CHECK_FALSE(gemm::judge(f32, std::nanf(""), 1, 0.5).right);
  CHECK(gemm::judge(f32, std::nanf(""), std::nan(""), 0.5).right);
  CHECK(gemm::judge(f32, 1.25f, 1, 0.5).right);
  CHECK_FALSE(gemm::judge(f32, 1.75f, 1, 0.5).right);
}

TEST_CASE("factors are checked in the precision that kernels use, extents in 64 bits", "[judge]") {
  CHECK(refused("alpha=1e39") == "alpha");
  CHECK(refused("alpha=1e-60") == "alpha");
  CHECK(refused("alpha=0").empty());
  CHECK(refused("alpha=1e-30").empty());
  CHECK(refused("c=f16 beta=1e39") == "beta");
  CHECK(refused("groups=4294967297") == "groups");
  CHECK(refused("kk=4") == "kk");
}
