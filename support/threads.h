// SPDX-License-Identifier: Apache-2.0
// Threads that start as far as the system has them. A limit on processes or memory (pids.max, RLIMIT_NPROC, ulimit -v)
// leaves fewer, perhaps none: work must not depend on their number.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tilewright {

// Up to `count` threads that run work(). Destruction of the vector joins them.
template <class F>
std::vector<std::jthread> start_threads(std::int64_t count, const F& work) {
  std::vector<std::jthread> threads;
  try {
    for (std::int64_t i = 0; i < count; ++i) threads.emplace_back(work);
  } catch (const std::exception&) {
    // std::system_error or std::bad_alloc: go on with those that run.
  }
  return threads;
}

// Calls body(i) for every i < count on up to `threads` threads, one of them the caller's; 0: as many as cores. Once a
// call has thrown, no more are begun; throws what the lowest i threw.
template <class Index, class F>
void parallel(int threads, Index count, const F& body) {
  std::atomic<Index> next{0};
  std::mutex mutex;
  Index failed = count;
  std::exception_ptr error;
  const auto work = [&] {
    for (Index i; (i = next.fetch_add(1)) < count;) try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failed = i, error = std::current_exception();
        next = count;
      }
  };
  {
    const std::int64_t most = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
    const auto others = start_threads(std::min(most, static_cast<std::int64_t>(count)) - 1, work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tilewright
