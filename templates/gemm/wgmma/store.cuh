// SPDX-License-Identifier: Apache-2.0
// How the warpgroup kernel's sums leave: scaled, through the epilogue, turned around on their way through shared memory
// so that y is written and c read sixteen bytes at a time, added up where k was split. P is the kernel (wgmma.cuh),
// whose tile and shared memory these are.
#pragma once
#include "arch/sm90.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/operands.cuh"
#include "gemm/wgmma/schedule.cuh"
#include "gemm/wgmma/store_staging.cuh"

namespace tw::gemm {

// ROWS rows of 64 elements of y or c on their way through shared memory, which THREADS threads fill and empty: sixteen
// bytes at a time, or element by element where the matrix' rows do not start on as many.
template <class T, int ROWS, int THREADS>
struct Rows {
  static constexpr int kRowBytes = 64 * static_cast<int>(sizeof(T)), kPieces = kRowBytes / 16, kElements = 64 / kPieces;
  static constexpr int kBytes = ROWS * kRowBytes;

  // visit(row, piece) of all that are a thread's.
  template <class Visit>
  TW_MEMBER static void pieces(int thread, const Visit& visit) {
    TW_UNROLL for (int i = 0; i < ceil_div(ROWS * kPieces, THREADS); ++i) {
      const int at = i * THREADS + thread % THREADS;
      if (ROWS * kPieces % THREADS == 0 || at < ROWS * kPieces) visit(at / kPieces, at % kPieces);
    }
  }
  // visit(row, element), rolled up: it is rarely needed.
  template <class Visit>
  TW_MEMBER static void elements(int thread, const Visit& visit) {
    TW_NO_UNROLL for (int at = thread % THREADS; at < ROWS * 64; at += THREADS) visit(at / 64, at % 64);
  }
  // Sixteen one-byte elements lie with their halves interleaved.
  TW_MEMBER static u32x4 piece(const u8* rows, int row, int at) {
    const u32x4 q = *reinterpret_cast<const u32x4*>(rows + swizzled<kRowBytes>(row, at));
    if constexpr (sizeof(T) == 1)
      return {prmt(q.x, q.y, 0x6420u), prmt(q.z, q.w, 0x6420u), prmt(q.x, q.y, 0x7531u), prmt(q.z, q.w, 0x7531u)};
    else
      return q;
  }
  template <class Bytes>
  TW_MEMBER static auto element(Bytes* rows, int row, int at) {
    const int i = at % kElements, place = sizeof(T) == 1 ? i % 8 * 2 + i / 8 : i;
    return reinterpret_cast<select<same<Bytes, u8>, T, const T>*>(rows + swizzled<kRowBytes>(row, at / kElements)) +
           place;
  }
  // To row m0, column n0 of y, m by n, whose rows are ldy elements apart.
  TW_MEMBER static void store(const u8* rows, void* y, i64 ldy, i64 m0, i64 n0, i64 m, i64 n, int thread) {
    T* to = static_cast<T*>(y) + m0 * ldy + n0;
    const i64 below = m - m0, right = n - n0;
    if ((ldy | n) % kElements == 0) {
      pieces(thread, [&](int row, int at) {
        if (row < below && at * kElements < right)
          store_global16(to + row * ldy + at * kElements, piece(rows, row, at));
      });
    } else {
      elements(thread, [&](int row, int at) {
        if (row < below && at < right) to[row * ldy + at] = *element(rows, row, at);
      });
    }
  }
  // The reverse, asynchronously; what is beyond the matrix is zero. n is whole pieces.
  TW_MEMBER static void fetch(u8* rows, const void* c, i64 ldc, i64 m0, i64 n0, i64 m, i64 n, int thread) {
    const T* from = static_cast<const T*>(c);
    if (ldc % kElements == 0) {
      pieces(thread, [&](int row, int at) {
        const bool inside = m0 + row < m && n0 + at * kElements < n;
        cp_async<16>(rows + swizzled<kRowBytes>(row, at), from + (inside ? (m0 + row) * ldc + n0 + at * kElements : 0),
                     inside ? 16 : 0);
      });
      cp_async_commit();
    } else {
      elements(thread, [&](int row, int at) {
        *element(rows, row, at) = m0 + row < m && n0 + at < n ? from[(m0 + row) * ldc + n0 + at] : T{};
      });
    }
  }
};

// A warpgroup's share of TOKENS tokens. Its threads' fragments are those of the matrix instruction: of block b of eight
// tokens, row half h and e, thread t has token 8 b + 2 (t % 4) + e and element 16 (t / 32) + 8 h + t % 32 / 4.
template <class T, int TOKENS>
struct Chunk : Rows<T, TOKENS, 128> {
  static constexpr int kRowBytes = Rows<T, TOKENS, 128>::kRowBytes;
  // Fragments of blocks b to b + B - 1.
  template <int B, class Value>
  TW_MEMBER static void put(u8* chunk, int b, const Value (&v)[B][2][2], int thread) {
    const int lane = thread % 32, warp = thread % 128 / 32;
    if constexpr (sizeof(T) == 1) {
      u32 bits[B];
      TW_UNROLL for (int i = 0; i < B; ++i) bits[i] =
          pack2<T>(v[i][0][0], v[i][1][0]) | (pack2<T>(v[i][0][1], v[i][1][1]) << 16);
      stmatrix_transposed(chunk + swizzled<kRowBytes>((8 * b + lane) % TOKENS, warp), bits);
    } else if constexpr (sizeof(T) == 2) {
      u32 bits[2 * B];
      TW_UNROLL for (int i = 0; i < 2 * B; ++i) bits[i] = pack2<T>(v[i / 2][i % 2][0], v[i / 2][i % 2][1]);
      stmatrix_transposed(chunk + matrix_row(b, lane, warp), bits);
    } else {
      each<B>(b, lane, warp,
              [&](int i, int h, int e, int at) { *reinterpret_cast<u32*>(chunk + at) = bits_as<u32>(v[i][h][e]); });
    }
  }
  template <int B>
  TW_MEMBER static void take(const u8* chunk, int b, float (&v)[B][2][2], int thread) {
    static_assert(sizeof(T) >= 2, "one-byte elements only leave");
    const int lane = thread % 32, warp = thread % 128 / 32;
    if constexpr (sizeof(T) == 2) {
      constexpr int kAtOnce = B == 1 ? 1 : 2;
      TW_UNROLL for (int i = 0; i < B; i += kAtOnce) {
        u32 bits[2 * kAtOnce];
        ldmatrix_transposed(bits, chunk + matrix_row(b + i, lane, warp));
        TW_UNROLL for (int q = 0; q < 2 * kAtOnce; ++q) v[i + q / 2][q % 2][0] = low_half<T>(bits[q]),
                                                                         v[i + q / 2][q % 2][1] = high_half<T>(bits[q]);
      }
    } else {
      each<B>(b, lane, warp,
              [&](int i, int h, int e, int at) { v[i][h][e] = *reinterpret_cast<const float*>(chunk + at); });
    }
  }

 private:
  // The row that a lane passes for the matrices (block, half) (b, 0), (b, 1), (b + 1, 0), (b + 1, 1).
  TW_MEMBER static int matrix_row(int b, int lane, int warp) {
    return swizzled<kRowBytes>((8 * (b + lane / 16) + lane % 8) % TOKENS, 2 * warp + lane / 8 % 2);
  }
  template <int B, class Visit>
  TW_MEMBER static void each(int b, int lane, int warp, const Visit& visit) {
    TW_UNROLL for (int i = 0; i < B; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) TW_UNROLL for (int e = 0; e < 2; ++e)
        visit(i, h, e,
              swizzled<kRowBytes>(8 * (b + i) + 2 * (lane % 4) + e, 4 * warp + 2 * h + lane / 16) + lane / 4 % 4 * 4);
  }
};

// How a warpgroup's tile leaves: in chunks of tokens, which take turns between two buffers. c comes the same way, into
// y's place where its elements are as large.
template <class Epi, int BM>
struct Outlet {
  using Y = typename Epi::Out;
  using C = select<Epi::kC, typename Epi::Residual, Y>;
  static constexpr int kYBytes = sizeof(Y), kCBytes = Epi::kC ? sizeof(C) : 0;
  static constexpr int kTokens = outlet_tokens(BM, kYBytes, kCBytes);
  static constexpr int kBlocks = min2(kTokens / 8, 4 / static_cast<int>(sizeof(Y)));  // of tokens put at a time
  using Result = Chunk<Y, kTokens>;
  using Addend = Chunk<C, kTokens>;
  static constexpr int kAddendAt = sizeof(C) == sizeof(Y) ? 0 : Result::kBytes;
  static constexpr int kBytes = outlet_bytes(BM, kYBytes, kCBytes), kBuffer = kBytes / 2;
};

// Where the sides have changed places, a warp has sixteen rows of 64 elements to itself. Four-byte elements leave as
// they are; c comes as above.
template <class Epi>
struct TurnedOutlet {
  using Y = typename Epi::Out;
  using C = select<Epi::kC, typename Epi::Residual, Y>;
  using Result = Rows<Y, 16, 32>;
  using Addend = Rows<C, 16, 32>;
  static constexpr int kBlocks = 4 / static_cast<int>(sizeof(Y));  // of eight columns that are put at a time
  static constexpr int kResult = sizeof(Y) == 4 ? 0 : Result::kBytes, kAddendAt = sizeof(C) == sizeof(Y) ? 0 : kResult;
  static constexpr int kBytes = turned_outlet_bytes(sizeof(Y), Epi::kC ? sizeof(C) : 0),
                       kBuffer = kBytes / (Epi::kC ? 2 : 1);

  template <class Value>
  TW_MEMBER static void put(u8* rows, int b, const Value (&v)[kBlocks][2][2], int lane) {
    u32 bits[4];
    TW_UNROLL for (int i = 0; i < 4; ++i) {
      const int h = i % 2;
      if constexpr (sizeof(Y) == 2)
        bits[i] = pack2<Y>(v[i / 2][h][0], v[i / 2][h][1]);
      else
        bits[i] = pack2<Y>(v[i / 2 * 2][h][0], v[i / 2 * 2 + 1][h][0]) |
                  (pack2<Y>(v[i / 2 * 2][h][1], v[i / 2 * 2 + 1][h][1]) << 16);
    }
    stmatrix_x4(rows + swizzled<Result::kRowBytes>(lane % 16, 2 * b / kBlocks + lane / 16), bits);
  }
  TW_MEMBER static void take(const u8* rows, int b, float (&v)[kBlocks][2][2], int lane) {
    if constexpr (sizeof(C) == 2) {
      // Each lane passes the row that it passes to put(), which may overwrite it.
      constexpr int kAtOnce = min2(2, kBlocks);
      TW_UNROLL for (int i = 0; i < kBlocks; i += kAtOnce) {
        u32 bits[2 * kAtOnce];
        const u8* row = rows + swizzled<Addend::kRowBytes>(lane % 16, b + i + lane / 16 % kAtOnce);
        if constexpr (kAtOnce == 2)
          ldmatrix_x4(bits, row);
        else
          ldmatrix_x2(bits, row);
        TW_UNROLL for (int q = 0; q < 2 * kAtOnce; ++q) v[i + q / 2][q % 2][0] = low_half<C>(bits[q]),
                                                                         v[i + q / 2][q % 2][1] = high_half<C>(bits[q]);
      }
    } else {
      TW_UNROLL for (int i = 0; i < kBlocks; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) {
        const u8* pair =
            rows + swizzled<Addend::kRowBytes>(lane / 4 + 8 * h, 2 * (b + i) + lane % 4 / 2) + lane % 2 * 8;
        v[i][h][0] = reinterpret_cast<const float*>(pair)[0], v[i][h][1] = reinterpret_cast<const float*>(pair)[1];
      }
    }
  }
};

template <class X, class W, class Epi, class P>
struct WarpgroupStores {
  using Y = typename Epi::Out;
  using Sum = typename P::Sum;
  using Sums = typename P::Sums;
  static constexpr int BM = P::kColumns, STRIPS = P::kStrips, GROUPS = P::kGroups, KGROUPS = P::kKGroups,
                       SPLIT = P::kSplit;
  static constexpr int kStripRows = P::kStripRows, kSums = P::kSums, kMath = P::kMath, kParts = P::kParts;
  static constexpr int kSlice = P::kSlice, kSlotFloats = P::kSlotFloats;
  static constexpr float kFactor = P::Weights::kFactor;

  struct Scaling {
    fmt::row_item<W> w[STRIPS][2];  // of this thread's rows of w, times the tensor's
    typename Epi::Value bias[STRIPS][2];
  };
  TW_MEMBER static Scaling scaling(const Args& args, const Shape& shape, i64 n0, int thread) {
    Scaling s;
    const float tensor = tensor_scale<X, W>(args, shape) * kFactor;
    TW_UNROLL for (int strip = 0; strip < STRIPS; ++strip) TW_UNROLL for (int h = 0; h < 2; ++h) {
      const i64 n = min2(n0 + row_of(thread, strip, h), shape.n - 1);
      s.w[strip][h] = fmt::scaled_by(tensor, w_item<W>(args, n, shape.k));
      s.bias[strip][h] = Epi::bias_at(args.bias, n);
    }
    return s;
  }
  // A scale of x; 0 beyond the matrix.
  using Column = fmt::row_item<X>;
  TW_MEMBER static Column column_scale(const Args& args, i64 m) { return m < args.m ? x_item<X>(args, m) : Column{}; }
  TW_MEMBER static Column column_of(const Column* shared, int token) {
    if constexpr (X::kRowScale)
      return shared[token];
    else
      return 1.0f;
  }
  // Those of the tile's rows of x, on their way through a warpgroup's registers to its copy of them in shared memory.
  struct ColumnScales {
    static constexpr int kOwn = X::kRowScale && sizeof(Column) == 4 && !P::kDeferred ? ceil_div(BM, 128) : 0;
    Column own[max2(1, kOwn)];
    TW_MEMBER ColumnScales(const Args& args, i64 m0, int thread) {
      TW_UNROLL for (int i = 0; i < kOwn; ++i) own[i] = column_scale(args, m0 + i * 128 + thread % 128);
    }
    TW_MEMBER void share(const Args& args, i64 m0, Column* to, int thread) const {
      if constexpr (X::kRowScale) {
        const u32 barrier = 1 + static_cast<u32>(thread / 128);
        sync_named(barrier, 128);  // all have read those of the last tile
        if constexpr (kOwn == 0) {
          for (int i = thread % 128; i < BM; i += 128) to[i] = column_scale(args, m0 + i);  // no registers to spare
        } else {
          TW_UNROLL for (int i = 0; i < kOwn; ++i) if (i * 128 + thread % 128 < BM) to[i * 128 + thread % 128] = own[i];
        }
        sync_named(barrier, 128);
      }
    }
  };
  // Row of w within the tile.
  TW_MEMBER static int row_of(int thread, int strip, int h) {
    return (thread / 128 % GROUPS * STRIPS + strip) * kStripRows + thread % 128 / 32 * 16 + thread % 32 / 4 + 8 * h;
  }

  // ---- whole tiles
  using Chunks = Outlet<Epi, BM>;
  static constexpr int kChunks = BM / Chunks::kTokens;  // of a strip

  // `turn`: of this warpgroup.
  TW_MEMBER static u8* buffer(u8* turn, int i) {
    return turn + (P::kShelf ? i * Chunks::Result::kBytes : i % 2 * Chunks::kBuffer);
  }
  // Asks for chunk i's c. The buffer is free: its last reader has passed a barrier since.
  TW_MEMBER static void fetch_c(const Args& args, const Shape& shape, u8* turn, i64 n0, i64 m0, int i, int thread) {
    if constexpr (Epi::kC) {
      using Addend = typename Chunks::Addend;
      Addend::fetch(buffer(turn, i) + Chunks::kAddendAt, args.c, args.ldc ? args.ldc : shape.n,
                    m0 + i % kChunks * Chunks::kTokens, n0 + (thread / 128 * STRIPS + i / kChunks) * kStripRows, args.m,
                    shape.n, thread);
    }
  }
  // Of the first chunk: before the products, which take long enough.
  TW_MEMBER static void prepare(const Args& args, const Shape& shape, u8* turn, i64 n0, i64 m0, int thread) {
    fetch_c(args, shape, turn, n0, m0, 0, from_here(thread));
  }
  TW_MEMBER static void store_tile(const Args& args, const Shape& shape, u8* turn, const Column* x_scales,
                                   const Scaling& scale, const Sums& sums, const u32* others, i64 n0, i64 m0,
                                   int thread) {
    thread = from_here(thread);
    constexpr int kTokens = Chunks::kTokens, kBlocks = Chunks::kBlocks;
    using Result = typename Chunks::Result;
    const u32 barrier = 1 + static_cast<u32>(thread / 128);
    const i64 ldy = args.ldy ? args.ldy : shape.n, end = P::kBM == 1 ? m0 + 1 : args.m;
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int c = 0; c < kChunks; ++c) {
      const int i = s * kChunks + c;
      u8* chunk = buffer(turn, i);
      if constexpr (Epi::kC) {
        cp_async_wait<0>();
        sync_named(barrier, 128);  // and the chunk before has left the other buffer
        if (i + 1 < STRIPS * kChunks) fetch_c(args, shape, turn, n0, m0, i + 1, thread);
      }
      TW_UNROLL for (int b = 0; b < kTokens / 8; b += kBlocks) {
        float added[kBlocks][2][2] = {};
        if constexpr (Epi::kC) Chunks::Addend::take(chunk + Chunks::kAddendAt, b, added, thread);
        typename Epi::Value v[kBlocks][2][2];
        TW_UNROLL for (int j = 0; j < kBlocks; ++j) {
          Sum sum[4];
          whole(sum, sums, s, c * kTokens / 8 + b + j, others);
          TW_UNROLL for (int h = 0; h < 2; ++h) TW_UNROLL for (int e = 0; e < 2; ++e) {
            const int token = c * kTokens + 8 * (b + j) + 2 * (thread % 4) + e;
            const Column column = column_of(x_scales, token);
            v[j][h][e] =
                Epi::finish(shape, centred(sum[2 * h + e], column, scale.w[s][h]),
                            fmt::scale_of(scale.w[s][h]) * fmt::scale_of(column), scale.bias[s][h], added[j][h][e]);
          }
        }
        Result::put(chunk, b, v, thread);
      }
      if constexpr (P::kShelf) continue;
      sync_named(barrier, 128);
      Result::store(chunk, args.y, ldy, m0 + c * kTokens, n0 + (thread / 128 * STRIPS + s) * kStripRows, end, shape.n,
                    thread);
    }
    if constexpr (!P::kShelf)
      sync_named(barrier, 128);  // the next tile's first chunk may land where the last one is read
  }

  // Split k: every block sends each other its sums of that block's rows, and adds what it gets in the order of the
  // parts of k. Two slots are enough without any word of "read": a block sends its sums of one tile when all its
  // threads have read those of the tile before, so who has everybody's knows that. The producers do not wait: the ring
  // fills meanwhile.
  struct Exchange {
    float* slots;  // [2][sender][token][row of the slice]
    u64* arrived;  // [2]
    u32 slot, phase;
  };
  // part: not whole sums, which go there (StreamKFew).
  TW_MEMBER static void store_reduced(const Args& args, const Shape& shape, Exchange& exchange, const Sums& sums,
                                      i64 n0, i64 m0, int thread, Sum* part = nullptr) {
    const int tokens = static_cast<int>(min2(static_cast<i64>(P::kBM), args.m - m0));
    const u32 rank = SPLIT > 1 ? cluster_rank() : 0;
    float* slot = exchange.slots + exchange.slot * kSlotFloats;
    u64* arrived = exchange.arrived + exchange.slot;
    if constexpr (SPLIT > 1) sync_named(8, kMath);
    if (SPLIT > 1 && thread == 0) barrier_expect(arrived, static_cast<u32>(tokens * kSlice * kParts * 4));
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int i = 0; i < kSums; ++i) {
      const int token = 8 * (i / 4) + 2 * (thread % 4) + i % 2, row = row_of(thread, s, i % 4 / 2);
      float* to =
          slot + ((static_cast<int>(rank) * KGROUPS + thread / (128 * GROUPS)) * BM + token) * kSlice + row % kSlice;
      if (token >= tokens) continue;
      if constexpr (SPLIT == 1)
        *to = bits_as<float>(sums[s][i]);
      else
        store_cluster_async(to, bits_as<float>(sums[s][i]), arrived, static_cast<u32>(row / kSlice));
    }
    if constexpr (SPLIT == 1)
      sync_named(8, kMath);
    else
      barrier_wait(arrived, exchange.phase);
    for (int at = thread; at < tokens * kSlice; at += kMath) {
      Sum sum = 0;
      TW_UNROLL for (int r = 0; r < kParts; ++r) sum +=
          bits_as<Sum>(slot[(r * BM + at / kSlice) * kSlice + at % kSlice]);
      if (P::kTail == kStreamK && part)
        part[at] = sum;
      else
        store_sum(args, shape, at, sum, n0 + static_cast<int>(rank) * kSlice, m0);
    }
    exchange.phase ^= exchange.slot;
    exchange.slot ^= 1u;
  }
  // Sum `at` of those: token at / kSlice.
  TW_MEMBER static void store_sum(const Args& args, const Shape& shape, int at, Sum sum, i64 n0, i64 m0) {
    const i64 n = n0 + at % kSlice, m = m0 + at / kSlice;
    if (n >= shape.n || m >= args.m) return;
    const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
    const Column of_x = x_item<X>(args, m);
    const float f = tensor_scale<X, W>(args, shape) * kFactor * fmt::scale_of(of_w) * fmt::scale_of(of_x);
    Epi::store(args.y, m * (args.ldy ? args.ldy : shape.n) + n,
               Epi::apply(args, shape, m, n, centred(sum, of_x, of_w), f));
  }

  // ---- kClusterTail: two blocks have a tile's sums over their parts of k. What one warpgroup of each has goes to the
  // other block, whose same warpgroup adds it to its own as it stores them. Sums pass through the ring there, once all
  // there have done with it.
  TW_MEMBER static const u32* exchange(u8* ring, u64* neighbour_done, u64* arrived, const Sums& sums, bool completes,
                                       int thread) {
    constexpr u32 kBytes = STRIPS * kSums * 128 * 4;
    static_assert(kBytes <= P::kRingBytes, "the ring holds what one warpgroup sends");
    const u32 neighbour = 1u - cluster_rank();
    u32* place = reinterpret_cast<u32*>(ring) + thread % 128;  // words of a warp side by side: apart they take 30 us
    lanes_together();
    if (thread % 32 == 0) barrier_arrive_remote(neighbour_done, neighbour);
    if (completes) {
      if (thread % 128 == 0) barrier_expect(arrived, kBytes);
      barrier_wait(arrived, 0);
    } else {
      barrier_wait(neighbour_done, 0);
      const ClusterAddress to(place, neighbour), told(arrived, neighbour);
      TW_UNROLL for (int s = 0; s < STRIPS; ++s) TW_UNROLL for (int i = 0; i < kSums; ++i)
          store_cluster_async(to, static_cast<u32>((s * kSums + i) * 512), bits_as<float>(sums[s][i]), told);
    }
    return place;
  }
  // Four sums of this thread, with the neighbour's if there are any.
  TW_MEMBER static void whole(Sum (&to)[4], const Sums& sums, int s, int i, const u32* others) {
    TW_UNROLL for (int j = 0; j < 4; ++j) {
      to[j] = sums[s][4 * i + j];
      if (P::kTail == kClusterTail && others) to[j] += bits_as<Sum>(others[(s * kSums + 4 * i + j) * 128]);
    }
  }

  // ---- kStreamK: of eight tokens of a strip, whose sums were made in parts, four of one row.
  TW_MEMBER static void store_unit(const Args& args, const Shape& shape, const Column* x_scales, int unit,
                                   const Sum (&sum)[4], int row, int token, i64 n0, i64 m0, int thread) {
    const i64 n = n0 + (thread / 128 * STRIPS + unit / (kSums / 4)) * kStripRows + row,
              ldy = args.ldy ? args.ldy : shape.n;
    if (n >= shape.n) return;
    const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
    const float f = tensor_scale<X, W>(args, shape) * kFactor * fmt::scale_of(of_w);
    const typename Epi::Value bias = Epi::bias_at(args.bias, n);
    token += unit % (kSums / 4) * 8;
    const int left = static_cast<int>(min2<i64>(args.m - m0 - token, 7));  // tokens
    i64 at = (m0 + token) * ldy + n;
    TW_UNROLL for (int i = 0; i < 4; ++i, at += 2 * ldy) {
      if (2 * i >= left) return;
      const Column of_x = column_of(x_scales, token + 2 * i);
      const float c = Epi::c_at(args, shape, m0 + token + 2 * i, n);
      Epi::store(args.y, at, Epi::finish(shape, centred(sum[i], of_x, of_w), f * fmt::scale_of(of_x), bias, c));
    }
  }

  // ---- TURNED: a row of a strip is a piece of one of y, and a warp's sixteen are its own business.
  TW_MEMBER static void store_turned(const Args& args, const Shape& shape, u8* turn, const Sums& sums, i64 n0, i64 m0,
                                     int thread) {
    thread = from_here(thread);
    using Turned = TurnedOutlet<Epi>;
    constexpr int kBlocks = Turned::kBlocks, kPieces = ceil_div(BM, 64);  // of a row
    static_assert(BM % (8 * kBlocks) == 0 && !fmt::has_zero_point<X> && !fmt::has_zero_point<W>, "turned");
    const i64 tokens = shape.n, features = args.m, ldy = args.ldy ? args.ldy : features, end = min2(features, m0 + BM);
    const int lane = thread % 32;
    const float tensor = tensor_scale<X, W>(args, shape);
    turn += thread % 128 / 32 * (P::kShelf ? STRIPS * kPieces * Turned::Result::kBytes : Turned::kBytes);
    const auto row_at = [&](int i) { return n0 + row_of(thread / 32 * 32, i / kPieces, 0); };
    const auto fetch = [&](int i) {
      if constexpr (Epi::kC)
        Turned::Addend::fetch(turn + i % 2 * Turned::kBuffer + Turned::kAddendAt, args.c,
                              args.ldc ? args.ldc : features, row_at(i), m0 + i % kPieces * 64, tokens, end, lane);
    };
    fetch(0);
    TW_UNROLL for (int s = 0; s < STRIPS; ++s) {
      float scale[2];
      TW_UNROLL for (int h = 0; h < 2; ++h) {
        scale[h] = tensor;
        scale[h] *= fmt::scale_of(fmt::row_item_at<W>(args.w.scales, min2(n0 + row_of(thread, s, h), tokens - 1)));
      }
      TW_UNROLL for (int c = 0; c < kPieces; ++c) {
        const int i = s * kPieces + c;
        u8* rows = turn + (P::kShelf ? i * Turned::Result::kBytes : Epi::kC ? i % 2 * Turned::kBuffer : 0);
        if constexpr (Epi::kC) {
          cp_async_wait<0>();
          sync_warp();
          if (i + 1 < STRIPS * kPieces) fetch(i + 1);
        }
        TW_UNROLL for (int b = 0; b < min2(8, BM / 8 - 8 * c); b += kBlocks) {
          float added[kBlocks][2][2] = {};
          if constexpr (Epi::kC) Turned::take(rows + Turned::kAddendAt, b, added, lane);
          typename Epi::Value v[kBlocks][2][2];
          TW_UNROLL for (int j = 0; j < kBlocks; ++j) TW_UNROLL for (int h = 0; h < 2; ++h)
              TW_UNROLL for (int e = 0; e < 2; ++e) {
            const i64 n = m0 + c * 64 + 8 * (b + j) + 2 * (lane % 4) + e;
            const i64 column = min2(n, features - 1);
            v[j][h][e] = Epi::finish(shape, sums[s][4 * (8 * c + b + j) + 2 * h + e],
                                     scale[h] * fmt::scale_of(fmt::row_item_at<X>(args.x.scales, column)),
                                     Epi::bias_at(args.bias, column), added[j][h][e]);
          }
          if constexpr (sizeof(Y) <= 2) {
            Turned::put(rows, b, v, lane);
          } else {
            TW_UNROLL for (int h = 0; h < 2; ++h) {
              const i64 m = n0 + row_of(thread, s, h), n = m0 + c * 64 + 8 * b + 2 * (lane % 4);
              if (m >= tokens || n >= features) continue;  // features are even
              if (ldy % 2 == 0)
                Epi::store_pair(args.y, m * ldy + n, v[0][h][0], v[0][h][1]);
              else
                Epi::store(args.y, m * ldy + n, v[0][h][0]), Epi::store(args.y, m * ldy + n + 1, v[0][h][1]);
            }
          }
        }
        sync_warp();  // also so that not all scales of a tile are read before the first is used
        if constexpr (P::kShelf) continue;
        if constexpr (sizeof(Y) <= 2) {
          Turned::Result::store(rows, args.y, ldy, row_at(i), m0 + c * 64, tokens, end, lane);
          sync_warp();
        }
      }
    }
  }

  // ---- SHELF: one of the storing warps takes its share of a warpgroup's tile from there.
  TW_MEMBER static void store_shelf(const Args& args, const Shape& shape, const u8* shelf, int group, i64 n0, i64 m0,
                                    int warp, int lane) {
    using Piece = Rows<Y, 16, 32>;
    constexpr int kAcross =
        P::kTurned ? ceil_div(BM, 64) : BM / 16;  // pieces of a strip, or of a warp's sixteen rows of it
    constexpr int kPieces = STRIPS * kAcross * (P::kTurned ? 4 : 1);
    const i64 first = n0 + group * STRIPS * kStripRows;
    const i64 rows = P::kTurned ? shape.n : args.m, columns = P::kTurned ? args.m : shape.n,
              ldy = args.ldy ? args.ldy : columns;
    TW_NO_UNROLL for (int i = warp; i < kPieces; i += P::kStorers) {
      const int strip = i / kAcross % STRIPS, at = i % kAcross;
      const u8* piece = shelf + i * Piece::kBytes;
      if constexpr (P::kTurned)
        Piece::store(piece, args.y, ldy, first + strip * kStripRows + i / kAcross / STRIPS * 16, m0 + at * 64, rows,
                     min2(columns, m0 + BM), lane);
      else
        Piece::store(piece, args.y, ldy, m0 + at * 16, first + strip * kStripRows, rows, columns, lane);
    }
  }
};

}  // namespace tw::gemm
