// SPDX-License-Identifier: Apache-2.0
// Activations that arrive as floats and are encoded by the kernel that multiplies them: the same codes and scales as a
// cast to F writes, which no memory ever holds. And codes that it unpacks before it multiplies them.
#pragma once
#include "formats/shared/format.cuh"

namespace tw::fmt {

// Kernels see this as a format of its own, stored as From, a plain format of floats, with the values of F.
template <class F, class From>
struct Quantized : StandAlone {
  TW_CONSTANTS(int, kBlock = F::kBlock, kBits = F::kBits);
  TW_CONSTANTS(int, kDataBytes = F::kBlock * From::kDataBytes, kScaleBytes = 0);
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = void;
  using TileElement = void;
  TW_CONSTANTS(int, kGroup = F::kGroup);
  TW_CONSTANTS(bool, kCodes = F::kCodes, kOffset = F::kOffset);
  static_assert(!F::kGlobal && F::kScaleBytes == 0 && (!F::kRowScale || same<typename F::RowItem, float>()),
                "blocks that stand alone, or codes with a float per row");

  TW_CONSTANTS(bool, kByRow = F::kRowScale);
  // What decode() needs of a row of `cols` elements besides: its scale.
  TW_MEMBER static float row_context(const u8* row, i64 cols) {
    if constexpr (F::kRowScale) {
      Extent<F> extent;
      for (i64 i = 0; i < cols; ++i) extent.add(From::decode(row + i * From::kDataBytes, nullptr, 1.0f, 0));
      return extent.item();
    } else {
      return 1.0f;
    }
  }
  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    for (int i = 0; i < kBlock; ++i) From::encode(x + i, data + i * From::kDataBytes, nullptr, 1.0f, 0);
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float context, int i) {
    float x[kBlock];
    u8 block[F::kDataBytes];
    for (int j = 0; j < kBlock; ++j) x[j] = From::decode(data + j * From::kDataBytes, nullptr, 1.0f, 0);
    F::encode(x, block, nullptr, context, 0);
    return F::decode(block, nullptr, context, i);
  }

  template <int E>
  using Floats = typename From::template Unit<E>;
  template <int E>
  TW_MEMBER static void load_floats(Floats<E>& u, const u8* row, i64 k) {
    From::template load<E>(u, row, nullptr, k);
  }
  // Called by kBlock / E neighbouring lanes. Each gets its own codes, and all of them the scale.
  template <int E>
  TW_MEMBER static float code_lanes(const Floats<E>& u, u32 (&codes)[E / 4]) {
    float v[E];
    From::template values<E>(u, 0, v);
    return F::template code_lanes<E>(v, codes);
  }
};

template <class F>
struct QuantizedFrom {
  TW_CONSTANTS(bool, value = false);
};
template <class F, class From>
struct QuantizedFrom<Quantized<F, From>> {
  TW_CONSTANTS(bool, value = true);
};
// Quantized<F, From>: F, and From. Otherwise the format itself, and the plain format of its elements.
template <class F>
struct Unquantized {
  using type = F;
};
template <class F, class From>
struct Unquantized<Quantized<F, From>> {
  using type = F;
};
template <class F>
struct StoredAs {
  using type = Plain<typename F::Element, F::kBits>;
};
template <class F, class From>
struct StoredAs<Quantized<F, From>> {
  using type = From;
};
// Codes with a scale per row, as the bytes that they are unpacked to (formats/shared/row_scale.cuh).
template <class F>
struct UnpackedRow;
template <class F>
struct StoredAs<UnpackedRow<F>> {
  using type = F;
};
// What elements of F count.
template <class F>
struct StepOf {
  TW_CONSTANTS(bool, kUnpacked = false);
  TW_MEMBER static constexpr float step() { return 1.0f; }
};
template <class F>
struct StepOf<UnpackedRow<F>> {
  TW_CONSTANTS(bool, kUnpacked = true);
  TW_MEMBER static constexpr float step() { return F::step(); }
};
template <class F>
TW_FN constexpr bool is_quantized() {
  return QuantizedFrom<F>::value;
}

}  // namespace tw::fmt
