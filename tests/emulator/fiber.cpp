// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.h"

#include <cstdint>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

#if TILEWRIGHT_EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if TILEWRIGHT_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_read_range(void*, unsigned long);
extern "C" void __tsan_write_range(void*, unsigned long);
extern "C" void AnnotateIgnoreReadsBegin(const char*, int);
extern "C" void AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int);
extern "C" void AnnotateIgnoreWritesEnd(const char*, int);
#endif
#if !defined(__x86_64__)
#define TILEWRIGHT_EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

#if !defined(TILEWRIGHT_EMULATOR_UCONTEXT)
// Saves what the System V ABI calls callee-saved (the floating-point control words never change here), swaps the stack
// pointers and returns on the other stack: about 3 ns, against 300 for swapcontext, which makes two system calls.
extern "C" void tilewright_switch_stack(void** from, void* to);
asm(R"(
.text
.p2align 4
.hidden tilewright_switch_stack
.globl tilewright_switch_stack
.type tilewright_switch_stack, @function
tilewright_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tilewright_switch_stack, .-tilewright_switch_stack
)");
#endif

namespace tw::emu {
namespace {
// Instrumented frames are several times larger. Pages that are never touched cost nothing.
constexpr std::size_t kStackBytes = (TILEWRIGHT_EMULATOR_ASAN || TILEWRIGHT_EMULATOR_TSAN ? 256 : 128) * 1024;

thread_local Fiber* leaving = nullptr;  // who made the switch that is under way

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
}  // namespace

Fiber::Fiber(void (*entry)(), unsigned index) {
  const std::size_t guard = page_bytes(), colour = (index % 29) * 128;
  void* mapping =
      mmap(nullptr, guard + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapping);
  mprotect(mapping_, guard, PROT_NONE);  // best effort: an overflow faults instead of corrupting a neighbour
  stack_ = mapping_ + guard;
  stack_bytes_ = kStackBytes - colour;
#if defined(TILEWRIGHT_EMULATOR_UCONTEXT)
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = stack_bytes_ / 16 * 16;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  context_ = context;
#else
  // Six registers, the entry as return address, and a zero where its caller would be; at the entry the stack is as
  // after a call: 8 below a multiple of 16.
  auto top = (reinterpret_cast<std::uintptr_t>(stack_) + stack_bytes_) / 16 * 16;
  auto* slots = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 8; ++i) slots[i] = nullptr;
  slots[6] = reinterpret_cast<void*>(entry);
  context_ = slots;
#endif
#if TILEWRIGHT_EMULATOR_TSAN
  tsan_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (!mapping_) return;
#if TILEWRIGHT_EMULATOR_ASAN
  // An abandoned fiber leaves poisoned frames; the next mapping may get the same addresses.
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if TILEWRIGHT_EMULATOR_TSAN
  // A switch that synchronises tells ThreadSanitizer that what the abandoned fiber did comes before what follows.
  void* const own = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_, 0);
  __tsan_switch_to_fiber(own, 0);
  __tsan_destroy_fiber(tsan_);
#endif
#if defined(TILEWRIGHT_EMULATOR_UCONTEXT)
  delete static_cast<ucontext_t*>(context_);
#endif
  munmap(mapping_, page_bytes() + kStackBytes);
}

void Fiber::switch_to(Fiber& to) {
  leaving = this;
#if TILEWRIGHT_EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&fake_stack_, to.stack_, to.stack_bytes_);
#endif
#if TILEWRIGHT_EMULATOR_TSAN
  if (!mapping_) tsan_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(TILEWRIGHT_EMULATOR_UCONTEXT)
  ucontext_t own;  // the OS thread's context lives here while it is away
  if (!mapping_) context_ = &own;
  swapcontext(static_cast<ucontext_t*>(context_), static_cast<ucontext_t*>(to.context_));
#else
  tilewright_switch_stack(&context_, to.context_);
#endif
#if TILEWRIGHT_EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::entered() {
#if TILEWRIGHT_EMULATOR_ASAN
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!leaving->mapping_) {  // only the runtime knows the OS thread's own stack
    leaving->stack_ = static_cast<std::byte*>(const_cast<void*>(bottom));
    leaving->stack_bytes_ = bytes;
  }
#endif
}

#if TILEWRIGHT_EMULATOR_TSAN
void tsan_release(void* barrier) { __tsan_release(barrier); }
void tsan_acquire(void* barrier) { __tsan_acquire(barrier); }
void tsan_read(const void* p, std::size_t bytes) { __tsan_read_range(const_cast<void*>(p), bytes); }
void tsan_write(void* p, std::size_t bytes) { __tsan_write_range(p, bytes); }
void TsanQuiet::begin() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
void TsanQuiet::end() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
void tsan_release(void*) {}
void tsan_acquire(void*) {}
void tsan_read(const void*, std::size_t) {}
void tsan_write(void*, std::size_t) {}
void TsanQuiet::begin() {}
void TsanQuiet::end() {}
#endif

TsanQuiet::TsanQuiet() { begin(); }
TsanQuiet::~TsanQuiet() { end(); }
void TsanQuiet::read(const void* p, std::size_t bytes) {
  end();
  tsan_read(p, bytes);
  begin();
}
void TsanQuiet::write(void* p, std::size_t bytes) {
  end();
  tsan_write(p, bytes);
  begin();
}

}  // namespace tw::emu
