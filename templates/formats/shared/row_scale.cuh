// SPDX-License-Identifier: Apache-2.0
// Shared by the formats with one item of scales per row.
#pragma once
#include "formats/shared/byte_elements.cuh"
#include "formats/shared/tiles.cuh"

namespace tw::fmt {

// One-byte elements. Kernels read them as if there were no scale: a row's is the epilogue's. Item: what `scales` holds
// of a row; tiles are for those without a zero point, which needs sums of x that 16-bit x does not have.
template <class T, class Item = float>
struct RowElements : ByteElements<T> {
  TW_CONSTANTS(bool, kRowScale = true);
  using RowItem = Item;
  TW_CONSTANTS(int, kErrorColumns = 0);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  template <class X>
  TW_MEMBER static constexpr bool tiles_for() {
    return same<Item, float>() && ByteElements<T>::template tiles_for<X>();
  }
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block
};

// Codes of Rule::kBits bits, the first of a byte lowest. What they stand for is Rule's: bytes(word, codes), the codes
// of a word as signed bytes in order, and step(), what these count. Kernels read them as if there were no scale but
// that.
template <class Rule, class Item = float>
struct RowCodes {
  TW_CONSTANTS(int, kLayout = 1, kBits = Rule::kBits, kBlock = 8 / kBits);
  TW_CONSTANTS(int, kDataBytes = 1, kScaleBytes = 0, kScaleRows = 1);
  TW_CONSTANTS(bool, kRowScale = true, kGlobal = false, kImportance = false);
  using RowItem = Item;
  using Element = void;
  using TileElement = select<same<Item, float>(), tw::i8, void>;  // once a kernel has made bytes of them (UnpackedRow)
  TW_CONSTANTS(int, kEncoders = 1, kErrorColumns = 0);
  TW_CONSTANTS(bool, kKeepsNan = false);
  TW_MEMBER static constexpr Infinity infinity() { return Infinity::spreads; }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block

  TW_MEMBER static u32 code_in(const u8* block, int i) { return (block[0] >> (kBits * i)) & ((1u << kBits) - 1); }

  TW_CONSTANTS(int, kGroup = 32);
  TW_CONSTANTS(bool, kCodes = true, kOffset = false);
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[E * kBits / 32];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E * kBits / 8, run_alignment(E * kBits / 8)>(u.raw, data + k / kBlock);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / kBlock;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / kBlock + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<E * kBits / 8, run_alignment(E * kBits / 8)>(u.raw, raw + k / kBlock);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < kBits; ++i) Rule::bytes(u.raw[kBits * g + i], codes + 8 / kBits * i);
    scale = step(), offset = 0.0f;
  }
  // Of a unit that may be shorter than a group: its codes as signed bytes, which count step().
  TW_MEMBER static constexpr float step() { return Rule::step(); }
  template <int E>
  TW_MEMBER static void bytes(const Unit<E>& u, u32 (&codes)[E / 4]) {
    TW_UNROLL for (int i = 0; i < E * kBits / 32; ++i) Rule::bytes(u.raw[i], codes + 8 / kBits * i);
  }

  struct TileBase : UnscaledTile {
    TW_CONSTANTS(int, kBits = Rule::kBits);
    TW_MEMBER static u32 code(const u8* block, int i) { return code_in(block, i); }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) { block[0] |= static_cast<u8>(code << (kBits * i)); }
  };
};

// Four codes under a row's scale, in a byte each. `direct`: Divider's.
template <class F, bool direct>
TW_DEVICE u32 row_codes(const float (&v)[4], const Divider& by, const row_item<F>& item) {
  if constexpr (F::kBlock == 1) {
    return F::template codes<direct>(v, by, item);
  } else {
    u32 codes = 0;
    TW_UNROLL for (int i = 0; i < 4; ++i) codes |= F::code(direct ? by.quotient(v[i]) : div_rn(v[i], by.divisor))
                                                   << (8 * i);
    return codes;
  }
}

// Rows of F, one of RowCodes, as they are multiplied once a kernel has written them as bytes, which count F's step.
template <class F>
struct UnpackedRow : RowElements<tw::i8> {};

}  // namespace tw::fmt
