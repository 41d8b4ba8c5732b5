// SPDX-License-Identifier: Apache-2.0
// Casts and fused casts on the CPU: for every format, the bytes of its codec, whatever the threads.
#include <tilewright/cast.h>
#include <tilewright/family.h>
#include <tilewright/operation.h>

#include <fmt/format.h>

#include <numeric>

#include "cpu_test.h"
#include "templates/common/families.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

// Runs a cast by blocks of rows on three threads and holds it against what the host makes of the whole matrix.
void check_cast(const std::string& text) {
  INFO(text);
  const Problem problem = Problem::parse(text);
  Task task;
  problem.operation().describe(problem, task);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<void*> pointers;
  std::vector<std::span<std::byte>> spans;
  for (const Buffer& b : task.buffers) {
    bytes.emplace_back(b.bytes, std::byte{0xee});
    // Also what a kernel reads of y, its tensor-wide scale.
    if (b.fill) b.fill(bytes.back(), 3);
  }
  for (auto& b : bytes) pointers.push_back(b.data()), spans.emplace_back(b);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (task.buffers[i].output) std::memset(bytes[i].data(), 0xee, bytes[i].size());
  const std::span<const Family* const> list = families(problem.op(), host_arch());
  REQUIRE(list.size() == 1);
  const Source source =
      list.front()->source(problem, host_arch(), list.front()->candidates(problem, host_arch()).front());
  Binary binary;
  binary.target = host_arch().name, binary.entry = source.entry, binary.plan = source.plan, binary.host = source.host;
  const int first[] = {0};
  const Device device = Device::open_cpu({.threads = 3, .parallel_for = {}});
  const Kernel kernel(device, std::span(&binary, 1), first, contract_for(problem));
  kernel.launch(nullptr, task.arguments(pointers, problem.rows()), problem.rows(), problem.cols());
  CHECK(problem.operation().check_on_host(problem, task, spans).wrong == "");
}

}  // namespace

TEST_CASE("every format is cast to and from floats as its codec does it") {
  for (const Format f : Format::all()) {
    // Several blocks of rows for each matrix, and rows that do not fill the last one.
    const std::int64_t cols = std::lcm(f.block(), 32) * 3, rows = 2 * ((1 << 14) / cols) + 3;
    bool stand_alone = true;
    for (const StreamSpec& s : f.info().streams) stand_alone &= s.rows == 1;
    for (const char* other : {"f32", "f16", "bf16"}) {
      check_cast(fmt::format("cast x={} y={} rows={} cols={}", f.name(), other, rows, cols));
      if (!stand_alone) continue;
      for (const char* encoder : f.info().encoders)
        check_cast(fmt::format("cast x={} y={} rows={} cols={} encoder={}", other, f.name(), rows, cols, encoder));
    }
  }
}

TEST_CASE("rounding by chance depends on an element's place in the matrix alone") {
  for (const char* y : {"int8_row", "int4_g32", "nvfp4", "e4m3", "mxfp4"})
    for (const std::int64_t cols : {192, 320, 16448})
      check_cast(fmt::format("cast x=f32 y={} rows={} cols={} rounding=stochastic", y, cols > 1000 ? 5 : 301, cols));
}

TEST_CASE("casts of one row, and of one element") {
  check_cast("cast x=f32 y=bf16 rows=1 cols=1");
  check_cast("cast x=e4m3_row y=f32 rows=3 cols=1");
  check_cast("cast x=f16 y=q4_0 rows=1 cols=32");
  check_cast("cast x=f32 y=int8_row rows=1 cols=40000");
  check_cast("cast x=e4m3_b128 y=f32 rows=300 cols=128");
}

TEST_CASE("a fused cast is within its bound, whatever comes before the cast") {
  for (const char* y : {"f16", "e4m3_row", "int8_row", "q8_1", "nvfp4", "mxfp8", "q4_0"})
    for (const char* x : {"f32", "bf16"})
      for (const char* steps : {"", " bias=f16 act=gelu", " residual=add norm=rms weight=bf16", " norm=rms eps=0.001",
                                " bias=f32 residual=add norm=rms act=relu", " act=silu gate=first"})
        check_cast(fmt::format("fused_cast x={} y={} rows=37 cols=1024{}", x, y, steps));
}
