// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include <tilewright/error.h>

#include "jit/driver.h"
#include "support/must_be.h"
#include "support/threads.h"

namespace tilewright::jit::cpu {
namespace {

constexpr int kMostThreads = 1024;
// Launches of a model follow each other within this time; waking a thread that sleeps takes as long.
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr std::int64_t kMostBlocks = 0xffffffff;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True if `done` is within kSpin.
template <class Done>
bool spin_until(const Done& done) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

}  // namespace

// The threads, and the one launch that they work on.
struct Pool::Crew {
  explicit Crew(int helpers) : threads(start_threads(helpers, [this] { work(); })) {}
  ~Crew() {
    stop.store(true, std::memory_order_relaxed);
    launches.fetch_add(1);
    launches.notify_all();
    threads.clear();
  }

  void run(std::int64_t count, void (*what)(void*, std::int64_t), void* with) {
    body = what, context = with, blocks = count, failure = nullptr;
    open.store(count, std::memory_order_relaxed);
    // The number of the launch above the number of blocks that nobody has claimed: claiming one proves that the launch
    // is still under way, and with it what is above.
    const std::uint64_t number = launch_number += std::uint64_t{1} << 32;
    left.store(number | static_cast<std::uint64_t>(count), std::memory_order_release);
    launches.fetch_add(1);
    launches.notify_all();
    take_blocks();
    if (!spin_until([&] { return open.load(std::memory_order_acquire) == 0; }))
      for (std::int64_t n = open.load(std::memory_order_acquire); n != 0; n = open.load(std::memory_order_acquire))
        open.wait(n);
    if (failure) std::rethrow_exception(failure);
  }

  void take_blocks() {
    std::uint64_t state = left.load(std::memory_order_acquire);
    while (static_cast<std::uint32_t>(state) != 0) {
      if (!left.compare_exchange_weak(state, state - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      try {
        body(context, blocks - static_cast<std::uint32_t>(state));
      } catch (...) {
        const std::lock_guard lock(failing);
        failure = std::current_exception();
      }
      if (open.fetch_sub(1, std::memory_order_acq_rel) == 1) open.notify_all();
      state = left.load(std::memory_order_acquire);
    }
  }

  void work() {
    std::uint32_t seen = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      take_blocks();
      const auto changed = [&] { return launches.load(std::memory_order_acquire) != seen; };
      if (!changed() && !spin_until(changed)) launches.wait(seen);
      seen = launches.load(std::memory_order_acquire);
    }
  }

  void (*body)(void*, std::int64_t) = nullptr;
  void* context = nullptr;
  std::int64_t blocks = 0;
  std::exception_ptr failure;
  std::mutex failing;
  std::uint64_t launch_number = 0;
  alignas(64) std::atomic<std::uint64_t> left{0};
  alignas(64) std::atomic<std::int64_t> open{0};  // blocks that are not done
  alignas(64) std::atomic<std::uint32_t> launches{0};
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;  // last: they use the others
};

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Pool::Pool(const CpuOptions& options)
    : threads_(options.threads > 0 ? options.threads : usable_cpus()), parallel_for_(options.parallel_for) {
  if (options.threads < 0 || options.threads > kMostThreads)
    throw must_be("threads", options.threads,
                  fmt::format("0 (as many as this process may use CPUs) to {}", kMostThreads));
  fork_count();  // counts from now on
}

Pool::~Pool() { leave_to_parent(); }

void Pool::leave_to_parent() {
  if (crew_ && forks_ != fork_count().load()) (void)crew_.release();  // its threads are another process's
}

Pool::Crew& Pool::crew() {
  leave_to_parent();
  if (!crew_) {
    crew_ = std::make_unique<Crew>(threads_ - 1);
    forks_ = fork_count().load();
  }
  return *crew_;
}

void Pool::rest() {
  const std::unique_lock lock(running_, std::try_to_lock);
  if (!lock) return;
  leave_to_parent();
  crew_.reset();
}

void Pool::run(std::int64_t count, void (*body)(void*, std::int64_t), void* context) {
  if (parallel_for_ && count > 1) {
    parallel_for_(count, [&](std::int64_t i) { body(context, i); });
    return;
  }
  std::unique_lock lock(running_, std::defer_lock);
  if (count > 1 && threads_ > 1 && count <= kMostBlocks && lock.try_lock()) return crew().run(count, body, context);
  for (std::int64_t i = 0; i < count; ++i) body(context, i);
}

}  // namespace tilewright::jit::cpu
