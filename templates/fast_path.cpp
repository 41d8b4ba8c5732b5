// SPDX-License-Identifier: Apache-2.0
#include "templates/fast_path.h"

#include <tilewright/error.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <type_traits>

#include "core/tiles.cuh"
#include "format_includes.inc"

namespace tilewright {
namespace {

struct Entry {
  const char* name;
  FastPath path;
};

template <class F>
constexpr int raw_bytes(int elements) {
  if constexpr (F::kCodes) return elements == 64 ? F::template raw_bytes<64>() : F::template raw_bytes<128>();
  return 0 * elements;
}

template <class F>
constexpr Element element_of() {
  if constexpr (requires { typename F::Element; }) {
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
  return Element::none;
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
          F::kGlobal,
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
    return {tw::TiledUnit<W, E>::kPanelK, Tile::kBits, tw::kTileWords<Tile, E>, Tile::kScaleBytes ? Tile::kScaleK : 0,
            Tile::kScaleBytes};
  }
  return {};
}

struct TileEntry {
  const char* name;
  Element element;
  TileInfo tiles[8];  // by x's element
};
template <class F>
constexpr TileEntry tile_entry(const char* name) {
  return {name,
          element_of<F>(),
          {{}, {}, tiles_of<F, tw::f16>(), tiles_of<F, tw::bf16>(), tiles_of<F, tw::e4m3>(), {}, tiles_of<F, tw::i8>(), {}}};
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
  const TileInfo& tiles = tile_entry(w).tiles[static_cast<std::size_t>(tile_entry(x).element)];
  return tiles.words ? &tiles : nullptr;
}

}  // namespace tilewright
