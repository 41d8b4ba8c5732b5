// SPDX-License-Identifier: Apache-2.0
// A launch computed by threads of the host. ggml runs an operation by calling a function on each of its threads at
// once. The first thread launches; the others help with the blocks of its launches until it is done.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

namespace tilewright::ggml {

class Team {
 public:
  using Body = std::function<void(std::int64_t)>;

  // On the first thread: body(i) for each i from 0 to count - 1, on all threads of the team.
  void run(std::int64_t count, const Body& body) {
    if (count > kMost) {  // more than fits into work_
      for (std::int64_t i = 0; i < count; ++i) body(i);
      return;
    }
    done_.store(0, std::memory_order_relaxed);
    body_.store(&body, std::memory_order_relaxed);
    work_.store(static_cast<std::uint64_t>(count) << kBits, std::memory_order_release);
    while (take()) {
    }
    for (int turns = 0; done_.load(std::memory_order_acquire) != count;) wait(turns);
  }

  // On the others, until finish().
  void help() {
    for (int turns = 0; !finished_.load(std::memory_order_acquire);)
      if (take())
        turns = 0;
      else
        wait(turns);
  }
  void finish() { finished_.store(true, std::memory_order_release); }

 private:
  static constexpr int kBits = 32;
  static constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;

  // Computes a block, if one is left. The count and the next index are one word, so an index that was taken belongs to
  // the work of that moment, and its thread waits until the block is done.
  bool take() {
    std::uint64_t work = work_.load(std::memory_order_acquire);
    do {
      if (static_cast<std::uint32_t>(work) >= work >> kBits) return false;
    } while (!work_.compare_exchange_weak(work, work + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    (*body_.load(std::memory_order_relaxed))(static_cast<std::uint32_t>(work));
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  static void wait(int& turns) {
    if (++turns < 2000) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      std::this_thread::yield();
    }
  }

  std::atomic<std::uint64_t> work_{0};
  std::atomic<const Body*> body_{nullptr};
  std::atomic<std::int64_t> done_{0};
  std::atomic<bool> finished_{false};
};

// The same without a team: on threads that live as long as the call, one for each CPU, or fewer if the system starts no
// more.
inline void run_on_new_threads(std::int64_t count, const Team::Body& body) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  };
  std::vector<std::jthread> helpers;
  try {
    for (std::int64_t i = 1; i < std::min<std::int64_t>(count, std::thread::hardware_concurrency()); ++i)
      helpers.emplace_back(work);
  } catch (const std::system_error&) {
  }
  work();
}

// The team whose first thread this is; null: there is none.
inline thread_local Team* g_team = nullptr;

}  // namespace tilewright::ggml
