// SPDX-License-Identifier: Apache-2.0
// The reference kernel on weights in tiles: the same values as on the weights they were made from, and as an oracle the
// same bound plus what unpacking may round.
#pragma once

#include "emulator/gemm.h"
#include "operations/pack/cuda/tiles.cuh"

namespace gemm_test {

// An element's weight if its code were 0: from a copy of its block without codes.
template <class W, class Tile>
double base_of(const Matrix<W>& w, i64 row, i64 k) {
  const u8* block = &w.data[static_cast<std::size_t>((row * w.cols + k) / W::kBlock * W::kDataBytes)];
  u8 copy[W::kDataBytes], codes[W::kDataBytes] = {};
  for (int i = 0; i < W::kBlock; ++i) Tile::put_code(codes, i, Tile::code(block, i));
  for (int b = 0; b < W::kDataBytes; ++b) copy[b] = block[b] & static_cast<u8>(~codes[b]);
  const auto at = static_cast<std::size_t>((row * w.cols + k) / W::kBlock * W::kScaleBytes);
  const u8* scales = W::kScaleBytes ? &w.scales[at] : nullptr;
  return W::decode(copy, scales, 1.0f, static_cast<int>(k % W::kBlock));
}

template <class X, class W, class Epi>
void check_tile_values(const Size& s, u64 seed) {
  using Element = tile_element<X, W>;
  using Tile = typename W::template Tile<Element>;
  INFO("m " << s.m << " n " << s.n << " k " << s.k);
  const Matrix<X> x(s.m, s.k, s.k + s.pad_x, static_cast<unsigned>(seed));
  Matrix<W> w(s.n, s.k, s.k, static_cast<unsigned>(seed) + 1);
  std::vector<u32> codes(static_cast<std::size_t>(s.n * s.k * Tile::kBits / 32));
  constexpr int kChunkK = max2(1, Tile::kScaleK), kRowBytes = W::kRowScale ? 4 : 0;
  std::vector<u32> scales(
      static_cast<std::size_t>(s.n * (ceil_div64(s.k, kChunkK) * Tile::kScaleBytes + kRowBytes) / 4));
  using Pack = pack::Tiles<W, Element, false>;
  const pack::Args pack_args{{w.data.data(), w.scales.data(), nullptr}, {codes.data(), scales.data(), nullptr}};
  const pack::Shape pack_shape{s.n, s.k};
  emu::run({{static_cast<u32>(Pack::tiles(pack_shape)), 1, 1}, Pack::kThreads, 1, 0, seed},
           [&] { Pack::run(pack_args, pack_shape); });

  std::vector<double> bias;
  const std::vector<u8> bias_bytes = make_bias<typename BiasOf<Epi>::type>(s.n, bias);
  const gemm::Shape shape{s.n, s.k, -0.75f, 0};
  const auto run = [&]<class Plan>(Plan*, const Operand& from, auto& y) {
    const gemm::Args args{x.operand(),
                          from,
                          y.data(),
                          bias_bytes.empty() ? nullptr : bias_bytes.data(),
                          s.m,
                          s.pad_x ? s.k + s.pad_x : 0,
                          0};
    emu::run({{static_cast<u32>(ceil_div64(s.n, 128)), static_cast<u32>(ceil_div64(s.m, 4)), 1}, 128, 1, 0, seed},
             [&] { Plan::run(args, shape); });
  };
  const Operand tiled{codes.data(), scales.data(), w.operand().global};
  const auto cells = static_cast<std::size_t>(s.m * s.n);
  std::vector<typename Epi::Out> plain(cells), packed(cells);
  run(static_cast<gemm::Reference<X, W, Epi, false>*>(nullptr), w.operand(), plain);
  run(static_cast<gemm::Reference<X, W, Epi, false, Element>*>(nullptr), tiled, packed);
  CHECK(std::memcmp(plain.data(), packed.data(), cells * sizeof(plain[0])) == 0);

  using Oracle = gemm::Reference<X, W, Epi, true>;
  using TiledOracle = gemm::Reference<X, W, Epi, true, Element>;
  std::vector<float> oracle(2 * cells), tiled_oracle(2 * cells);
  run(static_cast<Oracle*>(nullptr), w.operand(), oracle);
  run(static_cast<TiledOracle*>(nullptr), tiled, tiled_oracle);
  // Matrix units cut off sums of FP8, but not those of what it is widened to.
  const double cut = gemm::cut_of(TiledOracle::kCuts, false, s.k) - gemm::cut_of(Oracle::kCuts, false, s.k);
  CHECK(std::memcmp(oracle.data(), tiled_oracle.data(), cells * sizeof(float)) == 0);
  i64 wrong = 0;
  for (i64 i = 0; i < s.m; ++i)
    for (i64 j = 0; j < s.n; ++j) {
      double parts = 0, magnitude = 0;
      for (i64 k = 0; k < s.k; ++k) {
        double part = std::fabs(w.exact[static_cast<std::size_t>(j * s.k + k)]);
        if constexpr (Tile::kOffset) part += 2 * std::fabs(base_of<W, Tile>(w, j, k));
        const double value = std::fabs(static_cast<double>(x.exact[static_cast<std::size_t>(i * s.k + k)]));
        parts += value * part, magnitude += value * std::fabs(w.exact[static_cast<std::size_t>(j * s.k + k)]);
      }
      const double scale = 0.75 * x.global * w.global;
      const double more = 1.2 * scale * (parts * Tile::rounding() + magnitude * cut) *
                          (1 + gemm::store_error<typename Epi::Out>().relative);
      const auto at = cells + static_cast<std::size_t>(i * s.n + j);
      wrong += !(std::fabs(tiled_oracle[at] - oracle[at] - more) <= 1e-5 * std::max(oracle[at], tiled_oracle[at]));
    }
  CHECK(wrong == 0);
}

}  // namespace gemm_test
