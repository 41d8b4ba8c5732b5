// SPDX-License-Identifier: Apache-2.0
// Runs grouped gemms in the emulator: a stack of weights, and rows of x that belong to groups. Which row belongs to
// which group is worked out here again, without the kernels' text.
#pragma once

#include "emulator/gemm_wgmma.h"

namespace gemm_test {

struct Groups {
  bool masked = false;
  i64 m = 0;                    // rows of x, or of each group's
  std::vector<i32> group_rows;  // as GemmArgs::group_rows, allowed or not
  i64 count() const { return static_cast<i64>(group_rows.size()) - (masked ? 0 : 1); }
  i64 x_rows() const { return masked ? m * count() : m; }
  std::vector<i64> owners() const {  // -1: no group's
    std::vector<i64> owner(static_cast<std::size_t>(x_rows()), -1);
    i64 begin = 0;
    for (i64 g = 0; g < count(); ++g) {
      const i64 first = group_rows[static_cast<std::size_t>(g)];
      i64 end;
      if (masked) {
        begin = g * m, end = begin + std::clamp<i64>(first, 0, m);
      } else {
        begin = std::max(begin, std::clamp<i64>(first, 0, m));
        end = std::clamp<i64>(group_rows[static_cast<std::size_t>(g) + 1], 0, m);
      }
      for (i64 row = begin; row < end; ++row) owner[static_cast<std::size_t>(row)] = g;
    }
    return owner;
  }
};
// Groups of so many rows each, `before` rows that no group has, and as many behind.
inline Groups contiguous(const std::vector<i32>& counts, i32 before = 0) {
  Groups groups;
  groups.group_rows = {before};
  for (const i32 count : counts) groups.group_rows.push_back(groups.group_rows.back() + count);
  groups.m = groups.group_rows.back() + before;
  return groups;
}

// The matrices of all groups, each of other values, one behind the other.
template <class W>
struct Stack {
  std::vector<Matrix<W>> of;
  std::vector<u8> data, scales;
  std::vector<float> globals;

  Stack(i64 count, i64 n, i64 k, unsigned seed, bool inverse) {
    for (i64 g = 0; g < count; ++g) {
      of.emplace_back(n, k, k, seed + static_cast<unsigned>(g) * 16);
      if (W::kGlobal) of.back().global *= 1.0f + 0.25f * static_cast<float>(g % 5);
      globals.push_back(inverse ? 1 / of.back().global : of.back().global);
    }
  }
  // As they are stored, or as tiles for `Element`.
  template <class Element>
  void store(bool tiled) {
    for (const Matrix<W>& m : of) {
      if constexpr (!same<Element, void>()) {
        if (tiled) {
          const Tiles<W> tiles = pack<W, Element>(m);
          data.insert(data.end(), tiles.data.begin(), tiles.data.end());
          const std::vector<u8>& own = W::kRowScale ? m.scales : tiles.scales;
          scales.insert(scales.end(), own.begin(), own.end());
          continue;
        }
      }
      data.insert(data.end(), m.data.begin(), m.data.end());
      scales.insert(scales.end(), m.scales.begin(), m.scales.end());
    }
  }
  Operand operand() const {
    return {data.data(), scales.empty() ? nullptr : scales.data(), W::kGlobal ? globals.data() : nullptr};
  }
};

// launch(args, shape, x, w): runs a kernel for X, W and Epi. Tiled: void, or the Element for which w is packed.
template <class X, class W, class Epi, class Tiled, class Launch>
void check_groups(const Groups& groups, i64 n, i64 k, i64 pad, std::uint64_t seed, const Launch& launch) {
  INFO((groups.masked ? "masked" : "contiguous") << " groups " << groups.count() << " m " << groups.m << " n " << n
                                                 << " k " << k << " pad " << pad << " seed " << seed);
  using Y = typename Epi::Out;
  using Bias = typename BiasOf<Epi>::type;
  const bool divides = seed % 2 == 1;
  const i64 rows = groups.x_rows(), ldy = n + (pad ? 8 : 0);
  Matrix<X> x(rows, k, k + pad, static_cast<unsigned>(seed) * 2 + 1);
  Stack<W> w(groups.count(), n, k, static_cast<unsigned>(seed) * 2 + 2, divides);
  w.template store<Tiled>(!same<Tiled, void>());
  const float x_global = x.global;
  if (divides) x.global = 1 / x.global;
  std::vector<double> bias;
  const std::vector<u8> bias_bytes = make_bias<Bias>(n * groups.count(), bias);
  std::vector<Y> y(static_cast<std::size_t>((rows - 1) * ldy + n));
  std::memset(static_cast<void*>(y.data()), 0xa5, y.size() * sizeof(Y));
  std::vector<u8> group_rows(groups.group_rows.size() * sizeof(i32));
  std::memcpy(group_rows.data(), groups.group_rows.data(), group_rows.size());

  constexpr bool kBytes = same<gemm::element_of<X>, i8>() && same<gemm::element_of<W>, i8>() && !X::kRowScale;
  gemm::Shape shape = {n, k, Epi::kExact ? 1.0f : kBytes ? -0.75f / 1024 : -0.75f, divides};
  if (Epi::kQuantized) shape.y_factor = same<Y, i8>() ? 11.0f : same<Y, e4m3>() ? 27.0f : 3500.0f;
  shape.groups = static_cast<i32>(groups.count()), shape.masked = groups.masked;
  shape.w_rows = n * groups.count();
  shape.w_data_step = static_cast<i64>(w.data.size()) / groups.count();
  shape.w_scales_step = static_cast<i64>(w.scales.size()) / groups.count();
  shape.constant_weights = constant_weights(seed);
  gemm::Args args{x.operand(), w.operand(),       y.data(),     bias_bytes.empty() ? nullptr : bias_bytes.data(),
                  groups.m,    pad ? k + pad : 0, pad ? ldy : 0};
  args.alpha = Epi::kExact ? 1.0f : 1.5f;
  args.group_rows = reinterpret_cast<const i32*>(group_rows.data());
  if (shape.constant_weights)
    emu::written_before({&x.data, &group_rows});
  else
    emu::written_before({&x.data, &group_rows, &w.data, &w.scales});
  launch(args, shape, x, w);
  CHECK(emu::written());

  const std::vector<i64> owners = groups.owners();
  i64 wrong = 0;
  double worst = 0;
  for (i64 i = 0; i < rows; ++i) {
    const i64 group = owners[static_cast<std::size_t>(i)];
    for (i64 j = 0; j < ldy && (i + 1 < rows || j < n); ++j) {
      const Y& at = y[static_cast<std::size_t>(i * ldy + j)];
      if (group < 0 || j >= n) {
        const auto* bytes = reinterpret_cast<const u8*>(&at);
        wrong += !std::all_of(bytes, bytes + sizeof(Y), [](u8 byte) { return byte == 0xa5; });
        continue;
      }
      const Matrix<W>& own = w.of[static_cast<std::size_t>(group)];
      const float *a = &x.exact[static_cast<std::size_t>(i * k)], *b = &own.exact[static_cast<std::size_t>(j * k)];
      double sum = 0, magnitude = 0;
      for (i64 l = 0; l < k; ++l) {
        const double product = static_cast<double>(a[l]) * b[l];
        sum += product, magnitude += std::fabs(product);
      }
      double rounding = 0;
      if constexpr (!same<Tiled, void>()) rounding = rounding_of<NothingNarrowed, X, W>(a, b, k);
      const Expected e =
          expect<Epi>(sum, magnitude, static_cast<double>(shape.alpha * args.alpha) * x_global * own.global,
                      bias[static_cast<std::size_t>(group * n + j)], k, 0, shape.y_factor, rounding);
      const double error = std::fabs(value_of(at) - e.y);
      wrong += !(error <= e.bound);
      if (e.bound > 0) worst = std::max(worst, error / e.bound);
    }
  }
  INFO("worst error / bound " << worst);
  CHECK(wrong == 0);
}

template <class X, class W, class Epi, WgmmaKnobs knobs>
struct GroupedWgmma {
  static constexpr WgmmaKnobs kWithGroups = [] {
    WgmmaKnobs k = knobs;
    if (k.groups == 0) k.groups = 32;
    return k;
  }();
  using Plan = gemm::WgmmaKernel<tw::select<knobs.swapped, W, X>, tw::select<knobs.swapped, X, W>, Epi,
                                 Fixed<kWithGroups>::value>;
  static_assert(Plan::kSharedBytes <= 227 * 1024, "the test asks for too much");
  static constexpr bool kCoded = !gemm::plain_pair<X, W>();
  using Tiled = tw::select<kCoded, tile_element<X, W>, void>;
  // Of k: whole panels, or whole stages.
  static constexpr i64 kStep = kCoded ? std::lcm<i64>(Plan::kPanelK * Plan::kPanels, W::kBlock) : Plan::kPanelK;

  static void check(const Groups& groups, i64 n, i64 k, i64 pad, u32 grid, std::uint64_t seed) {
    check_groups<X, W, Epi, Tiled>(groups, n, k, pad, seed,
                                   [&](const gemm::Args& args, const gemm::Shape& shape, const Matrix<X>& x,
                                       const Stack<W>& w) { launch(args, shape, x, w, grid, seed); });
  }

 private:
  static void launch(const gemm::Args& args, const gemm::Shape& shape, const Matrix<X>& x, const Stack<W>& w, u32 grid,
                     std::uint64_t seed) {
    constexpr int kBytes = Plan::kWidens ? 1 : sizeof(tile_element<X, W>),
                  kPanel = Plan::kWidens ? Plan::kPanelK : 128 / kBytes;
    const auto map_of = [&](const u8* data, i64 rows, i64 ld, bool columns) {
      const Box box = box_of<Plan>(rows, columns);
      return emu::tensor_map(data, kBytes, static_cast<u64>(shape.k), static_cast<u64>(rows),
                             static_cast<u64>(ld * kBytes), kPanel, box.rows, columns && Plan::kWidens ? 0 : 128,
                             box.panels);
    };
    TensorMap columns_map{}, rows_map{};
    if constexpr (Plan::kCodes)
      columns_map = blocks_map(x, box_of<Plan>(x.rows, true));
    else
      (Plan::kSwapped ? rows_map : columns_map) = map_of(x.data.data(), x.rows, x.ld, !Plan::kSwapped);
    if constexpr (!kCoded)
      (Plan::kSwapped ? columns_map : rows_map) = map_of(w.data.data(), shape.w_rows, shape.k, Plan::kSwapped);
    const emu::Launch place{
        {grid / Plan::kCluster * Plan::kCluster, 1, 1}, Plan::kThreads, Plan::kCluster, Plan::kSharedBytes, seed};
    emu::run(place, [&] { Plan::run(args, shape, &columns_map, &rows_map); });
  }
};

// Ragged groups and empty ones, one that has almost all rows, one group alone, more groups than a table of 32 has room
// for in a slice, masked groups, and offsets that no caller may pass.
template <class X, class W, class Epi, WgmmaKnobs knobs>
void check_grouped() {
  using Test = GroupedWgmma<X, W, Epi, knobs>;
  using Plan = typename Test::Plan;
  constexpr int kTile = knobs.swapped ? Plan::kBlockN : Plan::kBlockM;  // of tokens
  constexpr i64 kAcross = knobs.swapped ? Plan::kBlockM : Plan::kBlockN;
  constexpr i64 kRagged = Test::kCoded ? kAcross + 64 : kAcross + 24;
  constexpr i64 kPad = Plan::kCodes    ? 4 * X::kBlock
                       : Plan::kWidens ? 16
                                       : std::max<i64>(X::kBlock, 16 / sizeof(tile_element<X, W>));
  std::uint64_t seed = 0;
  Test::check(contiguous({3, 0, kTile, 1, 0, 0, kTile + 5, 2}), kRagged, Test::kStep * 3, 0, 4, seed++);
  Test::check(contiguous({0, 0, 2 * kTile + 3, 0, 1}, 7), kAcross, Test::kStep * (knobs.stages + 2),
              X::kRowScale ? 0 : kPad, 6, seed++);
  Test::check(contiguous({kTile / 2 + 1}), kRagged, Test::kStep, 0, 2 * Plan::kCluster, seed++);
  Test::check({true, kTile + 3, {kTile + 3, 0, 1, kTile, -5, 1 << 30}}, kRagged, Test::kStep * 2, 0, 4, seed++);
  // Offsets that descend, are negative, and lie beyond the matrix.
  Test::check({false, kTile + 9, {4, 2, kTile, 1, -7, kTile + 1, 1 << 30, 3}}, kAcross, Test::kStep, 0, Plan::kCluster,
              seed++);
}

// As many groups as a mixture of experts has, most with a few rows.
template <class X, class W, class Epi, WgmmaKnobs knobs>
void check_many_groups() {
  constexpr WgmmaKnobs kMany = [] {
    WgmmaKnobs k = knobs;
    k.groups = 128;
    return k;
  }();
  using Test = GroupedWgmma<X, W, Epi, kMany>;
  for (const int count : {33, 70}) {
    std::mt19937 random(static_cast<unsigned>(count));
    std::vector<i32> counts;
    for (int i = 0; i < count; ++i) counts.push_back(random() % 3 ? static_cast<i32>(random() % 12) : 0);
    Test::check(contiguous(counts), 64, Test::kStep, 0, 8, static_cast<std::uint64_t>(count));
  }
}

}  // namespace gemm_test
