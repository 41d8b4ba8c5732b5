// SPDX-License-Identifier: Apache-2.0
// tilewright/pack.h: the kernels' text, one thread after the other.
#include <tilewright/error.h>
#include <tilewright/pack.h>
#include <tilewright/problem.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "format_includes.inc"
#include "operations/pack/cuda/tiles.cuh"
#include "support/must_be.h"
#include "templates/common/exact_floats.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cpu/panels.h"

namespace tilewright {
namespace {

using Run = void (*)(const tw::pack::Args&, const tw::pack::Shape&);

template <class W, class E, bool inverse>
void run(const tw::pack::Args& args, const tw::pack::Shape& shape) {
  using Tiles = tw::pack::Tiles<W, E, inverse>;
  if constexpr (inverse) {
    for (tw::i64 i = 0; i < Tiles::units(shape); ++i) Tiles::unpack(args, shape, i);
  } else {
    for (tw::i64 tile = 0; tile < Tiles::tiles(shape); ++tile)
      for (int thread = 0; thread < Tiles::kThreads; ++thread) Tiles::codes(args, shape, tile, thread);
    for (tw::i64 i = 0; i < Tiles::scale_items(shape); ++i) Tiles::scales(args, shape, i);
  }
  for (tw::i64 i = 0; i < Tiles::float_items(args, shape); ++i) Tiles::floats(args, i);
}

template <class W, class X, bool inverse>
constexpr Run run_of() {
  using Element = tw::tile_element<X, W>;
  if constexpr (!tw::same<Element, void>())
    if constexpr (tw::has_tile<W, Element>()) return &run<W, Element, inverse>;
  return nullptr;
}
template <class W, bool inverse>
Run find(std::string_view x) {
#define FORMAT(NAME) \
  if (x == #NAME) return run_of<W, tw::fmt::NAME, inverse>();
#include "format_list.inc"
#undef FORMAT
  return nullptr;
}
template <bool inverse>
Run find(std::string_view w, std::string_view x) {
#define FORMAT(NAME) \
  if (w == #NAME) return find<tw::fmt::NAME, inverse>(x);
#include "format_list.inc"
#undef FORMAT
  return nullptr;
}

void require(const void* pointer, const char* name) {
  if (!pointer) throw must_be(name, "null", "given: it is a stream of the problem's w");
}

template <bool inverse>
void run(const Gemm& g, MutableOperand w, MutableOperand tiles, const char* const (&names)[4]) {
  if (g.packing == Packing::none)
    throw must_be("pack", "none", "tiles or panels: pass the problem of the packed weights");
  Gemm plain = g;
  plain.packing = Packing::none;
  if (g.packing == Packing::panels) {
    require(w.data, names[0]);
    require(tiles.data, names[2]);
    if (packed_bytes(plain, StreamName::scales)) require(w.scales, names[1]);
    const float* const global = inverse ? tiles.global : w.global;
    float* const to = inverse ? w.global : tiles.global;
    if (global && to && global != to) std::copy_n(global, packed_bytes(plain, StreamName::global) / sizeof(float), to);
    return inverse ? cpu::unpack_panels(g, tiles.data, w) : cpu::pack_panels(g, w, tiles.data);
  }
  const Problem checked(Pack{g.w, g.x, g.n, g.k, inverse});
  require(w.data, names[0]);
  require(tiles.data, names[2]);
  if (packed_bytes(plain, StreamName::scales)) require(w.scales, names[1]);
  if (packed_bytes(g, StreamName::scales)) require(tiles.scales, names[3]);
  const ExactFloats exact;
  const Run pack_one = find<inverse>(g.w.name(), g.x.name());
  const int count = std::max(g.groups, 1);  // matrices
  const auto of_group = [&](const MutableOperand& m, const Gemm& stored, int group) {
    const auto at = [&](StreamName stream) -> void* {
      return m.at(stream) ? static_cast<std::byte*>(m.at(stream)) + packed_bytes(stored, stream) / count * group
                          : nullptr;
    };
    return tw::MutableOperand{at(StreamName::data), at(StreamName::scales),
                              static_cast<float*>(at(StreamName::global))};
  };
  for (int group = 0; group < count; ++group)
    pack_one({of_group(w, plain, group), of_group(tiles, g, group)}, {g.n, g.k});
}

MutableOperand unread(Operand o) {  // the kernels' arguments know no direction
  return {const_cast<void*>(o.data), const_cast<void*>(o.scales), const_cast<float*>(o.global)};
}

}  // namespace

namespace {
std::int64_t matrix_bytes(const Gemm& g, StreamName stream) {
  if (g.packing == Packing::panels && stream != StreamName::global)
    return stream == StreamName::data ? cpu::panel_bytes(g) : 0;
  const TileInfo* tiles = g.packing == Packing::tiles ? tile_info(g.w, g.x) : nullptr;
  if (tiles && stream == StreamName::data) return g.n * g.k / 8 * tiles->bits;
  if (tiles && stream == StreamName::scales && tiles->scale_bytes)
    return g.n * ((g.k + tiles->scale_k - 1) / tiles->scale_k) * tiles->scale_bytes;
  const auto streams = g.w.info().streams;
  for (std::size_t i = 0; i < streams.size(); ++i)
    if (stream == streams[i].stream) return g.w.stream_bytes(static_cast<int>(i), g.n, g.k);
  return 0;
}
}  // namespace

std::int64_t packed_bytes(const Gemm& g, StreamName stream) { return matrix_bytes(g, stream) * std::max(g.groups, 1); }

void pack_weights(const Gemm& g, Operand from, MutableOperand to) {
  run<false>(g, unread(from), to, {"from.data", "from.scales", "to.data", "to.scales"});
}
void unpack_weights(const Gemm& g, Operand from, MutableOperand to) {
  run<true>(g, to, unread(from), {"to.data", "to.scales", "from.data", "from.scales"});
}

}  // namespace tilewright
