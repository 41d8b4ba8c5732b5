// SPDX-License-Identifier: Apache-2.0
// Words of global memory through which blocks agree. Every target has these instructions.
#pragma once
#include "backends/cuda/ptx.cuh"

#if !defined(__CUDACC__)
namespace tw::emu {
void pause();  // others go first
}
#endif

namespace tw {

TW_DEVICE u32 load_relaxed(const u32* p) {
#if defined(__CUDACC__)
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
#else
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}
// Orders this thread's later accesses behind it.
TW_DEVICE u32 load_acquire(const u32* p) {
#if defined(__CUDACC__)
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
#else
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}
TW_DEVICE void store_relaxed(u32* p, u32 v) {
#if defined(__CUDACC__)
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#else
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}
// Returns what was there. Orders this thread's later accesses behind it and, with `release`, earlier ones before it:
// its own, and those that it knows of through a barrier.
template <bool release>
TW_DEVICE u32 add_global(u32* p, u32 v) {
#if defined(__CUDACC__)
  u32 before;
  if constexpr (release)
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  else
    asm volatile("atom.acquire.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
#else
  return __atomic_fetch_add(p, v, release ? __ATOMIC_ACQ_REL : __ATOMIC_ACQUIRE);
#endif
}
// The same without any order.
TW_DEVICE u32 add_relaxed(u32* p, u32 v) {
#if defined(__CUDACC__)
  u32 before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
#else
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
#endif
}
// p becomes v where that is more, without any order; of u32 and of u64.
#if defined(__CUDACC__)
TW_DEVICE void max_global(u32* p, u32 v) {
  asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
TW_DEVICE void max_global(u64* p, u64 v) {
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
#else
template <class T>
TW_DEVICE void max_global(T* p, T v) {
  T before = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (before < v && !__atomic_compare_exchange_n(p, &before, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
#endif
// p += v, without any order.
TW_DEVICE void sum_global(u64* p, u64 v) {
#if defined(__CUDACC__)
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
#endif
}
// In shared memory.
TW_DEVICE void sum_shared(u32* p, u32 v) {
#if defined(__CUDACC__)
  const u32 at = static_cast<u32>(__cvta_generic_to_shared(p));
  asm volatile("red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
#else
  __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
#endif
}
// Returns what was there, without any order.
TW_DEVICE u32 exchange_global(u32* p, u32 v) {
#if defined(__CUDACC__)
  u32 before;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
#else
  return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
#endif
}
// By every thread of every block at its end. True for one thread of the block that ends last, to which all is visible
// that threads wrote before. `ended` counts blocks; zero before and after.
TW_DEVICE bool ends_last(u32* ended) {
  sync_block();
  if (thread_x() != 0 || add_global<true>(ended, 1) + 1 != grid_x()) return false;
  exchange_global(ended, 0);
  return true;
}
// Some 100 ns of nothing.
TW_DEVICE void pause() {
#if defined(__CUDACC__)
  asm volatile("nanosleep.u32 100;" ::: "memory");
#else
  emu::pause();
#endif
}

}  // namespace tw
