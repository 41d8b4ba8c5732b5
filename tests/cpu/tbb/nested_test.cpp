// SPDX-License-Identifier: Apache-2.0
// A host on oneTBB: a thread that waits for the blocks of a launch begins other launches meanwhile.
#include <oneapi/tbb.h>
#include <tilewright/family.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/gemms.h"
#include "cpu/operands.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

Binary built_in(const Problem& problem, const Device& device) {
  for (const Family* family : families(problem.op(), device.arch()))
    for (const Candidate& c : family->candidates(problem, device.arch()))
      if (const Source source = family->source(problem, device.arch(), c); source.host)
        return test::built_in(source, device.arch());
  FAIL("no built-in kernel");
  std::abort();
}

}  // namespace

TEST_CASE("launches on oneTBB's threads nest, and each keeps its own memory", "[nested]") {
  TILEWRIGHT_NEEDS_KERNELS();
  constexpr int kThreads = 4, kAtOnce = 32, kMostRounds = 200;
  const oneapi::tbb::global_control most(oneapi::tbb::global_control::max_allowed_parallelism, kThreads);
  oneapi::tbb::task_arena arena(kThreads);

  static thread_local int depth = 0;
  std::atomic<int> nested{0};
  const auto parallel_for = [&](std::int64_t count, const std::function<void(std::int64_t)>& body) {
    nested += depth > 0;
    ++depth;
    // Blocks that take a while on one thread leave another waiting, which then begins what else there is.
    oneapi::tbb::parallel_for(std::int64_t{0}, count, [&](std::int64_t i) {
      if (i % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(20));
      body(i);
    });
    --depth;
  };
  const Device alone = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = {}});
  const Device device = Device::open_cpu({.threads = kThreads, .parallel_for = parallel_for, .target = {}});
  const std::string texts[] = {gemm("q4_0", 4, 64, 128, "x_from=f32"), gemm("q4_0", 40, 128, 1024, "x_from=f32"),
                               gemm("q4_0", 8, 64, 256, "groups=4 x_from=f32")};
  std::vector<Binary> binaries;
  std::vector<std::vector<std::byte>> expected;
  std::vector<Operands> operands;
  for (const std::string& text : texts) {
    Operands o(text);
    binaries.push_back(built_in(o.problem, device));
    expected.push_back(o.run(alone, binaries.back()));
  }
  for (int i = 0; i < kAtOnce; ++i) operands.emplace_back(texts[i % 3]);
  std::atomic<int> wrong{0};
  for (int round = 0; round < kMostRounds && nested < 50; ++round)
    arena.execute([&] {
      oneapi::tbb::parallel_for(0, kAtOnce, [&](int i) {
        const auto at = static_cast<std::size_t>(i % 3);
        wrong += operands[static_cast<std::size_t>(i)].run(device, binaries[at]) != expected[at];
      });
    });
  CHECK(nested > 0);
  CHECK(wrong == 0);
}
