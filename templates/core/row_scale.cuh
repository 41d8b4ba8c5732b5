// SPDX-License-Identifier: Apache-2.0
// What formats with one item of scales per row share.
#pragma once
#include "core/format.cuh"
#include "core/tiles.cuh"

namespace tw::fmt {

// One-byte elements. Kernels read them as if there were no scale: a row's is the epilogue's.
template <class T> struct RowElements : Plain<T, 8> {
  static constexpr bool kRowScale = true;
  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block
};

// Two 4-bit codes a byte, even element low.
struct RowNibbles {
  static constexpr int kLayout = 1, kBlock = 2, kBits = 4;
  static constexpr int kDataBytes = 1, kScaleBytes = 0;
  static constexpr bool kRowScale = true, kGlobal = false;
  static constexpr int kEncoders = 1;

  TW_MEMBER static constexpr bool lanes_ok(int) { return false; }  // a row is more than a block
  // Kernels take them as tiles only.
  static constexpr int kGroup = 0;
  static constexpr bool kCodes = false, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int) { return false; }

  // Tiles without scales: the row's is left to the epilogue.
  struct TileBase {
    static constexpr int kBits = 4, kScaleK = 0, kScaleBytes = 0;
    static constexpr bool kDeferred = false, kOffset = false;
    static constexpr double kRounding = 0;
    TW_MEMBER static u32 code(const u8* block, int i) { return (block[0] >> (4 * i)) & 15u; }
    TW_MEMBER static void put_code(u8* block, int i, u32 code) { block[0] |= static_cast<u8>(code << (4 * i)); }
    TW_MEMBER static void put_scales(u8*, const u8*, const u8*, i64) {}
    TW_MEMBER static void take_scales(const u8*, u8*, u8*, i64) {}
    struct Scales {};
  };
};

}  // namespace tw::fmt
