// SPDX-License-Identifier: Apache-2.0
// The CPU's gemm kernels, each written once over a backend B (ir.h, native.h), for weights in panels (panels.h) and x
// in blocks of 32 codes:
//
//   y[t, r] = alpha sum over blocks of (sum of code_w (code_x)) d_w d_x + bias[r]
//
// Each block's products are summed exactly in integers, as ggml does; blocks follow each other in the order of k,
// whatever a kernel's knobs, threads and vectors are. So all of them give the same bits.
//
// The first phase quantizes x (or takes its blocks apart) into scratch memory, in tiles of `tokens` rows. A tile has a
// record for each block of k: 32 codes of each token, then their scales, then -offset times their sums, which is where
// sums of products with unsigned codes begin.
//
// This text is compiled for several targets: no function of it may be one that the rest of the library shares.
//
// Whoever includes it names a namespace of its own: TILEWRIGHT_CPU_KERNELS.
#include <tilewright/gemm.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "templates/gemm/params.cuh"

namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kPanelRows = 16;   // rows of w side by side
constexpr int kBlock = 32;       // columns of k that share a scale
constexpr int kTokenBytes = 40;  // of scratch memory, for a block of a token
constexpr int kMostTokens = 8;   // of few(): their sums are in registers

// How a panel stores a block of 32 columns: codes, four columns of each row side by side, then 16 scales of two bytes.
// Of 4-bit codes a byte has columns 4 i and, above, 4 i + 16.
struct PanelCodes {
  int bits;    // 4 or 8
  int offset;  // a code stands for code - offset
  constexpr int code_bytes() const { return kPanelRows * kBlock * bits / 8; }
  constexpr int bytes() const { return code_bytes() + 2 * kPanelRows; }
};

enum class Input { f32, q8_1 };  // what x is in memory

template <class B>
struct Launch {
  using I64 = typename B::I64;
  using Ptr = typename B::Ptr;
  I64 n, k, m, blocks;  // blocks: of k
  Ptr args, constants, scratch;

  Launch(B& b, const typename B::Arguments& a)
      : n(b.load_i64(b.at(a.constants, offsetof(tw::gemm::Shape, n)))),
        k(b.load_i64(b.at(a.constants, offsetof(tw::gemm::Shape, k)))),
        m(b.load_i64(b.at(a.args, offsetof(GemmArgs, m)))),
        blocks(b.div(k, b.constant(kBlock))),
        args(a.args),
        constants(a.constants),
        scratch(a.scratch) {}

  // The record of a tile's first block.
  Ptr tile(B& b, const I64& index, int tokens) const {
    return b.at(scratch, b.mul(index, b.mul(blocks, b.constant(tokens * kTokenBytes))));
  }
};

// ---- the first phase: one token a block

template <class B, class Tokens>
void quantize(B& b, const typename B::Arguments& a, Input input, Tokens tokens, PanelCodes w) {
  const Launch<B> launch(b, a);
  const int lanes = b.lanes();
  const auto x = b.load_ptr(b.at(a.args, offsetof(GemmArgs, x)));
  const auto ldx = b.load_i64(b.at(a.args, offsetof(GemmArgs, ldx)));
  const auto tile = b.div(a.block, b.constant(tokens));
  const auto token = b.sub(a.block, b.mul(tile, b.constant(tokens)));
  const auto records = launch.tile(b, tile, tokens);
  const auto row_elements = b.mul(a.block, ldx);
  const auto row = input == Input::f32 ? b.at(x, b.mul(row_elements, b.constant(4)))
                                       : b.at(x, b.mul(b.div(row_elements, b.constant(kBlock)), b.constant(36)));
  b.loop(b.constant(0), launch.blocks, 1, {}, [&](const typename B::I64& block) {
    const auto record = b.at(records, b.mul(block, b.constant(tokens * kTokenBytes)));
    const auto codes_at = b.at(record, b.mul(token, b.constant(kBlock)));
    const auto scale_at = b.at(b.at(record, tokens * kBlock), b.mul(token, b.constant(4)));
    const auto from = b.at(row, b.mul(block, b.constant(input == Input::f32 ? 4 * kBlock : 36)));
    std::array<typename B::Ints, 4> codes;
    auto d = b.zero_floats();
    if (input == Input::f32) {
      std::array<typename B::Floats, 4> v;
      for (int i = 0; i < kBlock / lanes; ++i) {
        v[i] = b.load_floats(b.at(from, 4 * lanes * i));
        d = b.larger(d, b.magnitude(v[i]));
      }
      d = b.div(b.largest_of_lanes(d), b.splat(127.0f));
      const auto inverse = b.unless_zero(d, b.div(b.splat(1.0f), d));
      d = b.through_half(d);
      for (int i = 0; i < kBlock / lanes; ++i) {
        // Half away from zero (core/numeric.cuh, nudged_away()).
        const auto scaled = b.mul(v[i], inverse);
        codes[i] = b.ints(b.add(scaled, b.with_sign(0.49999997f, scaled)));
      }
    } else {
      d = b.splat_half(from);
      for (int i = 0; i < kBlock / lanes; ++i) codes[i] = b.load_codes(b.at(from, 4 + lanes * i));
    }
    auto sum = codes[0];
    for (int i = 0; i < kBlock / lanes; ++i) {
      b.store_codes(b.at(codes_at, lanes * i), codes[i]);
      if (i > 0) sum = b.add(sum, codes[i]);
    }
    b.store_first(scale_at, d);
    b.store_first(b.at(scale_at, 4 * tokens), b.times(b.sum_of_lanes(sum), -w.offset));
  });
}

// ---- the second: products

// The codes of a block, of lanes() rows: as unsigned bytes, or without dot4() as nibbles, since sums of larger products
// do not fit in 16 bits.
template <class B>
struct Codes {
  std::array<typename B::Bytes, 8> low, high;

  // `part`: of the panel's rows.
  Codes(B& b, PanelCodes w, const typename B::Ptr& block, int part) {
    const int bytes = 4 * b.lanes(), step = 4 * kPanelRows;  // of four columns
    if (w.bits == 4) {
      for (int i = 0; i < 4; ++i) {
        const auto v = b.load_bytes(b.at(block, step * i + bytes * part));
        low[i] = b.low_nibbles(v), low[i + 4] = b.high_nibbles(v);
      }
    } else {
      for (int i = 0; i < 8; ++i) {
        const auto v = b.load_bytes(b.at(block, step * i + bytes * part));
        if (b.dot4())
          low[i] = v;
        else
          low[i] = b.low_nibbles(v), high[i] = b.high_nibbles(v);
      }
    }
  }

  typename B::Ints nibble_dot(B& b, const std::array<typename B::Bytes, 8>& nibbles,
                              const std::array<typename B::Bytes, 8>& x) const {
    auto sum = b.pairs(nibbles[0], x[0]);  // at most 8 * 2 * 15 * 128 = 30720
    for (int i = 1; i < 8; ++i) sum = b.add(sum, b.pairs(nibbles[i], x[i]));
    return b.pair_sums(sum);
  }
  // Products with a token's codes; `begin`: minus the offset's share.
  typename B::Ints dot(B& b, PanelCodes w, const typename B::Ptr& token, const typename B::Ints& begin) const {
    std::array<typename B::Bytes, 8> x;
    for (int i = 0; i < 8; ++i) x[i] = b.splat_bytes(b.at(token, 4 * i));
    if (b.dot4()) {
      auto sum = begin;
      for (int i = 0; i < 8; ++i) sum = b.dot4(sum, low[i], x[i]);
      return sum;
    }
    const auto sum = b.add(begin, nibble_dot(b, low, x));
    return w.bits == 4 ? sum : b.add(sum, b.shifted(nibble_dot(b, high, x), 4));
  }
};

// acc + the block's products with one token. scales: of the rows.
template <class B>
typename B::Floats add_block(B& b, PanelCodes w, const Codes<B>& codes, const typename B::Floats& scales,
                             const typename B::Ptr& token_codes, const typename B::Ptr& token_scale, int tokens,
                             const typename B::Floats& acc) {
  const auto dot = codes.dot(b, w, token_codes, b.splat_ints(b.at(token_scale, 4 * tokens)));
  return b.fma(b.floats(dot), b.mul(scales, b.splat_floats(token_scale)), acc);
}

template <class B>
struct Output {
  typename B::Ptr y, bias;
  typename B::I64 ldy;
  typename B::Floats scale;
  bool has_bias;
  Output(B& b, const Launch<B>& l, bool with_bias)
      : y(b.load_ptr(b.at(l.args, offsetof(GemmArgs, y)))),
        bias(with_bias ? b.load_ptr(b.at(l.args, offsetof(GemmArgs, bias))) : y),
        ldy(b.load_i64(b.at(l.args, offsetof(GemmArgs, ldy)))),
        scale(b.splat(b.mul(b.load_f32(b.at(l.constants, offsetof(tw::gemm::Shape, alpha))),
                            b.load_f32(b.at(l.args, offsetof(GemmArgs, alpha)))))),
        has_bias(with_bias) {}
  void store(B& b, const typename B::I64& token, const typename B::I64& row, const typename B::Floats& sum) const {
    auto v = b.mul(sum, scale);
    if (has_bias) v = b.add(v, b.load_floats(b.at(bias, b.mul(row, b.constant(4)))));
    b.store_floats(b.at(y, b.mul(b.add(b.mul(token, ldy), row), b.constant(4))), v);
  }
};

// Where a block's panels and tokens are. panels: of a block.
template <class B>
struct Place {
  typename B::I64 tile, first, last;  // of panels
  Place(B& b, const Launch<B>& l, const typename B::I64& block, int panels) : tile(block), first(block), last(block) {
    const auto all = b.div(l.n, b.constant(kPanelRows));
    const auto across = b.div(b.add(all, b.constant(panels - 1)), b.constant(panels));
    tile = b.div(block, across);
    first = b.mul(b.sub(block, b.mul(tile, across)), b.constant(panels));
    last = b.less(b.add(first, b.constant(panels)), all);
  }
};

// Few tokens: their sums stay in registers, so w is read once and nothing else is moved. ahead: bytes of w to ask for
// in advance; 0: the CPU finds out by itself.
template <class B, class Tokens, class Ahead>
void few(B& b, const typename B::Arguments& a, PanelCodes w, bool bias, Tokens tokens, int panels, Ahead ahead) {
  const Launch<B> launch(b, a);
  const Output<B> output(b, launch, bias);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, place.tile, tokens);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = b.mul(launch.blocks, b.constant(w.bytes()));
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    const int parts = kPanelRows / b.lanes();
    std::array<typename B::Floats, 2 * kMostTokens> sums;
    for (int i = 0; i < parts * tokens; ++i) sums[i] = b.zero_floats();
    b.loop(b.constant(0), launch.blocks, 1, std::span(sums.data(), static_cast<std::size_t>(parts * tokens)),
           [&](const typename B::I64& block) {
             const auto at = b.at(from, b.mul(block, b.constant(w.bytes())));
             if (ahead > 0)
               for (int line = 0; line < w.bytes(); line += 64) b.prefetch(b.at(at, ahead + line));
             const auto record = b.at(x, b.mul(block, b.constant(tokens * kTokenBytes)));
             for (int part = 0; part < parts; ++part) {
               const Codes<B> codes(b, w, at, part);
               const auto scales = b.load_halves(b.at(at, w.code_bytes() + 2 * b.lanes() * part));
               for (int t = 0; t < tokens; ++t)
                 sums[part * tokens + t] =
                     add_block(b, w, codes, scales, b.at(record, kBlock * t), b.at(record, tokens * kBlock + 4 * t),
                               tokens, sums[part * tokens + t]);
             }
           });
    const auto row = b.mul(panel, b.constant(kPanelRows));
    for (int t = 0; t < tokens; ++t) {
      const auto token = b.add(first_token, b.constant(t));
      b.if_less(token, launch.m, [&] {
        for (int part = 0; part < parts; ++part)
          output.store(b, token, b.add(row, b.constant(part * b.lanes())), sums[part * tokens + t]);
      });
    }
  });
}

// Many tokens: sums of a tile are in memory, near enough to be fast, and a block of w is unpacked once for all of them.
// side_by_side: tokens whose products are computed together.
template <class B, class Tokens, class Together>
void many(B& b, const typename B::Arguments& a, PanelCodes w, bool bias, Tokens tokens, int panels,
          Together side_by_side) {
  const Launch<B> launch(b, a);
  const auto sums = b.stack(std::int64_t{tokens} * 4 * kPanelRows);
  const Output<B> output(b, launch, bias);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, place.tile, tokens);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = b.mul(launch.blocks, b.constant(w.bytes()));
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  const auto count = b.less(b.sub(launch.m, first_token), b.constant(tokens));
  const int parts = kPanelRows / b.lanes(), part_bytes = 4 * b.lanes();
  b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    b.loop(b.constant(0), b.constant(std::int64_t{tokens} * 4 * kPanelRows), part_bytes, {},
           [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
    b.loop(b.constant(0), launch.blocks, 1, {}, [&](const typename B::I64& block) {
      const auto at = b.at(from, b.mul(block, b.constant(w.bytes())));
      const auto record = b.at(x, b.mul(block, b.constant(tokens * kTokenBytes)));
      for (int part = 0; part < parts; ++part) {
        const Codes<B> codes(b, w, at, part);
        const auto scales = b.load_halves(b.at(at, w.code_bytes() + 2 * b.lanes() * part));
        const auto part_sums = b.at(sums, std::int64_t{part} * tokens * part_bytes);
        // Tokens beyond the last of a tile are computed where `side_by_side` has them, and not stored.
        b.loop(b.constant(0), count, side_by_side, {}, [&](const typename B::I64& t) {
          const auto token_codes = b.at(record, b.mul(t, b.constant(kBlock)));
          const auto token_scale = b.at(b.at(record, tokens * kBlock), b.mul(t, b.constant(4)));
          const auto token_sums = b.at(part_sums, b.mul(t, b.constant(part_bytes)));
          for (int i = 0; i < side_by_side; ++i) {
            const auto sum_at = b.at(token_sums, part_bytes * i);
            b.store_floats(sum_at, add_block(b, w, codes, scales, b.at(token_codes, kBlock * i),
                                             b.at(token_scale, 4 * i), tokens, b.load_floats(sum_at)));
          }
        });
      }
    });
    const auto row = b.mul(panel, b.constant(kPanelRows));
    b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& t) {
      for (int part = 0; part < parts; ++part)
        output.store(b, b.add(first_token, t), b.add(row, b.constant(part * b.lanes())),
                     b.load_floats(
                         b.at(b.at(sums, std::int64_t{part} * tokens * part_bytes), b.mul(t, b.constant(part_bytes)))));
    });
  });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS

#undef TILEWRIGHT_CPU_KERNELS
