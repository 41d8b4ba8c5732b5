// SPDX-License-Identifier: Apache-2.0
// How tiles of x and w get from global memory into shared memory, as rows of BK operand elements.
//
// A shared row is kRowBytes long in 16-byte chunks; chunk c of row r lies at chunk c ^ swizzle(r), so that ldmatrix, which
// reads one chunk of eight neighbouring rows, and the stores below touch every bank once.
//
// Three loaders with one face:  fetch(first row, first k)  issues the reads of a tile,  place(stage)  puts what was
// fetched into a stage. AsyncTile copies without registers: its fetch takes the stage and its place does nothing.
#pragma once
#include "core/format.cuh"
#include "gemm/epilogue.cuh"

namespace tw::gemm {

template <int row_bytes> TW_DEVICE int swizzled(int row, int chunk) {
  static_assert(row_bytes == 64 || row_bytes % 128 == 0, "row of 4 chunks or of multiples of 8");
  const int mask = row_bytes == 64 ? (row >> 1) & 3 : row & 7;
  return row * row_bytes + ((chunk ^ mask) << 4);
}

// What one stage holds of one operand.
struct Stage {
  u8* codes;      // the swizzled tile
  float* scales;  // [group of the tile][row]
  float* terms;   // weights: offsets; activations: scale * sum of codes; the same shape
};

// Where a matrix lies.
struct Source {
  const u8* data;
  const u8* scales;
  i64 data_stride, scale_stride;  // bytes from row to row
  i64 rows, k;                    // extent; zero is read beyond it
};
template <class F> TW_DEVICE Source source_of(const Operand& m, i64 rows, i64 k, i64 ld) {
  return {static_cast<const u8*>(m.data), static_cast<const u8*>(m.scales), data_stride<F>(ld), scale_stride<F>(ld), rows, k};
}

// Plain 16-bit elements whose rows start on 16 bytes.
template <class T, int ROWS, int BK, int THREADS> struct AsyncTile {
  static constexpr bool kAsync = true;
  static constexpr int kRowBytes = BK * static_cast<int>(sizeof(T)), kChunks = kRowBytes / 16;
  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, const Stage& stage) {
    TW_UNROLL for (int i = 0; i < ceil_div(ROWS * kChunks, THREADS); ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * kChunks % THREADS != 0 && t >= ROWS * kChunks) break;
      const int row = t / kChunks, chunk = t % kChunks;
      const i64 k = k0 + chunk * (16 / static_cast<int>(sizeof(T)));
      const bool inside = row0 + row < s.rows && k < s.k;
      const u8* from = inside ? s.data + (row0 + row) * s.data_stride + k * static_cast<i64>(sizeof(T)) : s.data;
      cp_async<16>(stage.codes + swizzled<kRowBytes>(row, chunk), from, inside ? 16 : 0);
    }
  }
  TW_MEMBER void place(const Stage&) {}
};

// Plain elements through registers, E at a time, where rows are not aligned or the chip copies nothing by itself.
template <class F, int ROWS, int BK, int E, int THREADS> struct PlainTile {
  using T = typename F::Element;
  static constexpr bool kAsync = false;
  static constexpr int kRowBytes = BK * static_cast<int>(sizeof(T));
  static constexpr int kPieces = BK / E, kEach = ceil_div(ROWS * kPieces, THREADS);
  typename F::template Unit<E> unit[kEach];

  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, const Stage&) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      const int row = t / kPieces;
      const i64 k = k0 + t % kPieces * E;
      unit[i] = {};
      if (t < ROWS * kPieces && row0 + row < s.rows && k < s.k)
        F::template load<E>(unit[i], s.data + (row0 + row) * s.data_stride, nullptr, k);
    }
  }
  TW_MEMBER void place(const Stage& stage) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * kPieces % THREADS != 0 && t >= ROWS * kPieces) break;
      const int row = t / kPieces, byte = t % kPieces * E * static_cast<int>(sizeof(T));
      u8* to = stage.codes + swizzled<kRowBytes>(row, byte / 16) + byte % 16;
      const u32* raw = unit[i].raw;
      if constexpr (E * sizeof(T) == 16) *reinterpret_cast<u32x4*>(to) = {raw[0], raw[1], raw[2], raw[3]};
      else if constexpr (E * sizeof(T) == 8) *reinterpret_cast<u32x2*>(to) = {raw[0], raw[1]};
      else if constexpr (E * sizeof(T) == 4) *reinterpret_cast<u32*>(to) = raw[0];
      else *reinterpret_cast<u16*>(to) = static_cast<u16>(raw[0]);
    }
  }
};

// Four signed bytes to four 16-bit floats of the same value, exactly.
template <class T> TW_DEVICE u32x2 widen(u32 codes) {
  if constexpr (same<T, f16>) {
    // A byte b + 128 under the exponent of 1024 is the half 1024 + b + 128.
    const u32 biased = codes ^ 0x80808080u;
    const u32 lo = prmt(biased, 0x64646464u, 0x4140u), hi = prmt(biased, 0x64646464u, 0x4342u);
    return {sub_f16x2(lo, 0x64806480u), sub_f16x2(hi, 0x64806480u)};
  } else {
    return {pack_bf16x2(fmt::code_at(&codes, 0), fmt::code_at(&codes, 1)), pack_bf16x2(fmt::code_at(&codes, 2), fmt::code_at(&codes, 3))};
  }
}

// Blocks of codes through registers; T is i8, or the 16-bit float that holds a code exactly. Scales stay apart.
// Activations (kSums) store scale * sum of codes as their term, weights their offset.
template <class F, class T, int ROWS, int BK, int E, int THREADS, bool kSums, bool kTerms> struct CodeTile {
  static constexpr bool kAsync = false;
  static constexpr int kRowBytes = BK * static_cast<int>(sizeof(T));
  static constexpr int kPieces = BK / E, kEach = ceil_div(ROWS * kPieces, THREADS);
  static constexpr int kGroup = F::kGroup, kGroups = E / kGroup;
  typename F::template Unit<E> unit[kEach];

  // Neighbouring threads take neighbouring rows: their shared stores then differ in the swizzle.
  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, const Stage&) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      const int row = t % ROWS;
      const i64 k = k0 + t / ROWS * E;
      unit[i] = {};
      if (t < ROWS * kPieces && row0 + row < s.rows && k < s.k)
        F::template load<E>(unit[i], s.data + (row0 + row) * s.data_stride,
                            F::kScaleBytes ? s.scales + (row0 + row) * s.scale_stride : nullptr, k);
    }
  }
  TW_MEMBER static void put(const Stage& stage, int row, int element, const u32 (&codes)[kGroup / 4]) {
    if constexpr (same<T, i8>) {
      TW_UNROLL for (int i = 0; i < kGroup / 16; ++i)
        *reinterpret_cast<u32x4*>(stage.codes + swizzled<kRowBytes>(row, element / 16 + i)) = {codes[4 * i], codes[4 * i + 1],
                                                                                              codes[4 * i + 2], codes[4 * i + 3]};
    } else {
      TW_UNROLL for (int i = 0; i < kGroup / 8; ++i) {
        const u32x2 lo = widen<T>(codes[2 * i]), hi = widen<T>(codes[2 * i + 1]);
        *reinterpret_cast<u32x4*>(stage.codes + swizzled<kRowBytes>(row, element / 8 + i)) = {lo.x, lo.y, hi.x, hi.y};
      }
    }
  }
  TW_MEMBER void place(const Stage& stage) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * kPieces % THREADS != 0 && t >= ROWS * kPieces) break;
      const int row = t % ROWS, piece = t / ROWS;
      TW_UNROLL for (int g = 0; g < kGroups; ++g) {
        u32 codes[kGroup / 4];
        float scale, offset;
        F::template group<E>(unit[i], g, codes, scale, offset);
        put(stage, row, piece * E + g * kGroup, codes);
        const int at = (piece * kGroups + g) * ROWS + row;
        stage.scales[at] = scale;
        if constexpr (kTerms && !kSums) stage.terms[at] = offset;
        if constexpr (kTerms && kSums) {
          i32 sum = 0;
          TW_UNROLL for (int j = 0; j < kGroup / 4; ++j) sum = dp4a(codes[j], 0x01010101u, sum);
          stage.terms[at] = scale * static_cast<float>(sum);
        }
      }
    }
  }
};

}  // namespace tw::gemm
