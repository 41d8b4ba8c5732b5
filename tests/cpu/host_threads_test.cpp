// SPDX-License-Identifier: Apache-2.0
// Launches that meet on one thread, in a process without threads, and on devices that were closed.
#include <tilewright/tilewright.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "cpu_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

std::atomic<bool> no_more_threads{false};

}  // namespace

// As the system answers at a limit on processes or memory.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* with) {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return no_more_threads ? EAGAIN : real(thread, attributes, start, with);
}

namespace {

struct NoThreads {
  NoThreads() { no_more_threads = true; }
  ~NoThreads() { no_more_threads = false; }
};

// A host's pool: a caller that waits for its work does other work meanwhile, whosever it is.
class Stealing {
 public:
  explicit Stealing(int threads) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this](std::stop_token stop) {
        while (!stop.stop_requested())
          if (!run_one()) std::this_thread::yield();
      });
  }
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
    std::atomic<std::int64_t> left{count};
    for (std::int64_t i = 0; i < count; ++i) push([&left, &body, i] { body(i), --left; });
    while (left > 0)
      if (!run_one()) std::this_thread::yield();
  }
  void push(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }

 private:
  bool run_one() {
    std::function<void()> job;
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.empty()) return false;
      job = std::move(jobs_.back());  // the newest: launches nest as deeply as they can
      jobs_.pop_back();
    }
    job();
    return true;
  }
  std::mutex mutex_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::jthread> threads_;
};

// A problem with its operands on the host.
struct Work {
  Problem problem;
  Task task;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<void*> pointers;

  explicit Work(const std::string& text) : problem(Problem::parse(text)) {
    problem.operation().describe(problem, task);
    for (const Buffer& b : task.buffers) {
      bytes.emplace_back(b.bytes);
      if (!b.output && b.fill) b.fill(bytes.back(), 11);
    }
    pointers.resize(bytes.size());
    repoint();
  }
  std::vector<std::byte>& y() {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (task.buffers[i].output) return bytes[i];
    throw std::logic_error("no output");
  }
  void repoint() {  // of a copy, whose operands are its own
    for (std::size_t i = 0; i < bytes.size(); ++i) pointers[i] = bytes[i].data();
  }
  void launch(const Kernel& kernel) const {
    kernel.launch(nullptr, task.arguments(pointers, problem.rows()), problem.rows(), problem.cols());
  }
};

constexpr const char* kSmall = "gemm x=q8_1 w=q4_0 y=f32 m=4 n=64 k=128 pack=panels x_from=f32";
constexpr const char* kLarge = "gemm x=q8_1 w=q4_0 y=f32 m=40 n=128 k=1024 pack=panels x_from=f32";
constexpr const char* kGrouped = "gemm x=q8_1 w=q4_0 y=f32 m=8 n=64 k=256 groups=4 pack=panels x_from=f32";

Options in_memory() {
  Options o;
  o.cache = ":memory:";
  o.llvm = llvm().llvm;
  return o;
}

std::size_t threads_of_process() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

}  // namespace

TEST_CASE("a host's parallel_for may launch kernels between two blocks of a launch", "[nested]") {
  TILEWRIGHT_NEEDS_KERNELS();
  Engine engine(in_memory());
  const Device plain = Device::open_cpu({.threads = 1, .parallel_for = {}, .target = {}});
  std::vector<Work> works;
  std::vector<std::vector<std::byte>> expected;
  for (const char* text : {kSmall, kLarge, kGrouped}) {
    works.emplace_back(text);
    works.back().launch(engine.prepare(works.back().problem, plain));
    expected.push_back(works.back().y());
  }
  std::vector<Kernel> kernels;
  int depth = 0, launches = 0;
  const auto serial = [&](std::int64_t count, const std::function<void(std::int64_t)>& body) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (i == count / 2 && depth < 3 && kernels.size() == works.size()) {
        ++depth;
        for (std::size_t w = 0; w < works.size(); ++w) {
          Work other = works[w];  // its own operands
          other.repoint();
          std::fill(other.y().begin(), other.y().end(), std::byte{0xee});
          other.launch(kernels[w]);
          ++launches;
          CHECK(other.y() == expected[w]);
        }
        --depth;
      }
      body(i);
    }
  };
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = serial, .target = {}});
  for (const Work& w : works) kernels.push_back(engine.prepare(w.problem, device));
  for (std::size_t w = 0; w < works.size(); ++w) {
    std::fill(works[w].y().begin(), works[w].y().end(), std::byte{0xee});
    works[w].launch(kernels[w]);
    CHECK(works[w].y() == expected[w]);
  }
  CHECK(launches > 100);
}

TEST_CASE("launches of a host whose threads steal work from each other", "[nested]") {
  TILEWRIGHT_NEEDS_KERNELS();
  Engine engine(in_memory());
  Stealing pool(3);
  const Device device =
      Device::open_cpu({.threads = 4,
                        .parallel_for = [&](std::int64_t count, const auto& body) { pool.parallel_for(count, body); },
                        .target = {}});
  const Work small(kSmall), large(kLarge), grouped(kGrouped);
  for (const Work* work : {&small, &large, &grouped}) {
    Work first = *work;
    first.repoint();
    first.launch(engine.prepare(first.problem, device));
    std::vector<Work> many(40, *work);
    for (Work& w : many) w.repoint();
    const Kernel kernel = engine.prepare(work->problem, device);
    pool.parallel_for(static_cast<std::int64_t>(many.size()),
                      [&](std::int64_t i) { many[static_cast<std::size_t>(i)].launch(kernel); });
    for (Work& w : many) CHECK(w.y() == first.y());
  }
}

TEST_CASE("where the system starts no more threads, work goes on with those there are", "[threads]") {
  TILEWRIGHT_NEEDS_KERNELS();
  Work work(kLarge);
  const Device device = Device::open_cpu({.threads = 4, .parallel_for = {}, .target = {}});
  {
    Engine engine(in_memory());
    work.launch(engine.prepare(work.problem, device));
  }
  const std::vector<std::byte> expected = work.y();
  const NoThreads none;
  REQUIRE_THROWS(std::thread([] {}));
  const Device alone = Device::open_cpu({.threads = 4, .parallel_for = {}, .target = {}});
  Engine engine(in_memory());
  PrewarmPolicy prewarm;
  prewarm.jobs = 4;
  const Arch* const archs[] = {&alone.arch()};
  CHECK(engine.prewarm({&work.problem, 1}, archs, prewarm).failures.empty());
  TunePolicy policy;
  policy.max_candidates = 2;
  policy.budget_seconds = 2;
  policy.cold_bytes = 1e6;
  engine.tune(work.problem, alone, policy);
  std::fill(work.y().begin(), work.y().end(), std::byte{0xee});
  work.launch(engine.prepare(work.problem, alone));
  CHECK(work.y() == expected);
}

TEST_CASE("the threads of closed devices end, though an engine keeps their kernels", "[threads]") {
  TILEWRIGHT_NEEDS_KERNELS();
  Work work(kLarge);
  Engine engine(in_memory());
  const std::size_t before = threads_of_process();
  std::optional<Kernel> kept;
  for (int i = 0; i < 20; ++i) {
    const Device device = Device::open_cpu({.threads = 4, .parallel_for = {}, .target = {}});
    kept = engine.prepare(work.problem, device);
    work.launch(*kept);
    CHECK(threads_of_process() == before + 3);
  }
  CHECK(threads_of_process() == before);
  const std::vector<std::byte> expected = work.y();
  std::fill(work.y().begin(), work.y().end(), std::byte{0xee});
  work.launch(*kept);  // a kernel outlives its device
  CHECK(work.y() == expected);
}
