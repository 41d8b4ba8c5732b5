// SPDX-License-Identifier: Apache-2.0
// Pool: a few threads that run jobs in the order submitted; where the system has none, submit() runs them. Destruction
// drops what has not started and waits for what has. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "support/threads.h"

namespace tilewright::tuner {

// Threads to use for compiling: the request, or one per core up to 16 (NVRTC's threads stop scaling there).
inline int thread_count(int jobs) {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  return jobs > 0 ? std::min(jobs, 256) : std::max(1, std::min(cores, 16));
}

class Pool {
 public:
  explicit Pool(int threads) : threads_(start_threads(threads, [this] { work(); })) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      jobs_.clear();  // their futures report broken_promise
    }
    wake_.notify_all();
    threads_.clear();
  }

  template <class F>
  auto submit(F f) -> std::future<decltype(f())> {
    auto job = std::make_shared<std::packaged_task<decltype(f())()>>(std::move(f));
    auto future = job->get_future();
    if (threads_.empty()) {  // the system has none
      (*job)();
      return future;
    }
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back([job] { (*job)(); });
    }
    wake_.notify_one();
    return future;
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;  // last: they use the others
};

}  // namespace tilewright::tuner
