// SPDX-License-Identifier: Apache-2.0
// What is computed of x before it is encoded, for `knobs.piece` neighbouring elements of a row at a time: begin() up to
// what the norm needs all of a row for, finish() behind it.
#pragma once
#include "backends/cuda/runs.cuh"
#include "formats/shared/format.cuh"
#include "operations/fused_cast/cuda/plan.cuh"
#include "operations/fused_cast/params.cuh"

namespace tw::fused_cast {

// P elements of T, which lie at a multiple of 16 bytes unless P is 1.
template <class T, int P>
struct Piece {
  TW_CONSTANTS(int, kBytes = P * sizeof(T), kWords = ceil_div(kBytes, 4));
  static_assert(P == 1 || kBytes % 16 == 0, "whole vectors");
  u32 words[kWords];

  TW_MEMBER void load(const T* p) {  // of what this kernel does not write
    if constexpr (P == 1) {
      words[0] = sizeof(T) == 4 ? load_global4(p) : load_global2(p);
    } else {
      TW_UNROLL for (int i = 0; i < kBytes / 16; ++i) set(i, load_global16(reinterpret_cast<const u8*>(p) + 16 * i));
    }
  }
  TW_MEMBER void load_written(const T* p) {  // of what it may have written
    if constexpr (P == 1) {
      TW_COPY(words, p, sizeof(T));
    } else {
      TW_UNROLL for (int i = 0; i < kBytes / 16; ++i) set(i, reinterpret_cast<const u32x4*>(p)[i]);
    }
  }
  TW_MEMBER void set(int i, u32x4 v) {
    words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
  }
  TW_MEMBER void to(float (&v)[P]) const {
    if constexpr (P > 1)
      cast::to_floats<T, P>(v, words);
    else if constexpr (sizeof(T) == 4)
      v[0] = bits_as<float>(words[0]);
    else
      v[0] = low_half<T>(words[0]);
  }
};
template <class T, int P>
TW_DEVICE void load_floats(float (&v)[P], const void* from, i64 at) {
  Piece<T, P> piece = {};
  piece.load(static_cast<const T*>(from) + at);
  piece.to(v);
}

// X: the format of x. Bias, Weight: theirs, or void.
template <class X, class Bias, class Weight, const Knobs& knobs>
struct Function {
  using T = typename X::Element;
  TW_CONSTANTS(int, P = knobs.piece);
  TW_CONSTANTS(bool, kBias = !same<Bias, void>(), kWeight = !same<Weight, void>());
  static_assert(!knobs.gated || !(kBias || knobs.residual || knobs.norm), "a gate stands alone");
  struct Raw {
    Piece<T, P> x, other;  // other: of the residual, or of what the gate multiplies
  };

  TW_MEMBER static void load(Raw& raw, const Args& args, i64 cols, i64 row, u32 at) {
    const T* const x = static_cast<const T*>(args.x) + row * cols * (knobs.gated ? 2 : 1) + at;
    raw.x.load(x);
    if constexpr (knobs.gated) raw.other.load(x + cols);
    if constexpr (knobs.residual) raw.other.load_written(static_cast<const T*>(args.residual) + row * cols + at);
  }
  // Writes the new residual.
  TW_MEMBER static void begin(float (&v)[P], const Raw& raw, const Args& args, i64 cols, i64 row, u32 at) {
    raw.x.to(v);
    if constexpr (kBias) {
      float bias[P];
      load_floats<typename Bias::Element>(bias, args.bias, at);
      TW_UNROLL for (int i = 0; i < P; ++i) v[i] = add_rn(v[i], bias[i]);
    }
    float other[P];
    if constexpr (knobs.residual || knobs.gated) raw.other.to(other);
    if constexpr (knobs.residual) {
      TW_UNROLL for (int i = 0; i < P; ++i) v[i] = add_rn(v[i], other[i]);
      T* const out = static_cast<T*>(args.residual_out) + row * cols + at;
      if constexpr (P == 1) {
        *out = from_f32<T>(v[0]);
        v[0] = to_f32(from_f32<T>(v[0]));
      } else {
        Piece<T, P> sum;
        cast::from_floats<T, P>(sum.words, v);
        TW_UNROLL for (int i = 0; i < Piece<T, P>::kWords; i += 4) store_global16(
            reinterpret_cast<u32*>(out) + i, {sum.words[i], sum.words[i + 1], sum.words[i + 2], sum.words[i + 3]});
        sum.to(v);
      }
    }
    if constexpr (knobs.gated) TW_UNROLL for (int i = 0; i < P; ++i) v[i] = gemm::activate<knobs.act>(v[i]) * other[i];
  }
  // begin() of elements whose new residual this thread has written.
  TW_MEMBER static void again(float (&v)[P], const Args& args, i64 cols, i64 row, u32 at) {
    if constexpr (knobs.residual) {
      Piece<T, P> sum = {};
      sum.load_written(static_cast<const T*>(args.residual_out) + row * cols + at);
      sum.to(v);
    } else {
      first(v, args, cols, row, at);
    }
  }
  TW_MEMBER static void first(float (&v)[P], const Args& args, i64 cols, i64 row, u32 at) {
    Raw raw = {};
    load(raw, args, cols, row, at);
    begin(v, raw, args, cols, row, at);
  }
  TW_MEMBER static void finish(float (&v)[P], float inverse_rms, const Args& args, u32 at) {
    if constexpr (knobs.norm) {
      TW_UNROLL for (int i = 0; i < P; ++i) v[i] *= inverse_rms;
      if constexpr (kWeight) {
        float weight[P];
        load_floats<typename Weight::Element>(weight, args.weight, at);
        TW_UNROLL for (int i = 0; i < P; ++i) v[i] *= weight[i];
      }
    }
    if constexpr (!knobs.gated) TW_UNROLL for (int i = 0; i < P; ++i) v[i] = gemm::activate<knobs.act>(v[i]);
  }
};

}  // namespace tw::fused_cast
