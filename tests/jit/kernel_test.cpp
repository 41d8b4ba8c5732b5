// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "jit/driver.h"
#include "kernel_test.h"
#include "tilewright/problem.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("kernel: grid, block, arguments and constants arrive") {
  GemmCase t;
  t.kernel.launch(nullptr, t.args);
  REQUIRE(t.seen.launches == 1);
  CHECK(t.seen.last.grid[0] == 3);  // ceil(33 / 16)
  CHECK(t.seen.last.grid[1] == 3);  // 96 / 32
  CHECK(t.seen.last.grid[2] == 2);
  CHECK(t.seen.last.block[0] == 256);
  CHECK(t.seen.last.shared_bytes == 64);
  CHECK(t.seen.last.cluster == 1);
  CHECK(t.seen.args.x.data == t.x.data());
  CHECK(t.seen.args.m == 33);
  CHECK(t.seen.args.ldx == 64);  // dense, because it was 0
  CHECK(t.seen.args.ldy == 96);
  CHECK(t.args.ldx == 0);
  CHECK(t.seen.constant == 0x0707070707070707);
  t.args.ldx = 96;
  t.args.ldy = 97;
  t.kernel.launch(nullptr, t.args);
  CHECK(t.seen.args.ldx == 96);
  CHECK(t.seen.args.ldy == 97);
}

TEST_CASE("kernel: rows that an argument counts for several are divided, rounded up") {
  GemmCase t;
  Contract contract = gemm_contract();
  contract.rows_per = 5;
  const int first[] = {0};
  const Binary binary = gemm_binary();
  t.kernel = Kernel(t.device, {&binary, 1}, first, contract);
  for (const auto& [m, grid] : {std::pair{1, 1}, {80, 1}, {81, 2}, {400, 5}}) {  // sixteen rows to a block
    t.args.m = m;
    t.kernel.launch(nullptr, t.args);
    CHECK(t.seen.last.grid[0] == static_cast<unsigned>(grid));
    CHECK(t.seen.args.m == m);
  }
  const int before = t.seen.launches;
  t.args.m = 0;
  t.kernel.launch(nullptr, t.args);
  CHECK(t.seen.launches == before);
  t.args.m = -1;
  CHECK(t.refused().field() == "m");
}

TEST_CASE("kernel: a launch of more rows than a plan takes is several") {
  GemmCase t;
  Contract contract = gemm_contract();
  contract.row_pointers = {{offsetof(GemmArgs, x) + offsetof(Operand, data), offsetof(GemmArgs, ldx), 2},
                           {offsetof(GemmArgs, x) + offsetof(Operand, scales), RowsRule::kDense, 4},
                           {offsetof(GemmArgs, y), offsetof(GemmArgs, ldy), 1}};
  const int first[] = {0};
  Binary binary = gemm_binary();
  binary.plan.most_rows = 64;
  t.kernel = Kernel(t.device, {&binary, 1}, first, contract);
  std::vector<GemmArgs> parts;
  const auto note = [](const FakeLaunch* launch, void* user) {
    std::memcpy(&static_cast<std::vector<GemmArgs>*>(user)->emplace_back(), launch->params[0], sizeof(GemmArgs));
  };
  fake_cuda_set_launch_handler(note, &parts);
  for (const auto& [m, of_part] :
       {std::pair<std::int64_t, std::int64_t>{64, 64}, {65, 48}, {128, 64}, {129, 48}, {200, 64}}) {
    parts.clear();
    t.args.m = m, t.args.ldy = 97;
    t.kernel.launch(nullptr, t.args);
    INFO(m);
    REQUIRE(parts.size() == static_cast<std::size_t>((m + of_part - 1) / of_part));
    std::int64_t row = 0;
    for (const GemmArgs& part : parts) {
      CHECK(part.m == std::min(of_part, m - row));
      CHECK(part.x.data == static_cast<const char*>(t.args.x.data) + row * 64 * 2);
      CHECK(part.x.scales == nullptr);  // as it was
      CHECK(part.y == static_cast<char*>(t.args.y) + row * 97);
      CHECK(part.w.data == t.args.w.data);
      row += part.m;
    }
    CHECK(row == m);
  }
}

TEST_CASE("kernel: a launch gives factors, finite ones, or 1 where no other makes sense") {
  GemmCase t;
  Contract contract = gemm_contract();
  contract.factors = {{"alpha", offsetof(GemmArgs, alpha), nullptr},
                      {"beta", offsetof(GemmArgs, beta), "there is no c"}};
  const int first[] = {0};
  const Binary binary = gemm_binary();
  t.kernel = Kernel(t.device, {&binary, 1}, first, contract);
  t.kernel.launch(nullptr, t.args);
  CHECK(t.seen.args.alpha == 1.0f);
  for (const float alpha : {-2.5f, 0.0f, 1e-40f}) {
    t.args.alpha = alpha;
    t.kernel.launch(nullptr, t.args);
    CHECK(t.seen.args.alpha == alpha);
    CHECK(t.seen.args.beta == 1.0f);
  }
  for (const float alpha : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    t.args.alpha = alpha;
    const Error e = t.refused();
    CHECK(e.field() == "alpha");
    CHECK(mentions(e, "finite"));
  }
  t.args.alpha = 1;
  t.args.beta = 0.5f;
  const Error e = t.refused();
  CHECK(e.field() == "beta");
  CHECK(e.value() == "0.5");
  CHECK(mentions(e, "must be 1 (got "));
  contract.factors = {{"alpha", sizeof(GemmArgs) - 2, nullptr}};
  CHECK(error_of(ErrorCode::invalid_argument, [&] {
          Kernel(t.device, {&binary, 1}, first, contract);
        }).field() == "alpha");
}

TEST_CASE("kernel: c is apart from y, or y itself") {
  GemmCase t;
  Contract contract = gemm_contract();
  contract.pointers.push_back({"c", offsetof(GemmArgs, c), 16, true});
  contract.strides.push_back({"ldc", offsetof(GemmArgs, ldc), 96, 1});
  const auto at = [](std::size_t pointer, std::size_t stride) {
    return MatrixRule{static_cast<std::uint32_t>(pointer), static_cast<std::uint32_t>(stride), 96, 2};
  };
  contract.overlap = OverlapRule{"c", "y", at(offsetof(GemmArgs, c), offsetof(GemmArgs, ldc)),
                                 at(offsetof(GemmArgs, y), offsetof(GemmArgs, ldy)), true};
  const int first[] = {0};
  const Binary binary = gemm_binary();
  const auto use = [&] { t.kernel = Kernel(t.device, {&binary, 1}, first, contract); };
  use();
  const jit::Memory space(t.device, 64 * 1024);
  char* const base = static_cast<char*>(space.data());
  constexpr std::int64_t kRow = 192, kRows = 33;  // bytes; gemm_contract() has 96 columns
  t.args.y = base + 8192;
  const auto with = [&](std::int64_t offset, std::int64_t ldc, std::int64_t ldy) {
    t.args.c = base + 8192 + offset, t.args.ldc = ldc, t.args.ldy = ldy;
  };
  const auto accepted = [&](std::int64_t offset, std::int64_t ldc, std::int64_t ldy) {
    with(offset, ldc, ldy);
    CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
  };
  const auto overlaps = [&](std::int64_t offset, std::int64_t ldc, std::int64_t ldy) {
    INFO(offset << ' ' << ldc << ' ' << ldy);
    with(offset, ldc, ldy);
    const Error e = t.refused();
    CHECK(e.field() == "c");
    CHECK(mentions(e, "overlap"));
  };
  accepted(0, 0, 0);  // in place
  CHECK(t.seen.args.ldc == 96);
  accepted(0, 200, 200);
  accepted(kRow * kRows, 0, 0), accepted(-kRow * kRows, 0, 0);
  accepted(kRow, 192, 192), accepted(-kRow, 192, 192);  // halves of rows of 192
  overlaps(0, 0, 200), overlaps(0, 200, 0);
  overlaps(kRow * kRows - 16, 0, 0), overlaps(16 - kRow * kRows, 0, 0);
  overlaps(16, 0, 0), overlaps(kRow, 0, 0);
  overlaps(kRow - 16, 192, 192), overlaps(kRow, 191, 191), overlaps(kRow, 192, 193);
  with(8, 0, 0);
  CHECK(mentions(t.refused(), "aligned to 16"));
  t.args.c = nullptr;
  CHECK(t.refused().field() == "c");
  with(kRow * kRows, 95, 0);
  CHECK(t.refused().field() == "ldc");
  contract.overlap->in_place = false;
  use();
  overlaps(0, 0, 0);
}

TEST_CASE("kernel: clusters are an attribute of the launch") {
  GemmCase t;
  Binary binary = fake_binary({8});
  binary.plan.x = {1, 1, 0};
  binary.plan.cluster = 4;
  const Kernel kernel(t.device, binary);
  const std::uint64_t argument = 1;
  kernel.launch(nullptr, bytes_of(argument), 8, 1);
  CHECK(t.seen.last.cluster == 4);
  const auto error = error_of(ErrorCode::driver_failed, [&] { kernel.launch(nullptr, bytes_of(argument), 9, 1); });
  CHECK(mentions(error, "cluster 4"));
  CHECK(mentions(error, "9 x 1 x 1 blocks"));
}

TEST_CASE("kernel: a persistent grid is as large as the device, in whole clusters") {
  GemmCase t;
  auto launched = [&](std::uint32_t persistent, std::uint32_t cluster, std::int64_t rows) {
    Binary binary = fake_binary({8});
    binary.plan.x = {cluster, 16, 0};
    binary.plan.y = {1, 0, 1};
    binary.plan.cluster = cluster;
    binary.plan.persistent = persistent;
    const std::uint64_t argument = 1;
    Kernel(t.device, binary).launch(nullptr, bytes_of(argument), rows, 3);
    CHECK(t.seen.last.grid[1] == 3);
    return t.seen.last.grid[0];
  };
  CHECK(launched(0, 1, 16 * 1000) == 1000);
  CHECK(launched(1, 1, 16 * 1000) == 132);
  CHECK(launched(2, 1, 16 * 1000) == 264);
  CHECK(launched(32, 1, 16 * 1000) == 1000);
  CHECK(launched(1, 1, 16 * 131) == 131);
  CHECK(launched(1, 1, 16 * 132) == 132);
  CHECK(launched(1, 1, 1) == 1);
  CHECK(launched(1, 8, 16 * 1000) == 128);
  CHECK(launched(1, 2, 1) == 2);
  const FakeDevice few = {"few", 9, 0, 3, 232448, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(1, &few);
  Binary binary = fake_binary({8});
  binary.plan.x = {1, 1, 0};
  binary.plan.persistent = 1;
  const Device small = Fake::open(1);
  const std::uint64_t argument = 1;
  for (const auto& [cluster, rows, blocks] : {std::array<unsigned, 3>{2, 100, 2}, {4, 100, 4}, {2, 3, 2}, {2, 1, 2}}) {
    binary.plan.cluster = cluster;
    Kernel(small, binary).launch(nullptr, bytes_of(argument), rows, 1);
    CHECK(t.seen.last.grid[0] == blocks);
  }
  const int launches = t.seen.launches;
  Kernel(small, binary).launch(nullptr, bytes_of(argument), 0, 1);
  binary.plan.x = {0, 1, 0};
  Kernel(small, binary).launch(nullptr, bytes_of(argument), 5, 1);
  CHECK(t.seen.launches == launches);  // nothing is still nothing
}

TEST_CASE("kernel: overlap is an attribute of the launch, beside the cluster's") {
  GemmCase t;
  const std::uint64_t argument = 1;
  Binary binary = fake_binary({8});
  binary.plan.x = {4, 0, 0};
  for (const bool overlap : {false, true})
    for (const unsigned cluster : {1u, 2u}) {
      binary.plan.overlap = overlap;
      binary.plan.cluster = cluster;
      Kernel(t.device, binary).launch(nullptr, bytes_of(argument), 1, 1);
      CHECK(t.seen.last.overlap == overlap);
      CHECK(t.seen.last.cluster == cluster);
    }
}

TEST_CASE("null, misaligned, host and foreign pointers are refused by name") {
  GemmCase t;
  const GemmArgs good = t.args;
  t.args.x.data = nullptr;
  CHECK(t.refused().field() == "x.data");
  t.args = good;
  for (const int off : {1, 2, 4, 8}) {
    t.args.y = static_cast<char*>(t.y.data()) + off;
    CHECK(mentions(t.refused(), "aligned to 16"));
  }
  t.args = good;
  alignas(16) char host[16];
  const Device other = Fake::open(1);
  const jit::Memory foreign(other, 64);
  t.kernel.check_pointers(true);
  t.args.bias = host;
  CHECK(mentions(t.refused(), "host pointer"));
  t.args.bias = foreign.data();
  CHECK(mentions(t.refused(), "device 1"));
  t.args = good;
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
  t.kernel.check_pointers(false);
  const long asked = fake_cuda_calls("cuPointerGetAttributes");
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
  CHECK(fake_cuda_calls("cuPointerGetAttributes") == asked);
}

TEST_CASE("rows and strides of a launch") {
  GemmCase t;
  for (const std::int64_t ld : {63, 32, -64, 65, 100}) {
    t.args.ldx = ld;
    CHECK(t.refused().field() == "ldx");
  }
  t.args.ldx = 0;
  t.args.ldy = 95;
  CHECK(mentions(t.refused(), "at least 96"));
  t.args.ldy = 0;
  t.args.m = -1;
  CHECK(t.refused().field() == "m");
  for (const std::int64_t m : {std::int64_t{1} << 36, std::int64_t{0x7fffffffffffffff}}) {
    t.args.m = m;
    CHECK(t.refused(ErrorCode::too_large).field() == "grid.x");
  }
  t.args = {};  // null pointers, but nothing to do
  t.kernel.launch(nullptr, t.args);
  CHECK(t.seen.launches == 0);
}

TEST_CASE("kernel: the argument struct must be the operation's") {
  GemmCase t;
  CastArgs cast;
  cast.rows = 1;
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { t.kernel.launch(nullptr, cast); }), "gemm"));
  const Kernel own(t.device, fake_binary({8}));
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { own.launch(nullptr, t.args); }), "of gemm"));
  const std::uint32_t small = 1;
  CHECK(
      mentions(error_of(ErrorCode::invalid_argument, [&] { own.launch(nullptr, bytes_of(small), 1, 1); }), "8 bytes"));
}

TEST_CASE("kernel: every bucket finds its binary, or the nearest") {
  const Fake fake;
  const Device device = Fake::open();
  Seen seen;
  fake_cuda_set_launch_handler(look, &seen);
  std::vector<Binary> binaries;
  for (int i = 0; i < 3; ++i) {
    binaries.push_back(fake_binary({sizeof(GemmArgs)}, "k" + std::to_string(i)));
    binaries.back().plan.threads = 32 * (i + 1);
  }
  std::vector<int> table(kBucketCount, -1);
  table[bucket_index(4)] = 0;
  table[bucket_index(64)] = 1;
  table[bucket_index(1024)] = 2;
  const Kernel kernel(device, binaries, table, {});
  auto served = [&](std::int64_t rows) {
    GemmArgs args;
    kernel.launch(nullptr, bytes_of(args), rows, 1);
    CHECK(kernel.plan(rows).threads == seen.last.block[0]);
    return seen.entry;
  };
  for (const std::int64_t rows : {1, 2, 3, 4}) CHECK(served(rows) == "k0");
  for (const std::int64_t rows : {5, 8, 9, 33, 64}) CHECK(served(rows) == "k1");
  for (const std::int64_t rows : {65, 1000, 1024, 1025, 4096, 1000000}) CHECK(served(rows) == "k2");
}

TEST_CASE("a launch is legal under stream capture") {
  GemmCase t;
  const jit::OwnedStream stream(t.device);
  const jit::Graph graph(t.device, stream, [&](Stream s) { t.kernel.launch(s, t.args); });
  t.args = {};  // the graph keeps its own copy
  graph.launch(stream.get());
  CHECK(t.seen.launches == 1);
  CHECK(t.seen.args.m == 33);
}

TEST_CASE("kernel: launches under any current context and gives it back") {
  GemmCase t;
  const Device other = Fake::open(1);
  for (const int current : {-1, 0, 1}) {
    if (current >= 0) fake_cuda_push_context(current);
    const long pushes = fake_cuda_calls("cuCtxPushCurrent");
    CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
    CHECK(fake_cuda_calls("cuCtxPushCurrent") - pushes == (current == 0 ? 0 : 1));
    CHECK(fake_cuda_current_device() == current);
    if (current >= 0) fake_cuda_pop_context();
  }
}

TEST_CASE("a fault shows at the next call and is known to be sticky") {
  const Fake fake;
  const Device device = Fake::open();
  const Kernel kernel(device, fake_binary({}));
  fake_cuda_set_launch_handler([](const FakeLaunch* l, void*) { fake_cuda_fault(l->device, 700); }, nullptr);
  kernel.launch(nullptr, {}, 1, 1);
  CHECK(jit::is_sticky(error_of(ErrorCode::driver_failed, [&] { device.synchronize(); })));
  error_of(ErrorCode::driver_failed, [&] { kernel.launch(nullptr, {}, 1, 1); });
  fake_cuda_reset_device(0);  // the only way out
}

TEST_CASE("a kernel of a device that was reset gives an error") {
  GemmCase t;
  fake_cuda_reset_device(0);
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "reset"));
  const Device again = Fake::open();
  CHECK(mentions(t.refused(ErrorCode::driver_failed), "reset"));
  const jit::Memory x(again, 4096), y(again, 4096);
  t.args.x.data = x.data();
  t.args.y = y.data();
  CHECK_NOTHROW(GemmCase::make(again).launch(nullptr, t.args));
  t.kernel = GemmCase::make(again);  // drops the stale one: no driver call with a dead handle
}

TEST_CASE("sixteen threads, one kernel, two devices, copies that come and go") {
  const Fake fake;
  static std::atomic<int> runs;
  runs = 0;
  fake_cuda_set_launch_handler([](const FakeLaunch*, void*) { ++runs; }, nullptr);
  const Device devices[] = {Fake::open(0), Fake::open(1)};
  const Kernel kernels[] = {GemmCase::make(devices[0]), GemmCase::make(devices[1])};
  const jit::Memory memory[] = {jit::Memory(devices[0], 4096), jit::Memory(devices[1], 4096)};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t)
    threads.emplace_back([&, t] {
      try {
        for (int i = 0; i < 50; ++i) {
          const int d = (t + i) % 2;
          const jit::OwnedStream stream(devices[d]);
          Kernel copy = i % 5 ? kernels[d] : GemmCase::make(devices[d]);
          copy.check_pointers(i % 3 == 0);
          GemmArgs args;
          args.x.data = args.y = memory[d].data();
          args.m = 1 + i * t;
          copy.launch(i % 2 ? stream.get() : nullptr, args);
          stream.synchronize();
        }
      } catch (const std::exception&) {
        ++failed;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(runs == 800);
}

TEST_CASE("a kernel in a child of fork()") {
  GemmCase t;
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      t.kernel.launch(nullptr, t.args);
    } catch (const Error& error) {
      code = error.code() == ErrorCode::forked ? 0 : 2;
    }
    _exit(code + (fake_cuda_calls("cuLaunchKernelEx") ? 4 : 0));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK_NOTHROW(t.kernel.launch(nullptr, t.args));
}

TEST_CASE("kernel: a driver that is already shutting down is tolerated") {
  const Fake fake;
  {
    const Device device = Fake::open();
    const Kernel kernel(device, fake_binary({8}));
    fake_cuda_fail("cuModuleUnload", 0, 4);
    fake_cuda_fail("cuDevicePrimaryCtxRelease", 0, 4);
  }
  CHECK(fake_cuda_calls("cuModuleUnload") == 1);
  fake_cuda_reset();
}
