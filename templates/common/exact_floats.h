// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that host codecs need: rounding to nearest even, subnormal numbers kept, no traps. A
// process has another one if it was linked with -ffast-math or says so itself.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif
#include <cstdint>

namespace tilewright {

// Sets that environment for this thread, and restores the caller's at the end. Floats that a codec reads or writes must
// be in memory, not in registers: the compiler keeps those accesses between the two, and so what is computed of them.
class ExactFloats {
 public:
  ExactFloats() : saved_(read()) { write(exact(saved_)); }
  ~ExactFloats() { write(saved_); }
  ExactFloats(const ExactFloats&) = delete;
  ExactFloats& operator=(const ExactFloats&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned;
  static Word read() { return _mm_getcsr(); }
  static Word exact(Word) { return 0x1f80; }  // all exceptions masked, nearest even, neither FTZ nor DAZ
  static void write(Word word) {
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(word);
    __asm__ volatile("" ::: "memory");
  }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static Word read() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static Word exact(Word) { return 0; }
  static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = int;
  static Word read() { return std::fegetround(); }
  static Word exact(Word) { return FE_TONEAREST; }
  static void write(Word word) {
    __asm__ volatile("" ::: "memory");
    std::fesetround(word);
    __asm__ volatile("" ::: "memory");
  }
#endif

  Word saved_;
};

}  // namespace tilewright
