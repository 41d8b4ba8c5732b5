// SPDX-License-Identifier: Apache-2.0
// What NativeV3 and NativeV4 share: numbers, pointers and loops, without vectors. What writes the parts of a launch
// needs no more.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "templates/backends/cpu/panel_codes.h"

namespace tilewright::cpu {
namespace {

template <int n>
using Fixed = std::integral_constant<int, n>;

class NativePlain {
 public:
  using Ptr = const char*;
  using I64 = std::int64_t;
  using F32 = float;
  struct Arguments {
    Ptr args, constants, scratch;
    I64 block;
  };
  static Arguments arguments(const void* args, const void* constants, void* scratch, std::int64_t block) {
    return {static_cast<Ptr>(args), static_cast<Ptr>(constants), static_cast<Ptr>(scratch), block};
  }

  static I64 constant(std::int64_t v) { return v; }
  static I64 add(I64 a, I64 b) { return a + b; }
  static I64 mul(I64 a, I64 b) { return a * b; }
  static I64 sub(I64 a, I64 b) { return a - b; }
  static I64 div(I64 a, I64 b) {
    return static_cast<I64>(static_cast<std::uint64_t>(a) / static_cast<std::uint64_t>(b));
  }
  static I64 min(I64 a, I64 b) { return a < b ? a : b; }
  static Ptr at(Ptr p, I64 bytes) { return p + bytes; }
  // One a kernel: threads have their own.
  static Ptr stack(std::int64_t) {
    alignas(64) thread_local char memory[kMostStack];
    Ptr p = memory;
    __asm__("" : "+r"(p));  // or a compiler asks for the thread's memory wherever it needs the address
    return p;
  }
  static constexpr std::int64_t kMostStack = 66 << 10;

  static Ptr load_ptr(Ptr p) { return load<Ptr>(p); }
  static I64 load_i64(Ptr p) { return load<I64>(p); }
  static I64 load_i32(Ptr p) { return load<std::int32_t>(p); }
  static void store_i64(Ptr p, I64 v) { store(p, v); }
  static void copy(Ptr to, Ptr from, int bytes) {  // 1, 2 or 4
    if (bytes == 1)
      store(to, load<std::int8_t>(from));
    else if (bytes == 2)
      store(to, load<std::int16_t>(from));
    else
      store(to, load<std::int32_t>(from));
  }
  static F32 load_f32(Ptr p) { return load<float>(p); }
  static F32 mul(F32 a, F32 b) { return a * b; }
  static void prefetch(Ptr p, bool second = false) {
    if (second)
      _mm_prefetch(p, _MM_HINT_T1);
    else
      _mm_prefetch(p, _MM_HINT_T0);
  }

  template <class Carried = std::span<float>, class Body>
  TW_INLINE static void loop(I64 from, I64 to, std::int64_t step, const Carried&, Body body) {
    for (I64 i = from; i < to; i += step) body(i);
  }
  template <class Body>
  TW_INLINE static void if_less(I64 a, I64 b, Body body) {
    if (a < b) body();
  }

 protected:
  template <class T>
  static T load(Ptr p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <class T>
  static void store(Ptr p, T v) {
    std::memcpy(writable(p), &v, sizeof v);
  }
  static char* writable(Ptr p) { return const_cast<char*>(p); }
};

}  // namespace
}  // namespace tilewright::cpu
