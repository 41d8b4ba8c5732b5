// SPDX-License-Identifier: Apache-2.0
// The operation transpose: its text, what it refuses, the contract, what the host computes and judges.
#include <tilewright/format.h>
#include <tilewright/operation.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>
#include <tilewright/transpose.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;

namespace {

struct OnHost {
  Problem problem;
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<std::byte>> spans;
  OnHost(const std::string& text, const std::string& x) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) bytes.emplace_back(b.bytes);
    for (auto& b : bytes) spans.emplace_back(b);
    REQUIRE(x.size() == bytes[0].size());
    std::memcpy(bytes[0].data(), x.data(), x.size());
  }
  std::string computed() {
    problem.operation().run_on_host(problem, task, spans);
    return {reinterpret_cast<const char*>(bytes[1].data()), bytes[1].size()};
  }
  std::string judged(const std::string& y) {
    std::memcpy(bytes[1].data(), y.data(), y.size());
    return problem.operation().check_on_host(problem, task, spans).wrong;
  }
};

}  // namespace

TEST_CASE("transpose: text and identity", "[transpose]") {
  const Problem problem(Transpose{.x = Format::parse("int8"), .rows = 5, .cols = 512});
  CHECK(problem.text() == "transpose x=int8 rows=5 cols=512");
  CHECK(Problem::parse(problem.text()) == problem);
  CHECK(problem.with_rows(9) == problem);  // a launch takes the whole matrix
  CHECK(problem.min_bytes() == 2 * 5 * 512);
}

TEST_CASE("transpose: what is refused names the field", "[transpose]") {
  const auto field = [](const char* text) { return refusal([&] { Problem::parse(text); }).field(); };
  CHECK(field("transpose x=int4_row rows=5 cols=32") == "x");
  CHECK(field("transpose x=int8_row rows=5 cols=32") == "x");
  CHECK(field("transpose x=int8_tensor rows=5 cols=32") == "x");
  CHECK(field("transpose x=int8 rows=0 cols=32") == "rows");
  CHECK(field("transpose x=int8 rows=5 cols=-1") == "cols");
  CHECK(field("transpose x=int8 rows=5") == "cols");
  CHECK(field("transpose x=int8 rows=5 cols=8 y=int8") == "y");
}

TEST_CASE("transpose: a launch passes two pointers", "[transpose]") {
  const Problem problem = Problem::parse("transpose x=f16 rows=5 cols=512");
  const Contract c = problem.operation().contract(problem);
  REQUIRE(c.pointers.size() == 2);
  CHECK(c.pointers[1].name == std::string("y"));
  CHECK(c.rows_at == Contract::kFixedRows);
  CHECK(c.args_bytes == sizeof(TransposeArgs));
}

TEST_CASE("transpose: on the host", "[transpose]") {
  CHECK(OnHost("transpose x=int8 rows=2 cols=3", "abcdef").computed() == "adbecf");
  CHECK(OnHost("transpose x=e4m3 rows=1 cols=4", "abcd").computed() == "abcd");
  CHECK(OnHost("transpose x=bf16 rows=2 cols=2", "aabbccdd").computed() == "aaccbbdd");
  CHECK(OnHost("transpose x=f32 rows=2 cols=2", "aaaabbbbccccdddd").computed() == "aaaaccccbbbbdddd");
  // [k / 2, n] of 4-bit codes, the even one low: rows of int4_row are its columns' bytes.
  CHECK(OnHost("transpose x=int8 rows=2 cols=2", "\x21\x65\x43\x87").computed() == "\x21\x43\x65\x87");
}

TEST_CASE("transpose: a wrong result is noticed", "[transpose]") {
  OnHost host("transpose x=int8 rows=2 cols=3", "abcdef");
  CHECK(host.judged("adbecf").empty());
  CHECK_FALSE(host.judged("abcdef").empty());
}
