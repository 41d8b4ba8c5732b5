// SPDX-License-Identifier: Apache-2.0
// The operation fp4_fake_quant: its text, what it refuses, the contract, and the values that the host computes.
#include "support/fake_quant.h"

#include <tilewright/fake_quant.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

#include <cfenv>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"
#include "templates/operations/fp4_fake_quant/fp4_fake_quant.h"

using namespace tilewright;
using fake_quant_model::kInf;
using fake_quant_model::kNan;

namespace {

std::vector<float> on_host(const std::vector<float>& x, std::int64_t cols, int block, float amax) {
  std::vector<float> y(x.size());
  fp4_fake_quant::fake_quantize(x.data(), y.data(), static_cast<std::int64_t>(x.size()) / cols, cols, block, &amax);
  return y;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

// The outputs of a problem's own computation on the host, from values in x's format.
std::vector<float> computed(const Problem& problem, const std::vector<float>& x, float amax,
                            HostCheck* check = nullptr) {
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
  for (auto& b : bytes) spans.emplace_back(b);
  const Matrix &from = task.matrices[0], &to = task.matrices[1];
  from.format.info().encode(x.data(), from.rows, from.cols, {bytes[0].data(), nullptr, nullptr}, 0);
  std::memcpy(bytes[2].data(), &amax, 4);
  problem.operation().run_on_host(problem, task, spans);
  if (check) *check = problem.operation().check_on_host(problem, task, spans);
  std::vector<float> y(x.size());
  to.format.info().decode({bytes[1].data(), nullptr, nullptr}, to.rows, to.cols, y.data());
  return y;
}

}  // namespace

TEST_CASE("fake quantizations: text and identity", "[fake_quant]") {
  const Format bf16 = Format::parse("bf16");
  CHECK(Problem(Fp4FakeQuant{.x = bf16, .y = bf16, .rows = 5, .cols = 512}).text() ==
        "fp4_fake_quant x=bf16 y=bf16 rows=5 cols=512");
  CHECK(Problem(Fp4FakeQuant{.x = bf16, .y = bf16, .rows = 5, .cols = 81, .block = 128}).text() ==
        "fp4_fake_quant x=bf16 y=bf16 rows=5 cols=81 block=128");
  const Problem p = Problem::parse("fp4_fake_quant block=16 cols=64 rows=3 y=f16 x=f32");
  CHECK(p.text() == "fp4_fake_quant x=f32 y=f16 rows=3 cols=64");
  CHECK(p.rows() == 3);
  CHECK(p.cols() == 64);
  CHECK_FALSE(p.fixed_rows());
  CHECK(p.min_bytes() == 3 * 64 * (4 + 2) + 4);
  CHECK(p.with_rows(0).rows() == 0);
  CHECK(p.same_but_rows(p.with_rows(100)));
  CHECK(p.distance(Problem::parse("fp4_fake_quant x=f32 y=f16 rows=3 cols=128")) == 1);
  CHECK(p.distance(Problem::parse("fp4_fake_quant x=f32 y=f16 rows=3 cols=64 block=32")) < 0);
}

TEST_CASE("fake quantizations: what they refuse, by name", "[fake_quant]") {
  const std::string op = "fp4_fake_quant ";
  const std::string base = op + "x=bf16 y=bf16 rows=2 ";
  CHECK(refused(base + "cols=64 block=24") == "block must be one of 8, 16, 32, 64, 128, 256 (got 24)");
  CHECK(refused(base + "cols=64 block=0") == "block must be one of 8, 16, 32, 64, 128, 256 (got 0)");
  CHECK(refused(base + "cols=512 block=512") == "block must be one of 8, 16, 32, 64, 128, 256 (got 512)");
  CHECK(refused(base + "cols=64 block=-16").starts_with("block must be 0 to"));
  CHECK(refused(base + "cols=64 block=4294967312").starts_with("block must be "));
  CHECK(refused(base + "cols=0") == "cols must be 1 to 2147483647 (only rows may be 0) (got 0)");
  CHECK(refused(base + "cols=-64").starts_with("cols must be 0 to"));
  CHECK(refused(base + "cols=2147483648").starts_with("cols must be 0 to"));
  CHECK(refused(op + "x=bf16 y=bf16 rows=-1 cols=64").starts_with("rows must be 0 to"));
  CHECK(refused(op + "x=nvfp4 y=bf16 rows=2 cols=64") == "x must be f32, f16 or bf16 (got nvfp4)");
  CHECK(refused(op + "x=bf16 y=e4m3 rows=2 cols=64") == "y must be f32, f16 or bf16 (got e4m3)");
  CHECK(refused(op + "x=f32 y=f32 rows=2147483647 cols=1073741824") ==
        "x must have at most 2^47 bytes (got f32 of 2147483647 x 1073741824)");
  CHECK(refused(op + "x=bf16 rows=2 cols=64").starts_with("y is required"));
  CHECK(refused(base + "cols=64 amax=3").starts_with("amax=3 is not a field"));
  Fp4FakeQuant negative{.x = Format::parse("f32"), .y = Format::parse("f32"), .rows = 2, .cols = 64, .block = -16};
  CHECK(refusal([&] { Problem{negative}; }).allowed() == "must be one of 8, 16, 32, 64, 128, 256");
  CHECK(Problem::parse(op + "x=f32 y=f32 rows=2 cols=40 block=16").cols() == 40);  // a row's last block is short
}

TEST_CASE("fake quantizations: what a launch has to pass", "[fake_quant]") {
  for (const char* text : {"fp4_fake_quant x=f32 y=f16 rows=3 cols=64", "fp4_fake_quant x=f32 y=f16 rows=3 cols=65"}) {
    const Problem p = Problem::parse(text);
    const Contract c = p.operation().contract(p);
    CHECK(c.op == p.op());
    CHECK(c.rows_name == "rows");
    CHECK(c.cols == p.cols());
    CHECK(c.args_bytes == sizeof(Fp4FakeQuantArgs));
    REQUIRE(c.pointers.size() == 3);
    for (const PointerRule& rule : c.pointers) CHECK(rule.required);
    CHECK(std::string(c.pointers[2].name) == "amax");
    CHECK(c.pointers[2].align == 4);
    CHECK(c.pointers[0].align == 16);
  }
}

TEST_CASE("fake quantization: known values", "[fake_quant]") {
  const std::vector<float> ties = {6, 5, 3.5f, 2.5f, 1.75f, 1.25f, 0.75f, 0.25f};
  const std::vector<float> even = {6, 4, 4, 2, 2, 1, 1, 0};
  CHECK(same_bits(on_host(ties, 8, 8, 2688), even));
  std::vector<float> negative = ties, minus = even;
  for (std::size_t i = 0; i < 8; ++i) negative[i] = -ties[i], minus[i] = -even[i];
  CHECK(same_bits(on_host(negative, 8, 8, 2688), minus));  // -0 where a negative value becomes zero
  // Of zeros, both become +0.
  CHECK(same_bits(on_host({0, -0.0f, 0, -0.0f, 0, 0, 0, 0}, 8, 8, 2688), std::vector<float>(8, 0.0f)));
  // A NaN is passed over in the largest magnitude and becomes -6 scales; an infinity makes the scale amax / 6.
  CHECK(same_bits(on_host({6, kNan, 1, 0, 0, 0, 0, 0}, 8, 8, 2688), {6, -6, 1, 0, 0, 0, 0, 0}));
  CHECK(same_bits(on_host({1, kInf, -kInf, 300, -900, 0, 0, 0}, 8, 8, 2688), {0, 2688, -2688, 224, -896, 0, 0, 0}));
  // Larger values than amax are clipped to it.
  CHECK(on_host({100, -1, 0, 0, 0, 0, 0, 0}, 8, 8, 6)[0] == 6);
  // A scale beneath 1e-5 is 1: small values vanish.
  CHECK(same_bits(on_host(std::vector<float>(8, 5e-5f), 8, 8, 1e-4f), std::vector<float>(8, 0.0f)));
  CHECK(on_host(std::vector<float>(8, 1e-4f), 8, 8, 1e-4f)[0] > 9e-5f);
  // Whatever is no largest magnitude makes every scale 1.
  for (const float amax : {0.0f, -0.0f, -3.0f, kNan, kInf, -kInf, 1e-42f})
    CHECK(same_bits(on_host({0.3f, -0.3f, 7, -100, 1.25f, kNan, kInf, 0}, 8, 8, amax),
                    {0.5f, -0.5f, 6, -6, 1, -6, 6, 0}));
}

TEST_CASE("fake quantization: where system 0's scale differs from E4M3", "[fake_quant]") {
  // r = 17 and 1.0625 are ties, which go to even codes: 16 and 1.
  CHECK(on_host(std::vector<float>(8, 6 * 17.0f), 8, 8, 2688)[0] == 6 * 16.0f);
  CHECK(on_host(std::vector<float>(8, 6 * 1.0625f), 8, 8, 2688)[0] == 6.0f);
  // 2^-7 and 2^-9 are subnormal numbers, 0.75 2^-9 rounds up to 2^-9.
  for (const float r : {0.0078125f, 0.001953125f}) CHECK(on_host(std::vector<float>(8, 6 * r), 8, 8, 2688)[0] == 6 * r);
  CHECK(on_host(std::vector<float>(8, 6 * 0.00146484375f), 8, 8, 2688)[0] == 4 * 0.001953125f);
}

TEST_CASE("fake quantization on the host against the model", "[fake_quant]") {
  unsigned seed = 0;
  for (const int block : fake_quant_model::kSizes)
    for (const float amax : fake_quant_model::kAmaxes)
      for (const std::int64_t cols : {std::int64_t{block} * 3, std::int64_t{block} * 2 + 5, std::int64_t{3}}) {
        const std::vector<float> x = fake_quant_model::troubled(20 * cols, block, amax, ++seed);
        INFO("block " << block << " amax " << amax << " cols " << cols);
        CHECK(same_bits(on_host(x, cols, block, amax), fake_quant_model::fake_quantized(x, cols, block, amax)));
      }
  // More blocks than a core takes at a time.
  const std::vector<float> x = fake_quant_model::troubled(8 * 40000, 8, 3.0f, 9);
  CHECK(same_bits(on_host(x, 8, 8, 3.0f), fake_quant_model::fake_quantized(x, 8, 8, 3.0f)));
}

TEST_CASE("fake quantization in a process that rounds otherwise", "[fake_quant]") {
  const std::vector<float> x = fake_quant_model::troubled(4096, 16, 3.0f, 11), want = on_host(x, 64, 16, 3.0f);
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(rounding);
    const std::vector<float> got = on_host(x, 64, 16, 3.0f);
    const bool kept = std::fegetround() == rounding;
    std::fesetround(FE_TONEAREST);
    CHECK(kept);
    CHECK(same_bits(got, want));
  }
}

TEST_CASE("fake quantizations give the golden values", "[fake_quant][golden]") {
  std::ifstream file(paths::source_dir() + "/tests/golden/fake_quant.bin", std::ios::binary);
  const auto read = [&](void* to, std::size_t bytes) {
    file.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  };
  std::uint32_t cases = 0;
  read(&cases, 4);
  REQUIRE(cases > 20);
  for (std::uint32_t c = 0; c < cases; ++c) {
    std::uint32_t extents[3] = {};
    float amax = 0;
    read(extents, sizeof extents), read(&amax, 4);
    const auto [rows, cols, block] = extents;
    std::vector<float> x(std::size_t{rows} * cols), want(x.size());
    read(x.data(), 4 * x.size()), read(want.data(), 4 * want.size());
    REQUIRE(file.good());
    INFO("rows " << rows << " cols " << cols << " block " << block << " amax " << amax);
    CHECK(same_bits(on_host(x, cols, static_cast<int>(block), amax), want));
    const Format f32 = Format::parse("f32");
    HostCheck check;
    CHECK(same_bits(computed(Problem(Fp4FakeQuant{
                                 .x = f32, .y = f32, .rows = rows, .cols = cols, .block = static_cast<int>(block)}),
                             x, amax, &check),
                    want));
    CHECK(check.wrong.empty());
    CHECK(check.checked == rows * cols);
  }
}

TEST_CASE("fake quantizations of 16-bit floats, and to another type", "[fake_quant]") {
  const std::vector<float> from = fake_quant_model::troubled(22 * 96, 32, 3.0f, 4);
  for (const char* x : {"f32", "f16", "bf16"})
    for (const char* y : {"f32", "f16", "bf16"}) {
      INFO(x << " to " << y);
      const auto through = [](const char* name, const std::vector<float>& v) {
        const FormatInfo& f = Format::parse(name).info();
        std::vector<std::byte> bytes(4 * v.size());
        std::vector<float> out(v.size());
        f.encode(v.data(), 1, static_cast<std::int64_t>(v.size()), {bytes.data(), nullptr, nullptr}, 0);
        f.decode({bytes.data(), nullptr, nullptr}, 1, static_cast<std::int64_t>(v.size()), out.data());
        return out;
      };
      const std::vector<float> want = through(y, fake_quant_model::fake_quantized(through(x, from), 96, 32, 3.0f));
      const Problem p = Problem::parse(std::string("fp4_fake_quant block=32 rows=22 cols=96 x=") + x + " y=" + y);
      CHECK(same_bits(computed(p, from, 3.0f), want));
    }
}

TEST_CASE("a wrong byte of a fake quantization is found", "[fake_quant]") {
  const Problem p = Problem::parse("fp4_fake_quant x=f32 y=f32 rows=2 cols=32");
  Task task;
  p.operation().describe(p, task);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  for (const Buffer& b : task.buffers) {
    bytes.emplace_back(b.bytes);
    if (b.fill && !b.output) b.fill(bytes.back(), 1);
  }
  for (auto& b : bytes) spans.emplace_back(b);
  p.operation().run_on_host(p, task, spans);
  CHECK(p.operation().check_on_host(p, task, spans).wrong.empty());
  bytes[1][200] ^= std::byte{1};
  CHECK(p.operation().check_on_host(p, task, spans).wrong.find("y.data row 1 byte 72") == 0);
}
