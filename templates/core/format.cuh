// SPDX-License-Identifier: Apache-2.0
// What a format file provides, and the pieces that format files share.
//
// struct tw::fmt::NAME (the file's stem) has
//   kTitle, kLayout, kBlock, kBits               see tilewright::FormatInfo
//   kDataBytes, kScaleBytes                      bytes per block in the streams `data` and `scales`
//   kRowScale                                    `scales` holds one item per row instead: a float, or what RowItem says
//   RowItem                                      may be left out, for float: ZeroPointItem (row_item<F>)
//   kGlobal                                      there is one float for the tensor
//   kScaleRows                                   may be left out, for 1: rows that share the items of `scales`
//   (scale_rows<F>) kScaledMma                                   may be left out, for none: the matrix instruction that
//   takes it as stored (scaled_mma<F>) kEncoders, encoder_name(i)                   encoding rules, default first
//   encode(x, data, scales, context, encoder)    one block, scalar; context: the global or the row's item, else 1
//   decode(data, scales, context, i)             element i of a block, exact in float
//   row_scale(amax), global_scale(amax)          where they apply
//   row_item(most, below)                        RowItem: the row's but for the sum; of the largest of v and of -v, 0
//   at least scale_for(amax), write_scale(scales, scale)  kScaleRows > 1: of a block of that many rows; encode() finds
//   it written
// and, if GEMM kernels may read it at full speed as a weight,
//   kGroup                                       elements under one affine rule; 0: no fast path
//   kCodes                                       true: a group is kGroup signed bytes, value = scale * code - offset
//   kOffset                                      false: offset is always 0
//   Unit<E>, load(unit, data_row, scales_row, k) E consecutive elements in registers, from element k (a multiple of E)
//   group(unit, g, codes, scale, offset)         kCodes: group g of the unit, codes in element order
//   values(unit, g, v)                           !kCodes: group g as floats
//   unit_ok(E)                                   whether Unit<E> exists
//   raw_bytes<BK>()                              kCodes: what a row's BK elements from k0 (a multiple of BK) take when
//   they raw_offset(k0, byte)                         are copied as stored: how many bytes of `data`, and where each
//   lies in the load_raw(unit, raw, scales, k, k0)           row; a unit from such a copy, k counted from k0
// and, if casts may encode it at full speed,
//   lanes_ok(E)                                  whether encode_lanes<E> exists
//   encode_lanes<E>(v, lane, data, scales, context, encoder)
//                                                one block by kBlock / E neighbouring lanes (by one if E >= kBlock,
//                                                which then encodes E / kBlock blocks), E elements each, the same bytes
//                                                as encode(); data and scales are in shared memory, the first block of
//                                                a run 16-byte aligned. All lanes of the warp take part
//   codes<direct>(v, divider, item)              kRowScale: four one-byte codes as a word; direct: see Divider
// and, if a GEMM kernel may encode x itself (core/quantized.cuh),
//   kCodeLanes                                   may be left out, for false (has_code_lanes<F>)
//   code_lanes<E>(v, codes)                      as encode_lanes(): a lane's codes as the bytes of words; returns the
//   block's scale
// The tensor-wide scale is left to the epilogue.
#pragma once
#include "core/numeric.cuh"
#include "core/ptx.cuh"
#include "core/types.cuh"

namespace tw::fmt {

// Rows that share the items of `scales`.
template <class F, class = void>
struct ScaleRows {
  static constexpr int value = 1;
};
template <class F>
struct ScaleRows<F, void_of<decltype(F::kScaleRows)>> {
  static constexpr int value = F::kScaleRows;
};
template <class F>
constexpr int scale_rows = ScaleRows<F>::value;

template <class F, class = void>
struct ScaledMmaOf {
  static constexpr ScaledMma value = ScaledMma::none;
};
template <class F>
struct ScaledMmaOf<F, void_of<decltype(F::kScaledMma)>> {
  static constexpr ScaledMma value = F::kScaledMma;
};
template <class F>
constexpr ScaledMma scaled_mma = ScaledMmaOf<F>::value;

template <class F, class = void>
struct CodeLanes {
  static constexpr bool value = false;
};
template <class F>
struct CodeLanes<F, void_of<decltype(F::kCodeLanes)>> {
  static constexpr bool value = F::kCodeLanes;
};
template <class F>
constexpr bool has_code_lanes = CodeLanes<F>::value;

// What `scales` holds of a row with a zero point (-128 to 127): value = (code - zero) * scale. `sum`, of the row's
// codes, is there so that kernels may multiply codes as they are: sum (x - zx)(w - zw) = sum x w - zx sum w - zw sum x
// + k zx zw.
struct alignas(16) ZeroPointItem {
  float scale = 0;
  i32 zero = 0, sum = 0, unused = 0;
};
template <class F, class = void>
struct RowItemOf {
  using type = float;
};
template <class F>
struct RowItemOf<F, void_of<typename F::RowItem>> {
  using type = typename F::RowItem;
};
template <class F>
using row_item = typename RowItemOf<F>::type;
template <class F>
constexpr bool has_zero_point = same<row_item<F>, ZeroPointItem>;
template <class F>
constexpr int row_bytes = F::kRowScale ? static_cast<int>(sizeof(row_item<F>)) : 0;

TW_FN float scale_of(float item) { return item; }
TW_FN float scale_of(const ZeroPointItem& item) { return item.scale; }
TW_FN float scaled_by(float factor, float item) { return factor * item; }
TW_FN ZeroPointItem scaled_by(float factor, const ZeroPointItem& item) {
  return {factor * item.scale, item.zero, item.sum, 0};
}

// Of row `row`; 1 where there are no such scales.
template <class F>
TW_FN row_item<F> row_item_at(const void* scales, i64 row) {
  if constexpr (F::kRowScale)
    return static_cast<const row_item<F>*>(scales)[row];
  else
    return 1.0f;
}

// What a row's item is made from: the largest magnitude; with a zero point the largest of v and of -v. None is less
// than 0, and NaNs are passed over.
template <class F>
struct Extent {
  static constexpr int kFloats = has_zero_point<F> ? 2 : 1;
  float of[kFloats] = {};
  TW_MEMBER void add(float v) {
    of[0] = max_number(of[0], kFloats == 1 ? abs_f(v) : v);
    if constexpr (kFloats == 2) of[1] = max_number(of[1], -v);
  }
  TW_MEMBER float largest() const { return kFloats == 1 ? of[0] : max2(of[0], of[kFloats - 1]); }
  TW_MEMBER row_item<F> item() const {
    if constexpr (has_zero_point<F>)
      return F::row_item(of[0], of[1]);
    else
      return F::row_scale(of[0]);
  }
};

// Largest power of two, at most 16, that divides `bytes`: the alignment of a run of items of that size.
TW_FN constexpr int run_alignment(int bytes) {
  return bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
}

TW_FN u16 read16(const u8* p) { return static_cast<u16>(p[0] | (p[1] << 8)); }
TW_FN void write16(u8* p, u16 v) {
  p[0] = static_cast<u8>(v);
  p[1] = static_cast<u8>(v >> 8);
}

// Four consecutive elements as the four bytes of a word, to floats.
TW_FN float code_at(const u32* codes, int i) {
  return static_cast<float>(static_cast<i8>(codes[i / 4] >> (8 * (i % 4))));
}

// Blocks of a two-byte scale followed by codes (18 or 34 bytes): only two-byte aligned, so every other block has its
// codes across word boundaries. Word i of the codes of block b of a run held in `raw`, and the block's scale.
template <int block_bytes>
TW_FN u32 block_word(const u32* raw, int b, int i) {
  const int at = block_bytes * b + 2 + 4 * i;
  return at % 4 == 0 ? raw[at / 4] : prmt(raw[at / 4], raw[at / 4 + 1], 0x5432u);
}
template <int block_bytes>
TW_FN float block_scale(const u32* raw, int b) {
  const int at = block_bytes * b;
  return f16_bits_to_f32(static_cast<u16>(at % 4 == 0 ? raw[at / 4] : raw[at / 4] >> 16));
}

// The four lowest bits of a word as bytes of 0 or 1, in order.
TW_FN u32 bits_to_bytes(u32 bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }

// Words to memory that is only two-byte aligned.
TW_FN void write_word(u8* p, u32 w) {
  *reinterpret_cast<u16*>(p) = static_cast<u16>(w);
  *reinterpret_cast<u16*>(p + 2) = static_cast<u16>(w >> 16);
}
// amax / top, 1 where all that it scales is zero.
TW_FN float scale_for(float amax, float top) {
  const float scale = div_rn(amax, top);
  return scale > 0.0f ? scale : 1.0f;
}
// Four E4M3 codes of v / scale as a word; direct: see Divider.
template <bool direct>
TW_DEVICE u32 e4m3_codes(const float* v, const Divider& scale) {
  float q[4];
  TW_UNROLL for (int i = 0; i < 4; ++i) q[i] = direct ? scale.quotient(v[i]) : div_rn(v[i], scale.divisor);
  return pack_e4m3x2(q[0], q[1]) | (pack_e4m3x2(q[2], q[3]) << 16);
}

// The largest magnitude among the elements of `lanes` neighbouring lanes; NaNs are passed over.
template <int lanes, int E>
TW_DEVICE float largest_of(const float (&v)[E]) {
  float largest = 0.0f;
  TW_UNROLL for (int i = 0; i < E; ++i) largest = max_number(largest, abs_f(v[i]));
  TW_UNROLL for (int d = lanes / 2; d > 0; d /= 2) largest = max_number(largest, shuffle_xor(largest, d));
  return largest;
}

// Element i of one-byte elements in words.
template <class T>
TW_FN float byte_at(const u32* words, int i) {
  return to_f32(bits_as<T>(static_cast<u8>(words[i / 4] >> (8 * (i % 4)))));
}

// Elements of T, without a scale.
template <class T, int bits>
struct Plain {
  static constexpr int kLayout = 1, kBlock = 1, kBits = bits;
  static constexpr int kDataBytes = sizeof(T), kScaleBytes = 0;
  static constexpr bool kRowScale = false, kGlobal = false;
  static constexpr int kEncoders = 1;
  using Element = T;

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    const T v = from_f32<T>(x[0]);
    TW_COPY(data, &v, sizeof(T));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int) {
    T v;
    TW_COPY(&v, data, sizeof(T));
    return to_f32(v);
  }

  TW_MEMBER static constexpr bool lanes_ok(int e) { return e * static_cast<int>(sizeof(T)) >= 8; }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int, u8* data, u8*, float, int) {
    constexpr int kWords = E * sizeof(T) / 4;
    u32 words[kWords];
    TW_UNROLL for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4)
        words[i] = bits_as<u32>(from_f32<T>(v[i]));
      else if constexpr (sizeof(T) == 2)
        words[i] = pack2<T>(v[2 * i], v[2 * i + 1]);
      else
        words[i] = pack2<T>(v[4 * i], v[4 * i + 1]) | (pack2<T>(v[4 * i + 2], v[4 * i + 3]) << 16);
    }
    TW_UNROLL for (int i = 0; i < kWords / 2; ++i) *
        reinterpret_cast<u32x2*>(data + 8 * i) = {words[2 * i], words[2 * i + 1]};
  }

  // A unit is one group; its elements are read with one load of at most 16 bytes.
  static constexpr int kGroup = 1;
  static constexpr bool kCodes = false, kOffset = false;
  TW_MEMBER static constexpr bool unit_ok(int e) {
    const int bytes = e * static_cast<int>(sizeof(T));
    return e > 0 && (e & (e - 1)) == 0 && bytes >= 2 && bytes <= 16;
  }
  template <int E>
  struct Unit {
    u32 raw[ceil_div(E * sizeof(T), 4)];
  };
  template <int E>
  TW_MEMBER static void load(Unit<E>& u, const u8* data, const u8*, i64 k) {
    load_words<E * sizeof(T), run_alignment(E * sizeof(T))>(u.raw, data + k * static_cast<i64>(sizeof(T)));
  }
  template <int E>
  TW_MEMBER static void values(const Unit<E>& u, int, float (&v)[E]) {
    TW_UNROLL for (int i = 0; i < E; ++i) {
      if constexpr (sizeof(T) == 4)
        v[i] = to_f32(bits_as<T>(u.raw[i]));
      else if constexpr (sizeof(T) == 2)
        v[i] = i % 2 ? high_half<T>(u.raw[i / 2]) : low_half<T>(u.raw[i / 2]);
      else
        v[i] = byte_at<T>(u.raw, i);
    }
  }
};

// The same under one float for the tensor: value = element * global.
template <class Elements>
struct TensorScaled : Elements {
  static constexpr bool kGlobal = true;
  TW_MEMBER static void encode(const float* x, u8* data, u8* scales, float global, int encoder) {
    const float steps = div_rn(x[0], global);
    Elements::encode(&steps, data, scales, 1.0f, encoder);
  }
  TW_MEMBER static float decode(const u8* data, const u8* scales, float global, int i) {
    return mul_rn(Elements::decode(data, scales, 1.0f, i), global);
  }
  template <int E>
  TW_MEMBER static void encode_lanes(const float (&v)[E], int lane, u8* data, u8* scales, float global, int encoder) {
    float steps[E];
    TW_UNROLL for (int i = 0; i < E; ++i) steps[i] = div_rn(v[i], global);
    Elements::template encode_lanes<E>(steps, lane, data, scales, 1.0f, encoder);
  }
};

}  // namespace tw::fmt
