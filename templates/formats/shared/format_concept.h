// SPDX-License-Identifier: Apache-2.0
// The members of a format by name (formats/shared/format.cuh says what each means), checked on the host: a name that is
// missing or misspelled in a format file is an error here, where the compiler says which one.
#pragma once

#include <concepts>
#include <type_traits>

#include "formats/shared/tiles.cuh"

namespace tilewright::format_concept {

// M is the type of a static member, without const.
template <class M, class T>
concept Member = std::same_as<std::remove_cvref_t<M>, T>;

template <class F>
concept Description = requires(int i) {
  { F::title() } -> Member<const char*>;
  { F::source() } -> Member<const char*>;
  { F::kLayout } -> Member<int>;
  { F::kBits } -> Member<int>;
  { F::kEncoders } -> Member<int>;
  { F::encoder_name(i) } -> Member<const char*>;
  { F::kErrorColumns } -> Member<int>;
  { F::error(i) } -> Member<tw::fmt::Error>;
  { F::kKeepsNan } -> Member<bool>;
  { F::infinity() } -> Member<tw::fmt::Infinity>;
};

template <class F>
concept Storage = requires {
  { F::kBlock } -> Member<int>;
  { F::kDataBytes } -> Member<int>;
  { F::kScaleBytes } -> Member<int>;
  { F::kScaleRows } -> Member<int>;
  { F::kRowScale } -> Member<bool>;
  { F::kGlobal } -> Member<bool>;
  typename F::RowItem;
  typename F::Element;
};

template <class F>
concept Codec = requires(const float* x, tw::u8* data, tw::u8* scales, const typename F::RowItem& context, int i) {
  F::encode(x, data, scales, context, i);
  { F::decode(data, scales, context, i) } -> std::same_as<float>;
};
template <class F>
concept EncodesWeighted = requires(const float* x, tw::u8* data) {
  F::encode_weighted(x, x, data);
};
template <class F>
concept Weighted = requires {
  { F::kImportance } -> Member<bool>;
}
&&(!F::kImportance || EncodesWeighted<F>);
template <class F>
concept TensorScale = requires(float amax) {
  { F::global_scale(amax) } -> std::same_as<float>;
};
template <class F>
concept RowScale = requires(float amax) {
  { F::row_scale(amax) } -> std::same_as<float>;
}
|| requires(float mean) {
  { F::row_scale_of_mean(mean) } -> std::same_as<typename F::RowItem>;
};
template <class F>
concept ZeroPoint = requires(float most, float below) {
  { F::row_item(most, below) } -> std::same_as<tw::fmt::ZeroPointItem>;
};
template <class F>
concept SharedScale = requires(tw::u8* scales, float amax) {
  { F::scale_for(amax) } -> std::same_as<float>;
  F::write_scale(scales, amax);
};
template <class F>
concept Scales = (!F::kGlobal || TensorScale<F>)&&(F::kScaleRows == 1 || SharedScale<F>)&&(
    !F::kRowScale || (tw::fmt::has_zero_point<F>() ? ZeroPoint<F> : RowScale<F>));

// The smallest unit of a thread.
template <class F>
constexpr int smallest_unit() {
  for (int e = 1; e <= 256; e *= 2)
    if (F::unit_ok(e)) return e;
  return 0;
}
template <class F>
concept UnitsStated = requires(int e) {
  { F::kGroup } -> Member<int>;
  { F::kCodes } -> Member<bool>;
  { F::kOffset } -> Member<bool>;
  { F::unit_ok(e) } -> std::same_as<bool>;
};
template <class F>
concept Values = requires(const typename F::template Unit<smallest_unit<F>()>& unit, float (&v)[smallest_unit<F>()]) {
  F::template values<smallest_unit<F>()>(unit, 0, v);
};
template <class F>
concept Groups = requires(const typename F::template Unit<smallest_unit<F>()>& unit, tw::u32 (&codes)[F::kGroup / 4],
                          float& s) {
  F::template group<smallest_unit<F>()>(unit, 0, codes, s, s);
};
// Tiles in shared memory are unpacked by 64 or 32.
template <class F>
constexpr int raw_unit = F::unit_ok(64) ? 64 : 32;
template <class F>
concept Raw = requires(typename F::template Unit<raw_unit<F>>& unit, const tw::u8* raw, int k, tw::i64 k0) {
  { F::template raw_bytes<64>() } -> std::same_as<int>;
  { F::raw_offset(k0, k) } -> std::same_as<tw::i64>;
  F::template load_raw<raw_unit<F>>(unit, raw, raw, k, k0);
};
template <class F>
concept Pairs = requires(const typename F::template Unit<smallest_unit<F>()>& unit, tw::u32 (&words)[F::kGroup / 2],
                         float& scale) {
  F::template pairs<tw::f16>(unit, 0, words, scale);
  { F::template rounding<tw::bf16>() } -> std::same_as<double>;
};
template <class F>
concept Loads = requires(typename F::template Unit<smallest_unit<F>()>& unit, const tw::u8* data, tw::i64 k) {
  F::template load<smallest_unit<F>()>(unit, data, data, k);
};
template <class F>
concept FastPath = UnitsStated<F> &&
    ((F::kGroup == 0 && smallest_unit<F>() == 0) || (smallest_unit<F>() > 0 && Loads<F>));
template <class F>
concept FastGroups = F::kGroup == 0 || (!F::kCodes && Values<F> && (!tw::fmt::is_table<F>() || (Pairs<F> && Raw<F>))) ||
                     (F::kCodes && Groups<F> && Raw<F>);

template <class F>
constexpr int fewest_elements() {
  for (int e = 1; e <= 256; e *= 2)
    if (F::lanes_ok(e)) return e;
  return 1;
}
template <class F>
concept LanesStated = requires(int e) {
  { F::lanes_ok(e) } -> std::same_as<bool>;
  { F::kCodeLanes } -> Member<bool>;
};
template <class F>
concept EncodesLanes = requires(const float (&v)[fewest_elements<F>()], tw::u8* data,
                                const typename F::RowItem& context) {
  F::template encode_lanes<fewest_elements<F>()>(v, 0, data, data, context, 0);
};
template <class F>
concept CodesLanes = requires(const float (&v)[8], tw::u32 (&codes)[2]) {
  { F::template code_lanes<8>(v, codes) } -> std::same_as<float>;
};
template <class F>
concept Casts = LanesStated<F> &&
    (!F::lanes_ok(fewest_elements<F>()) || EncodesLanes<F>)&&(!F::kCodeLanes || CodesLanes<F>);
// Bytes with an item per row, whose codes the cast of rows writes four at a time.
template <class F>
concept RowCodes = requires(const float (&v)[4], const tw::Divider& divider, const typename F::RowItem& item) {
  { F::template codes<true>(v, divider, item) } -> std::same_as<tw::u32>;
};
template <class F>
concept RowCasts = !F::kRowScale || F::kBlock > 1 || RowCodes<F>;

template <class T>
concept TileStated = requires(tw::u8* block, const tw::u8* stored, tw::i64 k) {
  { T::kBits } -> Member<int>;
  { T::kScaleK } -> Member<int>;
  { T::kScaleBytes } -> Member<int>;
  { T::kScaleAfterMma } -> Member<bool>;
  { T::kOffset } -> Member<bool>;
  { T::factor() } -> Member<float>;
  { T::rounding() } -> Member<double>;
  { T::code(stored, 0) } -> std::same_as<tw::u32>;
  T::put_scales(block, stored, stored, k);
  T::take_scales(stored, block, block, k);
  typename T::Scales;
  typename T::AfterMma;
};
template <class T>
concept TilePutsCodes = requires(tw::u8* block, tw::u32 code) {
  T::put_code(block, 0, code);
}
|| requires(tw::u8* block, tw::u32 codes) { T::put_eight(block, 0, codes); };
template <class T, class E>
concept TileFragments = requires(const tw::u32 (&words)[tw::tile_words<T, E>()], const typename T::Scales& scales,
                                 tw::u32 (&a)[4]) {
  T::fragment(words, 0, scales, a);
};
template <class T>
concept TileScales = requires(const tw::u8* chunk) {
  { T::scales(chunk, 0, 0) } -> std::same_as<typename T::Scales>;
};
template <class T>
concept TileRowScale = requires(const typename T::Scales& scales) {
  { T::row_scale(scales, 0, 0) } -> std::same_as<float>;
};
template <class T>
concept TileRowMinimum = requires(const typename T::Scales& scales) {
  { T::row_minimum(scales, 0, 0) } -> std::same_as<float>;
};
template <class T, class E>
concept Tile = TileStated<T> && TilePutsCodes<T> && TileFragments<T, E> &&
    (T::kScaleBytes == 0 || TileScales<T>)&&(!T::kScaleAfterMma ||
                                             (TileRowScale<T> && (!T::kOffset || TileRowMinimum<T>)));

template <class F, class E>
constexpr bool tile_or_none() {
  if constexpr (F::template tiles_for<E>()) return Tile<typename F::template Tile<E>, E>;
  return true;
}
template <class F>
concept MatrixInstructions = requires {
  { F::scaled_mma() } -> Member<tw::ScaledMma>;
  typename F::TileElement;
  { F::template tiles_for<tw::f16>() } -> Member<bool>;
};
template <class F>
concept Tiles = tile_or_none<F, tw::f16>() && tile_or_none<F, tw::bf16>() && tile_or_none<F, tw::e4m3>() &&
    tile_or_none<F, tw::i8>() && tile_or_none<F, tw::Codes>();

}  // namespace tilewright::format_concept

namespace tilewright {

template <class F>
concept FormatFile = format_concept::Description<F> && format_concept::Storage<F> && format_concept::Codec<F> &&
    format_concept::Weighted<F> && format_concept::Scales<F> && format_concept::FastPath<F> &&
    format_concept::FastGroups<F> && format_concept::Casts<F> && format_concept::RowCasts<F> &&
    format_concept::MatrixInstructions<F> && format_concept::Tiles<F>;

}  // namespace tilewright
