// SPDX-License-Identifier: Apache-2.0
// The operations unscale and update_scale: their texts, what they refuse, contracts, tables of pieces, what the host
// computes and judges.
#include <tilewright/loss_scale.h>
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

constexpr float kInf = std::numeric_limits<float>::infinity();

struct OnHost {
  Problem problem;
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  explicit OnHost(const std::string& text, std::uint64_t seed = 1) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes);
      if (b.fill) b.fill(bytes.back(), seed);
    }
    for (auto& b : bytes) spans.emplace_back(b);
  }
  template <class T>
  T& at(std::size_t buffer, std::size_t index = 0) {
    return reinterpret_cast<T*>(bytes[buffer].data())[index];
  }
  void compute() { problem.operation().run_on_host(problem, task, spans); }
  std::string judged() { return problem.operation().check_on_host(problem, task, spans).wrong; }
};

enum { kX, kY, kTable, kScale, kFound };

}  // namespace

TEST_CASE("unscale: text and identity", "[loss_scale]") {
  const Problem problem(Unscale{.x = Format::parse("bf16"), .pieces = 5});
  CHECK(problem.text() == "unscale x=bf16 pieces=5");
  CHECK(Problem::parse(problem.text()) == problem);
  CHECK(problem.with_rows(9).text() == "unscale x=bf16 pieces=9");
  CHECK(Problem::parse("unscale x=f32 pieces=2 elements=100").min_bytes() == 2 * 2 * 100 * 4 + 2 * 16 + 8);
  CHECK(Problem(UpdateScale{}).text() == "update_scale");
  CHECK(Problem(UpdateScale{1.5, 0.25, 7}).text() == "update_scale growth=1.5 backoff=0.25 interval=7");
}

TEST_CASE("loss scaling: what is refused names the field", "[loss_scale]") {
  CHECK(refusal("unscale x=int8 pieces=5").field() == "x");
  CHECK(refusal("unscale x=q4_0 pieces=5").field() == "x");
  CHECK(refusal("unscale x=f32 pieces=-1").field() == "pieces");
  CHECK(refusal("unscale x=f32 pieces=2147483648").field() == "pieces");
  CHECK(refusal("unscale x=f32 pieces=1 elements=0").field() == "elements");
  CHECK(refusal("unscale x=f32 pieces=2147483647 elements=1000000").field() == "x");
  CHECK(refusal("unscale x=f32").field() == "pieces");
  for (const char* growth : {"1", "0.5", "0", "-2", "inf", "nan", "1e300"})
    CHECK(refusal(std::string("update_scale growth=") + growth).field() == "growth");
  for (const char* backoff : {"1", "0", "-0.5", "2", "inf", "nan"})
    CHECK(refusal(std::string("update_scale backoff=") + backoff).field() == "backoff");
  for (const char* interval : {"0", "-1", "2147483648"})
    CHECK(refusal(std::string("update_scale interval=") + interval).field() == "interval");
}

TEST_CASE("loss scaling: what a launch must pass", "[loss_scale]") {
  const Problem problem = Problem::parse("unscale x=f16 pieces=5");
  const Contract c = problem.operation().contract(problem);
  std::vector<std::string> required;
  for (const PointerRule& rule : c.pointers)
    if (rule.required) required.push_back(rule.name);
  CHECK(required == std::vector<std::string>{"table", "scale", "found_inf", "workspace"});
  CHECK(c.rows_at == offsetof(UnscaleArgs, pieces));
  const Problem update{UpdateScale{}};
  CHECK(update.operation().contract(update).pointers.size() == 5);
  CHECK(update.fixed_rows());
}

TEST_CASE("unscale: tensors in pieces", "[loss_scale]") {
  const Format f16 = Format::parse("f16"), f32 = Format::parse("f32");
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<const void*>(address); };
  const std::vector<UnscaleTensor> tensors = {{at(0x1000), 10}, {nullptr, 0}, {at(0x2002), 8}, {at(0x3000), 1}};
  CHECK(unscale_pieces(f16, tensors, 4) ==
        std::vector<UnscalePiece>{{0x1000, 4}, {0x1008, 4}, {0x1010, 2}, {0x2002, 4}, {0x200a, 4}, {0x3000, 1}});
  CHECK(unscale_pieces(f16, tensors) == std::vector<UnscalePiece>{{0x1000, 10}, {0x2002, 8}, {0x3000, 1}});
  const auto refused = [&](Format x, std::vector<UnscaleTensor> list, std::int64_t elements = 8192) {
    return refusal([&] { unscale_pieces(x, list, elements); });
  };
  CHECK(refused(f16, {}).field() == "tensors");
  CHECK(refused(f32, tensors).field() == "tensors[2].data");
  CHECK(refused(f16, {{at(0x1000), 1}, {nullptr, 3}}).field() == "tensors[1].data");
  CHECK(refused(f16, {{at(0x1001), 3}}).field() == "tensors[0].data");
  CHECK(refused(f16, {{at(0x1000), -3}}).field() == "tensors[0].elements");
  CHECK(refused(f16, {{at(0x1000), std::int64_t{1} << 62}}).code() == ErrorCode::too_large);
  CHECK(refused(f16, {{at(0x1000), std::int64_t{1} << 40}}, 1).field() == "elements");
  CHECK(refused(f16, tensors, 0).field() == "elements");
  CHECK(refused(Format::parse("int8"), tensors).field() == "x");
}

TEST_CASE("unscale: on the host, and a wrong result is noticed", "[loss_scale]") {
  for (const char* x : {"f32", "f16", "bf16"})
    for (const std::uint64_t seed : {1, 2}) {
      OnHost host(std::string("unscale x=") + x + " pieces=9 elements=40", seed);
      host.compute();
      CHECK(host.judged().empty());
      CHECK(host.at<float>(kFound) == (seed == 2 ? 1.0f : 0.0f));
      host.at<float>(kFound) = 1 - host.at<float>(kFound);
      CHECK(host.judged() != "");
      host.at<float>(kFound) = 1 - host.at<float>(kFound);
      host.bytes[kY][static_cast<std::size_t>(host.at<UnscalePiece>(kTable, 3).at + 1)] ^= std::byte{1};
      CHECK(host.judged() != "");
    }
  OnHost host("unscale x=f32 pieces=2 elements=3");
  const float values[] = {3, kInf, -0.0f, 6, 1e-40f, 9};
  std::memcpy(host.bytes[kX].data(), values, sizeof values);
  host.at<UnscalePiece>(kTable, 0) = {0, 1}, host.at<UnscalePiece>(kTable, 1) = {8, 4};
  host.at<float>(kScale) = 3;
  host.compute();
  CHECK(host.at<float>(kFound) == 0.0f);  // the infinity is of no piece
  CHECK((host.at<float>(kY, 0) == 1 && host.at<float>(kY, 3) == 2 && std::signbit(host.at<float>(kY, 2))));
  CHECK(host.at<float>(kY, 5) == 9 * (1.0f / 3));
  host.at<float>(kScale) = -1;
  host.compute();
  CHECK(host.at<float>(kFound) == 1.0f);
}

TEST_CASE("unscale: the host refuses pieces that are not in x", "[loss_scale]") {
  for (const UnscalePiece bad : {UnscalePiece{-4, 1}, UnscalePiece{2, 1}, UnscalePiece{24, 1}, UnscalePiece{0, -1},
                                 UnscalePiece{0, 7}, UnscalePiece{20, 2}, UnscalePiece{0, std::int64_t{1} << 62}}) {
    OnHost host("unscale x=f32 pieces=2 elements=3");
    host.at<UnscalePiece>(kTable, 1) = bad;
    CHECK(refusal([&] { host.compute(); }).field().substr(0, 9) == "table[1].");
  }
}

TEST_CASE("unscale: a kernel's result is compared in and between pieces", "[loss_scale]") {
  OnHost host("unscale x=f16 pieces=9 elements=40");
  std::vector<std::byte> want, got;
  std::memset(host.bytes[kY].data(), 0x5a, host.bytes[kY].size());
  host.compute();
  for (const std::size_t output : {std::size_t{kY}, std::size_t{kFound}})
    want.insert(want.end(), host.bytes[output].begin(), host.bytes[output].end());
  const auto compared = [&] { return host.task.compare(got, want, {}, 9); };
  got = want;
  CHECK(compared().empty());
  // Poison of another kind between pieces is not a difference; a single byte that was written there is.
  std::vector<bool> within(host.bytes[kY].size());
  for (std::size_t i = 0; i < 9; ++i) {
    const UnscalePiece piece = host.at<UnscalePiece>(kTable, i);
    for (std::int64_t b = 0; b < 2 * piece.elements; ++b) within[static_cast<std::size_t>(piece.at + b)] = true;
  }
  std::size_t beside = 0;
  for (std::size_t i = 0; i < within.size(); ++i)
    if (!within[i]) got[i] = std::byte{0xff}, beside = i;
  REQUIRE(beside > 0);
  CHECK(compared().empty());
  got[beside] = std::byte{0};
  CHECK(compared() != "");
  for (std::size_t i = 0; i < want.size(); i += 7) {
    if (i < within.size() && !within[i]) continue;
    got = want;
    got[i] ^= std::byte{1};
    CHECK(compared() != "");
  }
  got = want, got.back() ^= std::byte{1};
  CHECK(compared() != "");
}

TEST_CASE("update_scale: on the host", "[loss_scale]") {
  OnHost host("update_scale growth=4 backoff=0.25 interval=3");
  const auto step = [&](float scale, std::int32_t good, float found) {
    host.at<float>(0) = scale, host.at<std::int32_t>(1) = good, host.at<float>(2) = found;
    host.compute();
    CHECK(host.judged().empty());
    return std::pair{host.at<float>(3), host.at<std::int32_t>(4)};
  };
  CHECK(step(8, 0, 0) == std::pair{8.0f, 1});
  CHECK(step(8, 2, 0) == std::pair{32.0f, 0});
  CHECK(step(8, 2, 1) == std::pair{2.0f, 0});
  CHECK(step(3e38f, 2, 0) == std::pair{3e38f, 0});
  CHECK(step(8, std::numeric_limits<std::int32_t>::max(), 0) == std::pair{32.0f, 0});  // no overflow
  host.at<float>(3) = 5;
  CHECK(host.judged() != "");
}
