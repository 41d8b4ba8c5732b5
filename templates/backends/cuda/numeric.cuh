// SPDX-License-Identifier: Apache-2.0
// Number conversions with one meaning everywhere: round to nearest, ties to even, denormals kept. The host bodies are
// the reference (plain integer arithmetic); the device bodies are the hardware's `cvt`, which agrees bit for bit except
// for the payload of a NaN, which both return as the canonical one.
//
// Encoders must not be fused or reassociated: the host is compiled with -ffp-contract=off, and device code that has to
// match uses mul_rn / add_rn / div_rn, which are never contracted.
#pragma once
#include "backends/cuda/types.cuh"

#if !defined(__CUDACC__) && (defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__))
#error "-ffast-math would change what codecs compute: compile without it (an application may have it, the library not)"
#endif

namespace tw {

// ---- exactly rounded operations ------------------------------------------------------------------------------------
#if defined(__CUDA_ARCH__)
TW_FN float add_rn(float a, float b) { return __fadd_rn(a, b); }
TW_FN float sub_rn(float a, float b) { return __fsub_rn(a, b); }
TW_FN float mul_rn(float a, float b) { return __fmul_rn(a, b); }
TW_FN float div_rn(float a, float b) { return __fdiv_rn(a, b); }
TW_FN float sqrt_rn(float a) { return __fsqrt_rn(a); }
TW_FN float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TW_FN double add_rn(double a, double b) { return __dadd_rn(a, b); }
TW_FN double sub_rn(double a, double b) { return __dsub_rn(a, b); }
TW_FN double mul_rn(double a, double b) { return __dmul_rn(a, b); }
TW_FN double div_rn(double a, double b) { return __ddiv_rn(a, b); }
TW_FN double sqrt_rn(double a) { return __dsqrt_rn(a); }
TW_FN double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
TW_FN float rint_even(float a) { return rintf(a); }
TW_FN float trunc_zero(float a) { return truncf(a); }
TW_FN float abs_f(float a) { return fabsf(a); }
#else
TW_FN float add_rn(float a, float b) { return a + b; }
TW_FN float sub_rn(float a, float b) { return a - b; }
TW_FN float mul_rn(float a, float b) { return a * b; }
TW_FN float div_rn(float a, float b) { return a / b; }
TW_FN float sqrt_rn(float a) { return __builtin_sqrtf(a); }
TW_FN float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TW_FN double add_rn(double a, double b) { return a + b; }
TW_FN double sub_rn(double a, double b) { return a - b; }
TW_FN double mul_rn(double a, double b) { return a * b; }
TW_FN double div_rn(double a, double b) { return a / b; }
TW_FN double sqrt_rn(double a) { return __builtin_sqrt(a); }
TW_FN double fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
TW_FN float rint_even(float a) { return __builtin_rintf(a); }
TW_FN float trunc_zero(float a) { return __builtin_truncf(a); }
TW_FN float abs_f(float a) { return __builtin_fabsf(a); }
#endif
TW_FN bool is_nan(float a) { return (bits_as<u32>(a) & 0x7fffffffu) > 0x7f800000u; }
// Half away from zero, as C's roundf. 0.5 - 2^-25, the float below a half, is enough: the sum of it and a fraction of
// at least a half rounds up to the next integer, and that of it and less never does.
TW_FN float nudged_away(float a) { return add_rn(a, bits_as<float>((bits_as<u32>(a) & 0x80000000u) | 0x3effffffu)); }
TW_FN float round_away(float a) { return trunc_zero(nudged_away(a)); }
// Float to int, toward zero: NaN gives 0, out of range saturates (C leaves both undefined).
TW_FN i32 to_int(float a) {
#if defined(__CUDA_ARCH__)
  i32 i;
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(i) : "f"(a));
  return i;
#else
  if (is_nan(a)) return 0;
  if (a >= 2147483648.0f) return 2147483647;
  if (a <= -2147483648.0f) return -2147483647 - 1;
  return static_cast<i32>(a);
#endif
}
TW_FN i32 to_int_away(float a) { return to_int(nudged_away(a)); }

// Many quotients by one positive divisor, each correctly rounded, for values of magnitude at most `largest` (a NaN is
// allowed too). The reciprocal is rounded correctly. So the product with it is within an ulp of the quotient, and one
// correction rounds that correctly (Markstein, IBM J. Res. Dev. 34, 1990, theorem 2); or it is within 1.5 ulps, and the
// correction could be wrong only where the quotient lies within 2^-22 ulp of the middle between two floats. A test
// tries all of those. Nothing may leave the range of normal numbers on the way, else a plain division is used. A
// quotient below 2^-40 may be off by an ulp: rounded to a narrow format it is the same.
struct Divider {
  float divisor, reciprocal;
  bool direct;
  TW_MEMBER Divider(float by, float largest) {
    constexpr float kLow = 8.673617379884035e-19f, kHigh = 1.152921504606847e18f;  // 2^-60, 2^60
    divisor = by;
    reciprocal = div_rn(1.0f, by);
    direct = by >= kLow && by <= kHigh && largest <= kHigh;
  }
  // Both: precondition: direct. Otherwise div_rn(x, divisor).
  TW_MEMBER float quotient_unsigned(float x) const {  // x >= 0, or the sign of a zero does not matter
    const float q = mul_rn(x, reciprocal);
    return fma_rn(fma_rn(-q, divisor, x), reciprocal, q);
  }
  TW_MEMBER float quotient(float x) const {
    const float q = quotient_unsigned(x);
    return bits_as<float>((bits_as<u32>(q) & 0x7fffffffu) | (bits_as<u32>(x) & 0x80000000u));  // -0 stays -0
  }
};

// ---- f16 -----------------------------------------------------------------------------------------------------------
TW_FN u16 f32_to_f16_bits(float f) {
#if defined(__CUDA_ARCH__)
  // Through a 32-bit register: ptxas 13.0 stores the bytes of a 16-bit result one by one as zero and the upper byte.
  u32 h;
  asm("{ .reg .b16 half, zero; mov.b16 zero, 0; cvt.rn.f16.f32 half, %1; mov.b32 %0, {half, zero}; }"
      : "=r"(h)
      : "f"(f));
  return static_cast<u16>(h);
#else
  const u32 u = bits_as<u32>(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7fffu;
  if (a >= 0x477ff000u) return static_cast<u16>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {                                          // below 2^-14: adding 0.5 aligns the subnormal's ulp
    const float shifted = bits_as<float>(a) + 0.5f;               // rounds to a multiple of 2^-24, ties to even
    return static_cast<u16>(sign | (bits_as<u32>(shifted) - 0x3f000000u));
  }
  const u32 odd = (a >> 13) & 1u;
  return static_cast<u16>(sign | ((a - 0x38000000u + 0xfffu + odd) >> 13));
#endif
}
TW_FN float f16_bits_to_f32(u16 h) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#else
  const u32 sign = static_cast<u32>(h & 0x8000u) << 16, a = h & 0x7fffu;
  if (a >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | ((a & 0x3ffu) ? 0x7fffffu : 0u));
  if (a >= 0x400u) return bits_as<float>(sign | ((a << 13) + 0x38000000u));
  const float magnitude = static_cast<float>(a) * 5.9604644775390625e-8f;  // 2^-24
  return bits_as<float>(sign | bits_as<u32>(magnitude));
#endif
}

// ---- bf16 ----------------------------------------------------------------------------------------------------------
TW_FN u16 f32_to_bf16_bits(float f) {
  const u32 u = bits_as<u32>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return static_cast<u16>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
TW_FN float bf16_bits_to_f32(u16 h) { return bits_as<float>(static_cast<u32>(h) << 16); }

// ---- fp8 E4M3 (no infinity; 0x7f and 0xff are NaN; largest 448) ----------------------------------------------------
TW_FN float e4m3_to_f32(u8 b) {
  // The code's fields moved to a float's, where their exponent is 120 too small, subnormal or not.
  const float magnitude = mul_rn(bits_as<float>((b & 0x7fu) << 20), 1.329227995784916e36f);  // 2^120
  const u32 sign = static_cast<u32>(b & 0x80u) << 24;
  return bits_as<float>(sign | ((b & 0x7fu) == 0x7fu ? 0x7fffffffu : bits_as<u32>(magnitude)));
}
// Saturating: beyond 448 and infinity give 448; NaN gives 0x7f.
TW_FN u8 f32_to_e4m3(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
  return static_cast<u8>(pair);
#else
  const u32 u = bits_as<u32>(f), a = u & 0x7fffffffu;
  const u8 sign = static_cast<u8>((u >> 24) & 0x80u);
  if (a > 0x7f800000u) return 0x7fu;
  if (a >= 0x43e80000u) return static_cast<u8>(sign | 0x7eu);  // >= 464 = 448 + half an ulp, and everything above
  if (a < 0x3c800000u) {                                       // below 2^-6: ulp 2^-9; adding 2^14 aligns it
    const float shifted = add_rn(bits_as<float>(a), 16384.0f);
    return static_cast<u8>(sign | (bits_as<u32>(shifted) - 0x46800000u));
  }
  const u32 odd = (a >> 20) & 1u;
  const u32 code = (a - 0x3c000000u + 0x7ffffu + odd) >> 20;
  return static_cast<u8>(sign | (code > 0x7eu ? 0x7eu : code));
#endif
}

// ---- fp8 E5M2 (an f16 without its lower byte; largest finite number 57344) ------------------------------------------
TW_FN float e5m2_to_f32(u8 b) { return f16_bits_to_f32(static_cast<u16>(b << 8)); }
// Saturating: beyond 57344 and infinity give 57344; NaN gives 0x7f.
TW_FN u8 f32_to_e5m2(float f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
  return static_cast<u8>(pair);
#else
  const u32 u = bits_as<u32>(f), a = u & 0x7fffffffu;
  const u8 sign = static_cast<u8>((u >> 24) & 0x80u);
  if (a > 0x7f800000u) return 0x7fu;
  if (a >= 0x47600000u) return static_cast<u8>(sign | 0x7bu);  // 57344 and everything above
  if (a < 0x38800000u) {                                       // below 2^-14: ulp 2^-16; adding 2^7 aligns it
    const float shifted = add_rn(bits_as<float>(a), 128.0f);
    return static_cast<u8>(sign | (bits_as<u32>(shifted) - 0x43000000u));
  }
  const u32 odd = (a >> 21) & 1u;
  return static_cast<u8>(sign | ((a - 0x38000000u + 0xfffffu + odd) >> 21));
#endif
}

// ---- integers ------------------------------------------------------------------------------------------------------
// Nearest even, saturating; NaN gives 0.
TW_FN i32 f32_to_i32(float f) { return to_int(rint_even(f)); }
TW_FN i8 f32_to_i8(float f) { return static_cast<i8>(max2(min2(f32_to_i32(f), 127), -128)); }

// ---- fp4 E2M1 (0 .5 1 1.5 2 3 4 6) ---------------------------------------------------------------------------------
TW_FN float e2m1_to_f32(u32 code) {
  const float magnitude = mul_rn(bits_as<float>((code & 7u) << 22), 8.507059173023462e37f);  // 2^126
  return bits_as<float>(((code & 8u) << 28) | bits_as<u32>(magnitude));
}
TW_FN float e2m1_limited(float magnitude) { return magnitude < 6.0f ? magnitude : 6.0f; }
// Has the ulp that is E2M1's step at a magnitude of at most 6: steps are 1/2 below 2, then 1, then 2, and so is the ulp
// of a power of two 22 places above the magnitude's, at least 2^22.
TW_FN float e2m1_align(float a) {
  return bits_as<float>((max2(bits_as<u32>(a), 0x3f800000u) & 0x7f800000u) + 0x0b000000u);
}
// Code of a magnitude; a NaN's is that of 6.
TW_FN u32 e2m1_magnitude(float magnitude) {
  const float a = e2m1_limited(magnitude);
  const u32 align = bits_as<u32>(e2m1_align(a));
  const u32 steps = bits_as<u32>(add_rn(a, bits_as<float>(align))) - align;
  return steps + ((align - 0x4a800000u) >> 22);  // 2 and 4 are codes 4 and 6, but 2 steps of theirs
}
// The value of that code.
TW_FN float e2m1_rounded(float magnitude) {
  const float a = e2m1_limited(magnitude), align = e2m1_align(a);
  return sub_rn(add_rn(a, align), align);
}
TW_FN u32 e2m1_sign(float f) { return is_nan(f) ? 0u : (bits_as<u32>(f) >> 28) & 8u; }
// Saturating at 6; ties to the even code; NaN gives +6, as the hardware does; the sign of zero is kept.
TW_FN u32 f32_to_e2m1(float f) { return e2m1_sign(f) | e2m1_magnitude(abs_f(f)); }

// ---- by type -------------------------------------------------------------------------------------------------------
TW_FN float to_f32(float v) { return v; }
TW_FN float to_f32(f16 v) { return f16_bits_to_f32(v.bits); }
TW_FN float to_f32(bf16 v) { return bf16_bits_to_f32(v.bits); }
TW_FN float to_f32(e4m3 v) { return e4m3_to_f32(v.bits); }
TW_FN float to_f32(e5m2 v) { return e5m2_to_f32(v.bits); }
TW_FN float to_f32(i8 v) { return static_cast<float>(v); }
TW_FN float to_f32(i32 v) { return static_cast<float>(v); }
template <class T>
TW_FN T from_f32(float v);
#if defined(__CUDACC__)
template <>
__device__ __forceinline__ float from_f32<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ f16 from_f32<f16>(float v) {
  return {f32_to_f16_bits(v)};
}
template <>
__device__ __forceinline__ bf16 from_f32<bf16>(float v) {
  return {f32_to_bf16_bits(v)};
}
template <>
__device__ __forceinline__ e4m3 from_f32<e4m3>(float v) {
  return {f32_to_e4m3(v)};
}
template <>
__device__ __forceinline__ e5m2 from_f32<e5m2>(float v) {
  return {f32_to_e5m2(v)};
}
template <>
__device__ __forceinline__ i8 from_f32<i8>(float v) {
  return f32_to_i8(v);
}
template <>
__device__ __forceinline__ i32 from_f32<i32>(float v) {
  return f32_to_i32(v);
}
#else
template <>
inline float from_f32<float>(float v) {
  return v;
}
template <>
inline f16 from_f32<f16>(float v) {
  return {f32_to_f16_bits(v)};
}
template <>
inline bf16 from_f32<bf16>(float v) {
  return {f32_to_bf16_bits(v)};
}
template <>
inline e4m3 from_f32<e4m3>(float v) {
  return {f32_to_e4m3(v)};
}
template <>
inline e5m2 from_f32<e5m2>(float v) {
  return {f32_to_e5m2(v)};
}
template <>
inline i8 from_f32<i8>(float v) {
  return f32_to_i8(v);
}
template <>
inline i32 from_f32<i32>(float v) {
  return f32_to_i32(v);
}
#endif

}  // namespace tw
