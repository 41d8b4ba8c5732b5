// SPDX-License-Identifier: Apache-2.0
// A warp's matrix instructions, and the loads and places of their fragments in shared memory. One function per
// instruction, as in backends/cuda/ptx.cuh.
#pragma once
#include "backends/cuda/ptx.cuh"

#if !defined(__CUDACC__)
namespace tw::emu {
// ldmatrix: each lane passes the address of one 16-byte row; `count` 8x8 matrices of 16-bit elements.
void ldmatrix(u32* out, const void* row, int count, bool transpose);
// movmatrix: the 8x8 matrix of 16-bit elements whose rows lanes 4i..4i+3 hold, two elements each, transposed.
u32 movmatrix(u32 elements);
enum class Mma {
  f16_k8,
  f16_k16,
  bf16_k8,
  bf16_k16,
  tf32_k8,
  s8_k16_m8,
  s8_k32,
  b1_k256,
  e4m3_k32,
  e5m2_k32,
  e4m3_e5m2_k32,
  e5m2_e4m3_k32
};
// d += a b of the warp; fragments as in the PTX manual. `d` holds floats or ints (as bits).
void mma(Mma kind, u32* d, const u32* a, const u32* b);
// The same with scales of blocks, bytes of these words from byte `byte` on: of A's row lane / 4 + 8 (lane % 2), where
// lane % 4 is 0 or 1, and of B's column lane / 4, where lane % 4 is 0.
void scaled_mma(ScaledMma kind, u32* d, const u32* a, const u32* b, u32 scale_a, u32 scale_b, int byte);
}  // namespace tw::emu
#endif

namespace tw {

// Where chunk c of 16 bytes of row r lies, so that one chunk of eight neighbouring rows, which ldmatrix and stmatrix
// take, touches every bank once.
template <int row_bytes>
TW_DEVICE int swizzled(int row, int chunk) {
  static_assert(row_bytes == 64 || row_bytes % 128 == 0, "row of 4 chunks or of multiples of 8");
  const int mask = row_bytes == 64 ? (row >> 1) & 3 : row & 7;
  return row * row_bytes + ((chunk ^ mask) << 4);
}
// `row`: this lane's 16-byte row; lanes 8i..8i+7 address matrix i.
TW_DEVICE void ldmatrix_x4(u32 (&d)[4], const void* row) {
#if defined(__CUDACC__)
  const u32 s = static_cast<u32>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(s)
               : "memory");
#else
  emu::ldmatrix(d, row, 4, false);
#endif
}
// Rows at constant distances from one place, whose address stays in a register: left to itself the compiler adds each
// row's up anew.
class SharedRows {
#if defined(__CUDACC__)
  u32 at_;

 public:
  TW_MEMBER explicit SharedRows(const void* first) : at_(static_cast<u32>(__cvta_generic_to_shared(first))) {
    asm("" : "+r"(at_));
  }
  TW_MEMBER void ldmatrix_x4(u32 (&d)[4], int bytes) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at_ + bytes)
                 : "memory");
  }
#else
  const u8* at_;

 public:
  explicit SharedRows(const void* first) : at_(static_cast<const u8*>(first)) {}
  void ldmatrix_x4(u32 (&d)[4], int bytes) const { tw::ldmatrix_x4(d, at_ + bytes); }
#endif
};
TW_DEVICE void ldmatrix_x2(u32 (&d)[2], const void* row) {
#if defined(__CUDACC__)
  const u32 s = static_cast<u32>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(d[0]), "=r"(d[1]) : "r"(s) : "memory");
#else
  emu::ldmatrix(d, row, 2, false);
#endif
}
// `count` matrices, each transposed.
template <int count>
TW_DEVICE void ldmatrix_transposed(u32 (&d)[count], const void* row) {
  static_assert(count == 2 || count == 4, "one instruction");
#if defined(__CUDACC__)
  const u32 s = static_cast<u32>(__cvta_generic_to_shared(row));
  if constexpr (count == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(s)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(s)
                 : "memory");
#else
  emu::ldmatrix(d, row, count, true);
#endif
}

// Of an 8x8 matrix of 16-bit elements, lane l holds the elements 2 (l % 4) and the next of row l / 4; then of column l
// / 4.
TW_DEVICE u32 transpose_matrix(u32 elements) {
#if defined(__CUDACC__)
  u32 d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(elements));
  return d;
#else
  return emu::movmatrix(elements);
#endif
}

// d[16x8] += a[16x16] b[16x8], 16-bit floats, fp32 accumulation. Two k8 steps where the chip has no k16 shape.
template <class T>
TW_DEVICE void mma_k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if defined(__CUDACC__)
  if constexpr (same<T, bf16>()) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    static_assert(!same<T, bf16>(), "bf16 matrix units begin with sm_80");
#endif
  } else {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    TW_UNROLL for (int h = 0; h < 2; ++h) asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" : "+f"(d[0]),
        "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(b[h]));
#endif
  }
#else
  u32 bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = bits_as<u32>(d[i]);
  emu::mma(same<T, bf16>() ? emu::Mma::bf16_k16 : emu::Mma::f16_k16, bits, a, b);
  for (int i = 0; i < 4; ++i) d[i] = bits_as<float>(bits[i]);
#endif
}
// d[16x8] += a[16x8] b[8x8], single precision whose lower 13 bits are zero, fp32 accumulation.
TW_DEVICE void mma_tf32_k8(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  u32 bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = bits_as<u32>(d[i]);
  emu::mma(emu::Mma::tf32_k8, bits, a, b);
  for (int i = 0; i < 4; ++i) d[i] = bits_as<float>(bits[i]);
#endif
}
// An element as the sum of two such, but for 2^-21 of it. What is not finite is the first's alone.
TW_DEVICE void split_tf32(u32 element, u32& high, u32& low) {
  constexpr u32 kKept = 0xffffe000u, kExponent = 0x7f800000u;
  high = element & kKept;
  const u32 rest = bits_as<u32>(bits_as<float>(element) - bits_as<float>(high));
  low = (element & kExponent) == kExponent ? 0u : (rest + 0x1000u) & kKept;
}

// d[16x8] += a[16x32] b[32x8], signed bytes. Four m8n8k16 steps where the chip has no m16n8k32 shape: there the 16x32
// operand is the same registers, read as {rows 0-7, rows 8-15} x {k 0-15, k 16-31}.
TW_DEVICE void mma_s8_k32(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  TW_UNROLL for (int r = 0; r < 2; ++r) TW_UNROLL for (int h = 0; h < 2; ++h) asm volatile(
      "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(d[2 * r]),
      "+r"(d[2 * r + 1]) : "r"(a[2 * h + r]), "r"(b[h]));
#endif
#else
  u32 bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = static_cast<u32>(d[i]);
  emu::mma(emu::Mma::s8_k32, bits, a, b);
  for (int i = 0; i < 4; ++i) d[i] = static_cast<i32>(bits[i]);
#endif
}
// d[16x8] = c[16x8] + a[16x32] b[32x8], the same.
TW_DEVICE void mma_s8_k32(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const i32 (&c)[4]) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
  TW_UNROLL for (int i = 0; i < 4; ++i) d[i] = c[i];
  mma_s8_k32(d, a, b);
#endif
}

// d[16x8] += a[16x256] b[256x8], bits: how many are 1 on both sides. From sm_80 on.
TW_DEVICE void mma_b1_k256(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  u32 bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = static_cast<u32>(d[i]);
  emu::mma(emu::Mma::b1_k256, bits, a, b);
  for (int i = 0; i < 4; ++i) d[i] = static_cast<i32>(bits[i]);
#endif
}

// d[16x8] += a[16x32] b[32x8], fp8 of either kind. The units keep fewer bits of a sum than single precision has.
#define TW_MMA_F8(types)                                                    \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." types               \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <class A, class B>
TW_DEVICE void mma_f8_k32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  constexpr bool kA = same<A, e4m3>(), kB = same<B, e4m3>();
#if defined(__CUDACC__)
  if constexpr (kA && kB)
    TW_MMA_F8("e4m3.e4m3");
  else if constexpr (kA)
    TW_MMA_F8("e4m3.e5m2");
  else if constexpr (kB)
    TW_MMA_F8("e5m2.e4m3");
  else
    TW_MMA_F8("e5m2.e5m2");
#else
  u32 bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = bits_as<u32>(d[i]);
  emu::mma(kA   ? (kB ? emu::Mma::e4m3_k32 : emu::Mma::e4m3_e5m2_k32)
           : kB ? emu::Mma::e5m2_e4m3_k32
                : emu::Mma::e5m2_k32,
           bits, a, b);
  for (int i = 0; i < 4; ++i) d[i] = bits_as<float>(bits[i]);
#endif
}
#undef TW_MMA_F8
// A step of 32 bytes of both operands, whatever their elements are. B: b's, if they are fp8 of another kind than a's,
// T.
template <class T, class B = T, class Sum>
TW_DEVICE void mma_step(Sum (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (sizeof(T) == 2)
    mma_k16<T>(d, a, b);
  else if constexpr (same<T, i8>())
    mma_s8_k32(d, a, b);
  else if constexpr (same<T, signs8>())
    mma_b1_k256(d, a, b);
  else
    mma_f8_k32<T, B>(d, a, b);
}

// d[16x8] += a[16x16] b[16x8], signed bytes; the halves of mma_s8_k32's fragments are its fragments.
TW_DEVICE void mma_s8_k16(i32 (&d)[4], u32 a0, u32 a1, u32 b) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
#else
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(a0), "r"(b));
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+r"(d[2]), "+r"(d[3])
               : "r"(a1), "r"(b));
#endif
#else
  const u32 a[4] = {a0, a1, 0u, 0u}, bb[2] = {b, 0u};
  mma_s8_k32(d, a, bb);
#endif
}

// The same of 16 columns, bytes: half of a step's fragments.
template <class T, class Sum>
TW_DEVICE void mma_half_step(Sum (&d)[4], u32 a0, u32 a1, u32 b) {
  if constexpr (same<T, i8>()) {
    mma_s8_k16(d, a0, a1, b);
  } else {  // there is no such shape
    const u32 a[4] = {a0, a1, 0u, 0u}, bb[2] = {b, 0u};
    mma_f8_k32<T, T>(d, a, bb);
  }
}

// d[16x8] += a b of 32 bytes of k, in blocks whose scales the instruction applies: it takes 1 (mxf8, k 32), 2 (mxf4, k
// 64) or 4 (nvf4, k 64) bytes of these words for each row of a and column of b, from byte `byte` on. Whose word it
// reads: see emu::scaled_mma.
template <ScaledMma kind, int byte>
TW_DEVICE void mma_scaled(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], u32 scale_a, u32 scale_b) {
  static_assert(kind == ScaledMma::mxf8   ? byte < 4
                : kind == ScaledMma::mxf4 ? byte == 0 || byte == 2
                                          : byte == 0,
                "whole scales");
#if defined(__CUDACC__)
#define TW_MMA_SCALED(SHAPE)                                                                                   \
  asm volatile("mma.sync.aligned." SHAPE                                                                       \
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12, 0}, {%11}, {%12, 0};"      \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a), "r"(scale_b), \
                 "n"(byte))
  if constexpr (kind == ScaledMma::mxf8)
    TW_MMA_SCALED("kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0");
  else if constexpr (kind == ScaledMma::mxf4)
    TW_MMA_SCALED("kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0");
  else
    TW_MMA_SCALED("kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3");
#undef TW_MMA_SCALED
#else
  u32 bits[4];
  for (int i = 0; i < 4; ++i) bits[i] = bits_as<u32>(d[i]);
  emu::scaled_mma(kind, bits, a, b, scale_a, scale_b, byte);
  for (int i = 0; i < 4; ++i) d[i] = bits_as<float>(bits[i]);
#endif
}

}  // namespace tw
