// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "tuner/tuner_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

std::string file(const TempDir& dir, const std::string& text) {
  std::ofstream(dir / "w.txt", std::ios::binary) << text;
  return dir / "w.txt";
}

}  // namespace

TEST_CASE("a workload is one problem a line, with comments", "[workload]") {
  TempDir dir;
  auto problems = read_workload(file(dir,
                                     "# a model\n\n  gemm x=f16 w=q4_0 y=f32 m=1 n=64 k=256  # qkv\r\n"
                                     "gemm x=f32 w=f32 y=f32 m=2 n=64 k=64"));
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].text() == "gemm x=f16 w=q4_0 y=f32 m=1 n=64 k=256");
  CHECK(problems[1].rows() == 2);
  CHECK(read_workload(file(dir, "")).empty());
  const auto marked = read_workload(file(dir, "\xEF\xBB\xBFgemm\tx=f16 w=q4_0\ty=f32 m=1 n=64 k=256\r\n"));
  REQUIRE(marked.size() == 1);
  CHECK(marked[0] == problems[0]);
}

TEST_CASE("errors name the line", "[workload]") {
  TempDir dir;
  Error e = error_of(ErrorCode::invalid_argument, [&] { read_workload(file(dir, "# x\n\ngemm x=f16 w=nope\n")); });
  CHECK(mentions(e.what(), "w.txt:3"));
  CHECK(mentions(e.what(), "nope"));
  CHECK(mentions(
      error_of(ErrorCode::invalid_argument, [&] { read_workload(file(dir, std::string(100000, 'x'))); }).what(), ":1"));
  error_of(ErrorCode::io, [&] { read_workload(dir / "absent.txt"); });
  error_of(ErrorCode::io, [&] { read_workload(dir.path()); });
}

TEST_CASE("a workload is a regular file of a limited size, or a stream", "[workload]") {
  TempDir dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const std::string& path : {dir / "fifo", std::string("/dev/zero"), std::string("/dev/null")})
    CHECK(mentions(error_of(ErrorCode::io, [&] { read_workload(path); }).what(), "not a regular file"));
  std::istringstream two("gemm x=f16 w=q4_0 y=f32 m=1 n=64 k=256\n\ngemm x=f32 w=f32 y=f32 m=2 n=64 k=64");
  CHECK(read_workload(two, "stdin").size() == 2);
  std::istringstream wrong("\nnope");
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { read_workload(wrong, "stdin"); }).what(), "stdin:2"));
  std::ifstream zero("/dev/zero", std::ios::binary);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { read_workload(zero, "stdin"); }).what(), "4096"));
  const std::string longest(4096, '#');
  std::istringstream lines(longest + "\n" + longest), longer(longest + "#\n");
  CHECK(read_workload(lines, "stdin").empty());
  error_of(ErrorCode::invalid_argument, [&] { read_workload(longer, "stdin"); });
  std::istringstream empty_lines(std::string((16 << 20) + 1, '\n'));
  error_of(ErrorCode::too_large, [&] { read_workload(empty_lines, "stdin"); });
}
