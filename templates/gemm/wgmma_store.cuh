// SPDX-License-Identifier: Apache-2.0
// How the warpgroup kernel's sums leave: scaled, through the epilogue, turned around where y's elements are two bytes, added up
// where k was split. P is the kernel (wgmma.cuh), whose tile and shared memory these are.
#pragma once
#include "arch/sm90.cuh"
#include "gemm/epilogue.cuh"

namespace tw::gemm {

template <class X, class W, class Epi, class P> struct WarpgroupStores {
  using Y = typename Epi::Out;
  using Sum = typename P::Sum;
  using Sums = typename P::Sums;
  static constexpr int BM = P::kBM, STRIPS = P::kStrips, GROUPS = P::kGroups, KGROUPS = P::kKGroups, SPLIT = P::kSplit;
  static constexpr int kStripRows = P::kStripRows, kSums = P::kSums, kMath = P::kMath, kParts = P::kParts;
  static constexpr int kChunk = P::kChunk, kSlice = P::kSlice, kSlotFloats = P::kSlotFloats;
  static constexpr float kFactor = P::Weights::kFactor;

  struct Scaling {
    float w[STRIPS][2];  // of this thread's rows of w
    typename Epi::Value bias[STRIPS][2];
  };
  TW_MEMBER static Scaling scaling(const Args& args, const Shape& shape, i64 n0, int thread) {
    Scaling s;
    const float tensor = tensor_scale<X, W>(args, shape) * kFactor;
    TW_UNROLL for (int strip = 0; strip < STRIPS; ++strip)
      TW_UNROLL for (int h = 0; h < 2; ++h) {
        const i64 n = min2(n0 + row_of(thread, strip, h), shape.n - 1);
        s.w[strip][h] = tensor;
        if constexpr (W::kRowScale) s.w[strip][h] *= static_cast<const float*>(args.w.scales)[n];
        s.bias[strip][h] = Epi::bias_at(args.bias, n);
      }
    return s;
  }
  // A scale of x; 0 beyond the matrix.
  TW_MEMBER static float column_scale(const Args& args, i64 m) {
    return m < args.m ? static_cast<const float*>(args.x.scales)[m] : 0.0f;
  }
  // Those of the tile's rows of x, on their way through a warpgroup's registers to its copy of them in shared memory.
  struct ColumnScales {
    static constexpr int kOwn = X::kRowScale && !P::kDeferred ? ceil_div(BM, 128) : 0;
    float own[max2(1, kOwn)];
    TW_MEMBER ColumnScales(const Args& args, i64 m0, int thread) {
      TW_UNROLL for (int i = 0; i < kOwn; ++i) own[i] = column_scale(args, m0 + i * 128 + thread % 128);
    }
    TW_MEMBER void share(const Args& args, i64 m0, float* to, int thread) const {
      if constexpr (X::kRowScale) {
        const u32 barrier = 1 + static_cast<u32>(thread / 128);
        sync_named(barrier, 128);  // all have read those of the last tile
        if constexpr (kOwn == 0) {
          for (int i = thread % 128; i < BM; i += 128) to[i] = column_scale(args, m0 + i);  // no registers to spare
        } else {
          TW_UNROLL for (int i = 0; i < kOwn; ++i)
            if (i * 128 + thread % 128 < BM) to[i * 128 + thread % 128] = own[i];
        }
        sync_named(barrier, 128);
      }
    }
  };
  // Row of w within the tile.
  TW_MEMBER static int row_of(int thread, int strip, int h) {
    return (thread / 128 % GROUPS * STRIPS + strip) * kStripRows + thread % 128 / 32 * 16 + thread % 32 / 4 + 8 * h;
  }

  TW_MEMBER static void store_matrices(const Args& args, const Shape& shape, u8* turn, const float* x_scales, const Scaling& scale,
                                       const Sums& sums, i64 n0, i64 m0, int thread) {
    const int lane = thread % 32, warp = thread % 128 / 32, group = thread / 128;
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    const bool whole = ldy % 8 == 0;
    turn += group * 2 * kChunk * 128;
    TW_UNROLL for (int s = 0; s < STRIPS; ++s)
      TW_UNROLL for (int c = 0; c < BM / kChunk; ++c) {
        u8* buffer = turn + (s * (BM / kChunk) + c) % 2 * kChunk * 128;
        TW_UNROLL for (int j = 0; j < kChunk / 8; j += 2) {
          u32 v[4];
          TW_UNROLL for (int q = 0; q < 4; ++q) {  // token block j + q / 2, rows + 8 (q % 2)
            const int b = j + q / 2, h = q % 2;
            if (kChunk == 8 && q >= 2) break;
            float scaled[2];
            TW_UNROLL for (int e = 0; e < 2; ++e) {
              const int token = c * kChunk + 8 * b + 2 * (lane % 4) + e;
              float f = scale.w[s][h];
              if constexpr (X::kRowScale) f *= x_scales[token];
              scaled[e] = Epi::finish(args, shape, m0 + token, n0 + row_of(thread, s, h),
                                      sums[s][4 * (c * kChunk / 8 + b) + 2 * h + e], f, scale.bias[s][h]);
            }
            v[q] = pack2<Y>(scaled[0], scaled[1]);
          }
          const int matrix = lane / 8, token = 8 * (j + matrix / 2) + lane % 8, piece = 2 * warp + matrix % 2;
          if constexpr (kChunk == 8)
            stmatrix_x2_transposed(buffer + token % 8 * 128 + ((2 * warp + matrix % 2) ^ (token & 7)) * 16, v[0], v[1]);
          else
            stmatrix_x4_transposed(buffer + token * 128 + (piece ^ (token & 7)) * 16, v);
        }
        sync_named(1 + static_cast<u32>(group), 128);
        TW_UNROLL for (int i = 0; i < ceil_div(kChunk * 8, 128); ++i) {
          const int at = i * 128 + thread % 128, token = at / 8, piece = at % 8;
          const i64 m = m0 + c * kChunk + token, n = n0 + (group * STRIPS + s) * kStripRows + 8 * piece;
          if (at < kChunk * 8 && m < args.m && n < shape.n) {
            store_eight(static_cast<u16*>(args.y) + m * ldy + n, *reinterpret_cast<const u32x4*>(buffer + token * 128 + (piece ^ (token & 7)) * 16), whole);
          }
        }
      }
    sync_named(1 + static_cast<u32>(group), 128);  // the next tile's first chunk may land where the last one is read
  }

  // Split k: every block sends each other its sums of that block's rows, and adds what it gets in the order of the parts of
  // k. Two slots are enough without any word of "read": a block sends its sums of one tile when all its threads have read
  // those of the tile before, so who has everybody's knows that. The producers do not wait: the ring fills meanwhile.
  struct Exchange {
    float* slots;      // [2][sender][token][row of the slice]
    u64* arrived;      // [2]
    u32 slot, phase;
  };
  TW_MEMBER static void store_reduced(const Args& args, const Shape& shape, Exchange& exchange, const Sums& sums, i64 n0, i64 m0,
                                      int thread) {
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    const int tokens = static_cast<int>(min2(static_cast<i64>(BM), args.m - m0));
    const u32 rank = SPLIT > 1 ? cluster_rank() : 0;
    float* slot = exchange.slots + exchange.slot * kSlotFloats;
    u64* arrived = exchange.arrived + exchange.slot;
    if constexpr (SPLIT > 1) sync_named(8, kMath);
    if (SPLIT > 1 && thread == 0) barrier_expect(arrived, static_cast<u32>(tokens * kSlice * kParts * 4));
    TW_UNROLL for (int s = 0; s < STRIPS; ++s)
      TW_UNROLL for (int i = 0; i < kSums; ++i) {
        const int token = 8 * (i / 4) + 2 * (thread % 4) + i % 2, row = row_of(thread, s, i % 4 / 2);
        float* to = slot + ((static_cast<int>(rank) * KGROUPS + thread / (128 * GROUPS)) * BM + token) * kSlice + row % kSlice;
        if (token >= tokens) continue;
        if constexpr (SPLIT == 1) *to = bits_as<float>(sums[s][i]);
        else store_cluster_async(to, bits_as<float>(sums[s][i]), arrived, static_cast<u32>(row / kSlice));
      }
    const float tensor = tensor_scale<X, W>(args, shape) * kFactor;
    if constexpr (SPLIT == 1) sync_named(8, kMath);
    else barrier_wait(arrived, exchange.phase);
    for (int at = thread; at < tokens * kSlice; at += kMath) {
      const int token = at / kSlice, row = at % kSlice;
      Sum sum = 0;
      TW_UNROLL for (int r = 0; r < kParts; ++r) sum += bits_as<Sum>(slot[(r * BM + token) * kSlice + row]);
      const i64 n = n0 + static_cast<int>(rank) * kSlice + row;
      if (n >= shape.n) continue;
      float f = tensor;
      if constexpr (W::kRowScale) f *= static_cast<const float*>(args.w.scales)[n];
      if constexpr (X::kRowScale) f *= static_cast<const float*>(args.x.scales)[m0 + token];
      Epi::store(args.y, (m0 + token) * ldy + n, Epi::apply(args, shape, m0 + token, n, sum, f));
    }
    exchange.phase ^= exchange.slot;
    exchange.slot ^= 1u;
  }

  // TURNED: a row of a strip is a piece of one of y, and a warp's sixteen are its own business.
  TW_MEMBER static void store_turned(const Args& args, const Shape& shape, u8* turn, const Sums& sums, i64 n0, i64 m0, int thread) {
    const i64 tokens = shape.n, features = args.m, ldy = args.ldy ? args.ldy : features;
    const int lane = thread % 32;
    const float tensor = tensor_scale<X, W>(args, shape);
    // As the epilogue knows them.
    Args straight = args;
    Shape whole = shape;
    straight.m = tokens, whole.n = features;
    turn += thread / 32 * 2048;
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
      float scale[2];
      TW_UNROLL for (int h = 0; h < 2; ++h) {
        scale[h] = tensor;
        if constexpr (W::kRowScale) scale[h] *= static_cast<const float*>(args.w.scales)[min2(n0 + row_of(thread, s, h), tokens - 1)];
      }
      TW_UNROLL for (int c = 0; c < BM / 64; ++c) {
        TW_UNROLL for (int j = 0; j < 8; j += 2) {
          u32 v[4];
          TW_UNROLL for (int q = 0; q < 4; ++q) {  // columns 8 (j + q / 2) ..., rows + 8 (q % 2)
            typename Epi::Value out[2];
            TW_UNROLL for (int e = 0; e < 2; ++e) {
              const i64 n = m0 + c * 64 + 8 * (j + q / 2) + 2 * (lane % 4) + e, m = n0 + row_of(thread, s, q % 2);
              out[e] = Epi::finish(straight, whole, m, n, sums[s][4 * (8 * c + j + q / 2) + 2 * (q % 2) + e], scale[q % 2],
                                   Epi::bias_at(args.bias, min2(n, features - 1)));
              if (sizeof(Y) != 2 && m < tokens && n < features) Epi::store(args.y, m * ldy + n, out[e]);
            }
            if constexpr (sizeof(Y) == 2) v[q] = pack2<Y>(out[0], out[1]);
          }
          if constexpr (sizeof(Y) == 2) {
            const int row = lane % 16;
            stmatrix_x4(turn + row * 128 + ((j + lane / 16) ^ (row & 7)) * 16, v);
          }
        }
        if constexpr (sizeof(Y) == 2) {
          sync_warp();
          TW_UNROLL for (int i = 0; i < 4; ++i) {
            const int row = 4 * i + lane / 8, piece = lane % 8;
            const i64 m = n0 + row_of(thread / 32 * 32, s, 0) + row, n = m0 + c * 64 + 8 * piece;
            if (m >= tokens || n >= features) continue;
            store_eight(static_cast<u16*>(args.y) + m * ldy + n, *reinterpret_cast<const u32x4*>(turn + row * 128 + (piece ^ (row & 7)) * 16), ldy % 8 == 0);
          }
          sync_warp();
        }
      }
    }
  }
  TW_MEMBER static void store_eight(u16* y, const u32x4& q, bool whole) {
    if (whole) {
      store_global16(y, q);
    } else {
      const u32 words[4] = {q.x, q.y, q.z, q.w};
      TW_UNROLL for (int e = 0; e < 8; ++e) y[e] = static_cast<u16>(words[e / 2] >> (16 * (e % 2)));
    }
  }

  // Straight from the fragments: four-byte outputs fill half a sector from each lane group.
  TW_MEMBER static void store_elements(const Args& args, const Shape& shape, const float* x_scales, const Scaling& scale,
                                       const Sums& sums, i64 n0, i64 m0, int thread) {
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    TW_UNROLL for (int s = 0; s < STRIPS; ++s)
      TW_UNROLL for (int i = 0; i < kSums; ++i) {
        const int token = 8 * (i / 4) + 2 * (thread % 4) + i % 2, h = i % 4 / 2;
        const i64 m = m0 + token, n = n0 + row_of(thread, s, h);
        float f = scale.w[s][h];
        if constexpr (X::kRowScale) f *= x_scales[token];
        if (m < args.m && n < shape.n)
          Epi::store(args.y, m * ldy + n, Epi::finish(args, shape, m, n, sums[s][i], f, scale.bias[s][h]));
      }
  }
};

}  // namespace tw::gemm
