// SPDX-License-Identifier: Apache-2.0
// Many tokens by AMX: tiles of 16 tokens by 16 rows. Part of kernels.h.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kTileTokens = 16;  // of by_tiles(): of a tile, and of a record of x

// Blocks of a panel, unpacked in memory: of each its signed codes, four columns of 16 rows in 64 bytes, then its scales
// and its minima.
struct TileBlocks {
  PanelCodes w;
  constexpr int columns() const { return kBlock / w.scales; }  // that share a scale
  constexpr int codes() const { return kPanelRows * kBlock; }
  constexpr int factors() const { return w.factors(); }
  constexpr int bytes() const { return codes() + 4 * kPanelRows * factors(); }
};

template <class B, class Codes>
TW_INLINE inline void unpack_for_tiles(B& b, Codes codes, const BlockPlace<B>& from, const typename B::Ptr& to) {
  const PanelCodes w = codes;
  const TileBlocks blocks = {w};
  const int bytes = 4 * b.lanes();
  for (int part = 0; part < kPanelRows / b.lanes(); ++part) {
    const Block<B> rows(b, w, from.group, from.at, part);
    for (int v = 0; v < 8; ++v)
      b.store_bytes(b.at(to, 4 * kPanelRows * v + bytes * part), b.less_offset(rows.whole(b, w, v), w.offset));
    const int scales = blocks.codes() + bytes * part;
    for (int s = 0; s < w.scales && !w.exact(); ++s)
      b.store_floats(b.at(to, scales + 4 * kPanelRows * s), rows.scales[s]);
    for (int s = 0; s < w.scales && w.minima; ++s)
      b.store_floats(b.at(to, scales + 4 * kPanelRows * (w.scales + s)), rows.minima[s]);
  }
}

// The sums of 16 tokens and 16 rows, in registers.
template <class B, class Codes, class Together>
struct TileSums {
  static constexpr int kBytes = kTileTokens * 4 * kPanelRows;  // of a tile of integers
  static constexpr int kMostTiles = 4;                         // that are under way

  std::array<typename B::Floats, 2 * kTileTokens> acc;

  // body(number of a vector) for each.
  template <class Body>
  TW_INLINE static void each(B& b, Together together, const Body& body) {
    const auto parts = vectors_of(b, number_like<1>(together));
    repeat(number_like<kTileTokens>(together),
           [&](auto r) TW_INLINE { repeat(parts, [&](auto part) TW_INLINE { body(number_of(r, part, parts)); }); });
  }
  TW_INLINE TileSums(B& b, const typename B::Ptr& from, Together together) {
    each(b, together, [&](auto i) TW_INLINE { acc[i] = b.load_floats(b.at(from, 4 * b.lanes() * i)); });
  }
  TW_INLINE void store(B& b, const typename B::Ptr& to, Together together) const {
    each(b, together, [&](auto i) TW_INLINE { b.store_floats(b.at(to, 4 * b.lanes() * i), acc[i]); });
  }
  // The products of `together` blocks; x: their records, block: what is unpacked, buffers: for tiles of integers.
  TW_INLINE void add(B& b, Codes codes, const typename B::Ptr& x, const typename B::Ptr& block,
                     const typename B::Ptr& buffers, Together together) {
    const PanelCodes w = codes;
    const TileBlocks blocks = {w};
    const int record_bytes = kTileTokens * token_bytes(w), columns = blocks.columns();
    repeat(together, [&](auto j) TW_INLINE {
      for (int s = 0; s < w.scales; ++s)
        b.tile_products(j * w.scales + s, b.at(x, j * record_bytes + columns * s), kBlock,
                        b.at(block, j * blocks.bytes() + kPanelRows * columns * s),
                        b.at(buffers, kBytes * (j * w.scales + s)), columns);
    });
    const auto parts = vectors_of(b, number_like<1>(together));
    repeat(together, [&](auto j) TW_INLINE {
      repeat(parts, [&](auto part) TW_INLINE {
        add_block(b, codes, b.at(x, j * record_bytes + kTileTokens * kBlock), b.at(block, j * blocks.bytes()),
                  b.at(buffers, kBytes * w.scales * j), part, parts, together);
      });
    });
  }

 private:
  template <class Row, class Part, class Parts>
  static auto number_of(Row r, Part part, Parts parts) {
    if constexpr (std::is_same_v<Row, int>)
      return r * parts + part;
    else
      return std::integral_constant<int, Row::value * Parts::value + Part::value>();
  }
  // Scaled integers of one block, of a vector of each token. scale: of x.
  template <class Part, class Parts>
  TW_INLINE void add_block(B& b, Codes codes, const typename B::Ptr& scale, const typename B::Ptr& block,
                           const typename B::Ptr& integers, Part part, Parts parts, Together together) {
    const PanelCodes w = codes;
    const TileBlocks blocks = {w};
    const int bytes = 4 * b.lanes();
    std::array<typename B::Floats, 4> factors;
    for (int f = 0; f < blocks.factors(); ++f)
      factors[f] = b.load_floats(b.at(block, blocks.codes() + 4 * kPanelRows * f + bytes * part));
    repeat(number_like<kTileTokens>(together), [&](auto r) TW_INLINE {
      auto& sum = acc[number_of(r, part, parts)];
      const auto d = b.splat_floats(b.at(scale, 4 * r));
      for (int s = 0; s < w.scales; ++s) {
        const auto products = b.load_ints(b.at(integers, kBytes * s + 4 * kPanelRows * r + bytes * part));
        sum = add_scaled(b, w, products, factors[s], d, sum);
      }
      for (int s = 0; s < w.scales && w.minima; ++s)
        sum = b.fma(factors[w.scales + s], b.splat_floats(b.at(scale, 4 * (kTileTokens * (s + 1) + r))), sum);
    });
  }
};

// A panel's codes are unpacked for `chunk` blocks of k at a time, whose products are added to sums that 16 tokens have
// in registers meanwhile. x has records of 16 tokens, so that what these read follows each other in memory. together:
// blocks whose products are computed before the first are added, 1 to 4 / scales. tokens: a multiple of 16; k / 32 and
// chunk: multiples of together.
template <class B, class Codes, class Together>
void by_tiles(B& b, const typename B::Arguments& a, Codes codes, const Epilogue& e, int tokens, int panels, int chunk,
              Together together) {
  using Sums = TileSums<B, Codes, Together>;
  const PanelCodes w = codes;
  const Launch<B> launch(b, a);
  const int bytes = 4 * b.lanes(), token_sums = 4 * kPanelRows, unpacked = TileBlocks{w}.bytes();
  const int record_bytes = kTileTokens * token_bytes(w), buffer_bytes = Sums::kMostTiles * Sums::kBytes;
  const auto config = b.stack(128 + buffer_bytes + tokens * token_sums + chunk * unpacked);
  const auto buffers = b.at(config, 128), sums = b.at(buffers, buffer_bytes), blocks = b.at(sums, tokens * token_sums);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, b.mul(place.tile, b.constant(tokens / kTileTokens)), kTileTokens, w);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = launch.panel_bytes(b, w);
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  const auto count = b.min(b.sub(launch.m, first_token), b.constant(tokens));
  b.begin_tiles(config, TileBlocks{w}.columns());
  b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) TW_INLINE {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    b.loop(b.constant(0), b.constant(std::int64_t{tokens} * token_sums), bytes, {},
           [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
    b.loop(b.constant(0), launch.blocks, chunk, {}, [&](const typename B::I64& first) TW_INLINE {
      const auto some = b.min(b.sub(launch.blocks, first), b.constant(chunk));
      b.loop(b.constant(0), some, 1, {}, [&](const typename B::I64& i) TW_INLINE {
        const BlockPlace<B> where(b, w, from, b.add(first, i));
        // The next chunk's: while this one is multiplied, nothing else tells the CPU that it will be read.
        for (int line = 0; line < w.bytes(); line += 64) b.prefetch(b.at(where.at, chunk * w.bytes() + line));
        unpack_for_tiles(b, codes, where, b.at(blocks, b.mul(i, b.constant(unpacked))));
      });
      b.loop(b.constant(0), count, kTileTokens, {}, [&](const typename B::I64& t) TW_INLINE {
        const auto records = b.at(b.at(x, b.mul(first, b.constant(record_bytes))),
                                  b.mul(b.mul(t, launch.blocks), b.constant(token_bytes(w))));
        const auto at = b.at(sums, b.mul(t, b.constant(token_sums)));
        Sums tile(b, at, together);
        const auto carried = std::span(tile.acc.data(), static_cast<std::size_t>(kTileTokens * kPanelRows / b.lanes()));
        b.loop(b.constant(0), some, together, carried, [&](const typename B::I64& i) TW_INLINE {
          tile.add(b, codes, b.at(records, b.mul(i, b.constant(record_bytes))),
                   b.at(blocks, b.mul(i, b.constant(unpacked))), buffers, together);
        });
        tile.store(b, at, together);
      });
    });
    const auto row = b.mul(panel, b.constant(kPanelRows));
    b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& t) TW_INLINE {
      const auto at = b.at(sums, b.mul(t, b.constant(token_sums)));
      for (int part = 0; part < kPanelRows / b.lanes(); ++part)
        output.store(b, b.add(first_token, t), b.add(row, b.constant(part * b.lanes())),
                     b.load_floats(b.at(at, bytes * part)));
    });
  });
  b.end_tiles(config);
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
