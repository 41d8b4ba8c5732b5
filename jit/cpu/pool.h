// SPDX-License-Identifier: Apache-2.0
// Threads that share the blocks of a launch. Blocks are claimed one by one, so that a thread that another program
// delays holds up no more than a block. Thread-safe: one caller has the threads at a time, others compute alone
// meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include <tilewright/kernel.h>

namespace tilewright::jit::cpu {

class Pool {
 public:
  explicit Pool(const CpuOptions& options);  // throws Error (invalid_argument)
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // body(context, i) for each i from 0 to count - 1, on any of the threads, in any order; returns when all are done.
  // Rethrows what one of them threw, once all are. In a child of fork(), whose parent's threads are not there, makes
  // new ones first.
  void run(std::int64_t count, void (*body)(void* context, std::int64_t i), void* context);
  // Ends the threads, unless they are at work. The next run() makes new ones.
  void rest();

 private:
  struct Crew;
  Crew& crew();
  void leave_to_parent();  // in a child of fork(): forgets threads that it does not have

  int threads_;
  decltype(CpuOptions::parallel_for) parallel_for_;
  std::mutex running_;
  std::unique_ptr<Crew> crew_;  // made by the first launch
  unsigned forks_ = 0;          // when it was made
};

int usable_cpus();  // that this process may run on

}  // namespace tilewright::jit::cpu
