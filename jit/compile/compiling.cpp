// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/compiling.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include <tilewright/error.h>

namespace tilewright::jit {
namespace {

struct State {
  std::mutex mutex;
  std::condition_variable ended;
  int compiles = 0;  // of all threads
  int handlers = 0;  // that exit() calls
  bool exiting = false;
  // In a child of fork() other threads' compiles are gone, and the lock may be theirs.
  const pid_t process = ::getpid();
};

State& state() {
  static State* const state = new State;  // never destroyed: threads may use it until the very end
  return *state;
}

thread_local int own_compiles = 0;

void wait_for_compiles() {
  constexpr auto kLongest = std::chrono::seconds(60);  // a compiler that hangs must not keep the process
  State& s = state();
  if (s.process != ::getpid()) return;
  std::unique_lock lock(s.mutex);
  s.exiting = true;
  s.ended.wait_for(lock, kLongest, [&] { return s.compiles == own_compiles; });
}

}  // namespace

Compiling::Compiling() : counted_(state().process == ::getpid()) {
  if (!counted_) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.exiting)
    throw Error(ErrorCode::would_tune, "process", "exiting", "must not be exiting: compile before the process exits");
  ++s.compiles;
  ++own_compiles;
}

Compiling::~Compiling() {
  if (!counted_) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  // exit() calls what was registered last first, and compilers make static objects as they come to need them: a handler
  // after each of the first compiles is called before these are destroyed.
  constexpr int kMostHandlers = 32;
  if (s.handlers < kMostHandlers && std::atexit(&wait_for_compiles) == 0) ++s.handlers;
  --s.compiles;
  --own_compiles;
  s.ended.notify_all();
}

}  // namespace tilewright::jit
