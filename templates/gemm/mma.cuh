// SPDX-License-Identifier: Apache-2.0
// Matrix units through mma.sync, from sm_75 on. A block computes BM x BN of y; WARPS_M x WARPS_N warps share it; tiles of
// BK elements of k pass through STAGES buffers in shared memory; SPLIT blocks of a cluster share a tile's k.
//
//   x and w plain, one 16-bit type     accumulate in place
//   x 16-bit, w in codes               codes become 16-bit floats exactly; each group's products are summed apart and
//                                      then scaled in fp32, so that no weight is rounded
//   x and w in codes                   signed bytes, int32 sums per group, scaled in fp32
//
//   ASYNC  copy plain operands with cp.async (rows start on 16 bytes)
//   EX     elements of plain x (and w) per register load where they are not copied
//   EW     elements of coded w per unit
#pragma once
#include "gemm/tiles.cuh"

namespace tw::gemm {

template <class X, class W, class Epi, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int STAGES, bool ASYNC, int EX, int EW,
          int SPLIT>
struct Mma {
  static constexpr bool kInt = X::kCodes, kGrouped = W::kCodes, kTerms = W::kOffset;
  using T = typename OperandOf<X, kInt>::type;
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int kRowBytes = BK * static_cast<int>(sizeof(T));
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;  // of a warp
  static constexpr int MI = WM / 16, NI = WN / 8;             // fragments of a warp
  static constexpr int kGroup = kGrouped ? W::kGroup : BK;
  static constexpr int kWGroups = kGrouped ? BK / W::kGroup : 0, kXGroups = kInt ? BK / 32 : 0;
  static_assert(WM % 16 == 0 && WN % 16 == 0, "warp tile in whole fragments");

  using XPlain = select<ASYNC, AsyncTile<T, BM, BK, kThreads>, PlainTile<X, BM, BK, EX, kThreads>>;
  using WPlain = select<ASYNC, AsyncTile<T, BN, BK, kThreads>, PlainTile<W, BN, BK, EX, kThreads>>;
  template <class F, bool codes, int dummy> struct XTileOf { using type = XPlain; };
  template <class F, int dummy> struct XTileOf<F, true, dummy> { using type = CodeTile<F, T, BM, BK, 32, kThreads, true, kTerms>; };
  template <class F, bool codes, int dummy> struct WTileOf { using type = WPlain; };
  template <class F, int dummy> struct WTileOf<F, true, dummy> { using type = CodeTile<F, T, BN, BK, EW, kThreads, false, kTerms>; };
  using XTile = typename XTileOf<X, kInt, 0>::type;
  using WTile = typename WTileOf<W, kGrouped, 0>::type;

  // ---- shared memory: per stage x codes, w codes, w scales (and offsets), x scales (and sums)
  static constexpr int kXBytes = BM * kRowBytes, kWBytes = BN * kRowBytes;
  static constexpr int kWFloats = kWGroups * BN, kXFloats = kXGroups * BM;
  static constexpr int kStageBytes = kXBytes + kWBytes + 4 * (kWFloats + kXFloats) * (kTerms ? 2 : 1);
  static constexpr int kPad = 4;
  static constexpr int kReduceBytes = SPLIT > 1 ? BM * (BN + kPad) * 4 : 0;
  static constexpr int kSharedBytes = STAGES * kStageBytes > kReduceBytes ? STAGES * kStageBytes : kReduceBytes;

  TW_MEMBER static Stage x_stage(int i) {
    u8* base = dynamic_shared() + i * kStageBytes;
    float* floats = reinterpret_cast<float*>(base + kXBytes + kWBytes) + kWFloats * (kTerms ? 2 : 1);
    return {base, floats, floats + kXFloats};
  }
  TW_MEMBER static Stage w_stage(int i) {
    u8* base = dynamic_shared() + i * kStageBytes + kXBytes;
    float* floats = reinterpret_cast<float*>(base + kWBytes);
    return {base, floats, floats + kWFloats};
  }

  using Accumulators = float[MI][NI][4];
  struct Position {
    int lane, warp_m, warp_n;  // of the warp's tile within the block's: rows and columns
  };

  // ---- fragments
  TW_MEMBER static void load_a(u32 (&a)[4], const u8* tile, int row, int chunk, int lane) {
    ldmatrix_x4(a, tile + swizzled<kRowBytes>(row + lane % 16, chunk + lane / 16));
  }
  // Two neighbouring n8 tiles.
  TW_MEMBER static void load_b(u32 (&b)[4], const u8* tile, int row, int chunk, int lane) {
    ldmatrix_x4(b, tile + swizzled<kRowBytes>(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
  }

  // ---- one stage, plain operands
  TW_MEMBER static void multiply_plain(int stage, const Position& p, Accumulators& acc) {
    const u8* x = x_stage(stage).codes;
    const u8* w = w_stage(stage).codes;
    TW_UNROLL for (int s = 0; s < BK / 16; ++s) {
      u32 a[MI][4];
      TW_UNROLL for (int i = 0; i < MI; ++i) load_a(a[i], x, p.warp_m + 16 * i, 2 * s, p.lane);
      TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
        u32 b[4];
        load_b(b, w, p.warp_n + 16 * j, 2 * s, p.lane);
        const u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        TW_UNROLL for (int i = 0; i < MI; ++i) {
          mma_k16<T>(acc[i][2 * j], a[i], b0);
          mma_k16<T>(acc[i][2 * j + 1], a[i], b1);
        }
      }
    }
  }

  // Adds scale(column) * sum - offset(column) * term(row) to a fragment.
  struct Columns {
    float scale[2], offset[2];
  };
  TW_MEMBER static Columns columns_at(const Stage& w, int group, int column) {
    const float* scale = w.scales + group * BN + column;
    Columns c = {{scale[0], scale[1]}, {0.0f, 0.0f}};
    if constexpr (kTerms) {
      const float* offset = w.terms + group * BN + column;
      c.offset[0] = offset[0], c.offset[1] = offset[1];
    }
    return c;
  }

  // ---- one stage, 16-bit x and coded w
  TW_MEMBER static void multiply_grouped(int stage, const Position& p, Accumulators& acc) {
    constexpr int kSteps = kGroup / 16;
    const u8* x = x_stage(stage).codes;
    const Stage w = w_stage(stage);
    TW_NO_UNROLL for (int g = 0; g < BK / kGroup; ++g) {
      u32 a[MI][kSteps][4];
      float term[MI][2];
      TW_UNROLL for (int i = 0; i < MI; ++i) {
        TW_UNROLL for (int s = 0; s < kSteps; ++s) load_a(a[i][s], x, p.warp_m + 16 * i, 2 * (g * kSteps + s), p.lane);
        if constexpr (kTerms) {  // sums of x over the group: a product with ones
          constexpr u32 kOnes = same<T, f16> ? 0x3c003c00u : 0x3f803f80u;
          const u32 ones[2] = {kOnes, kOnes};
          float sum[4] = {};
          TW_UNROLL for (int s = 0; s < kSteps; ++s) mma_k16<T>(sum, a[i][s], ones);
          term[i][0] = sum[0], term[i][1] = sum[2];
        }
      }
      TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
        u32 b[kSteps][4];
        TW_UNROLL for (int s = 0; s < kSteps; ++s) load_b(b[s], w.codes, p.warp_n + 16 * j, 2 * (g * kSteps + s), p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const Columns c = columns_at(w, g, p.warp_n + 16 * j + 8 * h + 2 * (p.lane % 4));
          TW_UNROLL for (int i = 0; i < MI; ++i) {
            float sum[4] = {};
            TW_UNROLL for (int s = 0; s < kSteps; ++s) {
              const u32 bb[2] = {b[s][2 * h], b[s][2 * h + 1]};
              mma_k16<T>(sum, a[i][s], bb);
            }
            TW_UNROLL for (int e = 0; e < 4; ++e) {
              acc[i][2 * j + h][e] += c.scale[e % 2] * sum[e];
              if constexpr (kTerms) acc[i][2 * j + h][e] -= c.offset[e % 2] * term[i][e / 2];
            }
          }
        }
      }
    }
  }

  // ---- one stage, signed bytes
  TW_MEMBER static void multiply_codes(int stage, const Position& p, Accumulators& acc) {
    const Stage x = x_stage(stage), w = w_stage(stage);
    TW_NO_UNROLL for (int s = 0; s < BK / 32; ++s) {
      u32 a[MI][4];
      float x_scale[MI][2], x_term[MI][2];
      TW_UNROLL for (int i = 0; i < MI; ++i) {
        const int row = p.warp_m + 16 * i;
        load_a(a[i], x.codes, row, 2 * s, p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const int at = s * BM + row + p.lane / 4 + 8 * h;
          x_scale[i][h] = x.scales[at];
          if constexpr (kTerms) x_term[i][h] = x.terms[at];
        }
      }
      TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
        u32 b[4];
        load_b(b, w.codes, p.warp_n + 16 * j, 2 * s, p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const int column = p.warp_n + 16 * j + 8 * h + 2 * (p.lane % 4);
          const u32 bb[2] = {b[2 * h], b[2 * h + 1]};
          if constexpr (kGroup == 32) {
            const Columns c = columns_at(w, s, column);
            TW_UNROLL for (int i = 0; i < MI; ++i) {
              i32 sum[4] = {};
              mma_s8_k32(sum, a[i], bb);
              add_codes(acc[i][2 * j + h], sum, c, x_scale[i]);
              if constexpr (kTerms) {
                TW_UNROLL for (int e = 0; e < 4; ++e) acc[i][2 * j + h][e] -= c.offset[e % 2] * x_term[i][e / 2];
              }
            }
          } else {  // two groups of 16 in the 32 elements
            const Columns c0 = columns_at(w, 2 * s, column), c1 = columns_at(w, 2 * s + 1, column);
            TW_UNROLL for (int i = 0; i < MI; ++i) {
              i32 sum0[4] = {}, sum1[4] = {};
              mma_s8_k16(sum0, a[i][0], a[i][1], bb[0]);
              mma_s8_k16(sum1, a[i][2], a[i][3], bb[1]);
              add_codes(acc[i][2 * j + h], sum0, c0, x_scale[i]);
              add_codes(acc[i][2 * j + h], sum1, c1, x_scale[i]);
            }
          }
        }
      }
    }
  }
  TW_MEMBER static void add_codes(float (&acc)[4], const i32 (&sum)[4], const Columns& c, const float (&x_scale)[2]) {
    TW_UNROLL for (int e = 0; e < 4; ++e) acc[e] += (x_scale[e / 2] * c.scale[e % 2]) * static_cast<float>(sum[e]);
  }

  TW_MEMBER static void multiply(int stage, const Position& p, Accumulators& acc) {
    if constexpr (kInt) multiply_codes(stage, p, acc);
    else if constexpr (kGrouped) multiply_grouped(stage, p, acc);
    else multiply_plain(stage, p, acc);
  }

  // ---- which tile: bands of kBand tiles of m walk all of n together, so that w stays in L2
  struct Tile {
    i64 m, n;
  };
  TW_MEMBER static Tile tile_of(u32 block, i64 m, i64 n) {
    constexpr u32 kBand = 8;
    const u32 tiles_m = static_cast<u32>(ceil_div64(m, BM)), tiles_n = static_cast<u32>(ceil_div64(n, BN));
    const u32 band = block / (kBand * tiles_n), first = band * kBand;
    const u32 height = min2(kBand, tiles_m - first), within = block - band * kBand * tiles_n;
    return {static_cast<i64>(first + within % height) * BM, static_cast<i64>(within / height) * BN};
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const int thread = static_cast<int>(thread_x()), warp = thread / 32;
    const Position p = {thread % 32, warp / WARPS_N * WM, warp % WARPS_N * WN};
    const Tile tile = tile_of(block_x() / SPLIT, args.m, shape.n);
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    const Source xs = source_of<X>(args.x, args.m, shape.k, ldx), ws = source_of<W>(args.w, shape.n, shape.k, shape.k);

    const int steps = static_cast<int>(ceil_div64(shape.k, BK)), per_split = (steps + SPLIT - 1) / SPLIT;
    const int begin = SPLIT > 1 ? min2(steps, static_cast<int>(cluster_rank()) * per_split) : 0;
    const int end = SPLIT > 1 ? min2(steps, begin + per_split) : steps;

    XTile x;
    WTile w;
    Accumulators acc = {};
    TW_UNROLL for (int s = 0; s < STAGES - 1; ++s) {
      if (begin + s < end) {
        x.fetch(xs, tile.m, static_cast<i64>(begin + s) * BK, x_stage(s));
        w.fetch(ws, tile.n, static_cast<i64>(begin + s) * BK, w_stage(s));
        x.place(x_stage(s));
        w.place(w_stage(s));
      }
      if constexpr (XTile::kAsync || WTile::kAsync) cp_async_commit();
    }
    int read = 0, write = STAGES - 1;
    TW_NO_UNROLL for (int step = begin; step < end; ++step) {
      if constexpr (XTile::kAsync || WTile::kAsync) cp_async_wait<STAGES - 2>();
      sync_block();  // stage `read` is complete, and stage `write` was read by all in the step before
      const int next = step + STAGES - 1;
      if (next < end) {
        x.fetch(xs, tile.m, static_cast<i64>(next) * BK, x_stage(write));
        w.fetch(ws, tile.n, static_cast<i64>(next) * BK, w_stage(write));
      }
      if constexpr (XTile::kAsync || WTile::kAsync) cp_async_commit();
      multiply(read, p, acc);
      if (next < end) {
        x.place(x_stage(write));
        w.place(w_stage(write));
      }
      read = read + 1 == STAGES ? 0 : read + 1;
      write = write + 1 == STAGES ? 0 : write + 1;
    }
    if constexpr (SPLIT == 1) store(args, shape, tile, p, acc);
    else reduce(args, shape, tile, p, acc);
  }

  // ---- results
  TW_MEMBER static void store(const Args& args, const Shape& shape, const Tile& tile, const Position& p, Accumulators& acc) {
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    const bool pairs = ((ldy | shape.n) & 1) == 0;
    TW_UNROLL for (int i = 0; i < MI; ++i)
      TW_UNROLL for (int h = 0; h < 2; ++h) {
        const i64 m = tile.m + p.warp_m + 16 * i + 8 * h + p.lane / 4;
        if (m >= args.m) continue;
        TW_UNROLL for (int j = 0; j < NI; ++j) {
          const i64 n = tile.n + p.warp_n + 8 * j + 2 * (p.lane % 4);
          if (n >= shape.n) continue;
          const float lo = Epi::apply(acc[i][j][2 * h], scale, args.bias, n);
          if (pairs) {
            Epi::store_pair(args.y, m * ldy + n, lo, Epi::apply(acc[i][j][2 * h + 1], scale, args.bias, n + 1));
          } else {
            Epi::store(args.y, m * ldy + n, lo);
            if (n + 1 < shape.n) Epi::store(args.y, m * ldy + n + 1, Epi::apply(acc[i][j][2 * h + 1], scale, args.bias, n + 1));
          }
        }
      }
  }

  // Each block of the cluster leaves its sums in its shared memory and then adds up its share of the rows over all.
  TW_MEMBER static void reduce(const Args& args, const Shape& shape, const Tile& tile, const Position& p, Accumulators& acc) {
    constexpr int kPitch = BN + kPad;
    float* sums = reinterpret_cast<float*>(dynamic_shared());
    if constexpr (XTile::kAsync || WTile::kAsync) cp_async_wait<0>();
    sync_block();  // the stages are no longer read
    TW_UNROLL for (int i = 0; i < MI; ++i)
      TW_UNROLL for (int j = 0; j < NI; ++j)
        TW_UNROLL for (int e = 0; e < 4; ++e)
          sums[(p.warp_m + 16 * i + 8 * (e / 2) + p.lane / 4) * kPitch + p.warp_n + 8 * j + 2 * (p.lane % 4) + e % 2] = acc[i][j][e];
    sync_cluster();
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    constexpr int kShare = (BM + SPLIT - 1) / SPLIT;
    const int first = static_cast<int>(cluster_rank()) * kShare;
    for (int t = static_cast<int>(thread_x()); t < kShare * BN; t += kThreads) {
      const int row = first + t / BN, column = t % BN;
      const i64 m = tile.m + row, n = tile.n + column;
      if (row >= BM || m >= args.m || n >= shape.n) continue;
      float total = 0.0f;
      TW_UNROLL for (int c = 0; c < SPLIT; ++c) total += load_cluster(sums + row * kPitch + column, static_cast<u32>(c));
      Epi::store(args.y, m * ldy + n, Epi::apply(total, scale, args.bias, n));
    }
    sync_cluster();  // no block leaves while another reads its sums
  }
};

}  // namespace tw::gemm
