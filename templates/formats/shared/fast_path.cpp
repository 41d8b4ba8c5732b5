// SPDX-License-Identifier: Apache-2.0
#include "templates/formats/shared/fast_path.h"

#include <tilewright/error.h>

#include <array>
#include <functional>
#include <string>
#include <type_traits>

#include "format_includes.inc"
#include "formats/shared/tiles.cuh"
#include "support/must_be.h"

namespace tilewright {
namespace {

template <class F>
constexpr int raw_bytes(int elements) {
  if constexpr (F::kCodes || tw::fmt::is_table<F>())
    return elements == 64 ? F::template raw_bytes<64>() : F::template raw_bytes<128>();
  return 0 * elements;
}

template <class F, class T>
constexpr double table_error() {
  if constexpr (tw::fmt::is_table<F>()) return F::template rounding<T>();
  return 0;
}

template <class E>
constexpr Element element() {
  return tw::same<E, float>()      ? Element::f32
         : tw::same<E, tw::f16>()  ? Element::f16
         : tw::same<E, tw::bf16>() ? Element::bf16
         : tw::same<E, tw::e4m3>() ? Element::e4m3
         : tw::same<E, tw::e5m2>() ? Element::e5m2
         : tw::same<E, tw::i8>()   ? Element::i8
         : tw::same<E, tw::i32>()  ? Element::i32
                                   : Element::none;
}
template <class F>
constexpr Element element_of() {
  return element<typename F::Element>();
}

template <class F>
constexpr FastPath path_of() {
  return {element_of<F>(),
          element_of<F>() == Element::none ? 0 : F::kDataBytes / F::kBlock,
          tw::fmt::row_bytes<F>(),
          tw::fmt::has_zero_point<F>(),
          tw::fmt::is_signs<F>(),
          tw::fmt::OfMean<F>::value,
          F::kGroup,
          F::kCodes,
          F::kOffset,
          table_error<F, tw::f16>(),
          table_error<F, tw::bf16>(),
          F::kCodeLanes,
          F::kBits,
          F::kGlobal,
          F::scaled_mma(),
          [](int e) { return F::unit_ok(e); },
          [](int e) { return e * F::kDataBytes / F::kBlock; },
          F::kBlock,
          F::kDataBytes,
          F::kScaleBytes,
          F::kScaleRows,
          &raw_bytes<F>};
}

template <class Tile>
constexpr double narrow_rounding() {
  if constexpr (!tw::same<tw::narrowed_tile<Tile>, void>()) return tw::narrowed_tile<Tile>::rounding();
  return 0;
}
template <class Tile>
constexpr double narrow_least() {
  if constexpr (!tw::same<tw::narrowed_tile<Tile>, void>()) return tw::narrowed_tile<Tile>::least();
  return 0;
}

// For x whose kernels take tiles for X (formats/shared/tiles.cuh).
template <class W, class X>
constexpr TileInfo tiles_of() {
  using E = typename tw::TileElementFor<X, W>::type;
  if constexpr (tw::has_tile<W, E>()) {
    using Tile = typename W::template Tile<E>;
    return {element<E>(),
            tw::TiledUnit<W, E>::kPanelK,
            Tile::kBits,
            tw::tile_words<Tile, E>(),
            Tile::kScaleBytes ? Tile::kScaleK : 0,
            Tile::kScaleBytes,
            Tile::rounding(),
            Tile::kOffset,
            narrow_rounding<Tile>(),
            narrow_least<Tile>()};
  }
  return {};
}

// What w's tiles may be for (formats/shared/tiles.cuh), and by its number here which of them they are for an x.
template <class... E>
struct TileElements {
  template <class X>
  static constexpr int number() {
    if (X::kBlock > 1 && !X::kRowScale && !tw::same<typename X::TileElement, tw::Codes>())
      return -1;  // with scales along k
    int at = 0;
    const bool found = ((tw::same<E, typename X::TileElement>() || (++at, false)) || ...);
    return found ? at : -1;
  }
  template <class W>
  static constexpr std::array<TileInfo, sizeof...(E)> all() {
    return {tiles_of<W, E>()...};
  }
};
using Tiled = TileElements<tw::f16, tw::bf16, tw::e4m3, tw::i8, tw::Codes>;

struct TileEntry {
  int as_x;  // -1: none
  decltype(Tiled::all<tw::fmt::f16>()) as_w;
};
template <class F>
constexpr TileEntry tile_entry() {
  return {Tiled::number<F>(), Tiled::all<F>()};
}
constexpr TileEntry kTiles[] = {
#define FORMAT(NAME) tile_entry<tw::fmt::NAME>(),
#include "format_list.inc"
#undef FORMAT
};

// The format's place in the build's list, which orders Format::all() and both tables here. Ranking asks for every
// candidate, so it is not searched for by name.
std::size_t index_of(Format f) {
  const FormatInfo *first = &Format::all().front().info(), *last = &Format::all().back().info();
  const std::less_equal<const FormatInfo*> before;
  if (!before(first, &f.info()) || !before(&f.info(), last))
    throw must_be("format", f.name(), "a format of this library");
  return static_cast<std::size_t>(&f.info() - first);
}

constexpr FastPath kPaths[] = {
#define FORMAT(NAME) path_of<tw::fmt::NAME>(),
#include "format_list.inc"
#undef FORMAT
};

}  // namespace

const FastPath& fast_path(Format f) { return kPaths[index_of(f)]; }

const TileInfo* tile_info(Format w, Format x) {
  const int number = kTiles[index_of(x)].as_x;
  if (number < 0) return nullptr;
  const TileInfo& tiles = kTiles[index_of(w)].as_w[static_cast<std::size_t>(number)];
  return tiles.words ? &tiles : nullptr;
}

}  // namespace tilewright
