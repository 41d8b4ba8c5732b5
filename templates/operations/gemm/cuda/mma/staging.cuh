// SPDX-License-Identifier: Apache-2.0
// How tiles of x and w get from global into shared memory, as rows of BK elements of an operand. A row there is
// swizzled by chunks of 16 bytes, so that neither the stores below nor the units' reads meet in a bank.
//
// Plain elements go straight into the tile: AsyncTile copies without registers, PlainTile fetches into registers and
// places them later. Codes take two steps, see CodeTile.
#pragma once
#include "backends/cuda/fragments.cuh"
#include "formats/shared/format.cuh"
#include "operations/gemm/cuda/mma/plan.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/widen.cuh"

namespace tw::gemm {

// A tile that the matrix units can read.
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
template <class F>
TW_DEVICE Source source_of(const Operand& m, i64 rows, i64 k, i64 ld) {
  return {static_cast<const u8*>(m.data),
          static_cast<const u8*>(m.scales),
          data_stride<F>(ld),
          scale_stride<F>(ld),
          rows,
          k};
}

// Where y's rows are contiguous along m instead of n, 16 rows of a tile are 8 pairs of neighbours: fragments then hold
// both of a pair, which are stored together. The row of y that a tile's row is, and the other way round.
TW_DEVICE int paired_row(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }
TW_DEVICE int row_of_pair(int m) { return (m & ~15) | (m & 1) << 3 | (m >> 1 & 7); }

// Plain elements whose rows start on 16 bytes.
template <class T, int ROWS, int BK, int THREADS>
struct AsyncTile {
  TW_CONSTANTS(int, kRowBytes = BK * static_cast<int>(sizeof(T)), kChunks = kRowBytes / 16);
  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, u8* tile) {
    static_assert(THREADS % kChunks == 0, "a thread's chunks are below each other");
    const int first = static_cast<int>(thread_x()) / kChunks, chunk = static_cast<int>(thread_x()) % kChunks;
    const i64 k = k0 + chunk * (16 / static_cast<int>(sizeof(T)));
    // Chunks beyond the matrix are filled with zeros and not read.
    const u8* from = s.data + (row0 + first) * s.data_stride + k * static_cast<i64>(sizeof(T));
    const int left = k < s.k ? static_cast<int>(min2(i64{ROWS}, s.rows - row0)) : 0;
    TW_UNROLL for (int i = 0; i < ceil_div(ROWS * kChunks, THREADS); ++i) {
      const int row = first + i * (THREADS / kChunks);
      if (ROWS * kChunks % THREADS != 0 && row >= ROWS) break;
      cp_async<16>(tile + swizzled<kRowBytes>(row, chunk), from, row < left ? 16 : 0);
      from += THREADS / kChunks * s.data_stride;
    }
  }
  TW_MEMBER void place(u8*) {}
};

// Plain elements through registers, E at a time, where rows are not aligned or the target has no asynchronous copies.
template <class T, int ROWS, int BK, int E, int THREADS>
struct PlainTile {
  using F = fmt::Plain<T, 8 * static_cast<int>(sizeof(T))>;
  TW_CONSTANTS(int, kRowBytes = BK * static_cast<int>(sizeof(T)));
  TW_CONSTANTS(int, kPieces = BK / E, kEach = ceil_div(ROWS * kPieces, THREADS));
  typename F::template Unit<E> unit[kEach];

  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, u8*) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      const int row = t / kPieces;
      const i64 k = k0 + t % kPieces * E;
      unit[i] = {};
      if (t < ROWS * kPieces && row0 + row < s.rows && k < s.k)
        F::template load<E>(unit[i], s.data + (row0 + row) * s.data_stride, nullptr, k);
    }
  }
  TW_MEMBER void place(u8* tile) {
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * kPieces % THREADS != 0 && t >= ROWS * kPieces) break;
      const int row = t / kPieces, byte = t % kPieces * E * static_cast<int>(sizeof(T));
      u8* to = tile + swizzled<kRowBytes>(row, byte / 16) + byte % 16;
      const u32* raw = unit[i].raw;
      if constexpr (E * sizeof(T) == 16)
        *reinterpret_cast<u32x4*>(to) = {raw[0], raw[1], raw[2], raw[3]};
      else if constexpr (E * sizeof(T) == 8)
        *reinterpret_cast<u32x2*>(to) = {raw[0], raw[1]};
      else if constexpr (E * sizeof(T) == 4)
        *reinterpret_cast<u32*>(to) = raw[0];
      else
        *reinterpret_cast<u16*>(to) = static_cast<u16>(raw[0]);
    }
  }
};

// 16 bytes of a row in the swizzled tile, from loads of `bytes` each.
template <int bytes>
TW_DEVICE void place_chunk(u8* to, const u32 (&raw)[16 / bytes][ceil_div(bytes, 4)]) {
  u32 words[4] = {};
  TW_UNROLL for (int l = 0; l < 16 / bytes; ++l) TW_UNROLL for (int j = 0; j < ceil_div(bytes, 4); ++j)
      words[l * bytes / 4 + j] |= raw[l][j] << (l * bytes % 4 * 8);
  *reinterpret_cast<u32x4*>(to) = {words[0], words[1], words[2], words[3]};
}

// Plain elements E at a time, less than 16 bytes, of which a thread collects 16 of each of its rows: fewer stores and
// addresses than PlainTile has.
template <class T, int ROWS, int BK, int E, int THREADS>
struct CollectedTile {
  TW_CONSTANTS(int, kSize = sizeof(T), kRowBytes = BK * kSize, kChunks = kRowBytes / 16, kStep = THREADS / kChunks,
               kEach = ceil_div(ROWS, kStep));
  TW_CONSTANTS(int, kBytes = E * kSize, kLoads = 16 / kBytes);
  static_assert(THREADS % kChunks == 0, "a thread's chunks are below each other");
  u32 raw[kEach][kLoads][ceil_div(kBytes, 4)];

  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, u8*) {
    const int first = static_cast<int>(thread_x()) / kChunks;
    const i64 k = k0 + static_cast<int>(thread_x()) % kChunks * (16 / kSize);
    const int columns = static_cast<int>(max2(i64{0}, min2(i64{16 / kSize}, s.k - k)));
    const int rows = static_cast<int>(min2(i64{ROWS}, s.rows - row0));
    u64 from = reinterpret_cast<u64>(s.data) + static_cast<u64>((row0 + first) * s.data_stride + k * kSize);
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      TW_UNROLL for (int l = 0; l < kLoads; ++l) load_words_if<kBytes>(
          raw[i][l], reinterpret_cast<const void*>(from + l * kBytes), first + i * kStep < rows && l * E < columns);
      from += static_cast<u64>(kStep * s.data_stride);
    }
  }
  TW_MEMBER void place(u8* tile) {
    const int first = static_cast<int>(thread_x()) / kChunks, chunk = static_cast<int>(thread_x()) % kChunks;
    TW_UNROLL for (int i = 0; i < kEach; ++i) {
      const int row = first + i * kStep;
      if (ROWS % kStep != 0 && row >= ROWS) break;
      place_chunk<kBytes>(tile + swizzled<kRowBytes>(row, chunk), raw[i]);
    }
  }
};

// Blocks that the matrix units take as they are stored: kRowBytes of codes to a row, and behind all rows their scales,
// which a thread reads by words.
template <class F, int ROWS, int THREADS>
struct ScaledRowsTile {
  TW_CONSTANTS(int, kRowBytes = kScaledRowBytes, kColumns = kRowBytes * F::kBlock / F::kDataBytes);
  TW_CONSTANTS(int, kScaleBytes = kColumns / F::kBlock * F::kScaleBytes, kWords = kScaleBytes / 4);
  AsyncTile<u8, ROWS, kRowBytes, THREADS> codes;
  TW_MEMBER void fetch(const Source& s, i64 row0, i64 k0, u8* tile) {
    const auto bytes = [](i64 columns) { return columns / F::kBlock * F::kDataBytes; };
    codes.fetch({s.data, nullptr, s.data_stride, 0, s.rows, bytes(s.k)}, row0, bytes(k0), tile);
    const i64 first = k0 / F::kBlock * F::kScaleBytes, valid = s.k / F::kBlock * F::kScaleBytes - first;
    for (int t = static_cast<int>(thread_x()); t < ROWS * kWords; t += THREADS) {
      const int row = t / kWords, byte = t % kWords * 4;
      const bool inside = row0 + row < s.rows && byte < valid;
      cp_async<4>(tile + ROWS * kRowBytes + row * kScaleBytes + byte,
                  inside ? s.scales + (row0 + row) * s.scale_stride + first + byte : s.scales, inside ? 4 : 0);
    }
  }
  TW_MEMBER void place(u8*) {}
  // Scales of a row, from word `word` on.
  TW_MEMBER static u32 scales(const u8* tile, int row, int word) {
    return *reinterpret_cast<const u32*>(tile + ROWS * kRowBytes + row * kScaleBytes + 4 * word);
  }
};

// Plain elements of one byte, of From, as 16-bit floats T, exactly: through registers, E at a time.
template <class T, class From, int ROWS, int BK, int E, int THREADS>
struct WidenedTile : PlainTile<From, ROWS, BK, E, THREADS> {
  using Base = PlainTile<From, ROWS, BK, E, THREADS>;
  TW_CONSTANTS(int, kRowBytes = BK * static_cast<int>(sizeof(T)));
  TW_MEMBER static u32x2 four(u32 word) {
    if constexpr (same<From, i8>())
      return widen<T>(word);
    else
      return {widen_fp8x2<T, From>(word, 0), widen_fp8x2<T, From>(word, 1)};
  }
  TW_MEMBER void place(u8* tile) {
    TW_UNROLL for (int i = 0; i < Base::kEach; ++i) {
      const int t = static_cast<int>(thread_x()) + i * THREADS;
      if (ROWS * Base::kPieces % THREADS != 0 && t >= ROWS * Base::kPieces) break;
      const int row = t / Base::kPieces, byte = t % Base::kPieces * E * static_cast<int>(sizeof(T));
      const u32* raw = this->unit[i].raw;
      const auto to = [&](int chunk) { return tile + swizzled<kRowBytes>(row, byte / 16 + chunk) + byte % 16; };
      if constexpr (E >= 8) {
        TW_UNROLL for (int j = 0; j < E / 8; ++j) {
          const u32x2 lo = four(raw[2 * j]), hi = four(raw[2 * j + 1]);
          *reinterpret_cast<u32x4*>(to(j)) = {lo.x, lo.y, hi.x, hi.y};
        }
      } else if constexpr (E == 4) {
        *reinterpret_cast<u32x2*>(to(0)) = four(raw[0]);
      } else if constexpr (E == 2) {
        *reinterpret_cast<u32*>(to(0)) = four(raw[0]).x;
      } else {
        *reinterpret_cast<u16*>(to(0)) = static_cast<u16>(four(raw[0]).x);
      }
    }
  }
};

// Bytes from global to shared memory as they are, in pieces of `bytes`; zero if not `inside`.
template <int bytes, bool async>
TW_DEVICE void copy_piece(u8* to, const u8* from, bool inside) {
  if constexpr (async && bytes >= 4) {
    cp_async<bytes>(to, from, inside ? bytes : 0);
  } else {
    u32 words[ceil_div(bytes, 4)] = {};
    if (inside) load_words<bytes, bytes>(words, from);
    if constexpr (bytes == 16)
      *reinterpret_cast<u32x4*>(to) = {words[0], words[1], words[2], words[3]};
    else if constexpr (bytes == 8)
      *reinterpret_cast<u32x2*>(to) = {words[0], words[1]};
    else if constexpr (bytes == 4)
      *reinterpret_cast<u32*>(to) = words[0];
    else
      *reinterpret_cast<u16*>(to) = static_cast<u16>(words[0]);
  }
}

// Blocks of codes: copied as stored, neighbouring threads taking neighbouring bytes, and unpacked from shared memory
// into the swizzled tile a step before it is needed. T is i8, or a float that holds a code exactly; scales stay apart.
// Codes of a table become its entries, rounded to T.
// Activations (kSums) store scale * sum of codes as their term, weights their offset.
//   E  elements of a unit that divides k: what the alignment of a row's pieces follows from
template <class F, class T, int ROWS, int BK, int E, int THREADS, bool ASYNC, bool kSums, bool kTerms>
struct CodeTile {
  TW_CONSTANTS(int, kRowBytes = BK * static_cast<int>(sizeof(T)));
  TW_CONSTANTS(int, kGroup = F::kGroup);
  // Wide units unpack at less cost, narrow ones occupy every thread.
  TW_CONSTANTS(int, kUnit = F::unit_ok(64) && (ROWS * BK / 64 >= THREADS || !F::unit_ok(32)) ? 64 : 32);
  TW_CONSTANTS(int, kUnits = BK / kUnit, kGroups = kUnit / kGroup);

  // The copy, row by row.
  static constexpr CodeRows kCopy = code_rows({MmaForm::codes, static_cast<int>(sizeof(T)), kGroup, kTerms, F::kBlock,
                                               F::kDataBytes, F::kScaleBytes, F::template raw_bytes<BK>()},
                                              ROWS, BK, E);
  TW_CONSTANTS(int, kBytes = F::template raw_bytes<BK>(), kPiece = kCopy.piece, kPieces = kBytes / kPiece,
               kPitch = kCopy.pitch, kScaleBytes = kCopy.scale_bytes);
  TW_CONSTANTS(int, kScaleRun = F::kScaleBytes ? min2(E, BK) / F::kBlock * F::kScaleBytes : 2);
  TW_CONSTANTS(int, kScalePiece = fmt::run_alignment(kScaleRun));
  static_assert(kScalePiece >= 2, "scales in pieces of two bytes at least");

  TW_MEMBER static void fetch(const Source& s, i64 row0, i64 k0, u8* raw) {
    // Elements beyond k are zero: a partial tile has fewer bytes of a contiguous format, and a format whose block is
    // larger than the tile has none.
    const i64 left = min2(static_cast<i64>(BK), s.k - k0);
    const int valid = F::kBlock > BK ? kBytes : static_cast<int>(left / F::kBlock) * F::kDataBytes;
    TW_NO_UNROLL for (int t = static_cast<int>(thread_x()); t < ROWS * kPieces; t += THREADS) {
      const int row = t / kPieces, byte = t % kPieces * kPiece;
      const bool inside = row0 + row < s.rows && byte < valid;
      const u8* from = inside ? s.data + (row0 + row) * s.data_stride + F::raw_offset(k0, byte) : s.data;
      copy_piece<kPiece, ASYNC>(raw + row * kPitch + byte, from, inside);
    }
    if constexpr (kScaleBytes > 0) {
      constexpr int kScalePieces = kScaleBytes / kScalePiece;
      const int valid_scales = static_cast<int>(left / F::kBlock) * F::kScaleBytes;
      for (int t = static_cast<int>(thread_x()); t < ROWS * kScalePieces; t += THREADS) {
        const int row = t / kScalePieces, byte = t % kScalePieces * kScalePiece;
        const bool inside = row0 + row < s.rows && byte < valid_scales;
        const u8* from =
            inside ? s.scales + (row0 + row) * s.scale_stride + k0 / F::kBlock * F::kScaleBytes + byte : s.scales;
        copy_piece<kScalePiece, ASYNC>(raw + ROWS * kPitch + row * kScaleBytes + byte, from, inside);
      }
    }
  }
  TW_MEMBER static void put(const Stage& stage, int row, int element, const u32 (&codes)[kGroup / 4]) {
    if constexpr (sizeof(T) == 1) {
      const auto byte = [](u32 four) { return same<T, i8>() ? four : e4m3_of(four); };
      TW_UNROLL for (int i = 0; i < kGroup / 16; ++i) *
          reinterpret_cast<u32x4*>(stage.codes + swizzled<kRowBytes>(row, element / 16 + i)) = {
          byte(codes[4 * i]), byte(codes[4 * i + 1]), byte(codes[4 * i + 2]), byte(codes[4 * i + 3])};
    } else {
      TW_UNROLL for (int i = 0; i < kGroup / 8; ++i) {
        const u32x2 lo = widen<T>(codes[2 * i]), hi = widen<T>(codes[2 * i + 1]);
        *reinterpret_cast<u32x4*>(stage.codes + swizzled<kRowBytes>(row, element / 8 + i)) = {lo.x, lo.y, hi.x, hi.y};
      }
    }
  }
  TW_MEMBER static void put_pairs(const Stage& stage, int row, int element, const u32 (&pairs)[kGroup / 2]) {
    TW_UNROLL for (int i = 0; i < kGroup / 8; ++i) *
        reinterpret_cast<u32x4*>(stage.codes + swizzled<kRowBytes>(row, element / 8 + i)) = {
        pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]};
  }
  // Neighbouring threads take neighbouring rows: their stores then differ in the swizzle.
  TW_MEMBER static void unpack(const u8* raw, i64 k0, const Stage& stage) {
    // Not unrolled: the registers belong to the accumulators.
    TW_NO_UNROLL for (int t = static_cast<int>(thread_x()); t < ROWS * kUnits; t += THREADS) {
      const int row = t % ROWS, k = t / ROWS * kUnit;
      typename F::template Unit<kUnit> unit;
      F::template load_raw<kUnit>(unit, raw + row * kPitch, raw + ROWS * kPitch + row * kScaleBytes, k, k0);
      TW_UNROLL for (int g = 0; g < kGroups; ++g) {
        float scale, offset = 0.0f;
        u32 codes[kGroup / 4];
        if constexpr (fmt::is_table<F>()) {
          u32 pairs[kGroup / 2];
          F::template pairs<T>(unit, g, pairs, scale);
          put_pairs(stage, row, k + g * kGroup, pairs);
        } else {
          F::template group<kUnit>(unit, g, codes, scale, offset);
          put(stage, row, k + g * kGroup, codes);
        }
        const int at = (k / kGroup + g) * ROWS + row;
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
