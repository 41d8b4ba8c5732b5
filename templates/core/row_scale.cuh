// SPDX-License-Identifier: Apache-2.0
// What formats with one item of scales per row share.
#pragma once
#include "core/byte_elements.cuh"
#include "core/tiles.cuh"

namespace tw::fmt {

// One-byte elements. Kernels read them as if there were no scale: a row's is the epilogue's. Item: what `scales` holds
// of a row; tiles are for those without a zero point, which needs sums of x that 16-bit x does not have.
template <class T, class Item = float>
struct RowElements : ByteElements<T> {
  static constexpr bool kRowScale = true;
  using RowItem = Item;
  static constexpr int kErrorColumns = 0;
  static constexpr Infinity kInfinity = Infinity::spreads;
  template <class X>
  static constexpr bool kTiles = same<Item, float>&& ByteElements<T>::template kTiles<X>;
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block
};

// Two 4-bit codes a byte, even element low. What they stand for is Rule's: bytes(word, first, second), the nibbles of a
// word as signed bytes in order, and kStep, what these count. Kernels read them as if there were no scale but that.
template <class Rule>
struct RowNibbles {
  static constexpr int kLayout = 1, kBlock = 2, kBits = 4;
  static constexpr int kDataBytes = 1, kScaleBytes = 0, kScaleRows = 1;
  static constexpr bool kRowScale = true, kGlobal = false;
  using RowItem = float;
  using Element = void;
  using TileElement = void;
  static constexpr int kEncoders = 1, kErrorColumns = 0;
  static constexpr bool kKeepsNan = false;
  static constexpr Infinity kInfinity = Infinity::spreads;
  static constexpr ScaledMma kScaledMma = ScaledMma::none;
  static constexpr bool kCodeLanes = false;

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block

  static constexpr int kGroup = 32;
  static constexpr bool kCodes = true, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256; }
  template <int E>
  struct Unit {
    u32 raw[E / 8];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E / 2, 16>(u.raw, data + k / 2);
  }
  template <int BK>
  TW_MEMBER static constexpr int raw_bytes() {
    return BK / 2;
  }
  TW_MEMBER static i64 raw_offset(i64 k0, int byte) { return k0 / 2 + byte; }
  template <int E>
  TW_MEMBER static void load_raw(Unit<E>& u, const u8* raw, const u8*, int k, i64) {
    load_shared_words<E / 2, 16>(u.raw, raw + k / 2);
  }
  template <int E>
  TW_MEMBER static void group(const Unit<E>& u, int g, u32 (&codes)[8], float& scale, float& offset) {
    TW_UNROLL for (int i = 0; i < 4; ++i) Rule::bytes(u.raw[4 * g + i], codes[2 * i], codes[2 * i + 1]);
    scale = Rule::kStep, offset = 0.0f;
  }

  struct TileBase : UnscaledTile {
    static constexpr int kBits = 4;
    TW_MEMBER static u32 code(const u8* block, int i) { return (block[0] >> (4 * i)) & 15u; }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) { block[0] |= static_cast<u8>(code << (4 * i)); }
  };
};

}  // namespace tw::fmt
