// SPDX-License-Identifier: Apache-2.0
#include "templates/fast_path.h"

#include <tilewright/error.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <type_traits>

#include "core/tiles.cuh"
#include "format_includes.inc"

namespace tilewright {
namespace {

struct Entry {
  std::string_view name;
  FastPath path;
};

template <class F>
constexpr int raw_bytes(int elements) {
  if constexpr (F::kCodes) return elements == 64 ? F::template raw_bytes<64>() : F::template raw_bytes<128>();
  return 0 * elements;
}

template <class F>
constexpr Element element_of() {
  using E = typename F::Element;
  return tw::same<E, float>      ? Element::f32
         : tw::same<E, tw::f16>  ? Element::f16
         : tw::same<E, tw::bf16> ? Element::bf16
         : tw::same<E, tw::e4m3> ? Element::e4m3
         : tw::same<E, tw::e5m2> ? Element::e5m2
         : tw::same<E, tw::i8>   ? Element::i8
         : tw::same<E, tw::i32>  ? Element::i32
                                 : Element::none;
}

template <class F>
constexpr FastPath path_of() {
  return {element_of<F>(),
          element_of<F>() == Element::none ? 0 : F::kDataBytes / F::kBlock,
          tw::fmt::row_bytes<F>,
          tw::fmt::has_zero_point<F>,
          F::kGroup,
          F::kCodes,
          F::kOffset,
          tw::fmt::has_code_lanes<F>,
          F::kBits,
          F::kGlobal,
          tw::fmt::scaled_mma<F>,
          [](int e) { return F::unit_ok(e); },
          [](int e) { return e * F::kDataBytes / F::kBlock; },
          F::kBlock,
          F::kDataBytes,
          F::kScaleBytes,
          tw::fmt::scale_rows<F>,
          &raw_bytes<F>};
}

template <class W, class E>
constexpr TileInfo tiles_of() {
  if constexpr (tw::has_tile<W, E>) {
    using Tile = typename W::template Tile<E>;
    return {tw::TiledUnit<W, E>::kPanelK,
            Tile::kBits,
            tw::kTileWords<Tile, E>,
            Tile::kScaleBytes ? Tile::kScaleK : 0,
            Tile::kScaleBytes,
            Tile::kRounding,
            Tile::kOffset};
  }
  return {};
}

// What w's tiles may be for (core/tiles.cuh), and by its number here which of them they are for an x.
template <class... E>
struct TileElements {
  template <class X>
  static constexpr int number() {
    int at = 0;
    const bool found = ((tw::same<E, tw::tile_element<X>> || (++at, false)) || ...);
    return found ? at : -1;
  }
  template <class W>
  static constexpr std::array<TileInfo, sizeof...(E)> all() {
    return {tiles_of<W, E>()...};
  }
};
using Tiled = TileElements<tw::f16, tw::bf16, tw::e4m3, tw::i8, tw::Codes>;

struct TileEntry {
  std::string_view name;
  int as_x;  // -1: none
  decltype(Tiled::all<tw::fmt::f16>()) as_w;
};
template <class F>
constexpr TileEntry tile_entry(const char* name) {
  return {name, Tiled::number<F>(), Tiled::all<F>()};
}
constexpr TileEntry kTiles[] = {
#define FORMAT(NAME) tile_entry<tw::fmt::NAME>(#NAME),
#include "format_list.inc"
#undef FORMAT
};
const TileEntry& tile_entry(Format f) {
  return *std::find_if(std::begin(kTiles), std::end(kTiles), [&](const TileEntry& e) { return f.name() == e.name; });
}

constexpr Entry kEntries[] = {
#define FORMAT(NAME) {#NAME, path_of<tw::fmt::NAME>()},
#include "format_list.inc"
#undef FORMAT
};

}  // namespace

const FastPath& fast_path(Format f) {
  for (const Entry& e : kEntries)
    if (f.name() == e.name) return e.path;
  throw Error(ErrorCode::invalid_argument, "format", std::string(f.name()), "a file of templates/formats");
}

const TileInfo* tile_info(Format w, Format x) {
  const int number = tile_entry(x).as_x;
  if (number < 0) return nullptr;
  const TileInfo& tiles = tile_entry(w).as_w[static_cast<std::size_t>(number)];
  return tiles.words ? &tiles : nullptr;
}

}  // namespace tilewright
