// SPDX-License-Identifier: Apache-2.0
// Matrix units through mma.sync, from sm_75 on. A block's warps share a tile of y; stages of k pass through a ring of
// buffers in shared memory; blocks of a cluster may share a tile's k (MmaKnobs in mma/plan.cuh).
//
//   x and w plain, of one type    products accumulate in place, but those of FP8, of which the units keep fewer bits: a
//                                 stage's are promoted, that is summed apart and added in fp32. Scales of rows are the
//                                 epilogue's; those of 128 columns (operations/gemm/cuda/block_scales.cuh) apply to a
//                                 stage's sums, which then are of 128 columns too
//   x and w in single precision   as sums of two TF32 numbers, three products of which are added (from sm_80 on)
//   x 16-bit, w of bytes          w is widened on its way into shared memory, exactly
//   x 16-bit, w coded             codes become 16-bit floats, exactly; each group's products are summed apart and then
//                                 scaled in fp32, so that no weight is rounded
//   x 16-bit, w of a table        the same, but entries of the table are rounded to x's type
//   x of bytes, w coded           the same by bytes: signed, with int32 sums of a group; or E4M3, which codes of 4 bits
//                                 are exactly
//   x and w coded                 signed bytes, int32 sums of a group, scaled in fp32
//   x and w in blocks that the    as stored: MXFP8, MXFP4 or NVFP4, both alike; a stage's sums are formed apart
//   units scale (sm_120a)
#pragma once
#include "backends/cuda/fragments.cuh"
#include "operations/gemm/cuda/block_scales.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/mma/plan.cuh"
#include "operations/gemm/cuda/mma/staging.cuh"
#include "operations/gemm/cuda/operands.cuh"

namespace tw::gemm {

// Where rows of x come from: x itself. Another one (operations/conv/cuda/gather.cuh) has a Source, and Tiles that
// start() at a tile's first row and column and then fetch() stage after stage. block(): which of the blocks that share
// y this one is.
//
// Quantizer<T, rows, columns, threads>: changes the elements of a tile of x in shared memory before they are
// multiplied, those of kStages stages together, beginning with a multiple of as many; 0: x is multiplied as it was
// fetched.
//
// kTransposed: y (and c) are contiguous along m. Then y_row() is the place of a row's first element, y_step() the
// distance from a column to the next, and Tiles have the rows that paired_row() says.
struct DenseInput {
  using Source = gemm::Source;
  TW_CONSTANTS(bool, kTransposed = false);
  TW_MEMBER static u32 block(const Source&) { return block_x(); }
  template <class T, int rows, int columns, int threads>
  struct Quantizer {
    TW_CONSTANTS(int, kStages = 0);
    TW_MEMBER explicit Quantizer(const Source&) {}
  };
};

template <class X, class W, class Epi, const MmaKnobs& knobs, class Input = DenseInput>
struct Mma {
  TW_CONSTANTS(int, kBlockM = knobs.block_m, kBlockN = knobs.block_n, kBlockK = knobs.block_k, kWarpsM = knobs.warps_m,
               kWarpsN = knobs.warps_n, kStages = knobs.stages, kSplitK = knobs.split_k, kThreads = knobs.threads());
  TW_CONSTANTS(bool, kAsync = knobs.async_copy);
  TW_CONSTANTS(int, kWarpM = kBlockM / kWarpsM, kWarpN = kBlockN / kWarpsN);  // a warp's tile of y
  TW_CONSTANTS(int, kFragmentsM = kWarpM / 16, kFragmentsN = kWarpN / 8);
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0, "a warp's tile is whole fragments");

  TW_MEMBER static constexpr ScaledMma kind() {
    return X::scaled_mma() == W::scaled_mma() ? X::scaled_mma() : ScaledMma::none;
  }
  TW_CONSTANTS(bool, kScaled = kind() != ScaledMma::none);
  TW_CONSTANTS(bool, kInt = X::kCodes && !kScaled, kGrouped = (W::kCodes || fmt::is_table<W>()) && !kScaled,
               kTerms = W::kOffset);
  using T = select<kScaled, u8, typename OperandOf<X, kInt || kScaled>::type>;
  using U =
      select<is_fp8_type<T>() && is_fp8_type<element_of<W>>(), element_of<W>, T>;  // of w's fragments; fp8 may be mixed
  // Plain x and w of one byte: sums of integers are exact, and FP8 products are promoted.
  TW_CONSTANTS(bool, kBytes = !kGrouped && (same<T, i8>() || same<T, signs8>()),
               kPromotes = !kGrouped && !kScaled && sizeof(T) == 1 && !kBytes);
  static_assert(!fmt::is_table<W>() || (sizeof(T) == 2 && !kInt), "entries of a table are floats of 16 bits");
  using Sum = select<kBytes, i32, float>;
  TW_CONSTANTS(int, kGroup = kGrouped ? W::kGroup : kBlockK);
  using Scales = BlockScales<W, X, kWarpN, kFragmentsM, 16>;  // of the warp's tile
  using Factors = typename Scales::Factors;
  static_assert(!Scales::kAny || (kPromotes && kBlockK == 128), "a stage has one scale");

  TW_MEMBER static constexpr MmaForm x_form() {
    return kScaled ? MmaForm::scaled : kInt ? MmaForm::codes : MmaForm::plain;
  }
  TW_MEMBER static constexpr MmaForm w_form() {
    return kScaled ? MmaForm::scaled : kGrouped ? MmaForm::codes : MmaForm::plain;
  }
  TW_CONSTANTS(bool, kXCoded = x_form() == MmaForm::codes, kWCoded = w_form() == MmaForm::codes,
               kCoded = kXCoded || kWCoded);
  template <class F, MmaForm form, bool is_x>
  TW_MEMBER static constexpr MmaOperand operand() {
    MmaOperand o{form, static_cast<int>(sizeof(T)), 0, kTerms, F::kBlock, F::kDataBytes, F::kScaleBytes};
    if constexpr (form == MmaForm::codes)
      o.group = is_x ? kUnitOfCodesX : F::kGroup, o.raw_bytes = F::template raw_bytes<kBlockK>();
    return o;
  }
  static constexpr MmaPlan kPlan = mma_plan(knobs, operand<X, x_form(), true>(), operand<W, w_form(), false>());
  TW_CONSTANTS(int, kRowBytes = kPlan.x.row_bytes, kSharedBytes = kPlan.shared_bytes);
  using Quantizer = typename Input::template Quantizer<T, kBlockM, kBlockK, kThreads>;
  // Stages that have arrived before the one that is multiplied: what is coded or quantized is made ready meanwhile.
  TW_CONSTANTS(int, kReady = max2(Quantizer::kStages, kCoded ? 1 : 0));
  static_assert(kStages >= 2 + kReady, "a stage of copies is under way");

  // How tiles of an operand get from global into shared memory.
  TW_CONSTANTS(bool, kGathers = !same<Input, DenseInput>());
  template <class F, MmaForm form, int rows, int unit, bool is_x>
  struct Feed {
    TW_CONSTANTS(bool, kWidened = sizeof(typename F::Element) < sizeof(T));
    TW_CONSTANTS(bool, kCollected = kGathers && knobs.unit_x * sizeof(T) < 16);
    using Loaded = select<kCollected, CollectedTile<T, rows, kBlockK, knobs.unit_x, kThreads>,
                          PlainTile<T, rows, kBlockK, knobs.unit_x, kThreads>>;
    using Tile = select<kWidened, WidenedTile<T, typename F::Element, rows, kBlockK, knobs.unit_x, kThreads>,
                        select<kAsync, AsyncTile<T, rows, kBlockK, kThreads>, Loaded>>;
  };
  template <class F, int rows, int unit, bool is_x>
  struct Feed<F, MmaForm::scaled, rows, unit, is_x> {
    using Tile = ScaledRowsTile<F, rows, kThreads>;
    static_assert(kAsync && Tile::kColumns == kBlockK, "a stage is 128 bytes of codes of a row");
  };
  template <class F, int rows, int unit, bool is_x>
  struct Feed<F, MmaForm::codes, rows, unit, is_x> {
    using Tile = CodeTile<F, T, rows, kBlockK, unit, kThreads, kAsync, is_x, kTerms>;
  };
  static_assert(!kGathers || x_form() == MmaForm::plain, "elements are gathered");
  template <class I, bool gathers>
  struct FeedOfX {
    using Tile = typename Feed<X, x_form(), kBlockM, kUnitOfCodesX, true>::Tile;
  };
  template <class I>
  struct FeedOfX<I, true> {
    using Tile = typename I::template Tile<T, kBlockM, kBlockK, knobs.unit_x, kThreads, kAsync>;
  };
  using XTile = typename FeedOfX<Input, kGathers>::Tile;
  using WTile = typename Feed<W, w_form(), kBlockN, knobs.unit_w, false>::Tile;

  TW_MEMBER static u8* x_ring(int slot) { return dynamic_shared() + slot * kPlan.stage_bytes; }
  TW_MEMBER static u8* w_ring(int slot) { return x_ring(slot) + kPlan.x.ring_bytes; }
  // The tile that the matrix units read: ring slot `slot`, or of codes the unpacked tile `unpacked`, 0 or 1.
  TW_MEMBER static Stage x_stage(int slot, int unpacked) {
    if constexpr (!kXCoded) return {x_ring(slot), nullptr, nullptr};
    u8* base = dynamic_shared() + kStages * kPlan.stage_bytes + unpacked * kPlan.unpacked_bytes;
    float* floats = reinterpret_cast<float*>(base + kBlockM * kRowBytes);
    return {base, floats, floats + kPlan.x.floats};
  }
  TW_MEMBER static Stage w_stage(int slot, int unpacked) {
    if constexpr (!kWCoded) return {w_ring(slot), nullptr, nullptr};
    u8* base =
        dynamic_shared() + kStages * kPlan.stage_bytes + unpacked * kPlan.unpacked_bytes + kPlan.x.unpacked_bytes;
    float* floats = reinterpret_cast<float*>(base + kBlockN * kRowBytes);
    return {base, floats, floats + kPlan.w.floats};
  }

  using Accumulators = Sum[kFragmentsM][kFragmentsN][4];
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
      u32 a[kFragmentsM][4];
      TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) load_a(a[i], x, p.warp_m + 16 * i, 2 * s, p.lane);
      TW_UNROLL for (int j = 0; j < kFragmentsN / 2; ++j) {
        u32 b[4];
        load_b(b, w, p.warp_n + 16 * j, 2 * s, p.lane);
        const u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
          mma_step<T, U>(acc[i][2 * j], a[i], b0);
          mma_step<T, U>(acc[i][2 * j + 1], a[i], b1);
        }
      }
    }
  }
  // Single precision: each operand as a sum of two of 11 bits, whose products are added but for that of the low parts.
  TW_MEMBER static void multiply_split(const Stage& xs, const Stage& ws, const Position& p, Accumulators& acc) {
    TW_UNROLL for (int s = 0; s < kRowBytes / 32; ++s) {
      u32 a[kFragmentsM][2][4];
      TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
        u32 whole[4];
        load_a(whole, xs.codes, p.warp_m + 16 * i, 2 * s, p.lane);
        TW_UNROLL for (int e = 0; e < 4; ++e) split_tf32(whole[e], a[i][0][e], a[i][1][e]);
      }
      TW_UNROLL for (int j = 0; j < kFragmentsN / 2; ++j) {
        u32 whole[4], b[2][2][2];
        load_b(whole, ws.codes, p.warp_n + 16 * j, 2 * s, p.lane);
        TW_UNROLL for (int e = 0; e < 4; ++e) split_tf32(whole[e], b[e / 2][0][e % 2], b[e / 2][1][e % 2]);
        TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) {
          float(&sum)[4] = acc[i][2 * j + h];
          mma_tf32_k8(sum, a[i][1], b[h][0]);
          mma_tf32_k8(sum, a[i][0], b[h][1]);
          mma_tf32_k8(sum, a[i][0], b[h][0]);
        }
      }
    }
  }
  TW_MEMBER static void multiply_promoted(const Stage& xs, const Stage& ws, const Position& p, const Factors& factors,
                                          Accumulators& acc) {
    constexpr int kSteps = kRowBytes / 32;
    static_assert(kSteps <= 4, "128 products at a time");
    TW_UNROLL for (int j = 0; j < kFragmentsN / 2; ++j) {
      u32 b[kSteps][4];
      TW_UNROLL for (int s = 0; s < kSteps; ++s) load_b(b[s], ws.codes, p.warp_n + 16 * j, 2 * s, p.lane);
      TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
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
    constexpr int kScales = kind() == ScaledMma::mxf8   ? 1
                            : kind() == ScaledMma::mxf4 ? 2
                                                        : 4,
                  kSteps = 4 / kScales;  // of a word
    u32 scale_x[kFragmentsM];
    TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) scale_x[i] =
        XTile::scales(x, p.warp_m + 16 * i + p.lane / 4 + p.lane % 2 * 8, word);
    TW_UNROLL for (int j = 0; j < kFragmentsN / 2; ++j) {
      u32 scale_w[2], b[kSteps][4];
      TW_UNROLL for (int h = 0; h < 2; ++h) scale_w[h] = WTile::scales(w, p.warp_n + 16 * j + 8 * h + p.lane / 4, word);
      TW_UNROLL for (int s = 0; s < kSteps; ++s) load_b(b[s], w, p.warp_n + 16 * j, 2 * (word * kSteps + s), p.lane);
      TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
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
      mma_scaled<kind(), step * scales>(sum, a[step], bb, scale_x, scale_w);
      scaled_steps<steps, scales, step + 1>(sum, a, b, h, scale_x, scale_w);
    }
  }

  // Two neighbouring columns of a fragment gain scale * sum - offset * (row's term).
  struct Columns {
    float scale[2], offset[2];
  };
  TW_MEMBER static Columns columns_at(const Stage& w, int group, int column) {
    const float* scale = w.scales + group * kBlockN + column;
    Columns c = {{scale[0], scale[1]}, {0.0f, 0.0f}};
    if constexpr (kTerms) {
      const float* offset = w.terms + group * kBlockN + column;
      c.offset[0] = offset[0], c.offset[1] = offset[1];
    }
    return c;
  }

  // ---- one stage, 16-bit x and coded w
  TW_MEMBER static void multiply_grouped(const Stage& xs, const Stage& w, const Position& p, Accumulators& acc) {
    constexpr int kSteps = kGroup / 16;
    const u8* x = xs.codes;
    TW_NO_UNROLL for (int g = 0; g < kBlockK / kGroup; ++g) {
      u32 a[kFragmentsM][kSteps][4];
      float term[kFragmentsM][2];
      TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
        TW_UNROLL for (int s = 0; s < kSteps; ++s) load_a(a[i][s], x, p.warp_m + 16 * i, 2 * (g * kSteps + s), p.lane);
        if constexpr (kTerms) {  // sums of x over the group: a product with ones
          constexpr u32 kOnes = same<T, f16>() ? 0x3c003c00u : 0x3f803f80u;
          const u32 ones[2] = {kOnes, kOnes};
          float sum[4] = {};
          TW_UNROLL for (int s = 0; s < kSteps; ++s) mma_k16<T>(sum, a[i][s], ones);
          term[i][0] = sum[0], term[i][1] = sum[2];
        }
      }
      TW_UNROLL for (int j = 0; j < kFragmentsN / 2; ++j) {
        u32 b[kSteps][4];
        TW_UNROLL for (int s = 0; s < kSteps; ++s)
            load_b(b[s], w.codes, p.warp_n + 16 * j, 2 * (g * kSteps + s), p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const Columns c = columns_at(w, g, p.warp_n + 16 * j + 8 * h + 2 * (p.lane % 4));
          TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
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
  using GroupSum = select<same<T, i8>(), i32, float>;
  TW_MEMBER static void multiply_bytes(const Stage& x, const Stage& w, const Position& p, Accumulators& acc) {
    constexpr int kGroups = 32 / kGroup;  // of a step
    static_assert(!kInt || !kTerms || kGroups == 1, "sums of 32");
    TW_NO_UNROLL for (int s = 0; s < kBlockK / 32; ++s) {
      u32 a[kFragmentsM][4];
      float x_scale[kFragmentsM][2], x_term[kFragmentsM][kGroups][2];
      TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
        const int row = p.warp_m + 16 * i;
        load_a(a[i], x.codes, row, 2 * s, p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const int at = s * kBlockM + row + p.lane / 4 + 8 * h;
          x_scale[i][h] = kInt ? x.scales[at] : 1.0f;
          if constexpr (kInt && kTerms) x_term[i][0][h] = x.terms[at];
        }
        if constexpr (!kInt && kTerms) {
          constexpr u32 kOnes = same<T, i8>() ? 0x01010101u : 0x38383838u;
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
      TW_UNROLL for (int j = 0; j < kFragmentsN / 2; ++j) {
        u32 b[4];
        load_b(b, w.codes, p.warp_n + 16 * j, 2 * s, p.lane);
        TW_UNROLL for (int h = 0; h < 2; ++h) {
          const int column = p.warp_n + 16 * j + 8 * h + 2 * (p.lane % 4);
          const u32 bb[2] = {b[2 * h], b[2 * h + 1]};
          TW_UNROLL for (int g = 0; g < kGroups; ++g) {
            const Columns c = columns_at(w, s * kGroups + g, column);
            TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
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
      TW_NO_UNROLL for (int word = 0; word < XTile::kWords; ++word) multiply_scaled(x.codes, w.codes, word, p, acc);
    else if constexpr (kGrouped && sizeof(T) == 1)
      multiply_bytes(x, w, p, acc);
    else if constexpr (kGrouped)
      multiply_grouped(x, w, p, acc);
    else if constexpr (kPromotes)
      multiply_promoted(x, w, p, factors, acc);
    else if constexpr (same<T, float>())
      multiply_split(x, w, p, acc);
    else
      multiply_plain(x, w, p, acc);
  }

  // ---- which tile: bands of kBand tiles of m walk all of n together, so that w stays in L2
  struct Tile {
    i64 m, n;
  };
  TW_MEMBER static Tile tile_of(u32 block, i64 m, i64 n) {
    constexpr u32 kBand = 8;
    const u32 tiles_m = static_cast<u32>(ceil_div64(m, kBlockM)), tiles_n = static_cast<u32>(ceil_div64(n, kBlockN));
    const u32 band = block / (kBand * tiles_n), first = band * kBand;
    const u32 height = min2(kBand, tiles_m - first), within = block - band * kBand * tiles_n;
    return {static_cast<i64>(first + within % height) * kBlockM, static_cast<i64>(within / height) * kBlockN};
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    run(args, shape, source_of<X>(args.x, args.m, shape.k, args.ldx ? args.ldx : shape.k));
  }
  TW_MEMBER static void run(const Args& args, const Shape& shape, const typename Input::Source& xs) {
    const int thread = static_cast<int>(thread_x()), warp = thread / 32;
    const Position p = {thread % 32, warp / kWarpsN * kWarpM, warp % kWarpsN * kWarpN};
    const Tile tile = tile_of(Input::block(xs) / kSplitK, args.m, shape.n);
    const i64 ldx = args.ldx ? args.ldx : shape.k;
    const Source ws = source_of<W>(args.w, shape.n, shape.k, shape.k);

    constexpr int kWhole = max2(1, Quantizer::kStages);
    const int steps = static_cast<int>(ceil_div64(shape.k, kBlockK)),
              per_split = ceil_div(ceil_div(steps, kSplitK), kWhole) * kWhole;
    const int begin = kSplitK > 1 ? min2(steps, static_cast<int>(cluster_rank()) * per_split) : 0;
    const int end = kSplitK > 1 ? min2(steps, begin + per_split) : steps;

    XTile x{};
    WTile w{};
    const Quantizer quantizer(xs);
    if constexpr (kGathers) x.start(xs, tile.m, static_cast<i64>(begin) * kBlockK);
    const auto fetch = [&](int step, int slot) {
      if (step >= end) return;
      x.fetch(xs, tile.m, static_cast<i64>(step) * kBlockK, x_ring(slot));
      w.fetch(ws, tile.n, static_cast<i64>(step) * kBlockK, w_ring(slot));
    };
    const auto place = [&](int step, int slot) {
      if (step >= end) return;
      if constexpr (!kXCoded) x.place(x_ring(slot));
      if constexpr (!kWCoded) w.place(w_ring(slot));
    };
    const auto unpack = [&](int step, int slot) {
      if (step >= end) return;
      if constexpr (Quantizer::kStages > 0) {
        if ((step - begin) % Quantizer::kStages == 0)
          quantizer.apply(min2(static_cast<int>(Quantizer::kStages), end - step),
                          [&](int stage) { return x_ring((slot + stage) % kStages); });
      }
      if constexpr (kXCoded) x.unpack(x_ring(slot), static_cast<i64>(step) * kBlockK, x_stage(slot, step & 1));
      if constexpr (kWCoded) w.unpack(w_ring(slot), static_cast<i64>(step) * kBlockK, w_stage(slot, step & 1));
    };

    const Scales scales({args.w.scales, shape.n, shape.k, tile.n + p.warp_n},
                        {args.x.scales, args.m, ldx, tile.m + p.warp_m}, shape.k, 2 * (p.lane % 4), p.lane / 4);
    Accumulators acc = {};
    TW_UNROLL for (int s = 0; s < kStages - 1; ++s) {
      fetch(begin + s, s);
      place(begin + s, s);
      if constexpr (kAsync) cp_async_commit();
    }
    if constexpr (kReady > 0) {
      if constexpr (kAsync) cp_async_wait<kStages - 1 - kReady>();
      sync_block();
      unpack(begin, 0);
    }
    int read = 0, write = kStages - 1;
    TW_NO_UNROLL for (int step = begin; step < end; ++step) {
      Factors factors;
      if constexpr (Scales::kAny) factors = scales.at(step);  // they arrive while others are waited for
      // Tile `step` is complete, kReady more as stored; and all are done with slot `write`, which step - 1 read.
      if constexpr (kAsync) cp_async_wait<kStages - 2 - kReady>();
      sync_block();
      fetch(step + kStages - 1, write);
      if constexpr (kAsync) cp_async_commit();
      unpack(step + 1, read + 1 == kStages ? 0 : read + 1);
      multiply(x_stage(read, step & 1), w_stage(read, step & 1), p, factors, acc);
      place(step + kStages - 1, write);
      read = read + 1 == kStages ? 0 : read + 1;
      write = write + 1 == kStages ? 0 : write + 1;
    }
    if constexpr (kSplitK > 1)
      reduce(args, shape, xs, tile, p, acc);
    else if constexpr (Input::kTransposed)
      store_transposed(args, shape, xs, tile, p, acc);
    else
      store(args, shape, tile, p, acc);
  }

  // ---- results
  TW_MEMBER static void store(const Args& args, const Shape& shape, const Tile& tile, const Position& p,
                              Accumulators& acc) {
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    const bool pairs = ((ldy | shape.n) & 1) == 0;
    TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) TW_UNROLL for (int h = 0; h < 2; ++h) {
      const i64 m = tile.m + p.warp_m + 16 * i + 8 * h + p.lane / 4;
      if (m >= args.m) continue;
      const fmt::row_item<X> of_x = x_item<X>(args, m);
      const auto finished = [&](i64 n, Sum sum) {
        const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
        return Epi::apply(args, shape, m, n, centred(sum, of_x, of_w),
                          scale * fmt::scale_of(of_x) * fmt::scale_of(of_w));
      };
      TW_UNROLL for (int j = 0; j < kFragmentsN; ++j) {
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

  // Neighbours along m are a thread's own (paired_row), and eight lanes store 16 of them.
  TW_MEMBER static void store_transposed(const Args& args, const Shape& shape, const typename Input::Source& xs,
                                         const Tile& tile, const Position& p, Accumulators& acc) {
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 step = Input::y_step(xs);
    const bool pairs = step % 2 == 0;
    TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) {
      const i64 m = tile.m + p.warp_m + 16 * i + p.lane / 4 * 2;
      if (m >= args.m) continue;
      const bool both = m + 1 < args.m;
      const i64 row = Input::y_row(xs, m), next = pairs ? row + 1 : both ? Input::y_row(xs, m + 1) : row;
      TW_UNROLL for (int j = 0; j < kFragmentsN; ++j) TW_UNROLL for (int e = 0; e < 2; ++e) {
        const i64 n = tile.n + p.warp_n + 8 * j + 2 * (p.lane % 4) + e;
        if (n >= shape.n) continue;
        const i64 lo = row + n * step, hi = next + n * step;
        const auto first = finished_at(args, shape, scale, m, n, lo, acc[i][j][e]);
        if (pairs) {
          Epi::store_pair(args.y, lo, first, finished_at(args, shape, scale, m + 1, n, hi, acc[i][j][2 + e]));
        } else {
          Epi::store(args.y, lo, first);
          if (both) Epi::store(args.y, hi, finished_at(args, shape, scale, m + 1, n, hi, acc[i][j][2 + e]));
        }
      }
    }
  }
  // The result of row m and column n, which is element `at` of y and of c.
  TW_MEMBER static auto finished_at(const Args& args, const Shape& shape, float scale, i64 m, i64 n, i64 at, Sum sum) {
    const fmt::row_item<X> of_x = x_item<X>(args, m);
    const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
    return Epi::finish(args, shape, centred(sum, of_x, of_w), scale * fmt::scale_of(of_x) * fmt::scale_of(of_w),
                       Epi::bias_at(args.bias, n), Epi::c_element(args.c, at));
  }

  // Each block of the cluster leaves its sums in its shared memory and then adds up its share of the rows over all, or
  // of the columns where these are what lies apart in y.
  TW_MEMBER static void reduce(const Args& args, const Shape& shape, [[maybe_unused]] const typename Input::Source& xs,
                               const Tile& tile, const Position& p, Accumulators& acc) {
    constexpr int kPitch = kPlan.sums_pitch;
    float* sums = reinterpret_cast<float*>(dynamic_shared());
    if constexpr (kAsync) cp_async_wait<0>();
    sync_block();  // the stages are no longer read
    TW_UNROLL for (int i = 0; i < kFragmentsM; ++i) TW_UNROLL for (int j = 0; j < kFragmentsN;
                                                                   ++j) TW_UNROLL for (int e = 0; e < 4; ++e)
        sums[(p.warp_m + 16 * i + 8 * (e / 2) + p.lane / 4) * kPitch + p.warp_n + 8 * j + 2 * (p.lane % 4) + e % 2] =
            bits_as<float>(acc[i][j][e]);
    sync_cluster();
    const float scale = tensor_scale<X, W>(args, shape);
    const i64 ldy = args.ldy ? args.ldy : shape.n;
    constexpr bool kTransposed = Input::kTransposed;
    constexpr int kShared = kTransposed ? kBlockN : kBlockM, kWhole = kTransposed ? kBlockM : kBlockN;
    constexpr int kShare = (kShared + kSplitK - 1) / kSplitK;
    const int first = static_cast<int>(cluster_rank()) * kShare;
    for (int t = static_cast<int>(thread_x()); t < kShare * kWhole; t += kThreads) {
      const int part = first + t / kWhole, whole = t % kWhole;
      const int row = kTransposed ? row_of_pair(whole) : part, column = kTransposed ? part : whole;
      const i64 m = tile.m + (kTransposed ? whole : row), n = tile.n + column;
      if (part >= kShared || m >= args.m || n >= shape.n) continue;
      Sum total = 0;
      TW_UNROLL for (int c = 0; c < kSplitK; ++c) total +=
          bits_as<Sum>(load_cluster(sums + row * kPitch + column, static_cast<u32>(c)));
      if constexpr (kTransposed) {
        const i64 at = Input::y_row(xs, m) + n * Input::y_step(xs);
        Epi::store(args.y, at, finished_at(args, shape, scale, m, n, at, total));
        continue;
      }
      const fmt::row_item<X> of_x = x_item<X>(args, m);
      const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
      const float scaled = scale * fmt::scale_of(of_x) * fmt::scale_of(of_w);
      Epi::store(args.y, m * ldy + n, Epi::apply(args, shape, m, n, centred(total, of_x, of_w), scaled));
    }
    sync_cluster();  // no block leaves while another reads its sums
  }
};

}  // namespace tw::gemm
