// SPDX-License-Identifier: Apache-2.0
// Runs the warpgroup kernel in the emulator: persistent grids, tensor maps, coded weights packed as tiles.
#pragma once

#include "emulator/gemm.h"
#include "emulator/grids.h"
#include "gemm/wgmma/kernel.cuh"
#include "gemm/wgmma/quantized_row.cuh"
#include "pack/tiles.cuh"

namespace gemm_test {

using gemm::kClusterTail;
using gemm::kQueue;
using gemm::kStreamK;

// What the kernel multiplies: X, or what it makes of X's floats, by parts of the row that take BYTES.
template <class X, int BYTES = 0>
struct AsRead {
  using type = X;
  using Row = void;
};
template <class F, class From, int BYTES>
struct AsRead<fmt::Quantized<F, From>, BYTES> {
  using type = F;
  using Row = gemm::QuantizedRow<F, From, BYTES>;
};
template <class X>
using as_read = typename AsRead<X>::type;

template <class W>
struct Tiles {
  std::vector<u8> data, scales;
};

// The same kernel text that packs on a device.
template <class W, class Element>
Tiles<W> pack(const Matrix<W>& w) {
  using Plan = pack::Tiles<W, Element, false>;
  using Tile = typename W::template Tile<Element>;
  Tiles<W> tiles;
  tiles.data.resize(static_cast<std::size_t>(w.rows * w.cols * Tile::kBits / 8));
  u32 blocks = static_cast<u32>(w.rows / 64 * (w.cols / Plan::kPanelK + 1));
  if constexpr (Tile::kScaleBytes > 0)
    tiles.scales.resize(static_cast<std::size_t>(w.rows * ceil_div64(w.cols, Tile::kScaleK) * Tile::kScaleBytes));
  const Operand from = w.operand();
  const pack::Args args{{const_cast<void*>(from.data), const_cast<void*>(from.scales), nullptr},
                        {tiles.data.data(), tiles.scales.data(), nullptr}};
  emu::run({{blocks, 1, 1}, Plan::kThreads, 1, 0, 0}, [&] { Plan::run(args, pack::Shape{w.rows, w.cols}); });
  return tiles;
}

// What rounding a coded weight to the operand's type adds to the bound: of the weight, or of the parts it is the
// difference of, which are at most twice the largest weight of its row.
template <class X, class W>
double rounding_of(const float* x, const float* w, i64 k) {
  if constexpr (gemm::plain_pair<as_read<X>, W>) {
    return 0;
  } else {
    using Tile = typename W::template Tile<tile_element<as_read<X>>>;
    double largest = 0, sum = 0;
    for (i64 i = 0; i < k; ++i) largest = std::max(largest, std::fabs(static_cast<double>(w[i])));
    for (i64 i = 0; i < k; ++i)
      sum +=
          std::fabs(static_cast<double>(x[i])) * (Tile::kOffset ? 2 * largest : std::fabs(static_cast<double>(w[i])));
    return sum * Tile::kRounding;
  }
}

// Rows of x's blocks as the copy engine reads them, in words: boxes of 128 columns.
template <class X>
TensorMap blocks_map(const Matrix<X>& x, int rows, int pieces) {
  const auto words = [](i64 columns) { return static_cast<u64>(columns / X::kBlock * X::kDataBytes / 4); };
  return emu::tensor_map(x.data.data(), 4, words(x.cols), static_cast<u64>(x.rows), 4 * words(x.ld),
                         static_cast<u32>(words(128)), static_cast<u32>(rows), 0, static_cast<u32>(pieces));
}

// grid: blocks at most, so that some take several tiles.
template <class Plan, class X, class W>
void launch_wgmma(const gemm::Args& args, const gemm::Shape& shape, const Matrix<X>& x, const Matrix<W>& w, u32 grid,
                  std::uint64_t seed) {
  constexpr int kBytes = sizeof(tile_element<as_read<X>>), kPanel = 128 / kBytes;
  const auto map_of = [&](const auto& matrix, bool columns) {
    return emu::tensor_map(matrix.data.data(), kBytes, static_cast<u64>(matrix.cols), static_cast<u64>(matrix.rows),
                           static_cast<u64>(matrix.ld * kBytes), kPanel,
                           columns ? Plan::kBoxRows : std::min(Plan::BN, 256), columns && Plan::kBM == 1 ? 0 : 128,
                           columns ? Plan::kBoxPanels : Plan::kPanels);
  };
  TensorMap columns_map{}, rows_map{};
  if constexpr (Plan::kQuantizes) {
  }  // no map has x
  else if constexpr (Plan::kTurned)
    columns_map = map_of(w, true), rows_map = map_of(x, false);
  else if constexpr (Plan::kCodes)
    columns_map = blocks_map(x, Plan::kBoxRows, Plan::kBoxPanels);
  else
    columns_map = map_of(x, true);
  if constexpr (!Plan::kTurned && gemm::plain_pair<as_read<X>, W>) rows_map = map_of(w, false);
  const i64 columns = Plan::kTurned ? w.rows : x.rows, rows = Plan::kTurned ? x.rows : w.rows;
  const u32 places = static_cast<u32>(ceil_div64(rows, Plan::BN * Plan::kShare) * ceil_div64(columns, Plan::kBM)) *
                     Plan::kCluster *
                     (Plan::kTail == kClusterTail ? 2
                      : Plan::kTail == kStreamK   ? 15
                                                  : 1);
  emu::Launch launch{{std::min(places, grid / Plan::kCluster * Plan::kCluster), 1, 1},
                     Plan::kThreads,
                     Plan::kCluster,
                     Plan::kSharedBytes,
                     seed};
  emu::run(launch, [&] { Plan::run(args, shape, &columns_map, &rows_map); });
}

// Every other time.
inline bool constant_weights(std::uint64_t seed) { return seed % 4 == 1 || seed % 4 == 2; }

template <class Plan, class X, class W, class Epi>
void check_wgmma(const Size& s, u32 grid, std::uint64_t seed) {
  INFO("m " << s.m << " n " << s.n << " k " << s.k << " ldx +" << s.pad_x << " ldy +" << s.pad_y << " grid " << grid
            << " seed " << seed);
  Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(seed) * 2 + 1);
  Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) * 2 + 2);
  Output<X, W, Epi> out(s, seed);
  if (out.divides) w.global = 1 / w.global;
  Operand operand = w.operand();
  Tiles<W> tiles;
  if constexpr (!gemm::plain_pair<as_read<X>, W>) {
    tiles = pack<W, tile_element<as_read<X>>>(w);
    operand.data = tiles.data.data();
    if (!W::kRowScale) operand.scales = tiles.scales.data();
  }
  gemm::Args args = out.args(x.operand(), operand);
  std::vector<u8> workspace;
  if (Plan::kTail == kStreamK || Plan::kTail == kQueue) {  // words, and slots if sums meet there
    workspace.resize(gemm::kTailWordBytes +
                     (Plan::kTail == kStreamK ? static_cast<std::size_t>(2 * grid * Plan::Parts::kSlotBytes) : 0));
    std::fill(workspace.begin() + gemm::kTailWordBytes, workspace.end(), u8{0xff});
    out.shape.workspace = static_cast<i64>(workspace.size());
    args.workspace = workspace.data();
  }
  out.shape.constant_weights = constant_weights(seed);
  std::vector<u8>& w_data = tiles.data.empty() ? w.data : tiles.data;
  if (out.shape.constant_weights)
    emu::written_before({&x.data});
  else
    emu::written_before({&x.data, &w_data, &tiles.scales});
  launch_wgmma<Plan>(args, out.shape, x, w, grid, seed);
  CHECK(emu::written());
  if (!workspace.empty())
    CHECK(std::all_of(workspace.begin(), workspace.begin() + gemm::kTailWordBytes, [](u8 b) { return b == 0; }));
  out.compare(x.exact, w.exact, out.divides ? out.shape.alpha / w.global : out.shape.alpha * w.global,
              [&](const float* a, const float* b) { return rounding_of<X, W>(a, b, s.k); });
}

template <class X, class W, class Epi, int BM, int STRIPS, int GROUPS, int KGROUPS, int PANELS, int STAGES, int CLUSTER,
          int SPLIT, bool WARPS = false, bool FAST = false, bool TURNED = false, int TAIL = gemm::kNoTail,
          bool SHELF = false>
void check_warpgroups() {
  // Of the longest k below, in stages: a panel is two blocks of 36 bytes.
  constexpr int kLongest = TAIL == kStreamK ? 33 : std::max(3, STAGES + 2),
                kRowBytes = (ceil_div(kLongest, SPLIT) * PANELS * 72 + 15) / 16 * 16;
  using Read = as_read<X>;
  using Plan = gemm::Warpgroups<tw::select<TURNED, W, Read>, tw::select<TURNED, Read, W>, Epi, BM, STRIPS, GROUPS,
                                KGROUPS, PANELS, STAGES, CLUSTER, SPLIT, WARPS, FAST, TURNED, TAIL, SHELF,
                                typename AsRead<X, kRowBytes>::Row>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kPanel = Plan::kPanelK;
  constexpr bool kCoded = !gemm::plain_pair<Read, W>;
  // Coded weights come in whole strips and stages; plain ones in whole panels and eights of rows.
  const i64 step = kCoded ? std::lcm<i64>(kPanel * PANELS, W::kBlock) : kPanel;
  const i64 ragged = kCoded ? Plan::BN + 64 : Plan::BN + 24;
  const i64 pad =
      Plan::kCodes ? 4 * X::kBlock : std::max<i64>(X::kBlock, 16 / static_cast<i64>(sizeof(tile_element<Read>)));
  std::uint64_t seed = 0;
  check_wgmma<Plan, X, W, Epi>({1, ragged, step * 3, 0, 0}, 8, seed++);
  check_wgmma<Plan, X, W, Epi>({std::max(1, BM - 3), Plan::BN, step * (STAGES + 2), pad, 3}, 8, seed++);
  check_wgmma<Plan, X, W, Epi>({BM + 5, ragged, step, X::kRowScale ? 0 : pad, 8}, 4, seed++);
  check_wgmma<Plan, X, W, Epi>({2 * BM + 1, 2 * ragged - (kCoded ? 0 : 16), step * 2, 0, 0}, Plan::kCluster, seed++);
  // Two clusters, three pairs of tiles: a round of whole tiles, then two that are shared, their k of an odd number of
  // stages.
  if constexpr (TAIL == kClusterTail)
    check_wgmma<Plan, X, W, Epi>({2 * BM + 1, 2 * Plan::BN, step * (STAGES + 2), 0, 0}, 2 * Plan::kCluster, seed++);
  if constexpr (TAIL == kStreamK) {
    check_wgmma<Plan, X, W, Epi>({BM + 5, 2 * Plan::BN * Plan::kShare, step * 7, 0, 0}, 3 * Plan::kCluster,
                                 seed++);  // 3 clusters, 4 tiles
    check_wgmma<Plan, X, W, Epi>({BM, Plan::BN * Plan::kShare, step * 33, pad, 3}, 40 * Plan::kCluster,
                                 seed++);  // a tile for all
    check_wgmma<Plan, X, W, Epi>({BM + 1, 5 * Plan::BN * Plan::kShare, step * 5, 0, 0}, 7 * Plan::kCluster,
                                 seed++);  // 7 clusters, 10 tiles
  }
  if constexpr (TAIL == kQueue) {
    check_wgmma<Plan, X, W, Epi>({BM, 7 * Plan::BN, step * (STAGES + 1), pad, 3}, 3, seed++);
    check_wgmma<Plan, X, W, Epi>({BM, 8 * Plan::BN + 64, step, 0, 0}, 2, seed++);  // tiles of one stage
  }
}

}  // namespace gemm_test
