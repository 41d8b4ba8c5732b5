// SPDX-License-Identifier: Apache-2.0
// One function per instruction. PTX appears here and in arch/ and nowhere else. Each wrapper has a host body: scalar
// ones in place, collective ones (whatever needs the other threads) through tw::emu, which tests/emulator defines.
#pragma once
#include "backends/cuda/numeric.cuh"
#include "backends/cuda/types.cuh"

#if !defined(__CUDACC__)
namespace tw::emu {
struct Dim {
  u32 x, y, z;
};
u32 thread();  // index within the block
Dim block();   // index within the grid
Dim grid();
u8* shared();  // dynamic shared memory of this block, 1024-byte aligned
void sync_block();
void sync_warp();
u32 shuffle_xor(u32 value, int mask);
u32 shuffle_down(u32 value, int delta);
void cp_async(void* shared, const void* global, int bytes, int valid_bytes);  // becomes visible at the matching wait
void cp_async_commit();
void cp_async_wait(int pending);
u32 cluster_rank();
void sync_cluster();
u32 load_cluster(const u32* shared, u32 rank);  // the same offset in the shared memory of another block of the cluster
void wait_prerequisite_grids();
void launch_dependent_grids();
}  // namespace tw::emu
#endif

namespace tw {

// ---- where am I ----------------------------------------------------------------------------------------------------
#if defined(__CUDACC__)
TW_DEVICE u32 thread_x() { return threadIdx.x; }
TW_DEVICE u32 block_x() { return blockIdx.x; }
// The same value, but the compiler does not know that, and keeps nothing that was computed from block_x() for it.
TW_DEVICE u32 reread_block_x() {
  u32 block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  return block;
}
// The same value, of which the compiler does not know how it was computed.
TW_DEVICE i64 opaque(i64 v) {
  asm volatile("" : "+l"(v));
  return v;
}
TW_DEVICE u32 block_y() { return blockIdx.y; }
TW_DEVICE u32 block_z() { return blockIdx.z; }
TW_DEVICE u32 grid_x() { return gridDim.x; }
TW_DEVICE u8* dynamic_shared() {
  extern __shared__ __align__(1024) u8 tilewright_shared[];
  return tilewright_shared;
}
TW_DEVICE void sync_block() { __syncthreads(); }
TW_DEVICE void sync_warp() { __syncwarp(); }
#else
TW_DEVICE u32 thread_x() { return emu::thread(); }
TW_DEVICE u32 block_x() { return emu::block().x; }
TW_DEVICE u32 reread_block_x() { return emu::block().x; }
TW_DEVICE i64 opaque(i64 v) { return v; }
TW_DEVICE u32 block_y() { return emu::block().y; }
TW_DEVICE u32 block_z() { return emu::block().z; }
TW_DEVICE u32 grid_x() { return emu::grid().x; }
TW_DEVICE u8* dynamic_shared() { return emu::shared(); }
TW_DEVICE void sync_block() { emu::sync_block(); }
TW_DEVICE void sync_warp() { emu::sync_warp(); }
#endif

// ---- shuffles (all 32 lanes take part) -----------------------------------------------------------------------------
#if defined(__CUDACC__)
TW_DEVICE u32 shuffle_xor(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TW_DEVICE u32 shuffle_down(u32 v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
#else
TW_DEVICE u32 shuffle_xor(u32 v, int mask) { return emu::shuffle_xor(v, mask); }
TW_DEVICE u32 shuffle_down(u32 v, int delta) { return emu::shuffle_down(v, delta); }
#endif
TW_DEVICE float shuffle_xor(float v, int mask) { return bits_as<float>(shuffle_xor(bits_as<u32>(v), mask)); }
TW_DEVICE i32 shuffle_xor(i32 v, int mask) { return static_cast<i32>(shuffle_xor(static_cast<u32>(v), mask)); }
// Sum over groups of `width` neighbouring lanes; every lane gets it.
template <int width, class T>
TW_DEVICE T sum_lanes(T v) {
  TW_UNROLL for (int d = width / 2; d > 0; d /= 2) v += shuffle_xor(v, d);
  return v;
}
template <int width>
TW_DEVICE float max_lanes(float v) {
  TW_UNROLL for (int d = width / 2; d > 0; d /= 2) v = max2(v, shuffle_xor(v, d));
  return v;
}

// ---- floating point
// --------------------------------------------------------------------------------------------------- The larger; of a
// number and a NaN, the number.
TW_DEVICE float max_number(float a, float b) {
#if defined(__CUDACC__)
  float d;
  asm("max.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
#else
  return is_nan(a) || a < b ? b : a;
#endif
}
// NaN if one of them is.
TW_DEVICE float max_or_nan(float a, float b) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
#else
  return is_nan(a) || a > b ? a : b;
#endif
}
TW_DEVICE float min_number(float a, float b) {
#if defined(__CUDACC__)
  float d;
  asm("min.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
#else
  return is_nan(a) || b < a ? b : a;
#endif
}

// Bits that are 1.
TW_FN i32 popcount(u32 word) {
#if defined(__CUDACC__)
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

// ---- integer
// --------------------------------------------------------------------------------------------------------- Byte
// permute: result byte i is byte (selector nibble i & 7) of {b, a}; selector bit 3 replicates that byte's sign.
TW_DEVICE u32 prmt(u32 a, u32 b, u32 selector) {
#if defined(__CUDACC__)
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
#else
  const u64 bytes = (static_cast<u64>(b) << 32) | a;
  u32 d = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 s = (selector >> (4 * i)) & 15u;
    u32 byte = static_cast<u32>(bytes >> (8 * (s & 7u))) & 255u;
    if (s & 8u) byte = (byte & 128u) ? 255u : 0u;
    d |= byte << (8 * i);
  }
  return d;
#endif
}
// (a & mask) ^ bits, in one instruction (from the plain expression the compiler makes two). Bits beyond the mask are
// set so.
template <u32 mask, u32 bits>
TW_DEVICE u32 mask_xor(u32 a) {
#if defined(__CUDACC__)
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "n"(mask), "n"(bits));
  return d;
#else
  return (a & mask) ^ bits;
#endif
}
// c + sum of the four products of signed bytes.
TW_DEVICE i32 dp4a(u32 a, u32 b, i32 c) {
#if defined(__CUDACC__)
  i32 d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  u32 sum = static_cast<u32>(c);  // wraps around
  for (int i = 0; i < 4; ++i) sum += static_cast<u32>(static_cast<i8>(a >> (8 * i)) * static_cast<i8>(b >> (8 * i)));
  return static_cast<i32>(sum);
#endif
}

// ---- packed 16-bit floats
// -------------------------------------------------------------------------------------------- lo in the low half.
TW_DEVICE u32 pack_f16x2(float lo, float hi) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
#else
  return f32_to_f16_bits(lo) | (static_cast<u32>(f32_to_f16_bits(hi)) << 16);
#endif
}
TW_DEVICE u32 pack_bf16x2(float lo, float hi) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
#else
  return f32_to_bf16_bits(lo) | (static_cast<u32>(f32_to_bf16_bits(hi)) << 16);
#endif
}
// Two E4M3 codes, saturating, lo in the low byte.
TW_DEVICE u32 pack_e4m3x2(float lo, float hi) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
  u16 d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#else
  return f32_to_e4m3(lo) | (static_cast<u32>(f32_to_e4m3(hi)) << 8);
#endif
}
// A pair of f16 as two E4M3 codes, saturating, in the low half of a word.
TW_DEVICE u32 f16x2_to_e4m3x2(u32 halves) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
  u16 d;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(d) : "r"(halves));
  return d;
#else
  return f32_to_e4m3(f16_bits_to_f32(static_cast<u16>(halves))) |
         static_cast<u32>(f32_to_e4m3(f16_bits_to_f32(static_cast<u16>(halves >> 16)))) << 8;
#endif
}
// Both bytes of a half word, E4M3 codes, as f16, exactly.
TW_DEVICE u32 e4m3x2_to_f16x2(u16 codes) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
  u32 d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(codes));
  return d;
#else
  return pack_f16x2(e4m3_to_f32(static_cast<u8>(codes)), e4m3_to_f32(static_cast<u8>(codes >> 8)));
#endif
}
TW_DEVICE u32 pack_e5m2x2(float lo, float hi) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
  u16 d;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
  return d;
#else
  return f32_to_e5m2(lo) | (static_cast<u32>(f32_to_e5m2(hi)) << 8);
#endif
}
// The low bytes of four words, in order.
TW_DEVICE u32 pack_bytes(u32 a, u32 b, u32 c, u32 d) { return prmt(prmt(a, b, 0x0040u), prmt(c, d, 0x0040u), 0x5410u); }
// Two elements of at most 16 bits, lo in the low bits.
template <class T>
TW_DEVICE u32 pack2(float lo, float hi) {
  if constexpr (same<T, f16>())
    return pack_f16x2(lo, hi);
  else if constexpr (same<T, bf16>())
    return pack_bf16x2(lo, hi);
  else if constexpr (same<T, e4m3>())
    return pack_e4m3x2(lo, hi);
  else if constexpr (same<T, e5m2>())
    return pack_e5m2x2(lo, hi);
  else
    return (static_cast<u32>(f32_to_i8(lo)) & 255u) | ((static_cast<u32>(f32_to_i8(hi)) & 255u) << 8);
}
template <class T>
TW_DEVICE float low_half(u32 v) {
  if constexpr (same<T, f16>())
    return f16_bits_to_f32(static_cast<u16>(v));
  else
    return bits_as<float>(v << 16);
}
template <class T>
TW_DEVICE float high_half(u32 v) {
  if constexpr (same<T, f16>())
    return f16_bits_to_f32(static_cast<u16>(v >> 16));
  else
    return bits_as<float>(v & 0xffff0000u);
}
// Bytes 2 `half` and the next of a word, fp8 of kind T, as 16-bit floats To, exactly.
template <class To, class T>
TW_DEVICE u32 widen_fp8x2(u32 word, int half) {
  static_assert(same<T, e4m3>() || same<T, e5m2>(), "fp8");
  u32 v;
  if constexpr (same<T, e4m3>())
    v = e4m3x2_to_f16x2(static_cast<u16>(word >> (16 * half)));
  else
    v = prmt(word, 0u, half ? 0x3424u : 0x1404u);  // the upper bytes of halves
  if constexpr (same<To, f16>())
    return v;
  else
    return pack_bf16x2(low_half<f16>(v), high_half<f16>(v));
}
TW_DEVICE u32 sub_f16x2(u32 a, u32 b) {
#if defined(__CUDACC__)
  u32 d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  return pack_f16x2(low_half<f16>(a) - low_half<f16>(b), high_half<f16>(a) - high_half<f16>(b));
#endif
}
// One half of a word, twice. As moves, not as a permute: an operation on halves then reads it where it is.
TW_DEVICE u32 spread(u32 word, int half) {
#if defined(__CUDACC__)
  u32 d;
  if (half)
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(d) : "r"(word));
  else
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(d) : "r"(word));
  return d;
#else
  return prmt(word, 0u, half ? 0x3232u : 0x1010u);
#endif
}
TW_DEVICE u32 neg_f16x2(u32 a) {
#if defined(__CUDACC__)
  u32 d;
  asm("neg.f16x2 %0, %1;" : "=r"(d) : "r"(a));
  return d;
#else
  return a ^ 0x80008000u;
#endif
}
TW_DEVICE u32 mul_f16x2(u32 a, u32 b) {
#if defined(__CUDACC__)
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  return pack_f16x2(low_half<f16>(a) * low_half<f16>(b), high_half<f16>(a) * high_half<f16>(b));
#endif
}
// a b + c, rounded once.
template <class T>
TW_DEVICE u32 fma2(u32 a, u32 b, u32 c) {
#if defined(__CUDACC__)
  u32 d;
  if constexpr (same<T, f16>())
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  // Through a double, which holds the sum unless c is far from the product: rounded twice only near ties.
  const auto fma = [](float x, float y, float z) { return static_cast<float>(static_cast<double>(x) * y + z); };
  return pack2<T>(fma(low_half<T>(a), low_half<T>(b), low_half<T>(c)),
                  fma(high_half<T>(a), high_half<T>(b), high_half<T>(c)));
#endif
}

// ---- memory
// ---------------------------------------------------------------------------------------------------------- Weights
// and activations are read once or through L2: the non-coherent path, 16, 8, 4, 2 or 1 bytes, naturally aligned.
TW_DEVICE u32x4 load_global16(const void* p) {
#if defined(__CUDACC__)
  u32x4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
#else
  return *static_cast<const u32x4*>(p);
#endif
}
// Loads a stream that no other block reads, without keeping it in L1.
TW_DEVICE u32x4 load_stream16(const void* p) {
#if defined(__CUDACC__)
  u32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#else
  return *static_cast<const u32x4*>(p);
#endif
}
TW_DEVICE u32x2 load_global8(const void* p) {
#if defined(__CUDACC__)
  u32x2 v;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
#else
  return *static_cast<const u32x2*>(p);
#endif
}
TW_DEVICE u32 load_global4(const void* p) {
#if defined(__CUDACC__)
  u32 v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
#else
  return *static_cast<const u32*>(p);
#endif
}
TW_DEVICE u16 load_global2(const void* p) {
#if defined(__CUDACC__)
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
#else
  return *static_cast<const u16*>(p);
#endif
}
TW_DEVICE u8 load_global1(const void* p) {
#if defined(__CUDACC__)
  u16 v;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(v) : "l"(p));
  return static_cast<u8>(v);
#else
  return *static_cast<const u8*>(p);
#endif
}
TW_DEVICE void store_global16(void* p, u32x4 v) {
#if defined(__CUDACC__)
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *static_cast<u32x4*>(p) = v;
#endif
}
// words <- `bytes` (1, 2, 4 or 8) at p, aligned to as many; zeros, and nothing is read, unless `inside`. Predicated, so
// that loads of one element each do not become branches.
template <int bytes>
TW_DEVICE void load_words_if(u32 (&words)[ceil_div(bytes, 4)], const void* p, bool inside) {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8, "one load");
#if defined(__CUDACC__)
#define TW_LOAD_IF(type)                                                                                 \
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc." type " %0, [%1];}" \
               : "=&r"(words[0])                                                                         \
               : "l"(p), "r"(static_cast<u32>(inside)))
  if constexpr (bytes == 1)
    TW_LOAD_IF("u8");
  else if constexpr (bytes == 2)
    TW_LOAD_IF("u16");
  else if constexpr (bytes == 4)
    TW_LOAD_IF("u32");
  else
    asm volatile(
        "{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
        : "=&r"(words[0]), "=&r"(words[1])
        : "l"(p), "r"(static_cast<u32>(inside)));
#undef TW_LOAD_IF
#else
  TW_UNROLL for (int i = 0; i < ceil_div(bytes, 4); ++i) words[i] = 0;
  if (!inside) return;
  if constexpr (bytes == 1)
    words[0] = load_global1(p);
  else if constexpr (bytes == 2)
    words[0] = load_global2(p);
  else if constexpr (bytes == 4)
    words[0] = load_global4(p);
  else {
    const u32x2 v = load_global8(p);
    words[0] = v.x, words[1] = v.y;
  }
#endif
}
// words[i] <- p, in pieces of `align` bytes (16, 8, 4 or 2). `bytes` is a multiple of align; a last half word is
// zero-filled.
template <int bytes, int align>
TW_DEVICE void load_words(u32* words, const u8* p) {
  static_assert(bytes % align == 0 && (align == 16 || align == 8 || align == 4 || align == 2), "alignment");
  if constexpr (align == 16) {
    TW_UNROLL for (int i = 0; i < bytes / 16; ++i) {
      const u32x4 v = load_global16(p + 16 * i);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else if constexpr (align == 8) {
    TW_UNROLL for (int i = 0; i < bytes / 8; ++i) {
      const u32x2 v = load_global8(p + 8 * i);
      words[2 * i] = v.x, words[2 * i + 1] = v.y;
    }
  } else if constexpr (align == 4) {
    TW_UNROLL for (int i = 0; i < bytes / 4; ++i) words[i] = load_global4(p + 4 * i);
  } else {
    TW_UNROLL for (int i = 0; i < bytes / 4; ++i) words[i] =
        load_global2(p + 4 * i) | (static_cast<u32>(load_global2(p + 4 * i + 2)) << 16);
    if constexpr (bytes % 4 == 2) words[bytes / 4] = load_global2(p + bytes - 2);
  }
}

// The same from shared memory, where the compiler picks the instruction.
template <int bytes, int align>
TW_DEVICE void load_shared_words(u32* words, const u8* p) {
  static_assert(bytes % align == 0 && (align == 16 || align == 8 || align == 4 || align == 2), "alignment");
  if constexpr (align == 16) {
    TW_UNROLL for (int i = 0; i < bytes / 16; ++i) {
      const u32x4 v = reinterpret_cast<const u32x4*>(p)[i];
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  } else if constexpr (align == 8) {
    TW_UNROLL for (int i = 0; i < bytes / 8; ++i) {
      const u32x2 v = reinterpret_cast<const u32x2*>(p)[i];
      words[2 * i] = v.x, words[2 * i + 1] = v.y;
    }
  } else if constexpr (align == 4) {
    TW_UNROLL for (int i = 0; i < bytes / 4; ++i) words[i] = reinterpret_cast<const u32*>(p)[i];
  } else {
    const u16* halves = reinterpret_cast<const u16*>(p);
    TW_UNROLL for (int i = 0; i < bytes / 4; ++i) words[i] =
        halves[2 * i] | (static_cast<u32>(halves[2 * i + 1]) << 16);
    if constexpr (bytes % 4 == 2) words[bytes / 4] = halves[bytes / 2 - 1];
  }
}

// ---- asynchronous copies, global to shared
// ----------------------------------------------------------------------------- `bytes` is 4, 8 or 16; the rest of it
// beyond `valid` is zero. valid == 0 reads nothing (p must still be a valid pointer value, not necessarily to memory).
template <int bytes>
TW_DEVICE void cp_async(void* shared, const void* p, int valid = bytes) {
#if defined(__CUDACC__)
  const u32 s = static_cast<u32>(__cvta_generic_to_shared(shared));
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(p), "r"(valid) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(s), "l"(p), "n"(bytes), "r"(valid) : "memory");
#else
  emu::cp_async(shared, p, bytes, valid);
#endif
}
TW_DEVICE void cp_async_commit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emu::cp_async_commit();
#endif
}
// Until at most `pending` of this thread's groups are unfinished.
template <int pending>
TW_DEVICE void cp_async_wait() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#else
  emu::cp_async_wait(pending);
#endif
}

// ---- clusters (compute capability 9.0 and up)
// ----------------------------------------------------------------------------
TW_DEVICE u32 cluster_rank() {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 900
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
#else
  return 0;
#endif
#else
  return emu::cluster_rank();
#endif
}
TW_DEVICE void sync_cluster() {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
#else
  emu::sync_cluster();
#endif
}
// A word of another block's shared memory, at the offset that `shared` has in this block's.
TW_DEVICE float load_cluster(const float* shared, u32 rank) {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 900
  const u32 s = static_cast<u32>(__cvta_generic_to_shared(shared));
  u32 remote;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(s), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(remote) : "memory");
  return v;
#else
  return rank == 0 ? *shared : 0.0f;
#endif
#else
  return bits_as<float>(emu::load_cluster(reinterpret_cast<const u32*>(shared), rank));
#endif
}

// ---- what is before and after this kernel (compute capability 9.0 and up; elsewhere kernels do not overlap)
// --------------- Until the kernels before this one are complete, and what they wrote is there.
TW_DEVICE void wait_prerequisite_grids() {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#else
  emu::wait_prerequisite_grids();
#endif
}
// Once all blocks have, blocks of the kernel behind this one may start.
TW_DEVICE void launch_dependent_grids() {
#if defined(__CUDACC__)
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
#else
  emu::launch_dependent_grids();
#endif
}

// ---- special functions (not exactly rounded)
// -----------------------------------------------------------------------------
#if defined(__CUDACC__)
TW_DEVICE float exp_f(float v) { return expf(v); }
TW_DEVICE float tanh_f(float v) { return tanhf(v); }
TW_DEVICE float erf_f(float v) { return erff(v); }
#else
TW_DEVICE float exp_f(float v) { return __builtin_expf(v); }
TW_DEVICE float tanh_f(float v) { return __builtin_tanhf(v); }
TW_DEVICE float erf_f(float v) { return __builtin_erff(v); }
#endif

}  // namespace tw
