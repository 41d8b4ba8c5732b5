// SPDX-License-Identifier: Apache-2.0
// Fixed-width types, vectors and the two function qualifiers. No header is included by any template: NVRTC then needs
// no search path, and a candidate compiles in half the time.
//
// The same text is compiled by NVRTC, by nvcc and by a host compiler. On a host, scalar code (TW_FN) is the library's
// reference codec; device code (TW_DEVICE) runs in the emulator of tests/emulator, which supplies the functions that
// are declared in namespace tw::emu.
#pragma once

#if defined(__CUDACC__)
#define TW_DEVICE static __device__ __forceinline__
#define TW_FN static __device__ __forceinline__
#define TW_MEMBER __device__ __forceinline__
#define TW_GLOBAL extern "C" __global__
#define TW_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define TW_PARAM const __grid_constant__
#define TW_UNROLL _Pragma("unroll")
#define TW_PRAGMA(text) _Pragma(#text)
#define TW_UNROLL_BY(count) TW_PRAGMA(unroll count)
#define TW_NO_UNROLL _Pragma("unroll 1")
#define TW_COPY memcpy  // NVRTC declares it by itself, and no __builtin_memcpy
// Integers and bools of a class or a namespace. NVRTC gives every static member, every constant of a namespace and
// every variable template memory of the device, read or not, and a module with two hundred such variables takes ten
// times as long to load. Enumerators and constexpr functions have none.
#define TW_CONSTANTS(type, ...) enum : type { __VA_ARGS__ }
// A table of a namespace that is read by an index: in memory of the device, one variable.
#define TW_TABLE(type, name, count) static __device__ const type name[count]
#else
#define TW_DEVICE [[maybe_unused]] static inline
#define TW_FN [[maybe_unused]] static inline
#define TW_MEMBER inline
#define TW_GLOBAL extern "C"
#define TW_BOUNDS(threads, blocks)
#define TW_PARAM const
#define TW_UNROLL
#define TW_UNROLL_BY(count)
#define TW_NO_UNROLL
#define TW_COPY __builtin_memcpy
#define TW_CONSTANTS(type, ...) [[maybe_unused]] static constexpr type __VA_ARGS__
#define TW_TABLE(type, name, count) [[maybe_unused]] static constexpr type name[count]
#endif

namespace tw {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
static_assert(sizeof(i64) == 8 && sizeof(i32) == 4 && sizeof(i16) == 2, "LP64");

struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};

// Raw bits of 16-bit floats; arithmetic is done in float or by the packed wrappers of ptx.cuh.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct e4m3 {
  u8 bits;
};
struct e5m2 {
  u8 bits;
};
// Eight signs of a row, which matrix units multiply as bits.
struct signs8 {
  u8 bits;
};

// The streams of one matrix (tilewright::Operand).
struct Operand {
  const void* data;
  const void* scales;
  const float* global;
};
struct MutableOperand {
  void* data;
  void* scales;
  float* global;
};

template <class...>
using void_of = void;
template <class A, class B>
struct same_type {
  TW_CONSTANTS(bool, value = false);
};
template <class A>
struct same_type<A, A> {
  TW_CONSTANTS(bool, value = true);
};
template <class A, class B>
TW_FN constexpr bool same() {
  return same_type<A, B>::value;
}

template <class T>
TW_FN constexpr bool is_fp8_type() {
  return same<T, e4m3>() || same<T, e5m2>();
}

template <bool C, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool C, class A, class B>
using select = typename conditional<C, A, B>::type;

TW_FN constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
TW_FN i64 ceil_div64(i64 a, i64 b) { return (a + b - 1) / b; }
// The type that T is computed in. An enumerator of TW_CONSTANTS becomes its integer.
template <class T>
using promoted = decltype(+T{});
template <class A, class B>
TW_FN constexpr promoted<A> min2(A a, B b) {
  static_assert(same<promoted<A>, promoted<B>>(), "one type");
  return b < a ? b : a;
}
template <class A, class B>
TW_FN constexpr promoted<A> max2(A a, B b) {
  static_assert(same<promoted<A>, promoted<B>>(), "one type");
  return a < b ? b : a;
}

template <class To, class From>
TW_FN To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  TW_COPY(&to, &from, sizeof(To));
  return to;
}

// Matrix instructions that apply scales of blocks themselves (sm_120a), by what both operands are: E4M3 or E2M1 with an
// E8M0 scale per 32, E2M1 with an E4M3 scale per 16.
enum class ScaledMma { none, mxf8, mxf4, nvf4 };

}  // namespace tw
