// SPDX-License-Identifier: Apache-2.0
// Elements of one byte, T: fp8 or signed. As weights of 16-bit x they are tiles too.
#pragma once
#include "formats/shared/format.cuh"
#include "formats/shared/tile_fragments.cuh"

namespace tw::fmt {

template <class T>
struct ByteElements : Plain<T, 8> {
  template <class Element>
  TW_MEMBER static constexpr bool tiles_for() {
    return sizeof(Element) == 2;
  }
  template <class Element>
  using Tile = ByteTile<T, Element>;
};

}  // namespace tw::fmt
