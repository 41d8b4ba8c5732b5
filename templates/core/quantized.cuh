// SPDX-License-Identifier: Apache-2.0
// Activations that arrive as floats and are encoded by the kernel that multiplies them: the same codes and scales as a
// cast to F writes, which no memory ever holds.
#pragma once
#include "core/format.cuh"

namespace tw::fmt {

// To kernels a format of its own: stored as From, a plain one of floats; its values are F's.
template <class F, class From>
struct Quantized : StandAlone {
  static constexpr int kBlock = F::kBlock, kBits = F::kBits;
  static constexpr int kDataBytes = F::kBlock * From::kDataBytes, kScaleBytes = 0;
  static constexpr ScaledMma kScaledMma = ScaledMma::none;
  static constexpr bool kCodeLanes = false;
  using Element = void;
  using TileElement = void;
  static constexpr int kGroup = F::kGroup;
  static constexpr bool kCodes = F::kCodes, kOffset = F::kOffset;
  static_assert(!F::kRowScale && !F::kGlobal && F::kScaleBytes == 0, "blocks that stand alone");

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int i = 0; i < kBlock; ++i) From::encode(x + i, data + i * From::kDataBytes, nullptr, 1.0f, 0);
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int i) {
    float x[kBlock];
    u8 block[F::kDataBytes];
    for (int j = 0; j < kBlock; ++j) x[j] = From::decode(data + j * From::kDataBytes, nullptr, 1.0f, 0);
    F::encode(x, block, nullptr, 1.0f, 0);
    return F::decode(block, nullptr, 1.0f, i);
  }

  template <int E>
  using Floats = typename From::template Unit<E>;
  template <int E>
  TW_MEMBER static void load_floats(Floats<E>& u, const u8* row, i64 k) {
    From::template load<E>(u, row, nullptr, k);
  }
  // By kBlock / E neighbouring lanes: each its codes, all of them the scale.
  template <int E>
  TW_MEMBER static float code_lanes(const Floats<E>& u, u32 (&codes)[E / 4]) {
    float v[E];
    From::template values<E>(u, 0, v);
    return F::template code_lanes<E>(v, codes);
  }
};

template <class F>
constexpr bool is_quantized = false;
template <class F, class From>
constexpr bool is_quantized<Quantized<F, From>> = true;

}  // namespace tw::fmt
