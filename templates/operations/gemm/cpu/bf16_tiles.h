// SPDX-License-Identifier: Apache-2.0
// The CPU's gemm of bf16 by AMX: sums of 16 tokens and 16 rows stay in a tile over many columns, and w is multiplied as
// it stands in its panels. Part of kernels.h.
//
// The instruction (TDPBF16PS) adds, for each sum, the products of 16 even columns by fused operations, those of the 16
// odd ones as well, both results, and then that to the sum: rounded to nearest, subnormal numbers being 0 throughout.
// Blocks of 32 columns follow in the order of k, whatever a kernel's knobs and threads are. So all of them give the
// same bits, but not those of floats.h.
//
// The first phase writes x as bf16 to scratch memory, for `tokens` of them: chunk behind chunk of k; in a chunk tile
// behind tile of 16 tokens; of a tile, block behind block of 32 columns, 64 bytes of each token. So what is read at a
// time lies side by side, and no two parts of it are a power of two apart, which would put them in the same few lines
// of a cache.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kBf16Bytes = 2 * kBlock;                    // of a token, or of a row, in a block
constexpr int kBf16TileBytes = kTileTokens * kBf16Bytes;  // of x or w; of sums as well
constexpr int kConfigBytes = 128;
static_assert(kBf16TileBytes == kTileTokens * 4 * kPanelRows && kPanelRows == kTileTokens);

constexpr std::int64_t bf16_tiles_stack(int tokens, int panels) {
  return kConfigBytes + std::int64_t{tokens} * panels * 4 * kPanelRows;
}

// Bytes of x that `tokens` have in the scratch memory, chunks of blocks being whole ones.
template <class B>
typename B::I64 bf16_x_bytes(B& b, const Launch<B>& launch, int tokens, int chunk) {
  const auto chunks = b.div(b.add(launch.blocks, b.constant(chunk - 1)), b.constant(chunk));
  return b.mul(chunks, b.constant(chunk * tokens * kBf16Bytes));
}

// One token a block.
template <class B>
void narrow(B& b, const typename B::Arguments& a, Type type, int tokens, int chunk) {
  const Launch<B> launch(b, a);
  const auto x = b.load_ptr(b.at(a.args, offsetof(GemmArgs, x)));
  const auto ldx = b.load_i64(b.at(a.args, offsetof(GemmArgs, ldx)));
  const auto row = b.at(x, b.mul(b.mul(a.block, ldx), b.constant(bytes_of(type))));
  const auto group = b.div(a.block, b.constant(tokens)), of_group = b.sub(a.block, b.mul(group, b.constant(tokens)));
  const auto tile = b.div(of_group, b.constant(kTileTokens)),
             token = b.sub(of_group, b.mul(tile, b.constant(kTileTokens)));
  const auto to = b.at(b.at(b.at(launch.scratch, b.mul(group, bf16_x_bytes(b, launch, tokens, chunk))),
                            b.mul(tile, b.constant(chunk * kBf16TileBytes))),
                       b.mul(token, b.constant(kBf16Bytes)));
  b.loop(b.constant(0), launch.blocks, chunk, {}, [&](const typename B::I64& first) {
    const auto some = b.min(b.sub(launch.blocks, first), b.constant(chunk));
    const auto records = b.at(to, b.mul(first, b.constant(tokens * kBf16Bytes)));
    const auto row_at = b.at(row, b.mul(first, b.constant(kBlock * bytes_of(type))));
    b.loop(b.constant(0), some, 1, {}, [&](const typename B::I64& block) {
      const auto from = b.at(row_at, b.mul(block, b.constant(kBlock * bytes_of(type))));
      const auto record = b.at(records, b.mul(block, b.constant(kBf16TileBytes)));
      for (int i = 0; i < kBlock; i += b.lanes())
        b.store_bf16s(b.at(record, 2 * i), load_as(b, type, b.at(from, bytes_of(type) * i)));
    });
  });
}

// Sums of two tiles of tokens by two of rows at a time, over `chunk` blocks of k: then all others of the block of
// `tokens` by `panels` have theirs, so that what a chunk needs of x and w comes from the nearest caches. tokens: a
// multiple of 32; panels: of 2. Where an odd number of panels is left, the last one is multiplied twice.
template <class B>
void bf16_tiles(B& b, const typename B::Arguments& a, const Epilogue& e, int tokens, int panels, int chunk) {
  const Launch<B> launch(b, a);
  const auto config = b.stack(bf16_tiles_stack(tokens, panels)), sums = b.at(config, kConfigBytes);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto panel_bytes = b.mul(launch.blocks, b.constant(kBf16TileBytes));
  const auto x = b.at(launch.scratch, b.mul(place.tile, bf16_x_bytes(b, launch, tokens, chunk)));
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  const auto count = b.min(b.sub(launch.m, first_token), b.constant(tokens));
  const int of_panel = tokens * 4 * kPanelRows;  // bytes of sums
  b.begin_tiles(config, kBf16Bytes);
  b.loop(b.constant(0), b.constant(std::int64_t{panels} * of_panel), 4 * b.lanes(), {},
         [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
  b.loop(b.constant(0), launch.blocks, chunk, {}, [&](const typename B::I64& first) {
    const auto some = b.min(b.sub(launch.blocks, first), b.constant(chunk));
    const auto x_chunk = b.at(x, b.mul(first, b.constant(tokens * kBf16Bytes)));
    const auto w_chunk = b.at(w_at, b.mul(first, b.constant(kBf16TileBytes)));
    b.loop(place.first, place.last, 2, {}, [&](const typename B::I64& panel) {
      const auto next = b.min(b.add(panel, b.constant(1)), b.sub(place.last, b.constant(1)));
      const auto w0 = b.at(w_chunk, b.mul(panel, panel_bytes)), w1 = b.at(w_chunk, b.mul(next, panel_bytes));
      const auto number = b.sub(panel, place.first);
      const auto of_panels = b.at(sums, b.mul(number, b.constant(of_panel)));
      const auto next_x = b.at(x_chunk, chunk * tokens * kBf16Bytes);
      const auto next_w0 = b.at(w0, chunk * kBf16TileBytes), next_w1 = b.at(w1, chunk * kBf16TileBytes);
      // Asks for what the next chunk needs: each turn for its share of w, and of its own tokens' x for that of a pair
      // of panels. Left to itself a core has too few lines under way from beyond its second cache.
      const int x_share = 4 * kBf16TileBytes / panels, w_share = 2 * kTileTokens * kBf16TileBytes / tokens;
      const auto ask = [&](const typename B::I64& t, const typename B::I64& block) {
        const auto from_x =
            b.add(b.mul(t, b.constant(chunk * kBf16Bytes)),
                  b.add(b.mul(block, b.constant(2 * kBf16TileBytes)), b.mul(number, b.constant(x_share / 2))));
        const auto from_w =
            b.add(b.mul(t, b.constant(chunk * kBf16TileBytes / tokens)), b.mul(block, b.constant(w_share)));
        for (int i = 0; i < x_share; i += 64) b.prefetch(b.at(b.at(next_x, from_x), i), true);
        for (int i = 0; i < w_share; i += 64) {
          b.prefetch(b.at(b.at(next_w0, from_w), i), true);
          b.prefetch(b.at(b.at(next_w1, from_w), i), true);
        }
      };
      b.loop(b.constant(0), count, 2 * kTileTokens, {}, [&](const typename B::I64& t) {
        const auto x0 = b.at(x_chunk, b.mul(t, b.constant(chunk * kBf16Bytes))), x1 = b.at(x0, chunk * kBf16TileBytes);
        const auto s = b.at(of_panels, b.mul(t, b.constant(4 * kPanelRows)));
        const auto sum = [&](int i) { return b.at(s, i % 2 * of_panel + i / 2 * kBf16TileBytes); };
        for (int i = 0; i < 4; ++i) b.load_tile(i, sum(i), 4 * kPanelRows);
        b.loop(b.constant(0), some, 1, {}, [&](const typename B::I64& block) {
          const auto at = b.mul(block, b.constant(kBf16TileBytes));
          ask(t, block);
          b.load_tile(4, b.at(x0, at), kBf16Bytes);
          b.load_tile(6, b.at(w0, at), kBf16Bytes);
          b.add_bf16_products(0, 4, 6);
          b.load_tile(7, b.at(w1, at), kBf16Bytes);
          b.add_bf16_products(1, 4, 7);
          b.load_tile(5, b.at(x1, at), kBf16Bytes);
          b.add_bf16_products(2, 5, 6);
          b.add_bf16_products(3, 5, 7);
        });
        for (int i = 0; i < 4; ++i) b.store_tile(i, sum(i), 4 * kPanelRows);
      });
    });
  });
  b.end_tiles(config);
  // A token's panels follow each other in y.
  b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& t) {
    const auto of_token = b.at(sums, b.mul(t, b.constant(4 * kPanelRows)));
    b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) {
      const auto at = b.at(of_token, b.mul(b.sub(panel, place.first), b.constant(of_panel)));
      const auto row = b.mul(panel, b.constant(kPanelRows));
      for (int i = 0; i < kPanelRows; i += b.lanes())
        output.store(b, b.add(first_token, t), b.add(row, b.constant(i)), b.load_floats(b.at(at, 4 * i)));
    });
  });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
