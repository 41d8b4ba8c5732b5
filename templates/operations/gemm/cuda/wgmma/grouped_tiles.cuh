// SPDX-License-Identifier: Apache-2.0
// Grouped gemms: the tiles of all groups, one group behind the other. How many a group has is known on the device
// alone, so each block makes a table of the groups in shared memory before it takes its first tile.
#pragma once
#include "backends/cuda/ptx.cuh"
#include "operations/gemm/cuda/groups.cuh"
#include "operations/gemm/cuda/wgmma/tile_scheduler.cuh"

namespace tw::gemm {

// An entry of the table. One more than there are groups has the number of all tiles as its `before`.
struct GroupTiles {
  i32 row, rows;  // of x and y
  u32 before;     // tiles of the groups before this one
};

// SWAPPED: rows of w are cut into tiles of BM, and tokens into those of BN. Otherwise as ClusterTiles, whose numbers of
// tiles are those of a group.
template <int BM, int BN, int BK, int SHARE, int CLUSTER, int SPLIT, bool SWAPPED>
struct GroupedTiles : ClusterTiles<BM, BN, BK, SHARE, CLUSTER, SPLIT, Schedule::whole_tiles> {
  using One = ClusterTiles<BM, BN, BK, SHARE, CLUSTER, SPLIT, Schedule::whole_tiles>;
  TW_CONSTANTS(int, kTokens = SWAPPED ? BN * SHARE : BM);  // of a tile, or of those of a cluster

  const GroupTiles* table;
  u32 groups, group = 0;  // that the tile belongs to which next() returned

  TW_MEMBER GroupedTiles(const Args& args, const Shape& shape, const GroupTiles* groups_table)
      : One(args, shape), table(groups_table), groups(static_cast<u32>(shape.groups)) {}

  // By one warp. m: as a launch passes it.
  TW_MEMBER void fill(GroupTiles* to, const i32* group_rows, const Shape& shape, i64 m, int lane) const {
    // Each lane has a slice of the groups, the last lane the first: shuffle_down() then fetches from slices before.
    const int count = shape.groups, per_lane = (count + 31) / 32;
    const int begin = min2(count, (31 - lane) * per_lane), end = min2(count, begin + per_lane);
    i32 row = 0;
    if (!shape.masked) {
      i32 largest = 0;  // offset so far
      for (int i = begin; i < end; ++i) largest = max2(largest, clamped_row(group_rows[i], m));
      TW_UNROLL for (int d = 1; d < 32; d *= 2) {
        const i32 other = static_cast<i32>(shuffle_down(static_cast<u32>(largest), d));
        if (lane + d < 32) largest = max2(largest, other);
      }
      const i32 before = static_cast<i32>(shuffle_down(static_cast<u32>(largest), 1));
      if (lane < 31) row = before;
    }
    const u32 across = SWAPPED ? this->m_tiles : this->n_tiles;
    u32 tiles = 0;
    for (int i = begin; i < end; ++i) {
      const Group next = next_group(group_rows, shape, m, i, row);
      to[i] = {static_cast<i32>(next.row), static_cast<i32>(next.rows), tiles};
      tiles += (static_cast<u32>(next.rows) + kTokens - 1) / kTokens * across;
    }
    u32 sum = tiles;
    TW_UNROLL for (int d = 1; d < 32; d *= 2) {
      const u32 other = shuffle_down(sum, d);
      if (lane + d < 32) sum += other;
    }
    for (int i = begin; i < end; ++i) to[i].before += sum - tiles;
    if (lane == 0) to[count].before = sum;
  }

  TW_MEMBER Group current() const { return {group, table[group].row, table[group].rows}; }

  // n0, m0: within the group.
  TW_MEMBER bool next(i64& n0, i64& m0) {
    const u32 tile = this->place;
    if (tile >= table[groups].before) return false;
    if (tile >= table[group + 1].before) {
      u32 end = groups;
      ++group;
      while (group + 1 < end) {  // the last group that no more tiles are before
        const u32 middle = (group + end) / 2;
        if (table[middle].before <= tile)
          group = middle;
        else
          end = middle;
      }
    }
    const u32 rows = static_cast<u32>(table[group].rows), of_tokens = (rows + kTokens - 1) / kTokens;
    if constexpr (SWAPPED)
      this->n_tiles = of_tokens;
    else
      this->m_tiles = of_tokens;
    this->locate(tile - table[group].before, One::own_rank(), n0, m0);
    this->place += this->clusters;
    return true;
  }
};

// The gemm that a tile belongs to: the launch's, or its group's. first_x, first_w: where its rows begin in tensor maps.
template <class T, bool grouped = (T::kGroups > 0)>
struct TileGemm {
  const Args& args;
  const Shape& shape;
  TW_CONSTANTS(i64, first_x = 0, first_w = 0);
  TW_MEMBER TileGemm(const Args& launch_args, const Shape& launch_shape, const typename T::Tiles&)
      : args(launch_args), shape(launch_shape) {}
};
template <class T>
struct TileGemm<T, true> {
  Args args;
  Shape shape;
  i64 first_x, first_w;
  TW_MEMBER TileGemm(const Args& launch_args, const Shape& launch_shape, const typename T::Tiles& tiles)
      : args(launch_args), shape(launch_shape) {
    const Group group = tiles.current();
    if constexpr (T::kSwapped) {
      go_to_group<typename T::W, typename T::Epi>(args, args.w, args.x, shape, args.m, group);
      first_x = group.index * args.m, first_w = group.row;
      shape.n = group.rows;
    } else {
      go_to_group<typename T::X, typename T::Epi>(args, args.x, args.w, shape, shape.n, group);
      first_x = group.row, first_w = T::Weights::kRegisters ? 0 : group.index * shape.n;  // tiles are not in a map
      args.m = group.rows;
    }
  }
};

}  // namespace tw::gemm
