// SPDX-License-Identifier: Apache-2.0
// The operation fused_cast: its text, what it refuses, the contract, what the host computes, and which results it
// judges to be right.
#include <tilewright/fused_cast.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"
#include "templates/common/describe.h"
#include "templates/operations/fused_cast/fused_cast.h"

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
    for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
    for (auto& b : bytes) spans.emplace_back(b);
    unsigned seed = 1;
    for (const Matrix& m : task.matrices) {
      std::vector<float> values(static_cast<std::size_t>(m.rows * m.cols));
      std::mt19937 random(seed++);
      std::normal_distribution<float> normal;
      for (float& v : values) v = normal(random);
      if (m.name != "y" && m.name != "residual_out") set(m.name, values);
      if (m.global >= 0) {
        const float global = m.format.info().global_for(8.0f);
        std::memcpy(bytes[static_cast<std::size_t>(m.global)].data(), &global, 4);
      }
    }
  }
  void set(const std::string& name, const std::vector<float>& values) {
    const Matrix& m = matrix(task, name);
    m.format.info().encode(values.data(), m.rows, m.cols, operand(m, spans), 0);
  }
  std::vector<float> get(const std::string& name) { return decoded(matrix(task, name), spans); }
  std::vector<float> computed() {
    problem.operation().run_on_host(problem, task, spans);
    return get("y");
  }
  std::string judged() { return problem.operation().check_on_host(problem, task, spans).wrong; }
  std::byte& data(const char* name, std::size_t at) {
    return bytes[static_cast<std::size_t>(matrix(task, name).data)][at];
  }
};

std::string text_of(const char* y, const char* more, const char* x = "f32", int rows = 3, int cols = 128) {
  return std::string("fused_cast x=") + x + " y=" + y + " rows=" + std::to_string(rows) +
         " cols=" + std::to_string(cols) + (*more ? " " : "") + more;
}

}  // namespace

TEST_CASE("fused_cast: text and identity", "[fused_cast]") {
  const std::string text =
      "fused_cast x=bf16 y=e4m3_row rows=5 cols=512 bias=f32 residual=add norm=rms weight=bf16 act=silu";
  const Problem problem = Problem::parse(text);
  CHECK(problem.text() == text);
  CHECK(problem.with_rows(9).rows() == 9);
  CHECK(problem.min_bytes() == 5 * 512 * (2 + 2 + 2 + 1) + 5 * 4 + 512 * (4 + 2));
  CHECK(Problem::parse("fused_cast x=f16 y=q8_1 rows=2 cols=64 act=gelu gate=first encoder=ggml").text() ==
        "fused_cast x=f16 y=q8_1 rows=2 cols=64 act=gelu gate=first");
  CHECK(Problem::parse("fused_cast x=f16 y=f16 rows=2 cols=64 gate=first").min_bytes() == 2 * 64 * 2 * 3);
  CHECK(Problem::parse("fused_cast x=f16 y=f16 rows=2 cols=64 norm=rms eps=1e-05").text() ==
        "fused_cast x=f16 y=f16 rows=2 cols=64 norm=rms eps=1e-05");
}

TEST_CASE("fused_cast: what is refused names the field", "[fused_cast]") {
  const auto field = [](const std::string& text) { return refusal([&] { Problem::parse(text); }).field(); };
  CHECK(field("fused_cast x=q4_0 y=f16 rows=5 cols=32") == "x");
  CHECK(field("fused_cast x=int8 y=f16 rows=5 cols=32") == "x");
  CHECK(field("fused_cast x=f16 y=e4m3_b128 rows=128 cols=128") == "y");
  CHECK(field("fused_cast x=f16 y=nvfp4 rows=5 cols=24") == "cols");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=0") == "cols");
  CHECK(field("fused_cast x=f16 y=f16 rows=-1 cols=8") == "rows");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 bias=q8_0") == "bias");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 norm=rms weight=e4m3") == "weight");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 weight=f16") == "weight");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 eps=1e-5") == "eps");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 norm=rms eps=0") == "eps");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 norm=rms eps=-1") == "eps");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 norm=layer") == "norm");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 act=tanh") == "act");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 gate=last") == "gate");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 gate=first bias=f16") == "bias");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 gate=first residual=add") == "residual");
  CHECK(field("fused_cast x=f16 y=f16 rows=5 cols=8 gate=first norm=rms") == "norm");
  CHECK(field("fused_cast x=f16 y=q8_1 rows=5 cols=32 encoder=best") == "encoder");
}

TEST_CASE("fused_cast: a launch passes what the problem has", "[fused_cast]") {
  const auto pointers = [](const std::string& text) {
    std::string names;
    const Problem problem = Problem::parse(text);
    for (const PointerRule& p : problem.operation().contract(problem).pointers) names += std::string(p.name) + " ";
    return names;
  };
  CHECK(pointers(text_of("nvfp4", "gate=first")) == "x y.data y.scales y.global ");
  CHECK(pointers(text_of("f16", "bias=f32 residual=add norm=rms weight=f16")) ==
        "x y.data bias weight residual residual_out ");
}

TEST_CASE("fused_cast: on the host, by hand", "[fused_cast]") {
  OnHost norm("fused_cast x=f32 y=f32 rows=1 cols=4 bias=f32 residual=add norm=rms weight=f32 eps=1e-30");
  norm.set("x", {1, 2, 3, 4}), norm.set("bias", {1, 0, 0, -1}), norm.set("residual", {0, -4, 1, 0});
  norm.set("weight", {1, 2, 0, -1});
  const double rms = std::sqrt((4 + 4 + 16 + 9) / 4.0);
  const std::vector<float> y = norm.computed();
  CHECK(norm.get("residual_out") == std::vector<float>{2, -2, 4, 3});
  for (const auto& [at, v] : {std::pair{0, 2.0}, {1, -4.0}, {2, 0.0}, {3, -3.0}})
    CHECK(y[static_cast<std::size_t>(at)] == static_cast<float>(v / rms));

  OnHost gate("fused_cast x=f32 y=f32 rows=2 cols=2 act=relu gate=first");
  gate.set("x", {1, -1, 10, 20, 3, 4, 5, -6});
  CHECK(gate.computed() == std::vector<float>{10, 0, 15, -24});
  OnHost silu("fused_cast x=f32 y=f32 rows=1 cols=3 act=silu");
  silu.set("x", {0, 1, -100});
  const std::vector<float> s = silu.computed();
  CHECK(s[0] == 0.0f);
  CHECK(s[1] == static_cast<float>(1 / (1 + std::exp(-1.0))));
  CHECK(std::fabs(s[2]) < 1e-40f);
  OnHost zeros("fused_cast x=f16 y=f32 rows=1 cols=2 norm=rms");
  zeros.set("x", {0, 0});
  CHECK(zeros.computed() == std::vector<float>{0, 0});
}

TEST_CASE("fused_cast: what the host computes is right, and a step beside it is not", "[fused_cast]") {
  for (const char* y : {"e4m3_row", "int8_row", "int8_asym_row", "nvfp4", "mxfp8", "mxfp4", "q8_1", "q4_0", "int4_g128",
                        "e4m3_g128", "e4m3_tensor", "e4m3", "int8", "f16", "bf16", "f32"})
    for (const char* more : {"residual=add norm=rms weight=f32", "act=silu gate=first", "bias=f16 act=gelu",
                             "bias=bf16 act=gelu_tanh", "bias=f32 residual=add"}) {
      const std::string text = text_of(y, more, "bf16");
      INFO(text);
      OnHost host(text);
      const std::vector<float> right = host.computed();
      CHECK(host.judged() == "");
      // Each stored byte in turn with a bit flipped that moves a value by a lot.
      const Matrix& m = matrix(host.task, "y");
      const std::size_t bytes = host.bytes[static_cast<std::size_t>(m.data)].size();
      int noticed = 0, tried = 0;
      for (std::size_t at = bytes / 7; at < bytes; at += bytes / 5 + 1) {
        std::byte& byte = host.data("y", at);
        const std::byte was = byte;
        byte ^= std::byte{0x44};
        ++tried;
        noticed += host.judged() != "";
        byte = was;
      }
      // The low byte of a wide float may be within its bound.
      if (std::string_view(y) != "f32" && std::string_view(y) != "f16" && std::string_view(y) != "bf16")
        CHECK(noticed == tried);
      CHECK(host.judged() == "");
    }
}

TEST_CASE("fused_cast: either side of a rounding boundary is right, and nothing else", "[fused_cast]") {
  // 8 codes of int8 in steps of 1 / 127 of the largest; the second value lies half-way between two codes but for what
  // the norm may be off by.
  OnHost host("fused_cast x=f32 y=int8_row rows=1 cols=4 norm=rms");
  host.set("x", {127, 42.5f, -10, 3});
  host.computed();
  const auto code = [&](std::size_t at) { return static_cast<int>(static_cast<signed char>(host.data("y", at))); };
  CHECK((code(0) == 127 && (code(1) == 42 || code(1) == 43) && code(2) == -10 && code(3) == 3));
  for (const int right : {42, 43}) {
    host.data("y", 1) = static_cast<std::byte>(right);
    CHECK(host.judged() == "");
  }
  for (const int wrong : {41, 44}) {
    host.data("y", 1) = static_cast<std::byte>(wrong);
    CHECK(host.judged().find("y[0,1]") == 0);
  }
  host.data("y", 1) = std::byte{42};
  host.data("y", 2) = static_cast<std::byte>(-11);  // no boundary is near
  CHECK(host.judged().find("y[0,2]") == 0);
}

TEST_CASE("fused_cast: a new residual is right to the bit", "[fused_cast]") {
  OnHost host("fused_cast x=bf16 y=f32 rows=2 cols=24 residual=add norm=rms");
  host.computed();
  CHECK(host.judged() == "");
  host.data("residual_out", 17) ^= std::byte{1};
  CHECK(host.judged().find("residual_out[0,8]") == 0);
}

TEST_CASE("fused_cast: NaN, infinities and numbers beyond a format", "[fused_cast]") {
  for (const char* y : {"e4m3_row", "nvfp4", "mxfp8", "q8_1", "f16", "f32", "e4m3_tensor"}) {
    INFO(y);
    for (const float special : {kInf, -kInf, kNan, 1e30f, 70000.0f, 65520.0f}) {
      OnHost host(text_of(y, "bias=f32"));
      std::vector<float> x = host.get("x");
      x[5] = special;
      host.set("x", x);
      host.computed();
      CHECK(host.judged() == "");
    }
  }
  OnHost host(text_of("f32", "norm=rms"));
  std::vector<float> x = host.get("x");
  x[5] = kInf;
  host.set("x", x);
  const std::vector<float> y = host.computed();
  CHECK((y[4] == 0.0f && std::isnan(y[5]) && y[128] != 0.0f));
  CHECK(host.judged() == "");
  reinterpret_cast<float*>(host.spans[static_cast<std::size_t>(matrix(host.task, "y").data)].data())[5] = 1.0f;
  CHECK(host.judged().find("y[0,5]") == 0);
}

TEST_CASE("fused_cast: no rows", "[fused_cast]") {
  OnHost host(text_of("e4m3_row", "residual=add norm=rms", "bf16", 0));
  CHECK(host.computed().empty());
  CHECK(host.judged() == "");
}
