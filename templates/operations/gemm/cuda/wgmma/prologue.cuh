// SPDX-License-Identifier: Apache-2.0
// x written to the workspace as the matrix units take it, by all blocks together, before any of them multiplies; the
// copy engine then reads it from there like any other x. For E4M3 where w's tiles are for 16-bit floats, for floats
// that get a scale per row, and for codes with a scale per row, which become bytes.
//
// No block waits for one that may not run: blocks take pieces of x from a counter, and those that find none left wait
// for pieces that others have taken, who are at work on them.
//
// Workspace: the words of schedule.cuh, the rows of x, their scales if x came as floats.
#pragma once
#include "backends/cuda/sm90.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/quantized.cuh"
#include "operations/gemm/cuda/wgmma/schedule.cuh"

namespace tw::gemm {

// Calls write(piece) for each of `pieces`, by all threads of a block, which share `own`. `grid`: blocks of the launch.
// Behind it every thread may read what any has written to global memory, also through the copy engine.
template <class Write>
TW_DEVICE void share_pieces(u8* workspace, u32 pieces, u32 grid, u32& own, int thread, const Write& write) {
  u32* const taken = reinterpret_cast<u32*>(workspace + kTileWordBytes);
  u32 *const done = taken + 1, *const passed = taken + 2;
  u32 next = 0;
  if (thread == 0) next = add_relaxed(taken, 1);
  for (;;) {
    if (thread == 0) own = next;
    sync_block();
    const u32 piece = own;
    if (piece >= pieces) break;
    if (thread == 0) next = add_relaxed(taken, 1);  // whose answer takes a while
    write(piece);
    fence_async_global();
    sync_block();
    if (thread == 0) add_global<true>(done, 1);
  }
  if (thread == 0) {
    while (load_acquire(done) != pieces) pause();
    if (add_relaxed(passed, 1) + 1 == grid) {  // nobody needs the words any more
      store_relaxed(taken, 0);
      store_relaxed(done, 0);
      store_relaxed(passed, 0);
    }
  }
  sync_block();
  fence_async_global();
}

// Raw: x as a launch passes it, elements of one or more bytes, with a scale per row or without, fmt::Quantized rows of
// such, or fmt::UnpackedRow. To: the element that is written. A piece is THREADS / ROW_THREADS rows.
template <class Raw, class To, int THREADS, int ROW_THREADS>
struct Prologue {
  TW_CONSTANTS(bool, kQuantizes = fmt::is_quantized<Raw>(), kUnpacks = fmt::StepOf<Raw>::kUnpacked);
  using X = typename fmt::Unquantized<Raw>::type;  // whose scales and codes those are that are written
  using Code = typename X::Element;
  using Stored = typename fmt::StoredAs<Raw>::type;  // a plain format of x's elements in memory, or its codes
  TW_CONSTANTS(int, kRows = THREADS / ROW_THREADS);
  TW_CONSTANTS(int, kUnit = sizeof(To) == 1 ? 16 : 8);  // elements that a thread has at a time: 16 bytes of To
  // Units that a thread loads at a time.
  TW_CONSTANTS(int, kStep = ROW_THREADS * kUnit, kAhead = (kQuantizes ? 4 : 8) / (ROW_THREADS < 256 ? 1 : 2));
  static_assert(ROW_THREADS % 32 == 0 && THREADS % ROW_THREADS == 0, "whole warps share a row");
  static_assert(kQuantizes || kUnpacks || sizeof(Code) == 1, "what is not quantized or unpacked is bytes");
  static_assert(!kUnpacks || sizeof(To) == 1, "codes become bytes");

  struct Shared {
    u32 piece;
    float largest[THREADS / 32];
  };

  const Operand& x;
  i64 m, ldx, k;
  u8* workspace;

  TW_MEMBER u8* rows() const { return workspace + kScheduleBytes; }
  TW_MEMBER float* scales() const { return reinterpret_cast<float*>(rows() + m * k * static_cast<i64>(sizeof(To))); }

  TW_MEMBER i64 end() const {  // of what it writes, in bytes
    const i64 bytes = m * k * static_cast<i64>(sizeof(To)) + (kQuantizes ? m * 4 : 0);
    return kScheduleBytes + (bytes + 127) / 128 * 128;
  }

  // All threads of the block. `grid`: blocks of the launch. Behind it every thread may read what was written, also
  // through the copy engine.
  TW_MEMBER void run(Shared& shared, u32 grid, int thread) const {
    share_pieces(workspace, static_cast<u32>(ceil_div64(m, kRows)), grid, shared.piece, thread, [&](u32 piece) {
      write_row(shared, i64{piece} * kRows + thread / ROW_THREADS, thread % ROW_THREADS);
    });
  }

 private:
  // Loads of at most 16 bytes each.
  TW_CONSTANTS(int, kPart = min2(kUnit, 16 * Stored::kBlock / Stored::kDataBytes), kParts = kUnit / kPart);
  struct Unit {
    typename Stored::template Unit<kPart> parts[kParts];
  };
  TW_MEMBER static void load(Unit& unit, const u8* row, i64 at) {
    TW_UNROLL for (int i = 0; i < kParts; ++i)
        Stored::template load<kPart>(unit.parts[i], row, nullptr, at + i * kPart);
  }
  TW_MEMBER static void values(const Unit& unit, float (&v)[kUnit]) {
    TW_UNROLL for (int i = 0; i < kParts; ++i) {
      float part[kPart];
      Stored::template values<kPart>(unit.parts[i], 0, part);
      TW_UNROLL for (int j = 0; j < kPart; ++j) v[i * kPart + j] = part[j];
    }
  }
  // This thread's units of a row from column `first` on, kAhead of them; visit(unit, column) for those that exist.
  struct Batch {
    Unit units[kAhead];
  };
  TW_MEMBER Batch load(const u8* row, i64 first) const {
    Batch batch = {};
    TW_UNROLL for (int i = 0; i < kAhead; ++i) if (first + i * kStep < k) load(batch.units[i], row, first + i * kStep);
    return batch;
  }
  template <class Visit>
  TW_MEMBER void visit(const Batch& batch, i64 first, const Visit& visit) const {
    TW_UNROLL for (int i = 0; i < kAhead; ++i) if (first + i * kStep < k) visit(batch.units[i], first + i * kStep);
  }

  TW_MEMBER void write_row(Shared& shared, i64 row, int thread) const {
    const i64 end = row < m ? k : 0, at = row < m ? row : 0;  // warps of rows beyond the last meet the others
    const u8* const from = static_cast<const u8*>(x.data) + at * data_stride<Stored>(ldx);
    u8* const to = rows() + at * k * static_cast<i64>(sizeof(To));
    i64 first = thread * kUnit;
    if constexpr (!kQuantizes) {
      TW_NO_UNROLL for (; first < end; first += kAhead * kStep)
          visit(load(from, first), first, [&](const Unit& unit, i64 i) { copy(unit, to, i); });
    } else {
      fmt::Extent<X> extent;
      const auto add = [&](const Unit& unit, i64) {
        float v[kUnit];
        values(unit, v);
        TW_UNROLL for (int i = 0; i < kUnit; ++i) extent.add(v[i]);
      };
      Batch held = {};  // the first ones stay in registers, the others are read again
      if (first < end) held = load(from, first), visit(held, first, add);
      TW_NO_UNROLL for (i64 i = first + kAhead * kStep; i < end; i += kAhead * kStep) visit(load(from, i), i, add);
      join(shared, extent, thread);
      if (first >= end) return;
      const float scale = extent.item();
      const Divider by(scale, extent.largest());
      if (by.direct) {
        const auto write = [&](const Unit& unit, i64 i) { encode<true>(unit, by, to, i); };
        visit(held, first, write);
        TW_NO_UNROLL for (i64 i = first + kAhead * kStep; i < end; i += kAhead * kStep) visit(load(from, i), i, write);
      } else {  // rare, and divisions are long: once in the text
        TW_NO_UNROLL for (i64 i = first; i < end; i += kStep) {
          Unit unit = {};
          load(unit, from, i);
          encode<false>(unit, by, to, i);
        }
      }
      if (thread == 0) scales()[row] = scale;
    }
  }
  // Over the threads of a row; every thread gets it.
  TW_MEMBER static void join(Shared& shared, fmt::Extent<X>& extent, int thread) {
    float& largest = extent.of[0];
    TW_UNROLL for (int d = 16; d > 0; d /= 2) largest = max_number(largest, shuffle_xor(largest, d));
    if constexpr (ROW_THREADS > 32) {
      constexpr int kWarps = ROW_THREADS / 32;
      const int warp = static_cast<int>(thread_x()) / 32, of_row = warp / kWarps * kWarps;
      if (thread % 32 == 0) shared.largest[warp] = largest;
      sync_block();
      TW_UNROLL for (int i = 0; i < kWarps; ++i) largest = max_number(largest, shared.largest[of_row + i]);
    }
  }
  // What is not quantized.
  TW_MEMBER static void copy(const Unit& unit, u8* to, i64 at) {
    if constexpr (kUnpacks) {
      u32 codes[kUnit / 4];
      Stored::template bytes<kUnit>(unit.parts[0], codes);
      store(to, at, codes);
    } else {
      store(to, at, unit.parts[0].raw);
    }
  }
  template <bool direct>
  TW_MEMBER static void encode(const Unit& unit, const Divider& by, u8* to, i64 at) {
    float v[kUnit];
    values(unit, v);
    u32 codes[kUnit / 4];
    TW_UNROLL for (int i = 0; i < kUnit; i += 4) {
      const float four[4] = {v[i], v[i + 1], v[i + 2], v[i + 3]};
      codes[i / 4] = X::template codes<direct>(four, by, 1.0f);
    }
    store(to, at, codes);
  }
  TW_MEMBER static void store(u8* to, i64 at, const u32 (&codes)[kUnit / 4]) {
    u8* const place = to + at * static_cast<i64>(sizeof(To));
    if constexpr (sizeof(To) == 2)
      *reinterpret_cast<u32x4*>(place) = {widen_fp8x2<To, Code>(codes[0], 0), widen_fp8x2<To, Code>(codes[0], 1),
                                          widen_fp8x2<To, Code>(codes[1], 0), widen_fp8x2<To, Code>(codes[1], 1)};
    else
      *reinterpret_cast<u32x4*>(place) = {codes[0], codes[1], codes[2], codes[3]};
  }
};

}  // namespace tw::gemm
