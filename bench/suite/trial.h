// SPDX-License-Identifier: Apache-2.0
// Kernels of single candidates, compiled ahead of their turn, and what judges them by the oracle.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/suite/suite.h"

namespace tilewright::bench {

// Functions on threads of their own, in the order in which they came: kernels compile while others are judged.
class Ahead {
 public:
  explicit Ahead(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Ahead() {
    {
      std::lock_guard lock(mutex_);
      waiting_.clear();
      done_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  std::future<Kernel> submit(std::function<Kernel()> make) {
    auto task = std::make_shared<std::packaged_task<Kernel()>>(std::move(make));
    std::future<Kernel> future = task->get_future();
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back([task] { (*task)(); });
    }
    wake_.notify_one();
    return future;
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return done_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      next();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  bool done_ = false;
};

// As many threads as the engine would compile on.
int jobs_of(Suite& s);

// Of what `check` says of 0 to count - 1, on as many threads, the first that is not empty.
std::string first_wrong(Suite& s, std::int64_t count, const std::function<std::string(std::int64_t)>& check);

// Compiled and loaded, to serve any number of rows. The task's choice is not asked.
std::function<Kernel()> kernel_of(Suite& s, const Task& task, const Candidate& candidate);
std::function<Kernel()> oracle_of(Suite& s, const Task& task);

// Of what the library would not launch either: why, or nothing.
std::string unacceptable(const Kernel& kernel);

// One gemm with its operands on the device and the oracle's word on them. Judges kernels at any m up to `rows`, by the
// rules of the tuner's verifier, with strides of the caller's choosing.
class Trial {
 public:
  static constexpr std::size_t kGuard = 4096;
  static constexpr std::byte kInputGuard{0xc3};
  static constexpr std::int64_t kMostPad = 16;
  // What compare() of the task says of y, unless a caller judges himself: values got, expected, bounds, m x n each.
  using Judge =
      std::function<std::string(const std::vector<float>&, const std::vector<float>&, const std::vector<float>&)>;

  Trial(Suite& s, const Problem& problem, std::int64_t rows, Kernel oracle);

  const Gemm& gemm() const { return gemm_; }
  const Task& task() const { return task_; }
  Stream stream() const { return stream_.get(); }
  void synchronize() const { stream_.synchronize(); }
  std::vector<std::byte>& content(std::string_view name) { return content_[index(name)]; }
  bool has(std::string_view name) const {
    return std::any_of(task_.buffers.begin(), task_.buffers.end(), [&](const Buffer& b) { return b.name == name; });
  }

  // The tuner's own random content. upload() has to follow, and consult().
  void fill(std::uint64_t seed);
  void upload();
  // What the device holds is the content from now on.
  void adopt();
  void put(const std::string& name, const std::vector<std::byte>& bytes);
  // The first rows.
  void put_x(const std::vector<float>& values, std::int64_t rows);
  void put_w(const std::vector<float>& values);

  GemmArgs arguments(std::int64_t m);
  // Of every launch from now on, the oracle's too: consult() has to follow.
  void factors(float alpha, float beta) { alpha_ = alpha, beta_ = beta; }

  // Throws if the oracle's values are no numbers, unless the data may be none: nothing would be judged then.
  void consult(std::int64_t rows, bool numbers = true);
  const std::vector<float>& values() const { return values_; }

  // ldx = k + pad_x if that is not 0, ldy = n + pad_y if that is not 0.
  std::string judge(const Kernel& kernel, std::int64_t m, std::int64_t pad_x = 0, std::int64_t pad_y = 0,
                    bool twice = false, const Judge& own = {});

  // Empty if the kernels have left their inputs alone, and what lies beside them.
  std::string unchanged();

 private:
  std::size_t index(std::string_view name) const;
  // The first m rows of one of x's streams, further apart, NaN between them where there is one.
  Memory pad(int stream, std::int64_t m, std::int64_t by);
  std::string compare(const std::vector<std::byte>& got, std::int64_t m, const Judge& own);

  Suite& suite_;
  Gemm gemm_;
  Task task_;
  std::int64_t rows_;
  Kernel oracle_;
  OwnedStream stream_;
  std::vector<std::vector<std::byte>> content_;  // one per buffer of the task, empty for y
  std::vector<Memory> memory_;
  Memory y_;
  float alpha_ = 1, beta_ = 1;
  std::vector<float> values_, bounds_;  // of as many rows as the oracle was asked for
};

// What check_on_host() says of one launch over `bytes`, one for each of the task's buffers; those of outputs only have
// the right size. Each output has a guard behind it. in_place: an output's place that is the memory of input `with`; 0:
// none is.
std::string judged_on_host(Suite& s, const Problem& problem, const Kernel& kernel,
                           std::vector<std::vector<std::byte>> bytes, std::size_t in_place = 0, std::size_t with = 0);

// The tuner's own judge over a sample of candidates: none may be wrong or fail.
std::string candidates_verify(Engine& engine, const Device& device, const std::string& text, int most);
// The same of several problems, from the beginning on while other checks run: an engine measures one problem at a time,
// so there are some.
class Verdicts {
 public:
  Verdicts(Suite& s, std::vector<std::string> texts, int most);
  ~Verdicts();
  // Waits for them, and writes a check of each.
  void check(Suite& s);

 private:
  std::vector<std::string> texts_, verdicts_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> given_up_{false};
  std::vector<std::future<void>> threads_;
};

}  // namespace tilewright::bench
