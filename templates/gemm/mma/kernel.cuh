// SPDX-License-Identifier: Apache-2.0
// Matrix units through mma.sync, from sm_75 on. A block computes BM x BN of y; WARPS_M x WARPS_N warps share it; tiles
// of BK elements of k pass through STAGES buffers in shared memory; SPLIT blocks of a cluster share a tile's k.
//
//   x and w plain, one type            accumulate in place; fp8 per stage, and the stages' sums in fp32, since the
//   units keep
//                                      fewer bits. Scales of rows are the epilogue's; those of 128 columns are applied
//                                      to a stage's sums, which then are of 128 columns too (gemm/block_scales.cuh)
//   x 16-bit, w of bytes               w is widened on its way into shared memory, exactly
//   x 16-bit, w in codes               codes become 16-bit floats exactly; each group's products are summed apart and
//                                      then scaled in fp32, so that no weight is rounded
//   x of bytes, w in codes             the same by bytes: signed, int32 sums of a group, or E4M3, which codes of 4 bits
//   are exactly x and w in codes                   signed bytes, int32 sums per group, scaled in fp32 x and w in blocks
//   that the units   as stored: MXFP8, MXFP4, NVFP4, of one kind; a stage's sums formed apart scale themselves
//   (sm_120a)
//
//   ASYNC  copy with cp.async (plain rows start on 16 bytes)
//   EX     elements of plain x (and w) per register load where they are not copied
//   EW     elements of coded w that divide k: the alignment of its rows
#pragma once
#include "core/fragments.cuh"
#include "gemm/block_scales.cuh"
#include "gemm/mma/staging.cuh"

namespace tw::gemm {

template <class X, class W, class Epi, int BM, int BN, int BK, int WARPS_M, int WARPS_N, int STAGES, bool ASYNC, int EX,
          int EW, int SPLIT>
struct Mma {
  static constexpr ScaledMma kKind = fmt::scaled_mma<X> == fmt::scaled_mma<W> ? fmt::scaled_mma<X> : ScaledMma::none;
  static constexpr bool kScaled = kKind != ScaledMma::none;
  static constexpr bool kInt = X::kCodes && !kScaled, kGrouped = W::kCodes && !kScaled, kTerms = W::kOffset;
  using T = select<kScaled, u8, typename OperandOf<X, kInt || kScaled>::type>;
  using U =
      select<is_fp8_type<T> && is_fp8_type<element_of<W>>, element_of<W>, T>;  // of w's fragments; fp8 may be mixed
  // Of plain x and w, of one size: sums of bytes are exact, and each stage's of fp8 is formed apart.
  static constexpr bool kBytes = !kGrouped && same<T, i8>, kApart = !kGrouped && !kScaled && sizeof(T) == 1 && !kBytes;
  using Sum = select<kBytes, i32, float>;
  static constexpr int kThreads = 32 * WARPS_M * WARPS_N;
  static constexpr int kRowBytes = kScaled ? 128 : BK * static_cast<int>(sizeof(T));
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;  // of a warp
  static constexpr int MI = WM / 16, NI = WN / 8;             // fragments of a warp
  static constexpr int kGroup = kGrouped ? W::kGroup : BK;
  static_assert(WM % 16 == 0 && WN % 16 == 0, "warp tile in whole fragments");
  using Scales = BlockScales<W, X, WN, MI, 16>;  // of the warp's tile
  using Factors = typename Scales::Factors;
  static_assert(!Scales::kAny || (kApart && BK == 128), "a stage has one scale");

  // An operand's way into shared memory: plain tiles lie in a ring of STAGES; codes do as stored, and two unpacked
  // tiles take turns beside it.
  enum class Form { plain, codes, scaled };
  template <class F, Form form, int ROWS, int E, bool sums>
  struct Feed {
    static constexpr bool kCoded = false, kWidened = sizeof(typename F::Element) < sizeof(T);
    using Tile = select<kWidened, WidenedTile<T, typename F::Element, ROWS, BK, EX, kThreads>,
                        select<ASYNC, AsyncTile<T, ROWS, BK, kThreads>, PlainTile<T, ROWS, BK, EX, kThreads>>>;
    static constexpr int kRingBytes = ROWS * kRowBytes, kUnpackedBytes = 0, kFloats = 0;
  };
  template <class F, int ROWS, int E, bool sums>
  struct Feed<F, Form::scaled, ROWS, E, sums> {
    static constexpr bool kCoded = false;
    using Tile = ScaledRowsTile<F, ROWS, kThreads>;
    static_assert(ASYNC && Tile::kColumns == BK, "rows of 128 bytes");
    static constexpr int kRingBytes = Tile::kBytes, kUnpackedBytes = 0, kFloats = 0;
  };
  template <class F, int ROWS, int E, bool sums>
  struct Feed<F, Form::codes, ROWS, E, sums> {
    static constexpr bool kCoded = true;
    using Tile = CodeTile<F, T, ROWS, BK, E, kThreads, ASYNC, sums, kTerms>;
    static constexpr int kRingBytes = Tile::kRawBytes;
    static constexpr int kFloats = BK / (sums ? 32 : F::kGroup) * ROWS;
    static constexpr int kUnpackedBytes = ROWS * kRowBytes + 4 * kFloats * (kTerms ? 2 : 1);
  };
  using XFeed = Feed<X, kScaled ? Form::scaled : kInt ? Form::codes : Form::plain, BM, 32, true>;
  using WFeed = Feed<W, kScaled ? Form::scaled : kGrouped ? Form::codes : Form::plain, BN, EW, false>;
  static constexpr bool kCoded = XFeed::kCoded || WFeed::kCoded;

  // ---- shared memory: the rings of x and w, then two unpacked tiles of each
  static constexpr int kStageBytes = XFeed::kRingBytes + WFeed::kRingBytes;
  static constexpr int kUnpackedBytes = XFeed::kUnpackedBytes + WFeed::kUnpackedBytes;
  static constexpr int kPad = 4;
  static constexpr int kReduceBytes = SPLIT > 1 ? BM*(BN + kPad) * 4 : 0;
  static constexpr int kFeedBytes = STAGES * kStageBytes + 2 * kUnpackedBytes;
  static constexpr int kSharedBytes = kFeedBytes > kReduceBytes ? kFeedBytes : kReduceBytes;
  static_assert(STAGES >= (kCoded ? 3 : 2), "a coded tile is unpacked a step before its use");

  TW_MEMBER static u8* x_ring(int slot) { return dynamic_shared() + slot * kStageBytes; }
  TW_MEMBER static u8* w_ring(int slot) { return x_ring(slot) + XFeed::kRingBytes; }
  // The tile that the matrix units read in a step: ring slot `slot`, or unpacked tile `turn`.
  TW_MEMBER static Stage x_stage(int slot, int turn) {
    if constexpr (!XFeed::kCoded) return {x_ring(slot), nullptr, nullptr};
    u8* base = dynamic_shared() + STAGES * kStageBytes + turn * kUnpackedBytes;
    float* floats = reinterpret_cast<float*>(base + BM * kRowBytes);
    return {base, floats, floats + XFeed::kFloats};
  }
  TW_MEMBER static Stage w_stage(int slot, int turn) {
    if constexpr (!WFeed::kCoded) return {w_ring(slot), nullptr, nullptr};
    u8* base = dynamic_shared() + STAGES * kStageBytes + turn * kUnpackedBytes + XFeed::kUnpackedBytes;
    float* floats = reinterpret_cast<float*>(base + BN * kRowBytes);
    return {base, floats, floats + WFeed::kFloats};
  }

  using Accumulators = Sum[MI][NI][4];
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
  TW_MEMBER static void multiply_plain(const Stage& xs, const Stage& ws, const Position& p, Accumulators& acc) {
    const u8* x = xs.codes;
    const u8* w = ws.codes;
    TW_UNROLL for (int s = 0; s < kRowBytes / 32; ++s) {
      u32 a[MI][4];
      TW_UNROLL for (int i = 0; i < MI; ++i) load_a(a[i], x, p.warp_m + 16 * i, 2 * s, p.lane);
      TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
        u32 b[4];
        load_b(b, w, p.warp_n + 16 * j, 2 * s, p.lane);
        const u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        TW_UNROLL for (int i = 0; i < MI; ++i) {
          mma_step<T, U>(acc[i][2 * j], a[i], b0);
          mma_step<T, U>(acc[i][2 * j + 1], a[i], b1);
        }
      }
    }
  }
  TW_MEMBER static void multiply_apart(const Stage& xs, const Stage& ws, const Position& p, const Factors& factors,
                                       Accumulators& acc) {
    constexpr int kSteps = kRowBytes / 32;
    static_assert(kSteps <= 4, "128 products at a time");
    TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
      u32 b[kSteps][4];
      TW_UNROLL for (int s = 0; s < kSteps; ++s) load_b(b[s], ws.codes, p.warp_n + 16 * j, 2 * s, p.lane);
      TW_UNROLL for (int i = 0; i < MI; ++i) {
        float sum[2][4] = {};
        TW_UNROLL for (int s = 0; s < kSteps; ++s) {
          u32 a[4];
          load_a(a, xs.codes, p.warp_m + 16 * i, 2 * s, p.lane);
          TW_UNROLL for (int h = 0; h < 2; ++h) {
            const u32 bb[2] = {b[s][2 * h], b[s][2 * h + 1]};
            mma_step<T, U>(sum[h], a, bb);
          }
        }
        TW_UNROLL for (int h = 0; h < 2; ++h) TW_UNROLL for (int e = 0; e < 4; ++e) {
          if constexpr (Scales::kAny)
            acc[i][2 * j + h][e] += factors.of(i, 4 * (2 * j + h) + e) * sum[h][e];
          else
            acc[i][2 * j + h][e] += sum[h][e];
        }
      }
    }
  }

  // ---- one stage, blocks that the units scale
  TW_MEMBER static void multiply_scaled(const u8* x, const u8* w, int word, const Position& p, Accumulators& acc) {
    constexpr int kScales = kKind == ScaledMma::mxf8   ? 1
                            : kKind == ScaledMma::mxf4 ? 2
                                                       : 4,
                  kSteps = 4 / kScales;  // of a word
    u32 scale_x[MI];
    TW_UNROLL for (int i = 0; i < MI; ++i) scale_x[i] =
        XFeed::Tile::scales(x, p.warp_m + 16 * i + p.lane / 4 + p.lane % 2 * 8, word);
    TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
      u32 scale_w[2], b[kSteps][4];
      TW_UNROLL for (int h = 0; h < 2; ++h) scale_w[h] =
          WFeed::Tile::scales(w, p.warp_n + 16 * j + 8 * h + p.lane / 4, word);
      TW_UNROLL for (int s = 0; s < kSteps; ++s) load_b(b[s], w, p.warp_n + 16 * j, 2 * (word * kSteps + s), p.lane);
      TW_UNROLL for (int i = 0; i < MI; ++i) {
        u32 a[kSteps][4];
        TW_UNROLL for (int s = 0; s < kSteps; ++s) load_a(a[s], x, p.warp_m + 16 * i, 2 * (word * kSteps + s), p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          float sum[4] = {};
          scaled_steps<kSteps, kScales>(sum, a, b, h, scale_x[i], scale_w[h]);
          TW_UNROLL for (int e = 0; e < 4; ++e) acc[i][2 * j + h][e] += sum[e];
        }
      }
    }
  }
  template <int steps, int scales, int step = 0>
  TW_MEMBER static void scaled_steps(float (&sum)[4], const u32 (&a)[steps][4], const u32 (&b)[steps][4], int h,
                                     u32 scale_x, u32 scale_w) {
    if constexpr (step < steps) {
      const u32 bb[2] = {b[step][2 * h], b[step][2 * h + 1]};
      mma_scaled<kKind, step * scales>(sum, a[step], bb, scale_x, scale_w);
      scaled_steps<steps, scales, step + 1>(sum, a, b, h, scale_x, scale_w);
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
  TW_MEMBER static void multiply_grouped(const Stage& xs, const Stage& w, const Position& p, Accumulators& acc) {
    constexpr int kSteps = kGroup / 16;
    const u8* x = xs.codes;
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
        TW_UNROLL for (int s = 0; s < kSteps; ++s)
            load_b(b[s], w.codes, p.warp_n + 16 * j, 2 * (g * kSteps + s), p.lane);
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

  // ---- one stage, bytes and coded w. Plain x has no scales here, and its sums, which offsets of w need, are products
  // with ones.
  using GroupSum = select<same<T, i8>, i32, float>;
  TW_MEMBER static void multiply_bytes(const Stage& x, const Stage& w, const Position& p, Accumulators& acc) {
    constexpr int kGroups = 32 / kGroup;  // of a step
    static_assert(!kInt || !kTerms || kGroups == 1, "sums of 32");
    TW_NO_UNROLL for (int s = 0; s < BK / 32; ++s) {
      u32 a[MI][4];
      float x_scale[MI][2], x_term[MI][kGroups][2];
      TW_UNROLL for (int i = 0; i < MI; ++i) {
        const int row = p.warp_m + 16 * i;
        load_a(a[i], x.codes, row, 2 * s, p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const int at = s * BM + row + p.lane / 4 + 8 * h;
          x_scale[i][h] = kInt ? x.scales[at] : 1.0f;
          if constexpr (kInt && kTerms) x_term[i][0][h] = x.terms[at];
        }
        if constexpr (!kInt && kTerms) {
          constexpr u32 kOnes = same<T, i8> ? 0x01010101u : 0x38383838u;
          const u32 ones[2] = {kOnes, kOnes};
          TW_UNROLL for (int g = 0; g < kGroups; ++g) {
            GroupSum sum[4] = {};
            if constexpr (kGroups == 1)
              mma_step<T>(sum, a[i], ones);
            else
              mma_half_step<T>(sum, a[i][2 * g], a[i][2 * g + 1], kOnes);
            TW_UNROLL for (int h = 0; h < 2; ++h) x_term[i][g][h] = static_cast<float>(sum[2 * h]);
          }
        }
      }
      TW_UNROLL for (int j = 0; j < NI / 2; ++j) {
        u32 b[4];
        load_b(b, w.codes, p.warp_n + 16 * j, 2 * s, p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const int column = p.warp_n + 16 * j + 8 * h + 2 * (p.lane % 4);
          const u32 bb[2] = {b[2 * h], b[2 * h + 1]};
          TW_UNROLL for (int g = 0; g < kGroups; ++g) {
            const Columns c = columns_at(w, s * kGroups + g, column);
            TW_UNROLL for (int i = 0; i < MI; ++i) {
              GroupSum sum[4] = {};
              if constexpr (kGroups == 1)
                mma_step<T>(sum, a[i], bb);
              else
                mma_half_step<T>(sum, a[i][2 * g], a[i][2 * g + 1], bb[g]);
              add_scaled(acc[i][2 * j + h], sum, c, x_scale[i]);
              if constexpr (kTerms) {
                TW_UNROLL for (int e = 0; e < 4; ++e) acc[i][2 * j + h][e] -= c.offset[e % 2] * x_term[i][g][e / 2];
              }
            }
          }
        }
      }
    }
  }
  TW_MEMBER static void add_scaled(float (&acc)[4], const GroupSum (&sum)[4], const Columns& c,
                                   const float (&x_scale)[2]) {
    TW_UNROLL for (int e = 0; e < 4; ++e) acc[e] += (x_scale[e / 2] * c.scale[e % 2]) * static_cast<float>(sum[e]);
  }

  TW_MEMBER static void multiply(const Stage& x, const Stage& w, const Position& p, const Factors& factors,
                                 Accumulators& acc) {
    if constexpr (kScaled)
      TW_NO_UNROLL for (int word = 0; word < XFeed::Tile::kWords; ++word)
          multiply_scaled(x.codes, w.codes, word, p, acc);
    else if constexpr (kGrouped && sizeof(T) == 1)
      multiply_bytes(x, w, p, acc);
    else if constexpr (kGrouped)
      multiply_grouped(x, w, p, acc);
    else if constexpr (kApart)
      multiply_apart(x, w, p, factors, acc);
    else
      multiply_plain(x, w, p, acc);
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

    typename XFeed::Tile x{};
    typename WFeed::Tile w{};
    const auto fetch = [&](int step, int slot) {
      if (step >= end) return;
      x.fetch(xs, tile.m, static_cast<i64>(step) * BK, x_ring(slot));
      w.fetch(ws, tile.n, static_cast<i64>(step) * BK, w_ring(slot));
    };
    const auto place = [&](int step, int slot) {
      if (step >= end) return;
      if constexpr (!XFeed::kCoded) x.place(x_ring(slot));
      if constexpr (!WFeed::kCoded) w.place(w_ring(slot));
    };
    const auto unpack = [&](int step, int slot) {
      if (step >= end) return;
      if constexpr (XFeed::kCoded) x.unpack(x_ring(slot), static_cast<i64>(step) * BK, x_stage(slot, step & 1));
      if constexpr (WFeed::kCoded) w.unpack(w_ring(slot), static_cast<i64>(step) * BK, w_stage(slot, step & 1));
    };

    const Scales scales({args.w.scales, shape.n, shape.k, tile.n + p.warp_n},
                        {args.x.scales, args.m, ldx, tile.m + p.warp_m}, shape.k, 2 * (p.lane % 4), p.lane / 4);
    Accumulators acc = {};
    TW_UNROLL for (int s = 0; s < STAGES - 1; ++s) {
      fetch(begin + s, s);
      place(begin + s, s);
      if constexpr (ASYNC) cp_async_commit();
    }
    if constexpr (kCoded) {
      if constexpr (ASYNC) cp_async_wait<STAGES - 2>();
      sync_block();
      unpack(begin, 0);
    }
    int read = 0, write = STAGES - 1;
    TW_NO_UNROLL for (int step = begin; step < end; ++step) {
      Factors factors;
      if constexpr (Scales::kAny) factors = scales.at(step);  // they arrive while others are waited for
      // Tile `step` is complete, as stored `step + 1` too; and all are done with slot `write`, which step - 1 read.
      if constexpr (ASYNC) cp_async_wait<kCoded ? STAGES - 3 : STAGES - 2>();
      sync_block();
      fetch(step + STAGES - 1, write);
      if constexpr (ASYNC) cp_async_commit();
      unpack(step + 1, read + 1 == STAGES ? 0 : read + 1);
      multiply(x_stage(read, step & 1), w_stage(read, step & 1), p, factors, acc);
      place(step + STAGES - 1, write);
      read = read + 1 == STAGES ? 0 : read + 1;
      write = write + 1 == STAGES ? 0 : write + 1;
    }
    if constexpr (SPLIT == 1)
      store(args, shape, tile, p, acc);
    else
      reduce(args, shape, tile, p, acc);
  }

  // ---- results
  TW_MEMBER static void store(const Args& args, const Shape& shape, const Tile& tile, const Position& p,
                              Accumulators& acc) {
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    const bool pairs = ((ldy | shape.n) & 1) == 0;
    TW_UNROLL for (int i = 0; i < MI; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) {
      const i64 m = tile.m + p.warp_m + 16 * i + 8 * h + p.lane / 4;
      if (m >= args.m) continue;
      const fmt::row_item<X> of_x = x_item<X>(args, m);
      const auto finished = [&](i64 n, Sum sum) {
        const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
        return Epi::apply(args, shape, m, n, centred(sum, of_x, of_w),
                          scale * fmt::scale_of(of_x) * fmt::scale_of(of_w));
      };
      TW_UNROLL for (int j = 0; j < NI; ++j) {
        const i64 n = tile.n + p.warp_n + 8 * j + 2 * (p.lane % 4);
        if (n >= shape.n) continue;
        const auto lo = finished(n, acc[i][j][2 * h]);
        if (pairs) {
          Epi::store_pair(args.y, m * ldy + n, lo, finished(n + 1, acc[i][j][2 * h + 1]));
        } else {
          Epi::store(args.y, m * ldy + n, lo);
          if (n + 1 < shape.n) Epi::store(args.y, m * ldy + n + 1, finished(n + 1, acc[i][j][2 * h + 1]));
        }
      }
    }
  }

  // Each block of the cluster leaves its sums in its shared memory and then adds up its share of the rows over all.
  TW_MEMBER static void reduce(const Args& args, const Shape& shape, const Tile& tile, const Position& p,
                               Accumulators& acc) {
    constexpr int kPitch = BN + kPad;
    float* sums = reinterpret_cast<float*>(dynamic_shared());
    if constexpr (ASYNC) cp_async_wait<0>();
    sync_block();  // the stages are no longer read
    TW_UNROLL for (int i = 0; i < MI; ++i) TW_UNROLL for (int j = 0; j < NI; ++j) TW_UNROLL for (int e = 0; e < 4; ++e)
        sums[(p.warp_m + 16 * i + 8 * (e / 2) + p.lane / 4) * kPitch + p.warp_n + 8 * j + 2 * (p.lane % 4) + e % 2] =
            bits_as<float>(acc[i][j][e]);
    sync_cluster();
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    constexpr int kShare = (BM + SPLIT - 1) / SPLIT;
    const int first = static_cast<int>(cluster_rank()) * kShare;
    for (int t = static_cast<int>(thread_x()); t < kShare * BN; t += kThreads) {
      const int row = first + t / BN, column = t % BN;
      const i64 m = tile.m + row, n = tile.n + column;
      if (row >= BM || m >= args.m || n >= shape.n) continue;
      Sum total = 0;
      TW_UNROLL for (int c = 0; c < SPLIT; ++c) total +=
          bits_as<Sum>(load_cluster(sums + row * kPitch + column, static_cast<u32>(c)));
      const fmt::row_item<X> of_x = x_item<X>(args, m);
      const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
      const float scaled = scale * fmt::scale_of(of_x) * fmt::scale_of(of_w);
      Epi::store(args.y, m * ldy + n, Epi::apply(args, shape, m, n, centred(total, of_x, of_w), scaled));
    }
    sync_cluster();  // no block leaves while another reads its sums
  }
};

}  // namespace tw::gemm
