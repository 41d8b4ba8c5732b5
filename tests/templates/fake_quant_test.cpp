// SPDX-License-Identifier: Apache-2.0
// The operation fake_quant: its text, what it refuses, its contract, what the host computes and judges.
#include <tilewright/fake_quant.h>
#include <tilewright/operation.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct OnHost {
  Problem problem;
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  explicit OnHost(const std::string& text) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes);
      if (b.fill) b.fill(bytes.back(), 1);
    }
    for (auto& b : bytes) spans.emplace_back(b);
  }
  template <class T = float>
  T& at(std::string_view name, std::size_t index = 0) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (std::string_view(task.buffers[i].name).substr(0, task.buffers[i].name.find('.')) == name)
        return reinterpret_cast<T*>(bytes[i].data())[index];
    FAIL("no buffer " << name);
    std::abort();
  }
  void compute() { problem.operation().run_on_host(problem, task, spans); }
  std::string judged() { return problem.operation().check_on_host(problem, task, spans).wrong; }
};

}  // namespace

TEST_CASE("fake_quant: text and identity", "[fake_quant]") {
  FakeQuant f{.x = Format::parse("bf16"), .rows = 5, .cols = 512};
  CHECK(Problem(f).text() == "fake_quant x=bf16 rows=5 cols=512");
  CHECK(Problem(f).min_bytes() == 2 * 5 * 512 * 2 + 8);
  f.qmin = -8, f.qmax = 7, f.scope = ScaleScope::row, f.grad = FakeQuantGrad::learned;
  const Problem problem(f);
  CHECK(problem.text() == "fake_quant x=bf16 rows=5 cols=512 qmin=-8 qmax=7 scope=row grad=learned");
  CHECK(Problem::parse(problem.text()) == problem);
  CHECK(problem.min_bytes() == 3 * 5 * 512 * 2 + 5 * 12);
  CHECK(problem.with_rows(9).rows() == 9);
}

TEST_CASE("fake_quant: what is refused names the field", "[fake_quant]") {
  const auto field = [](const std::string& words) { return refusal("fake_quant " + words).field(); };
  CHECK(field("x=int8 rows=5 cols=32") == "x");
  CHECK(field("x=q8_0 rows=5 cols=32") == "x");
  CHECK(field("x=f32 rows=-1 cols=32") == "rows");
  CHECK(field("x=f32 rows=1 cols=0") == "cols");
  CHECK(field("x=f32 rows=1 cols=1 qmin=-129") == "qmin");
  CHECK(field("x=f32 rows=1 cols=1 qmin=255 qmax=256") == "qmin");
  CHECK(field("x=f32 rows=1 cols=1 qmin=0 qmax=256") == "qmax");
  CHECK(field("x=f32 rows=1 cols=1 qmin=-1 qmax=255") == "qmax");
  CHECK(field("x=f32 rows=1 cols=1 qmin=3 qmax=3") == "qmax");
  CHECK(field("x=f32 rows=1 cols=1 scope=block") == "scope");
  CHECK(field("x=f32 rows=1 cols=1 grad=yes") == "grad");
  CHECK(field("x=f32 rows=2147483647 cols=1000000") == "x");
}

TEST_CASE("fake_quant: what a launch must pass", "[fake_quant]") {
  const auto required = [](const std::string& more) {
    const Problem problem = Problem::parse("fake_quant x=f16 rows=2 cols=8" + more);
    std::string names;
    const Contract c = problem.operation().contract(problem);
    for (const PointerRule& rule : c.pointers)
      if (rule.required) names += std::string(rule.name) + " ";
    return names + std::to_string(c.factors.size());
  };
  CHECK(required("") == "x y scale 0");
  CHECK(required(" grad=straight") == "x dy y scale 0");
  CHECK(required(" grad=learned") == "x dy y scale dscale workspace 1");
  CHECK(required(" grad=learned scope=row") == "x dy y scale dscale 1");
}

TEST_CASE("fake_quant: on the host", "[fake_quant]") {
  OnHost host("fake_quant x=f32 rows=1 cols=10 qmin=-4 qmax=3");
  const float x[] = {0, -0.0f, 0.25f, 0.75f, -0.25f, 10, -10, kInf, -kInf, kNan}, scale = 0.5f;
  const std::int32_t zero = 1;
  std::memcpy(&host.at("x"), x, sizeof x);
  host.at("scale") = scale, host.at<std::int32_t>("zero_point") = zero;
  host.compute();
  const float wanted[] = {0, 0, 0, 1, 0, 1, -2.5f, 1, -2.5f, -2.5f};
  for (std::size_t i = 0; i < 10; ++i) CHECK(host.at("y", i) == wanted[i]);
  CHECK(host.judged().empty());
  host.at("y", 3) = 0.5f;
  CHECK(host.judged() == "y[0,3] = 0.5, expected 1");
}

TEST_CASE("fake_quant: gradients on the host", "[fake_quant]") {
  OnHost host("fake_quant x=f32 rows=2 cols=4 qmin=-4 qmax=3 scope=row grad=learned");
  const float x[] = {0.3f, 5, -5, 1, 2.25f, 0, kNan, kInf}, dy[] = {1, 2, -3, 4, 8, 1, 1, -1};
  std::memcpy(&host.at("x"), x, sizeof x), std::memcpy(&host.at("dy"), dy, sizeof dy);
  host.at("scale", 0) = 1, host.at("scale", 1) = 0.5f;
  host.at<std::int32_t>("zero_point", 0) = 0, host.at<std::int32_t>("zero_point", 1) = -1;
  host.compute();
  CHECK(host.judged().empty());
  const float dx[] = {1, 0, 0, 4, 0, 1, 0, 0};  // 2.25 / 0.5 is 4 to the even side, and 3 with the zero point
  for (std::size_t i = 0; i < 8; ++i) CHECK(host.at("y", i) == (i == 4 ? 8 : dx[i]));
  const double factor = 1 / std::sqrt(4.0 * 3);
  CHECK(std::fabs(host.at("dscale", 0) - factor * (-0.3 + 2 * 3 + 3 * 4 + 0)) < 1e-5);
  // The slope of 4.5 is -0.5; NaN's the least code's, -3; infinity's the largest one's, 4.
  CHECK(std::fabs(host.at("dscale", 1) - factor * (8 * -0.5 + 0 - 3 - 4)) < 1e-5);
  host.at("dscale", 1) *= 1.00001f;
  CHECK(host.judged().find("dscale[1]") == 0);
}

TEST_CASE("fake_quant: the host refuses scales and zero points that codes cannot have", "[fake_quant]") {
  for (const float scale : {0.0f, -0.0f, -1.0f, kInf, -kInf, kNan}) {
    OnHost host("fake_quant x=f32 rows=3 cols=4 scope=row");
    host.at("scale", 2) = scale;
    CHECK(refusal([&] { host.compute(); }).field() == "scale[2]");
  }
  for (const std::int32_t zero :
       {-9, 8, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    OnHost host("fake_quant x=f32 rows=3 cols=4 qmin=-8 qmax=7");
    host.at<std::int32_t>("zero_point") = zero;
    CHECK(refusal([&] { host.compute(); }).field() == "zero_point[0]");
  }
}

TEST_CASE("fake_quant: a kernel's sums are compared within their bound", "[fake_quant]") {
  OnHost host("fake_quant x=bf16 rows=4 cols=100 grad=learned");
  host.compute();
  std::vector<std::byte> oracle, got;
  std::vector<std::vector<std::byte>> inputs;
  for (std::size_t i = 0; i < host.bytes.size(); ++i) {
    const Buffer& b = host.task.buffers[i];
    if (b.output)
      oracle.insert(oracle.end(), host.bytes[i].begin(), host.bytes[i].end());
    else
      inputs.push_back(host.bytes[i]);
  }
  got = oracle;
  CHECK(host.task.compare(got, oracle, inputs, 4).empty());
  float sum = 0;
  std::memcpy(&sum, &got[got.size() - 4], 4);
  const float off = sum + 1e-2f;
  std::memcpy(&got[got.size() - 4], &off, 4);
  CHECK(host.task.compare(got, oracle, inputs, 4).find("dscale[0]") == 0);
  got = oracle, got[5] ^= std::byte{1};
  CHECK(host.task.compare(got, oracle, inputs, 4) != "");
}
