// SPDX-License-Identifier: Apache-2.0
// The members that a format file provides, and the pieces that format files share.
//
// struct tw::fmt::NAME (NAME is the file's stem) states every member below. Nothing is optional: a format without a
// feature says so ("none"), and templates/formats/shared/format_concept.h refuses a format that misspells or forgets a
// name. Integers and bools are TW_CONSTANTS (backends/cuda/types.cuh), other constants are functions.
//
// Description, for the host:
//   title(), source()              one line for humans; where layout and encoding rule come from
//   kLayout                      raised when the bytes change meaning
//   kBits                        significant bits of a code
//   kEncoders, encoder_name(i)   encoding rules, default first
//   kErrorColumns                neighbouring columns of a row that share the innermost scale; 0: a row, or the tensor
//   error(i)                     Error: how far decode() may be from what encoder i was given
//   kKeepsNan, infinity()        what becomes of a NaN, and of an infinity (enum Infinity)
//
// Storage:
//   kBlock                       elements of a block: columns of a row that are stored together
//   kDataBytes, kScaleBytes      bytes of a block in the streams `data` and `scales`
//   kScaleRows                   rows that share the items of `scales`; 1: each has its own
//   kRowScale, RowItem           true: `scales` holds one RowItem per row instead: a float, ZeroPointItem or SignItem
//   kGlobal                      true: one more float scales the whole tensor
//   Element                      type of an element where each is stored by itself; void: codes in blocks
//
// Scalar codec, the library's reference on the host and in the reference kernels:
//   encode(x, data, scales, context, encoder)   one block; context: the tensor's scale, the row's item, or 1
//   decode(data, scales, context, i)            element i of a block, exact in float
//   kImportance                  true: encode_weighted(x, importance, data), a block whose elements have a weight each;
//                                the host's alone
//   global_scale(amax)                          kGlobal
//   row_scale(amax)                             kRowScale, RowItem = float
//   row_item(most, below)                       kRowScale, RowItem = ZeroPointItem: the item but for the sum, from the
//                                               largest of v and of -v, each at least 0
//   scale_for(amax), write_scale(scales, scale) kScaleRows > 1: of a block of that many rows, before encode()
//
// Fast path of a weight (and of x, where it is codes in blocks of 32):
//   kGroup                       elements under one affine rule; 0: there is no fast path, and nothing below
//   kCodes                       true: a group is kGroup signed bytes, value = scale * code - offset
//   kOffset                      false: that offset is always 0
//   unit_ok(E), Unit<E>          whether a thread can hold E consecutive elements in registers, and as what
//   load(unit, data, scales, k)  a unit from a row, from element k (a multiple of E)
//   values(unit, g, v)           !kCodes: group g as floats; of a table (is_table()) a whole unit
//   group(unit, g, codes, scale, offset)    kCodes: group g, codes in element order
// and with kCodes, or a table, for rows that are first copied to shared memory as they are stored:
//   raw_bytes<BK>()              bytes of `data` that BK elements from k0 (a multiple of BK) take
//   raw_offset(k0, byte)         where in the row each of these bytes is
//   load_raw(unit, raw, scales, k, k0)      a unit from such a copy, k counted from k0
// A table is a format whose codes name floats: Element is void, and kCodes false. Its values are exact; against x of
// 16 bits matrix units take
//   pairs<T>(unit, g, words, scale)   group g's entries of the table as pairs of T, and what they lack
//   rounding<T>()                     the largest relative error of such an entry
//
// Casts:
//   lanes_ok(E)                  whether encode_lanes<E> exists
//   encode_lanes<E>(v, lane, data, scales, context, encoder)
//                                encode() by kBlock / E neighbouring lanes of E elements each (by one lane if
//                                E >= kBlock, which then encodes E / kBlock blocks), to the same bytes; data and scales
//                                are in shared memory, the first block of a run 16-byte aligned; all lanes of the warp
//                                take part
//   codes<direct>(v, divider, item)         kRowScale and bytes: four codes as a word; direct: see Divider
//   steps(i)                     how codes follow each other under encoder i, if casts may round stochastically
//                                (operations/cast/stochastic.cuh); the only member that a format may leave out
//   kCodeLanes                   true: a GEMM kernel may encode x itself (operations/gemm/cuda/quantized.cuh), by
//   code_lanes<E>(v, codes)      as encode_lanes(), a lane's codes as the bytes of words; returns the block's scale
//
// Matrix instructions:
//   scaled_mma()                 the one that takes the format as stored, or none
//   TileElement                  as x, the element whose tiles of w its kernels take: Element, Codes or void
//   tiles_for<T>(), Tile<T>      as w, whether it has tiles for x of T, and how they are unpacked
//   (formats/shared/tiles.cuh)
//
// A scale of the whole tensor is left to the epilogue.
#pragma once
#include "backends/cuda/numeric.cuh"
#include "backends/cuda/ptx.cuh"
#include "backends/cuda/types.cuh"

namespace tw::fmt {

// How far decode(encode(x)) may be from x, for finite x of magnitude `largest` at most:
//   element |x| + amax A + range R + outer O + least
// with, of the elements that share x's innermost scale, A the largest magnitude and R the largest less the smallest, 0
// among them; and O the largest magnitude of what the next scale is for, the block's or the tensor's.
struct Error {
  double element = 0, amax = 0, range = 0, outer = 0, least = 0;
  float largest = 3.4028234663852886e38f;
};
// Codes in the order of their values, one step after the other, from `low` to `high`: integers of `bits` bits, or a
// sign and a magnitude. A code is a byte, or half of one, the even element's the lower. 0 bits: there is no such order.
struct CodeSteps {
  int bits = 0;
  bool sign_magnitude = false;
  i32 low = 0, high = 0;
};
TW_FN constexpr CodeSteps e4m3_steps() { return {8, true, -0x7e, 0x7e}; }
TW_FN constexpr CodeSteps e2m1_steps() { return {4, true, -7, 7}; }

// The relative error of a scale that is rounded to half precision, and the absolute one: below 2^-14 halves are
// multiples of 2^-24.
TW_FN constexpr double half_rounding() { return 4.8828125e-4; }
TW_FN constexpr double half_least() { return 2.98023223876953125e-8; }
TW_FN constexpr float largest_half() { return 65504.0f; }
// The least float, and what of the largest is left for a scale's rounding.
TW_FN constexpr double least_float() { return 1.401298464324817e-45; }
TW_FN constexpr float largest_scaled() { return 3.4e38f; }

// An infinity stays one, becomes the largest number of the format, or makes the scale infinite, so that no element of
// its group is finite.
enum class Infinity { stays, saturates, spreads };

// Base of formats whose blocks stand alone: there is no scale of a row, of several rows or of the tensor.
struct StandAlone {
  TW_CONSTANTS(int, kScaleRows = 1);
  TW_CONSTANTS(bool, kRowScale = false, kGlobal = false, kImportance = false);
  using RowItem = float;
};

// An item of `scales` for a row with a zero point (-128 to 127): value = (code - zero) * scale. `sum` adds up the row's
// codes, so that kernels may multiply codes as they are: sum (x - zx)(w - zw) = sum x w - zx sum w - zw sum x
// + k zx zw.
struct alignas(16) ZeroPointItem {
  float scale = 0;
  i32 zero = 0, sum = 0, unused = 0;
};
// An item of `scales` for a row of signs: value = scale or -scale, and `ones` counts the row's bits that are 1, so that
// kernels may count common ones. `negative`: the bit of an element below zero.
template <u32 negative>
struct alignas(16) SignItem {
  float scale = 0;
  i32 ones = 0, unused[2] = {};
};
template <class F>
using row_item = typename F::RowItem;
template <class F>
TW_FN constexpr bool has_zero_point() {
  return same<row_item<F>, ZeroPointItem>();
}
template <class Item>
struct OfSigns {
  TW_CONSTANTS(bool, value = false);
};
template <u32 negative>
struct OfSigns<SignItem<negative>> {
  TW_CONSTANTS(bool, value = true);
};
template <class F>
TW_FN constexpr bool is_signs() {
  return OfSigns<row_item<F>>::value;
}
template <class F>
TW_FN constexpr int row_bytes() {
  return F::kRowScale ? static_cast<int>(sizeof(row_item<F>)) : 0;
}

// Whether F's codes name floats of a table.
template <class F>
TW_FN constexpr bool is_table() {
  return !F::kCodes && F::kGroup > 0 && same<typename F::Element, void>();
}

TW_FN float scale_of(float item) { return item; }
TW_FN float scale_of(const ZeroPointItem& item) { return item.scale; }
template <u32 negative>
TW_FN float scale_of(const SignItem<negative>& item) {
  return item.scale;
}
TW_FN float scaled_by(float factor, float item) { return factor * item; }
TW_FN ZeroPointItem scaled_by(float factor, const ZeroPointItem& item) {
  return {factor * item.scale, item.zero, item.sum, 0};
}
template <u32 negative>
TW_FN SignItem<negative> scaled_by(float factor, const SignItem<negative>& item) {
  return {factor * item.scale, item.ones};
}

// What an item adds up of its row: of each byte of codes.
TW_FN void add_codes(float&, u8) {}
TW_FN void add_codes(ZeroPointItem& item, u8 code) { item.sum += static_cast<i8>(code); }
template <u32 negative>
TW_FN void add_codes(SignItem<negative>& item, u8 signs) {
  item.ones += popcount(signs);
}

// The item of row `row`; 1 if the format has no row scales.
template <class F>
TW_FN row_item<F> row_item_at(const void* scales, i64 row) {
  if constexpr (F::kRowScale)
    return static_cast<const row_item<F>*>(scales)[row];
  else
    return 1.0f;
}

// Whether a row's scale is made from its mean magnitude.
template <class F, class = void>
struct OfMean {
  TW_CONSTANTS(bool, value = false);
};
template <class F>
struct OfMean<F, void_of<decltype(F::row_scale_of_mean(0.0f))>> {
  TW_CONSTANTS(bool, value = true);
};
template <bool of_mean>
struct RowSum {};
template <>
struct RowSum<true> {
  double sum = 0;
  i64 count = 0;
};

// A row's item is made from its largest magnitude; with a zero point, from the largest v and the largest -v. None is
// less than 0, and NaNs are ignored. Or it is made from the mean magnitude, NaNs being 0, which is summed in double
// precision in the order of the row.
template <class F>
struct Extent : RowSum<OfMean<F>::value> {
  TW_CONSTANTS(int, kFloats = has_zero_point<F>() ? 2 : 1);
  float of[kFloats] = {};
  TW_MEMBER void add(float v) {
    if constexpr (OfMean<F>::value) this->sum += v == v ? abs_f(v) : 0.0f, ++this->count;
    of[0] = max_number(of[0], kFloats == 1 ? abs_f(v) : v);
    if constexpr (kFloats == 2) of[1] = max_number(of[1], -v);
  }
  TW_MEMBER float largest() const { return kFloats == 1 ? of[0] : max2(of[0], of[kFloats - 1]); }
  TW_MEMBER row_item<F> item() const {
    if constexpr (has_zero_point<F>())
      return F::row_item(of[0], of[1]);
    else if constexpr (OfMean<F>::value)
      return F::row_scale_of_mean(this->count ? static_cast<float>(this->sum / static_cast<double>(this->count))
                                              : 0.0f);
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

// Element i of signed bytes in words.
TW_FN float code_at(const u32* codes, int i) {
  return static_cast<float>(static_cast<i8>(codes[i / 4] >> (8 * (i % 4))));
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

// The largest of the numbers of `lanes` neighbouring lanes.
template <int lanes>
TW_DEVICE float largest_of_lanes(float largest) {
  TW_UNROLL for (int d = lanes / 2; d > 0; d /= 2) largest = max_number(largest, shuffle_xor(largest, d));
  return largest;
}
// A lane's largest magnitude; NaN if one of its elements is.
template <int E>
TW_DEVICE float largest_or_nan(const float (&v)[E]) {
  float largest = 0.0f;
  TW_UNROLL for (int i = 0; i < E; ++i) largest = max_or_nan(largest, abs_f(v[i]));
  return largest;
}
// The largest magnitude among a lane's elements, NaNs passed over; `or_nan`: of largest_or_nan(). NaNs are rare, so
// they get a loop, which ptxas cannot execute for every lane as it does with short branches.
template <int E>
TW_DEVICE float largest_number(const float (&v)[E], float or_nan) {
  if (!is_nan(or_nan)) return or_nan;
  float largest = 0.0f;
  TW_NO_UNROLL for (int n = 0; n < E; ++n) {
    float x = v[0];
    TW_UNROLL for (int i = 1; i < E; ++i) x = n == i ? v[i] : x;
    largest = max_number(largest, abs_f(x));
  }
  return largest;
}
// The largest magnitude among the elements of `lanes` neighbouring lanes; NaNs are passed over.
template <int lanes, int E>
TW_DEVICE float largest_of(const float (&v)[E]) {
  float largest = 0.0f;
  TW_UNROLL for (int i = 0; i < E; ++i) largest = max_number(largest, abs_f(v[i]));
  return largest_of_lanes<lanes>(largest);
}

// Element i of one-byte elements in words.
template <class T>
TW_FN float byte_at(const u32* words, int i) {
  return to_f32(bits_as<T>(static_cast<u8>(words[i / 4] >> (8 * (i % 4)))));
}

// The error of rounding to an element of T alone, and the largest value that T holds.
template <class T>
constexpr Error element_error() {
  if constexpr (same<T, tw::f16>()) return {4.8828125e-4, 0, 0, 0, 2.98023223876953125e-8, 65504.0f};
  if constexpr (same<T, tw::bf16>()) return {3.90625e-3, 0, 0, 0, 4.6e-41, 3.3895313892515355e38f};
  if constexpr (same<T, tw::e4m3>()) return {0.0625, 0, 0, 0, 9.765625e-4, 448.0f};
  if constexpr (same<T, tw::e5m2>()) return {0.125, 0, 0, 0, 7.62939453125e-6, 57344.0f};
  if constexpr (same<T, tw::i8>()) return {0, 0, 0, 0, 0.5, 127.0f};
  if constexpr (same<T, tw::i32>()) return {0, 0, 0, 0, 0.5, 2147483520.0f};
  return {};
}
// The same under a float scale, amax / (the largest element of T).
template <class T>
constexpr Error scaled_error() {
  const Error own = element_error<T>();
  const double top = own.largest;
  return {own.element, own.least / top, 0, 0, top * least_float(), largest_scaled()};
}

// Elements of T, without a scale.
template <class T, int bits>
struct Plain : StandAlone {
  TW_CONSTANTS(int, kLayout = 1, kBlock = 1, kBits = bits);
  TW_CONSTANTS(int, kDataBytes = sizeof(T), kScaleBytes = 0);
  TW_CONSTANTS(int, kEncoders = 1, kErrorColumns = 1);
  static constexpr Error error(int) { return element_error<T>(); }
  TW_CONSTANTS(bool, kKeepsNan = !same<T, i8>() && !same<T, i32>());
  TW_MEMBER static constexpr Infinity infinity() {
    return is_fp8_type<T>() || !kKeepsNan ? Infinity::saturates : Infinity::stays;
  }
  TW_MEMBER static constexpr ScaledMma scaled_mma() { return ScaledMma::none; }
  TW_CONSTANTS(bool, kCodeLanes = false);
  using Element = T;
  using TileElement = T;
  template <class>
  TW_MEMBER static constexpr bool tiles_for() {
    return false;
  }

  TW_MEMBER static void encode(const float* x, u8* data, u8*, float, int) {
    const T v = from_f32<T>(x[0]);
    TW_COPY(data, &v, sizeof(T));
  }
  TW_MEMBER static float decode(const u8* data, const u8*, float, int) {
    T v;
    TW_COPY(&v, data, sizeof(T));
    return to_f32(v);
  }

  TW_MEMBER static constexpr CodeSteps steps(int) {
    if constexpr (same<T, tw::e4m3>()) return e4m3_steps();
    if constexpr (same<T, tw::e5m2>()) return {8, true, -0x7b, 0x7b};
    if constexpr (same<T, tw::i8>()) return {8, false, -128, 127};
    return {};
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
  TW_CONSTANTS(int, kGroup = 1);
  TW_CONSTANTS(bool, kCodes = false, kOffset = false);
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
  TW_CONSTANTS(bool, kGlobal = true);
  TW_CONSTANTS(int, kErrorColumns = 0);
  static constexpr Error error(int) { return scaled_error<typename Elements::Element>(); }
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
