// SPDX-License-Identifier: Apache-2.0
// Runs the warpgroup kernel in the emulator: persistent grids, tensor maps, coded weights packed as tiles.
#pragma once

#include "emulator/gemm.h"
#include "emulator/grids.h"
#include "operations/gemm/cuda/wgmma/kernel.cuh"
#include "operations/gemm/cuda/wgmma/quantized_row.cuh"
#include "operations/pack/cuda/tiles.cuh"

namespace gemm_test {

using gemm::Schedule;
using gemm::WgmmaKnobs;

// The format that the kernel multiplies: X, or what it quantizes X's floats to.
template <class X>
using as_read = typename gemm::Activations<X>::Format;

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

// A plan, for rounding_of(), of kernels that multiply weights as their tiles hold them.
struct NothingNarrowed {
  static constexpr bool kNarrows = false;
};

// The bound's term for coded weights that are rounded to the operand's type: relative to the weight, or to the parts
// whose difference it is, which are at most twice the largest weight of its row.
template <class Plan, class X, class W>
double rounding_of(const float* x, const float* w, i64 k) {
  if constexpr (gemm::plain_pair<as_read<X>, W>()) {
    return 0;
  } else if constexpr (Plan::kNarrows) {
    using Tile = typename Plan::Weights::Tile;
    double sum = 0;
    for (i64 i = 0; i < k; ++i)
      sum += std::fabs(static_cast<double>(x[i])) *
             (Tile::rounding() * std::fabs(static_cast<double>(w[i])) + Tile::least());
    return sum;
  } else {
    using Tile = typename W::template Tile<tile_element<as_read<X>, W>>;
    double largest = 0, sum = 0;
    for (i64 i = 0; i < k; ++i) largest = std::max(largest, std::fabs(static_cast<double>(w[i])));
    for (i64 i = 0; i < k; ++i)
      sum +=
          std::fabs(static_cast<double>(x[i])) * (Tile::kOffset ? 2 * largest : std::fabs(static_cast<double>(w[i])));
    return sum * Tile::rounding();
  }
}

// A box of a matrix of `rows` rows, which are the instruction's columns or its 64-row side.
struct Box {
  u32 rows, panels;
};
template <class Plan>
Box box_of(i64 rows, bool columns) {
  const int whole = columns ? Plan::kBoxRows : std::min(Plan::kBlockN, 256),
            boxes = (columns ? Plan::kBlockM : Plan::kBlockN) / whole;
  const bool tokens = columns != Plan::kSwapped;
  const int clipped = Plan::kClips && tokens ? gemm::clipped_rows(rows, whole, boxes) : whole;
  return {static_cast<u32>(clipped), static_cast<u32>(clipped < whole ? 1
                                                      : columns       ? Plan::kPanelBoxes
                                                                      : Plan::kPanels)};
}

// Rows of x's blocks as the copy engine reads them, in words: boxes of 128 columns.
template <class X>
TensorMap blocks_map(const Matrix<X>& x, Box box) {
  const auto words = [](i64 columns) { return static_cast<u64>(columns / X::kBlock * X::kDataBytes / 4); };
  return emu::tensor_map(x.data.data(), 4, words(x.cols), static_cast<u64>(x.rows), 4 * words(x.ld),
                         static_cast<u32>(words(128)), box.rows, 0, box.panels);
}

// grid: blocks at most, so that some take several tiles.
template <class Plan, class X, class W>
void launch_wgmma(const gemm::Args& args, const gemm::Shape& shape, const Matrix<X>& x, const Matrix<W>& w, u32 grid,
                  std::uint64_t seed) {
  // x that the producer widens is copied as it is stored; that of a prologue as it is multiplied.
  constexpr int kBytes = Plan::kWidens || Plan::kNarrows ? 1 : sizeof(tile_element<as_read<X>, W>),
                kPanel = Plan::kWidens ? Plan::kPanelK : 128 / kBytes;
  const auto map_of = [&](const auto& matrix, bool columns) {
    const bool written = Plan::kPrologue && static_cast<const void*>(&matrix) == &x;
    const Box box = box_of<Plan>(matrix.rows, columns);
    return emu::tensor_map(written ? static_cast<u8*>(args.workspace) + gemm::kScheduleBytes : matrix.data.data(),
                           kBytes, static_cast<u64>(matrix.cols), static_cast<u64>(matrix.rows),
                           static_cast<u64>((written ? matrix.cols : matrix.ld) * kBytes), kPanel, box.rows,
                           columns && (Plan::kBlockM == 1 || Plan::kWidens) ? 0 : 128, box.panels);
  };
  TensorMap columns_map{}, rows_map{};
  if constexpr (Plan::kQuantizes) {
  }  // no map has x
  else if constexpr (Plan::kSwapped)
    columns_map = map_of(w, true), rows_map = map_of(x, false);
  else if constexpr (Plan::kCodes)
    columns_map = blocks_map(x, box_of<Plan>(x.rows, true));
  else
    columns_map = map_of(x, true);
  if constexpr (!Plan::kSwapped && gemm::plain_pair<as_read<X>, W>()) rows_map = map_of(w, false);
  const i64 columns = Plan::kSwapped ? w.rows : x.rows, rows = Plan::kSwapped ? x.rows : w.rows;
  const u32 places =
      static_cast<u32>(ceil_div64(rows, Plan::kBlockN * Plan::kNeighbours) * ceil_div64(columns, Plan::kBlockM)) *
      Plan::kCluster *
      (Plan::schedule() == Schedule::split_last_wave ? 2
       : Plan::schedule() == Schedule::stream_k      ? 15
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
  if (out.divides) x.global = 1 / x.global, w.global = 1 / w.global;
  Operand operand = w.operand();
  Tiles<W> tiles;
  if constexpr (!gemm::plain_pair<as_read<X>, W>()) {
    tiles = pack<W, tile_element<as_read<X>, W>>(w);
    operand.data = tiles.data.data();
    if (!W::kRowScale) operand.scales = tiles.scales.data();
  }
  gemm::Args args = out.args(x.operand(), operand);
  std::vector<u8> workspace;
  if (Plan::schedule() == Schedule::stream_k || Plan::schedule() == Schedule::queue ||
      Plan::kPrologue) {  // words, x, and slots for partial sums
    gemm::Args own = args;
    if (Plan::kSwapped) own.w = args.x;
    gemm::Shape shape = out.shape;
    if (Plan::kSwapped) shape.n = args.m;
    workspace.resize(static_cast<std::size_t>(
        Plan::slots_at(own, shape) +
        (Plan::schedule() == Schedule::stream_k ? 2 * grid * static_cast<i64>(Plan::Parts::kSlotBytes) : 0)));
    std::fill(workspace.begin() + gemm::kScheduleBytes, workspace.end(), u8{0xff});
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
    CHECK(std::all_of(workspace.begin(), workspace.begin() + gemm::kScheduleBytes, [](u8 b) { return b == 0; }));
  const float global = x.global * w.global;
  out.compare(x.exact, w.exact, out.divides ? out.factor() / global : out.factor() * global,
              [&](const float* a, const float* b) { return rounding_of<Plan, X, W>(a, b, s.k); });
}

// The knobs as the host completes them for a row of x that a block quantizes: room for the longest k below, in stages.
// A panel is two blocks of 36 bytes.
constexpr WgmmaKnobs with_row(WgmmaKnobs k) {
  const int longest = k.schedule == Schedule::stream_k ? 33 : std::max(3, k.stages + 2);
  k.quantized_bytes = (ceil_div(longest, k.split_k) * k.panels * 72 + 15) / 16 * 16;
  return k;
}

// X as the kernel takes it: codes with a scale per row are unpacked by a prologue.
template <class X, bool unpacked = X::kCodes&& X::kRowScale>
struct AsTaken {
  using type = X;
};
template <class X>
struct AsTaken<X, true> {
  using type = fmt::UnpackedRow<X>;
};

template <class X, class W, class Epi, WgmmaKnobs knobs>
void check_warpgroups() {
  constexpr int kBlockM = knobs.block_m, kStages = knobs.stages, kPanels = knobs.panels;
  constexpr Schedule kSchedule = knobs.schedule;
  using Read = as_read<X>;
  using Taken = typename AsTaken<X>::type;
  using Plan = gemm::WgmmaKernel<tw::select<knobs.swapped, W, Taken>, tw::select<knobs.swapped, Taken, W>, Epi,
                                 Fixed<gemm::Activations<X>::kQuantizes ? with_row(knobs) : knobs>::value>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  constexpr i64 kPanel = Plan::kPanelK;
  constexpr bool kCoded = !gemm::plain_pair<Read, W>();
  // Coded weights come in whole strips and stages; plain ones in whole panels and eights of rows.
  const i64 step = kCoded ? std::lcm<i64>(kPanel * kPanels, W::kBlock) : kPanel;
  const i64 ragged = kCoded ? Plan::kBlockN + 64 : Plan::kBlockN + 24;
  const i64 pad = Plan::kCodes ? 4 * X::kBlock
                  : Plan::kWidens || Plan::kNarrows
                      ? 16
                      : std::max<i64>(X::kBlock, 16 / static_cast<i64>(sizeof(tile_element<Read, W>)));
  std::uint64_t seed = 0;
  check_wgmma<Plan, X, W, Epi>({1, ragged, step * 3, 0, 0}, 8, seed++);
  check_wgmma<Plan, X, W, Epi>({std::max(1, kBlockM - 3), Plan::kBlockN, step * (kStages + 2), pad, 3}, 8, seed++);
  check_wgmma<Plan, X, W, Epi>({kBlockM + 5, ragged, step, X::kRowScale ? 0 : pad, 8}, 4, seed++);
  // Boxes that are clipped, of a tile that is half full.
  if constexpr (Plan::kClips && kBlockM > 1)
    check_wgmma<Plan, X, W, Epi>({(knobs.swapped ? Plan::kBlockN : kBlockM) / 2 + 1, Plan::kBlockN, step * 2, pad, 0},
                                 Plan::kCluster, seed++);
  check_wgmma<Plan, X, W, Epi>({2 * kBlockM + 1, 2 * ragged - (kCoded ? 0 : 16), step * 2, 0, 0}, Plan::kCluster,
                               seed++);
  // Two clusters, three pairs of tiles: a wave of whole tiles, then two shared ones with an odd number of stages of k.
  if constexpr (kSchedule == Schedule::split_last_wave)
    check_wgmma<Plan, X, W, Epi>({2 * kBlockM + 1, 2 * Plan::kBlockN, step * (kStages + 2), 0, 0}, 2 * Plan::kCluster,
                                 seed++);
  if constexpr (kSchedule == Schedule::stream_k) {
    check_wgmma<Plan, X, W, Epi>({kBlockM + 5, 2 * Plan::kBlockN * Plan::kNeighbours, step * 7, 0, 0},
                                 3 * Plan::kCluster,
                                 seed++);  // 3 clusters, 4 tiles
    check_wgmma<Plan, X, W, Epi>({kBlockM, Plan::kBlockN * Plan::kNeighbours, step * 33, pad, 3}, 40 * Plan::kCluster,
                                 seed++);  // a tile for all
    check_wgmma<Plan, X, W, Epi>({kBlockM + 1, 5 * Plan::kBlockN * Plan::kNeighbours, step * 5, 0, 0},
                                 7 * Plan::kCluster,
                                 seed++);  // 7 clusters, 10 tiles
  }
  if constexpr (kSchedule == Schedule::queue) {
    check_wgmma<Plan, X, W, Epi>({kBlockM, 7 * Plan::kBlockN, step * (kStages + 1), pad, 3}, 3, seed++);
    check_wgmma<Plan, X, W, Epi>({kBlockM, 8 * Plan::kBlockN + 64, step, 0, 0}, 2, seed++);  // tiles of one stage
  }
}

}  // namespace gemm_test
