// SPDX-License-Identifier: Apache-2.0
// The operation amax: its text, what it refuses, the contract, what the host computes and judges.
#include <tilewright/amax.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"
#include "templates/operations/amax/amax.h"

using namespace tilewright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct OnHost {
  Problem problem;
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  explicit OnHost(const std::string& text, const std::vector<float>& x) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
    for (auto& b : bytes) spans.emplace_back(b);
    const Matrix& from = task.matrices[0];
    from.format.info().encode(x.data(), from.rows, from.cols, {bytes[0].data(), nullptr, nullptr}, 0);
  }
  float computed() {
    problem.operation().run_on_host(problem, task, spans);
    float amax = 0;
    std::memcpy(&amax, bytes[1].data(), 4);
    return amax;
  }
  std::string judged(float amax) {
    std::memcpy(bytes[1].data(), &amax, 4);
    return problem.operation().check_on_host(problem, task, spans).wrong;
  }
};

}  // namespace

TEST_CASE("amax: text and identity", "[amax]") {
  const Format bf16 = Format::parse("bf16");
  const Problem problem(Amax{.x = bf16, .rows = 5, .cols = 512});
  CHECK(problem.text() == "amax x=bf16 rows=5 cols=512");
  CHECK(Problem::parse(problem.text()) == problem);
  CHECK(problem.rows() == 5);
  CHECK(problem.with_rows(9).text() == "amax x=bf16 rows=9 cols=512");
  CHECK(problem.min_bytes() == 5 * 512 * 2 + 4);
}

TEST_CASE("amax: what is refused names the field", "[amax]") {
  const auto field = [](const char* text) { return refusal([&] { Problem::parse(text); }).field(); };
  CHECK(field("amax x=q4_0 rows=5 cols=32") == "x");
  CHECK(field("amax x=int8 rows=5 cols=32") == "x");
  CHECK(field("amax x=bf16 rows=-1 cols=32") == "rows");
  CHECK(field("amax x=bf16 rows=5 cols=0") == "cols");
  CHECK(field("amax x=bf16 rows=5") == "cols");
  CHECK(field("amax x=bf16 rows=5 cols=8 block=16") == "block");
}

TEST_CASE("amax: a launch passes three pointers and rows", "[amax]") {
  const Problem problem = Problem::parse("amax x=f16 rows=5 cols=512");
  const Contract c = problem.operation().contract(problem);
  REQUIRE(c.pointers.size() == 3);
  CHECK(c.pointers[2].name == std::string("workspace"));
  CHECK(c.rows_at == offsetof(AmaxArgs, rows));
  CHECK(c.args_bytes == sizeof(AmaxArgs));
}

TEST_CASE("amax: on the host", "[amax]") {
  for (const char* format : {"f32", "f16", "bf16"}) {
    const std::string text = std::string("amax x=") + format + " rows=2 cols=3";
    CHECK(OnHost(text, {1, -2, 0.5f, 0, 1.5f, -0.0f}).computed() == 2.0f);
    CHECK(std::bit_cast<std::uint32_t>(OnHost(text, {0, -0.0f, 0, 0, 0, -0.0f}).computed()) == 0u);
    CHECK(OnHost(text, {1, -kInf, 0.5f, 0, 1.5f, 0}).computed() == kInf);
    CHECK(std::bit_cast<std::uint32_t>(OnHost(text, {1, -kInf, 0.5f, 0, -kNan, 0}).computed()) == 0x7fc00000u);
  }
  CHECK(OnHost("amax x=f32 rows=1 cols=2", {1e-45f, 0}).computed() == 1e-45f);
  CHECK(amax::largest_magnitude({}) == 0.0f);
}

TEST_CASE("amax: a wrong result is noticed", "[amax]") {
  OnHost host("amax x=f32 rows=2 cols=3", {1, -2, 0.5f, 0, 1.5f, 0});
  CHECK(host.judged(2.0f).empty());
  CHECK(host.judged(1.5f) == "amax = 1.5, expected 2");
  CHECK_FALSE(host.judged(-2.0f).empty());
  CHECK_FALSE(host.judged(kNan).empty());
  OnHost nan("amax x=f32 rows=1 cols=2", {kNan, kInf});
  CHECK(nan.judged(kNan).empty());
  CHECK_FALSE(nan.judged(kInf).empty());
  OnHost zero("amax x=f32 rows=1 cols=2", {0, 0});
  CHECK(zero.judged(0.0f).empty());
  CHECK_FALSE(zero.judged(-0.0f).empty());
}
