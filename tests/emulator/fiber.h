// SPDX-License-Identifier: Apache-2.0
// One execution context with its own small stack, switched by hand. A context never moves to another OS thread.
//
// The sanitizers are told of every switch: AddressSanitizer to know which stack is current, ThreadSanitizer to treat
// each fiber as a thread. A ThreadSanitizer build therefore finds unsynchronised accesses between CUDA threads, as long
// as the switch itself is not an ordering (it is not) and every barrier is annotated (see tsan_release, tsan_acquire).
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define TILEWRIGHT_EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TILEWRIGHT_EMULATOR_ASAN 1
#endif
#endif
#if !defined(TILEWRIGHT_EMULATOR_ASAN)
#define TILEWRIGHT_EMULATOR_ASAN 0
#endif
// Set by the build, because this file itself is compiled without ThreadSanitizer.
#if !defined(TILEWRIGHT_EMULATOR_TSAN)
#define TILEWRIGHT_EMULATOR_TSAN 0
#endif

namespace tw::emu {

class Fiber {
 public:
  Fiber() = default;  // the context of the OS thread itself
  // `index` only colours the stack, so that the hot frames of neighbours fall into different cache sets.
  Fiber(void (*entry)(), unsigned index);
  Fiber(const Fiber&) = delete;  // a suspended fiber's stack refers to it
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Leaves *this (which must be running) and continues `to`, until something switches back.
  void switch_to(Fiber& to);
  // The first thing an entry function must call.
  static void entered();

 private:
  void* context_ = nullptr;  // the saved stack pointer, or a ucontext_t*
  std::byte* mapping_ = nullptr;
  std::byte* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* tsan_ = nullptr;
};

// Happens-before for ThreadSanitizer, through an address that stands for a barrier; nothing in other builds.
void tsan_release(void* barrier);
void tsan_acquire(void* barrier);
// The running fiber reads or writes memory that kernels share.
void tsan_read(const void* p, std::size_t bytes);
void tsan_write(void* p, std::size_t bytes);

// Library functions that the emulator calls meanwhile (memcpy, new, delete) say nothing of what the running fiber does.
// Must not last beyond a switch.
class TsanQuiet {
 public:
  TsanQuiet();
  ~TsanQuiet();
  TsanQuiet(const TsanQuiet&) = delete;
  TsanQuiet& operator=(const TsanQuiet&) = delete;
  static void read(const void* p, std::size_t bytes);  // tsan_read and tsan_write nevertheless
  static void write(void* p, std::size_t bytes);

 private:
  static void begin();
  static void end();
};

}  // namespace tw::emu
