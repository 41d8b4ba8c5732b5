// SPDX-License-Identifier: Apache-2.0
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

TEST_CASE("a workload may come from any stream, and a line without an end is refused before it is read", "[workload]") {
  std::istringstream in("cast x=f32 y=f16 rows=1 cols=64\n# comment\n");
  CHECK(read_workload(in, "standard input").size() == 1);
  std::istringstream wrong("\ncast x=f32\n");
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { read_workload(wrong, "standard input"); }).what(),
                 "standard input:2"));
  std::istringstream longest("#" + std::string(4095, ' ') + "\ncast x=f32 y=f16 rows=1 cols=64");
  CHECK(read_workload(longest, "w").size() == 1);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { read_workload("/dev/zero"); }).what(), "4096"));
}
