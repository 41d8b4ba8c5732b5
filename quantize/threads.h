// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tilewright::quantize {

// body(0) to body(count - 1) on up to `threads` threads, one of them the caller's. After an exception no more are
// begun; the first one is thrown.
inline void parallel(int threads, std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> crew;
  for (std::size_t i = 1; i < count && i < static_cast<std::size_t>(threads); ++i) crew.emplace_back(work);
  work();
  crew.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tilewright::quantize
