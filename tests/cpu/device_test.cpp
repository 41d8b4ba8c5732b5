// SPDX-License-Identifier: Apache-2.0
// Device::open_cpu(), its threads and its launches.
#include <sys/wait.h>
#include <tilewright/host_archs.h>
#include <tilewright/memory.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "cpu_test.h"
#include "jit/cpu/pool.h"

using namespace tilewright;
using namespace tilewright::test;
using jit::cpu::Pool;

namespace {

struct Marks {
  std::vector<std::atomic<int>> seen;
  explicit Marks(std::size_t count) : seen(count) {}
  static void mark(void* marks, std::int64_t i) { ++static_cast<Marks*>(marks)->seen[static_cast<std::size_t>(i)]; }
  bool each_once() const {
    for (const auto& s : seen)
      if (s != 1) return false;
    return true;
  }
};

bool each_once(Pool& pool, std::size_t count) {
  Marks marks(count);
  pool.run(static_cast<std::int64_t>(count), &Marks::mark, &marks);
  return marks.each_once();
}

// Numbers that blocks of a kernel write.
std::vector<std::int64_t> numbers(const Kernel& kernel, std::int64_t blocks) {
  std::vector<std::int64_t> y(static_cast<std::size_t>(blocks), -1);
  void* pointer = y.data();
  std::vector<std::byte> args(sizeof pointer);
  std::memcpy(args.data(), &pointer, sizeof pointer);
  kernel.launch(nullptr, args, blocks, 0);
  return y;
}

Binary numbers_binary() {
  Source source = ir(kNumbers);
  source.plan.x = {1, 1, 0};
  return compile(source, host_arch(), llvm());
}

}  // namespace

TEST_CASE("a pool runs each block once, whatever the numbers of blocks and threads") {
  for (const int threads : {1, 2, 3, 8}) {
    Pool pool({.threads = threads, .parallel_for = {}});
    CHECK(pool.threads() == threads);
    for (const std::size_t count : {0, 1, 2, 3, 64, 1000})
      for (int i = 0; i < 20; ++i) REQUIRE(each_once(pool, count));
  }
}

TEST_CASE("a caller's kernel may have any name, also on a CPU without AMX") {
  std::string text = kNumbers;
  const std::string from = "@k(", to = "@my_tiles(";
  REQUIRE(text.find(from) != text.npos);
  text.replace(text.find(from), from.size(), to);
  Source source = ir(text);
  source.entry = "my_tiles";
  source.plan.x = {1, 1, 0};
  const Arch& plain = arch("x86-64-v3");
  const auto runs = host_archs();
  if (std::find(runs.begin(), runs.end(), &plain) == runs.end()) return;
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = plain.name});
  CHECK(numbers(Kernel(device, compile(source, plain, llvm())), 4) == std::vector<std::int64_t>{0, 1, 2, 3});
}

TEST_CASE("callers share a pool") {
  Pool pool({.threads = 3, .parallel_for = {}});
  std::atomic<int> right{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) right += each_once(pool, 17);
    });
  for (std::thread& c : callers) c.join();
  CHECK(right == 800);
}

TEST_CASE("a block may use the pool that runs it") {
  Pool pool({.threads = 2, .parallel_for = {}});
  std::atomic<int> inner{0};
  struct Both {
    Pool& pool;
    std::atomic<int>& inner;
  } both{pool, inner};
  pool.run(
      8,
      [](void* p, std::int64_t) {
        Both& b = *static_cast<Both*>(p);
        b.inner += each_once(b.pool, 5);
      },
      &both);
  CHECK(inner == 8);
}

TEST_CASE("what a block throws reaches the caller, and the pool goes on") {
  Pool pool({.threads = 2, .parallel_for = {}});
  for (int i = 0; i < 10; ++i) {
    CHECK_THROWS_AS(pool.run(
                        50,
                        [](void*, std::int64_t j) {
                          if (j == 30) throw std::runtime_error("block");
                        },
                        nullptr),
                    std::runtime_error);
    CHECK(each_once(pool, 50));
  }
}

TEST_CASE("a child of fork() makes threads of its own") {
  Pool pool({.threads = 2, .parallel_for = {}});
  REQUIRE(each_once(pool, 100));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(each_once(pool, 100) && each_once(pool, 100) ? 0 : 1);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(each_once(pool, 100));
}

TEST_CASE("the host's threads may run the blocks") {
  std::atomic<int> calls{0};
  Pool pool({.threads = 4, .parallel_for = [&](std::int64_t count, const std::function<void(std::int64_t)>& body) {
               ++calls;
               for (std::int64_t i = count - 1; i >= 0; --i) body(i);
             }});
  CHECK(each_once(pool, 33));
  CHECK(calls == 1);
}

TEST_CASE("a number of threads that cannot be is refused") {
  for (const int threads : {-1, 100000}) {
    const Error e = refusal([&] { Device::open_cpu({.threads = threads, .parallel_for = {}}); });
    CHECK(e.field() == "threads");
    CHECK(e.value() == std::to_string(threads));
  }
}

TEST_CASE("the CPU is a device") {
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  CHECK(device.ordinal() == -1);
  CHECK(device.sms() == 2);
  CHECK(device.arch().cpu != nullptr);
  CHECK(&device.arch() == &host_arch());
  CHECK_FALSE(device.name().empty());
  CHECK(device.memory_bytes() > 0);
  device.synchronize();
  Memory memory(device, 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
  memory.fill(7);
  std::vector<std::byte> back(1000);
  memory.download(back);
  CHECK(back == std::vector<std::byte>(1000, std::byte{7}));
  CHECK(refusal([&] { Memory(device, ~std::size_t{0}); }).code() == ErrorCode::driver_failed);
}

TEST_CASE("a launch runs every block of an object, and is complete when it returns") {
  const Device device = Device::open_cpu({.threads = 2, .parallel_for = {}});
  const Kernel kernel(device, numbers_binary());
  std::vector<std::int64_t> wanted(500);
  std::iota(wanted.begin(), wanted.end(), 0);
  for (int i = 0; i < 50; ++i) REQUIRE(numbers(kernel, 500) == wanted);
  CHECK(numbers(kernel, 1) == std::vector<std::int64_t>{0});
  const OwnedStream stream(device);
  CHECK_FALSE(stream.capturing());
}

TEST_CASE("another stream than null is refused, and so are images that are no objects") {
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  Binary binary = numbers_binary();
  const Kernel kernel(device, binary);
  std::int64_t y = 0;
  void* pointer = &y;
  std::vector<std::byte> args(sizeof pointer);
  std::memcpy(args.data(), &pointer, sizeof pointer);
  int other = 0;
  const Error e = refusal([&] { kernel.launch(&other, args, 1, 0); });
  CHECK(e.code() == ErrorCode::invalid_argument);
  CHECK(e.field() == "stream");
  binary.entry = "absent";
  CHECK(refusal([&] { Kernel(device, binary); }).field() == "binary.entry");
  binary.image.resize(100);
  CHECK(refusal([&] { Kernel(device, binary); }).field() == "binary.image");
  binary.image = {};
  CHECK(refusal([&] { Kernel(device, binary); }).field() == "binary.image");
}

TEST_CASE("a device may be any target whose features this CPU has, and no other") {
  std::string names;
  for (const Arch* a : host_archs()) {
    const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = a->name});
    CHECK(&device.arch() == a);
    names += (names.empty() ? "" : ", ") + std::string(a->name);
  }
  std::vector<std::string> others = {"x86-64-v9"};
  for (const Arch& a : cpu_archs())
    if (std::ranges::find(host_archs(), &a) == host_archs().end()) others.push_back(a.name);
  for (const std::string& other : others) {
    const Error e = refusal([&] { Device::open_cpu({.threads = 1, .parallel_for = {}, .target = other}); });
    CHECK(e.field() == "target");
    CHECK(e.value() == other);
    CHECK(e.allowed() == "must be one of those that this machine's CPU runs: " + names);
  }
}
