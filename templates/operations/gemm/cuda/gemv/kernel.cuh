// SPDX-License-Identifier: Apache-2.0
// Few tokens: the time is that of reading w once. Weights go from global memory to registers in the widest accesses
// that their layout allows, several units ahead of their use; x is staged in shared memory.
//
// A block owns block_rows() rows of w. Lanes of a warp, warps of a block and blocks of a cluster share a row's k
// (GemvKnobs in gemv/plan.cuh). Sums are formed in a fixed order: the result does not depend on timing.
#pragma once
#include "formats/shared/format.cuh"
#include "operations/gemm/cuda/epilogue.cuh"
#include "operations/gemm/cuda/gemv/plan.cuh"
#include "operations/gemm/cuda/grid.cuh"
#include "operations/gemm/cuda/operands.cuh"
#include "operations/gemm/cuda/quantized.cuh"

namespace tw::gemm {

template <class X, class W, class Epi, const GemvKnobs& knobs>
struct Gemv {
  TW_CONSTANTS(int, kTokens = knobs.tokens, kUnit = knobs.unit, kLanes = knobs.lanes, kWarpsK = knobs.warps_k,
               kRows = knobs.rows, kDepth = knobs.depth, kStagedK = knobs.staged_k, kSplitK = knobs.split_k);
  TW_CONSTANTS(int, kThreads = knobs.threads(), kThreadsK = knobs.threads_k(), kRowGroups = knobs.row_groups(),
               kBlockRows = knobs.block_rows(), kUnits = knobs.staged_units());
  static_assert(knobs.warps % kWarpsK == 0 && 32 % kLanes == 0, "whole warps share k, and whole groups of lanes do");
  static_assert(kStagedK % (kUnit * kThreadsK * kDepth) == 0, "every thread has as many units of a staged piece of k");

  TW_CONSTANTS(bool, kInt = X::kCodes);  // integer products, scaled per group
  TW_CONSTANTS(bool, kSigns = same<element_of<X>, signs8>());
  TW_CONSTANTS(bool, kBytes = kSigns || (same<element_of<X>, i8>() && same<element_of<W>, i8>()));  // and exact sums
  using Sum = select<kBytes, i32, float>;
  TW_CONSTANTS(int, kGroup = W::kCodes ? W::kGroup : kUnit);

  using Stored = typename OperandOf<X, kInt>::type;
  TW_CONSTANTS(bool, kWiden = same<Stored, e4m3>() || same<Stored, e5m2>());
  using T = select<kWiden, f16, Stored>;
  TW_CONSTANTS(int, kElement = static_cast<int>(sizeof(T)));
  static constexpr GemvPlan kPlan = gemv_plan(knobs, {kElement, kInt, W::kOffset});
  TW_CONSTANTS(int, kUnitBytes = kPlan.unit_bytes, kXBytes = kPlan.x_bytes, kUnitScales = kPlan.unit_scales,
               kScaleFloats = kPlan.scales, kSharedBytes = kPlan.shared_bytes);

  struct Staged {
    u8* x;
    float* scales;
    float* sums;
    float* partials;
  };
  TW_MEMBER static Staged layout() {
    u8* base = dynamic_shared();
    float* scales = reinterpret_cast<float*>(base + kTokens * kXBytes);
    float* sums = scales + kTokens * kScaleFloats;
    return {base, scales, sums, sums + kTokens * kPlan.sums};
  }

  // ---- staging x[m0 .. m0 + kTokens, k0 .. k0 + kStagedK); zero beyond the matrix
  TW_MEMBER static void stage_codes(const Staged& s, const Args& args, i64 m0, i64 k0, i64 k_end, i64 ldx) {
    constexpr int kBlocks = kStagedK / 32;
    for (int t = static_cast<int>(thread_x()); t < kTokens * kBlocks; t += kThreads) {
      const int m = t / kBlocks, b = t % kBlocks;
      const i64 k = k0 + 32 * b;
      typename X::template Unit<32> unit = {};
      if (m0 + m < args.m && k < k_end)
        X::template load<32>(unit, static_cast<const u8*>(args.x.data) + (m0 + m) * data_stride<X>(ldx), nullptr, k);
      u32 codes[8];
      float scale, offset;
      X::template group<32>(unit, 0, codes, scale, offset);
      u32x4* to = reinterpret_cast<u32x4*>(s.x + m * kXBytes + (32 * b / kUnit) * kUnitBytes + (32 * b % kUnit));
      to[0] = {codes[0], codes[1], codes[2], codes[3]};
      to[1] = {codes[4], codes[5], codes[6], codes[7]};
      const int at = m * kScaleFloats + (32 * b / kUnit) * kUnitScales + (32 * b % kUnit) / 32;
      s.scales[at] = scale;
      if constexpr (W::kOffset) {
        i32 sum = 0;
        TW_UNROLL for (int i = 0; i < 8; ++i) sum = dp4a(codes[i], 0x01010101u, sum);
        s.sums[at] = scale * static_cast<float>(sum);
      }
    }
  }
  // Encoded on the way, kFloats elements a lane.
  TW_MEMBER static void stage_quantized(const Staged& s, const Args& args, i64 m0, i64 k0, i64 k_end, i64 ldx) {
    constexpr int kFloats = 8, kPieces = kStagedK / kFloats, kBlockLanes = 32 / kFloats;
    constexpr int kAhead = 4;  // loads in flight
    const int thread = static_cast<int>(thread_x());
    // Whole warps loop together: lanes share a block's scale.
    for (int first = thread / 32 * 32; first < kTokens * kPieces; first += kAhead * kThreads) {
      typename X::template Floats<kFloats> x[kAhead] = {};
      TW_UNROLL for (int i = 0; i < kAhead; ++i) {
        const int t = first + i * kThreads + thread % 32, m = t / kPieces;
        const i64 k = k0 + t % kPieces * kFloats;
        if (t < kTokens * kPieces && m0 + m < args.m && k < k_end)
          X::template load_floats<kFloats>(x[i], static_cast<const u8*>(args.x.data) + (m0 + m) * data_stride<X>(ldx),
                                           k);
      }
      TW_UNROLL for (int i = 0; i < kAhead; ++i) {
        const int t = first + i * kThreads + thread % 32, m = t / kPieces, j = t % kPieces * kFloats;
        u32 codes[kFloats / 4];
        const float scale = X::template code_lanes<kFloats>(x[i], codes);
        float sum = 0;
        if constexpr (W::kOffset)
          sum = scale *
                static_cast<float>(sum_lanes<kBlockLanes>(dp4a(codes[0], 0x01010101u, dp4a(codes[1], 0x01010101u, 0))));
        if (t >= kTokens * kPieces) continue;
        *reinterpret_cast<u32x2*>(s.x + m * kXBytes + j / kUnit * kUnitBytes + j % kUnit) = {codes[0], codes[1]};
        if (t % kBlockLanes != 0) continue;
        const int at = m * kScaleFloats + j / kUnit * kUnitScales + j % kUnit / 32;
        s.scales[at] = scale;
        if constexpr (W::kOffset) s.sums[at] = sum;
      }
    }
  }
  TW_MEMBER static void stage_floats(const Staged& s, const Args& args, i64 m0, i64 k0, i64 k_end, i64 ldx) {
    constexpr int kVector = min2(kUnit, 16 / kElement), kRead = kVector * static_cast<int>(sizeof(Stored));
    constexpr int kVectors = kStagedK / kVector;
    for (int t = static_cast<int>(thread_x()); t < kTokens * kVectors; t += kThreads) {
      const int m = t / kVectors, j = t % kVectors * kVector;
      u32 words[4] = {};
      if (m0 + m < args.m && k0 + j < k_end)
        load_words<kRead, fmt::run_alignment(kRead)>(
            words, reinterpret_cast<const u8*>(static_cast<const Stored*>(args.x.data) + (m0 + m) * ldx + k0 + j));
      if constexpr (kWiden) {
        const u32 codes[2] = {words[0], words[1]};
        TW_UNROLL for (int i = 0; i < 4; ++i) words[i] = widen_fp8x2<f16, Stored>(codes[i / 2], i % 2);
      }
      u8* to = s.x + m * kXBytes + (j / kUnit) * kUnitBytes + (j % kUnit) * kElement;
      if constexpr (kVector * kElement == 16)
        *reinterpret_cast<u32x4*>(to) = {words[0], words[1], words[2], words[3]};
      else if constexpr (kVector * kElement == 8)
        *reinterpret_cast<u32x2*>(to) = {words[0], words[1]};
      else if constexpr (kVector * kElement == 4)
        *reinterpret_cast<u32*>(to) = words[0];
      else
        *reinterpret_cast<u16*>(to) = static_cast<u16>(words[0]);
    }
  }

  // N elements of x from shared memory.
  template <int N>
  TW_MEMBER static void read_floats(const u8* from, float (&v)[N]) {
    if constexpr (N * kElement >= 16) {
      TW_UNROLL for (int i = 0; i < N * kElement / 16; ++i) {
        const u32x4 q = reinterpret_cast<const u32x4*>(from)[i];
        const u32 words[4] = {q.x, q.y, q.z, q.w};
        TW_UNROLL for (int j = 0; j < 16 / kElement; ++j) {
          if constexpr (kElement == 4)
            v[4 * i + j] = bits_as<float>(words[j]);
          else if constexpr (kElement == 2)
            v[8 * i + j] = j % 2 ? high_half<T>(words[j / 2]) : low_half<T>(words[j / 2]);
          else
            v[16 * i + j] = fmt::byte_at<T>(words, j);
        }
      }
    } else {
      TW_UNROLL for (int i = 0; i < N; ++i) v[i] = to_f32(reinterpret_cast<const T*>(from)[i]);
    }
  }

  // ---- one unit of kRows rows against kTokens rows of x
  using Unit = typename W::template Unit<kUnit>;
  using Accumulators = Sum[kTokens][kRows];

  TW_MEMBER static void multiply_codes(const Staged& s, const Unit (&w)[kRows], int unit, Accumulators& acc) {
    TW_UNROLL for (int g = 0; g < kUnit / kGroup; ++g) {
      u32 codes[kRows][kGroup / 4];
      float scale[kRows], offset[kRows];
      TW_UNROLL for (int r = 0; r < kRows; ++r) W::template group<kUnit>(w[r], g, codes[r], scale[r], offset[r]);
      TW_UNROLL for (int m = 0; m < kTokens; ++m) {
        const u32x4* x = reinterpret_cast<const u32x4*>(s.x + m * kXBytes + unit * kUnitBytes + g * kGroup);
        const int at = m * kScaleFloats + unit * kUnitScales + g * kGroup / 32;
        i32 sum[kRows] = {};
        TW_UNROLL for (int i = 0; i < kGroup / 16; ++i) {
          const u32x4 q = x[i];
          TW_UNROLL for (int r = 0; r < kRows; ++r) {
            sum[r] = dp4a(codes[r][4 * i], q.x, sum[r]);
            sum[r] = dp4a(codes[r][4 * i + 1], q.y, sum[r]);
            sum[r] = dp4a(codes[r][4 * i + 2], q.z, sum[r]);
            sum[r] = dp4a(codes[r][4 * i + 3], q.w, sum[r]);
          }
        }
        const float x_scale = s.scales[at];
        TW_UNROLL for (int r = 0; r < kRows; ++r) acc[m][r] += (x_scale * scale[r]) * static_cast<float>(sum[r]);
        if constexpr (W::kOffset) {
          const float x_sum = s.sums[at];
          TW_UNROLL for (int r = 0; r < kRows; ++r) acc[m][r] -= offset[r] * x_sum;
        }
      }
    }
  }
  TW_MEMBER static void multiply_grouped(const Staged& s, const Unit (&w)[kRows], int unit, Accumulators& acc) {
    TW_UNROLL for (int g = 0; g < kUnit / kGroup; ++g) {
      u32 codes[kRows][kGroup / 4];
      float scale[kRows], offset[kRows];
      TW_UNROLL for (int r = 0; r < kRows; ++r) W::template group<kUnit>(w[r], g, codes[r], scale[r], offset[r]);
      TW_UNROLL for (int m = 0; m < kTokens; ++m) {
        const u8* from = s.x + m * kXBytes + unit * kUnitBytes + g * kGroup * kElement;
        float sum[kRows] = {}, x_sum = 0.0f;
        TW_UNROLL for (int i = 0; i < kGroup / 8; ++i) {
          float x[8];
          read_floats<8>(from + 8 * i * kElement, x);
          TW_UNROLL for (int j = 0; j < 8; ++j) {
            TW_UNROLL for (int r = 0; r < kRows; ++r) sum[r] += fmt::code_at(codes[r], 8 * i + j) * x[j];
            if constexpr (W::kOffset) x_sum += x[j];
          }
        }
        TW_UNROLL for (int r = 0; r < kRows; ++r) acc[m][r] += scale[r] * sum[r];
        if constexpr (W::kOffset) {
          TW_UNROLL for (int r = 0; r < kRows; ++r) acc[m][r] -= offset[r] * x_sum;
        }
      }
    }
  }
  TW_MEMBER static void multiply_plain(const Staged& s, const Unit (&w)[kRows], int unit, Accumulators& acc) {
    float v[kRows][kUnit];
    TW_UNROLL for (int r = 0; r < kRows; ++r) W::template values<kUnit>(w[r], 0, v[r]);
    TW_UNROLL for (int m = 0; m < kTokens; ++m) {
      float x[kUnit];
      read_floats<kUnit>(s.x + m * kXBytes + unit * kUnitBytes, x);
      TW_UNROLL for (int r = 0; r < kRows; ++r) TW_UNROLL for (int j = 0; j < kUnit; ++j) acc[m][r] += v[r][j] * x[j];
    }
  }
  // Signed bytes, two at least; or bytes of signs.
  TW_MEMBER static void multiply_bytes(const Staged& s, const Unit (&w)[kRows], int unit, Accumulators& acc) {
    TW_UNROLL for (int m = 0; m < kTokens; ++m) {
      u32 x[ceil_div(kUnit, 4)];
      const u8* from = s.x + m * kXBytes + unit * kUnitBytes;
      if constexpr (kUnit == 2)
        x[0] = *reinterpret_cast<const u16*>(from);
      else
        load_shared_words<kUnit, kUnit>(x, from);
      TW_UNROLL for (int r = 0; r < kRows; ++r) TW_UNROLL for (int i = 0; i < ceil_div(kUnit, 4); ++i) acc[m][r] =
          kSigns ? acc[m][r] + popcount(w[r].raw[i] & x[i]) : dp4a(w[r].raw[i], x[i], acc[m][r]);
    }
  }
  TW_MEMBER static void multiply(const Staged& s, const Unit (&w)[kRows], int unit, Accumulators& acc) {
    if constexpr (kBytes)
      multiply_bytes(s, w, unit, acc);
    else if constexpr (kInt)
      multiply_codes(s, w, unit, acc);
    else if constexpr (W::kCodes)
      multiply_grouped(s, w, unit, acc);
    else
      multiply_plain(s, w, unit, acc);
  }

  TW_MEMBER static void run(const Args& args, const Shape& shape) {
    const Staged s = layout();
    const int thread = static_cast<int>(thread_x()), lane = thread % 32, warp = thread / 32;
    const int k_lane = lane % kLanes + (warp % kWarpsK) * kLanes;
    const int row_group = lane / kLanes + (warp / kWarpsK) * (32 / kLanes);
    const GridPlace place = grid_place<kTokens, kBlockRows>(block_x() / kSplitK, args.m, shape.n);
    const i64 m0 = place.m, n0 = place.n + row_group;
    const i64 ldx = args.ldx ? args.ldx : shape.k;

    // This block's part of k, in whole units.
    const i64 units = shape.k / kUnit, per_split = ceil_div64(units, kSplitK);
    const i64 u_begin = kSplitK > 1 ? static_cast<i64>(cluster_rank()) * per_split : 0;
    const i64 u_end = kSplitK > 1 ? min2(units, u_begin + per_split) : units;

    const u8* data[kRows];
    const u8* scales[kRows];
    TW_UNROLL for (int r = 0; r < kRows; ++r) {
      const i64 n =
          min2(n0 + r * kRowGroups, shape.n - 1);  // rows beyond the matrix read its last row and store nothing
      data[r] = static_cast<const u8*>(args.w.data) + n * data_stride<W>(shape.k);
      scales[r] = W::kScaleBytes ? static_cast<const u8*>(args.w.scales) + n * scale_stride<W>(shape.k) : nullptr;
    }

    if (!shape.constant_weights) wait_prerequisite_grids();
    Unit unit[kDepth][kRows];
    const auto load = [&](Unit(&to)[kRows], i64 u) {
      if (u >= u_end) return;
      TW_UNROLL for (int r = 0; r < kRows; ++r) W::template load<kUnit>(to[r], data[r], scales[r], u * kUnit);
    };
    TW_UNROLL for (int d = 0; d < kDepth; ++d) load(unit[d], u_begin + k_lane + d * kThreadsK);
    wait_prerequisite_grids();
    if (shape.constant_weights) launch_dependent_grids();

    Accumulators acc = {};
    for (i64 u0 = u_begin; u0 < u_end; u0 += kUnits) {
      if (u0 != u_begin) sync_block();  // the piece before is no longer read
      if constexpr (fmt::is_quantized<X>())
        stage_quantized(s, args, m0, u0 * kUnit, u_end * kUnit, ldx);
      else if constexpr (kInt)
        stage_codes(s, args, m0, u0 * kUnit, u_end * kUnit, ldx);
      else
        stage_floats(s, args, m0, u0 * kUnit, u_end * kUnit, ldx);
      sync_block();
      TW_NO_UNROLL for (int i = 0; i < kUnits; i += kDepth * kThreadsK) {
        if (u0 + i >= u_end) break;
        TW_UNROLL for (int d = 0; d < kDepth; ++d) {
          const int at = i + d * kThreadsK + k_lane;
          if (u0 + at < u_end) multiply(s, unit[d], at, acc);
          load(unit[d], u0 + at + kDepth * kThreadsK);
        }
      }
    }
    launch_dependent_grids();  // late: blocks that may read nothing yet would only be in the way
    reduce(args, shape, s, acc, row_group, warp, lane);
  }

  TW_MEMBER static void store(const Args& args, const Shape& shape, i64 m, i64 n, Sum sum, float scale) {
    const fmt::row_item<X> of_x = x_item<X>(args, m);
    const fmt::row_item<W> of_w = w_item<W>(args, n, shape.k);
    const float scaled = scale * fmt::scale_of(of_x) * fmt::scale_of(of_w);
    Epi::store(args.y, m * (args.ldy ? args.ldy : shape.n) + n,
               Epi::apply(args, shape, m, n, centred(sum, of_x, of_w), scaled));
  }
  TW_MEMBER static void reduce(const Args& args, const Shape& shape, const Staged& s, Accumulators& acc, int row_group,
                               int warp, int lane) {
    const float scale = tensor_scale<X, W>(args, shape);
    // Computed again, because keeping it through the loop over k takes up to 20 registers.
    const GridPlace place = grid_place<kTokens, kBlockRows>(reread_block_x() / kSplitK, args.m, shape.n);
    const i64 m0 = place.m, n_block = place.n;
    TW_UNROLL for (int m = 0; m < kTokens; ++m) TW_UNROLL for (int r = 0; r < kRows; ++r) acc[m][r] =
        sum_lanes<kLanes>(acc[m][r]);

    if constexpr (kWarpsK == 1 && kSplitK == 1) {
      if (lane % kLanes != 0) return;
      TW_UNROLL for (int m = 0; m < kTokens; ++m) TW_UNROLL for (int r = 0; r < kRows; ++r) {
        const i64 n = n_block + row_group + r * kRowGroups;
        if (m0 + m < args.m && n < shape.n) store(args, shape, m0 + m, n, acc[m][r], scale);
      }
    } else {
      // [warp along k][m][row of the block]
      if (lane % kLanes == 0) {
        TW_UNROLL for (int m = 0; m < kTokens; ++m) TW_UNROLL for (int r = 0; r < kRows; ++r)
            s.partials[((warp % kWarpsK) * kTokens + m) * kBlockRows + row_group + r * kRowGroups] =
            bits_as<float>(acc[m][r]);
      }
      if constexpr (kSplitK > 1)
        sync_cluster();
      else
        sync_block();
      if (kSplitK == 1 || cluster_rank() == 0) {
        for (int t = static_cast<int>(thread_x()); t < kTokens * kBlockRows; t += kThreads) {
          Sum total = 0;
          for (int c = 0; c < kSplitK; ++c) TW_UNROLL for (int w = 0; w < kWarpsK; ++w) {
              const float* partial = s.partials + w * kTokens * kBlockRows + t;
              total += bits_as<Sum>(kSplitK > 1 ? load_cluster(partial, static_cast<u32>(c)) : *partial);
            }
          const i64 m = m0 + t / kBlockRows, n = n_block + t % kBlockRows;
          if (m < args.m && n < shape.n) store(args, shape, m, n, total, scale);
        }
      }
      if constexpr (kSplitK > 1) sync_cluster();  // no block leaves while another reads its partial sums
    }
  }
};

}  // namespace tw::gemm
