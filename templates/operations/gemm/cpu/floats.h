// SPDX-License-Identifier: Apache-2.0
// The CPU's gemm of floats, written once over a backend B (ir.h, native_*), for weights in panels (panels.h):
//
//   y[t, r] = alpha sum over parts of k (sum of x[t, k] w[r, k]) + bias[r]
//
// A part is 64 columns. Its products are added up by fused operations in the order of k, and parts are in theirs: no
// more than k / 64 + 64 additions follow each other, whatever a kernel's knobs, threads and vectors are. So all of them
// give the same bits.
//
// Where rows of w have scales, a part's sum is multiplied by its scale when it is added: kScaleColumns is a multiple of
// a part. Codes are decoded to single precision instead, a part of a block's panels at a time, to the bits that the
// format's decoder gives.
//
// The first phase writes x as single-precision numbers to scratch memory, in tiles of `tokens` rows, whose numbers of a
// column lie side by side, and behind an odd number of columns one of zeros. A block of the second has the products of
// `tiles` tiles and `panels` panels: all of a part before the next one, so that w comes from the nearest cache but for
// the first tile.
//
// Part of kernels.h.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kPart = 64;                   // columns
constexpr int kFloatSums = 32;              // vectors of a tile: registers
constexpr std::int64_t kMostInBlock = 128;  // tokens times panels of a block, whose sums are on the stack

constexpr int column_step(Type w) { return w == Type::bf16 ? 2 : 1; }  // of a row of a panel, side by side
template <class B>
typename B::I64 even(B& b, const typename B::I64& columns) {
  return b.mul(b.div(b.add(columns, b.constant(1)), b.constant(2)), b.constant(2));
}

// Of columns from .. to - 1 of a row of floats, the largest magnitude, in every lane.
template <class B>
typename B::Floats largest_of_columns(B& b, Type type, const typename B::Ptr& row, const typename B::I64& from,
                                      const typename B::I64& to) {
  std::array<typename B::Floats, 1> d = {b.zero_floats()};
  const int lanes = b.lanes();
  const auto at = [&](const typename B::I64& column) { return b.at(row, b.mul(column, b.constant(bytes_of(type)))); };
  const auto whole = b.add(from, b.mul(b.div(b.sub(to, from), b.constant(lanes)), b.constant(lanes)));
  b.loop(from, whole, lanes, d,
         [&](const typename B::I64& column) { d[0] = b.larger(d[0], b.magnitude(load_as(b, type, at(column)))); });
  b.loop(whole, to, 1, d,
         [&](const typename B::I64& column) { d[0] = b.larger(d[0], b.magnitude(splat_as(b, type, at(column)))); });
  return b.largest_of_lanes(d[0]);
}

// One token a block.
template <class B, class Tokens>
void widen(B& b, const typename B::Arguments& a, const Input& input, Tokens tokens) {
  const Launch<B> launch(b, a);
  const Type type = input.type;
  const bool scaled = input.rows || input.columns > 0;
  const auto rounded = [&](const typename B::Floats& v, const typename B::Floats& scale) {
    if (type == Type::e4m3) return scaled ? b.mul(v, scale) : v;
    if (input.as == Type::e4m3 && scaled) return b.mul(e4m3_of(b, fp8_of(b, kE4m3, b.div(v, scale))), scale);
    return input.as == Type::e4m3   ? e4m3_of(b, fp8_of(b, kE4m3, v))
           : input.as == Type::bf16 ? b.of_bits(b.shifted(b.bf16s(v), 16))
           : input.as == Type::f16  ? b.through_half(v)
                                    : v;
  };
  const auto x = b.load_ptr(b.at(a.args, offsetof(GemmArgs, x)));
  const auto ldx = b.load_i64(b.at(a.args, offsetof(GemmArgs, ldx)));
  const auto row = b.at(x, b.mul(b.mul(a.block, ldx), b.constant(bytes_of(type))));
  const auto tile = b.div(a.block, b.constant(tokens));
  const auto token = b.sub(a.block, b.mul(tile, b.constant(tokens)));
  const auto to = b.at(b.at(launch.scratch, b.mul(tile, b.mul(even(b, launch.k), b.constant(4 * tokens)))),
                       b.mul(token, b.constant(4)));
  const int lanes = b.lanes();
  const auto widen_columns = [&](const typename B::I64& first, const typename B::I64& last,
                                 const typename B::Floats& scale) {
    const auto whole = b.add(first, b.mul(b.div(b.sub(last, first), b.constant(lanes)), b.constant(lanes)));
    b.loop(first, whole, lanes, {}, [&](const typename B::I64& column) {
      const auto v = load_as(b, type, b.at(row, b.mul(column, b.constant(bytes_of(type)))));
      b.store_apart(b.at(to, b.mul(column, b.constant(4 * tokens))), rounded(v, scale), 4 * tokens);
    });
    b.loop(whole, last, 1, {}, [&](const typename B::I64& column) {
      const auto from = b.at(row, b.mul(column, b.constant(bytes_of(type))));
      b.store_first(b.at(to, b.mul(column, b.constant(4 * tokens))), rounded(splat_as(b, type, from), scale));
    });
  };
  // The scale of some columns: the format's encoder chooses 1 where they are all zero.
  const auto chosen = [&](const typename B::I64& first, const typename B::I64& last) {
    const auto scale = b.div(largest_of_columns(b, type, row, first, last), b.splat(kE4m3.largest));
    return b.if_smaller(b.zero_floats(), scale, scale, b.splat(1.0f));
  };
  const auto stored = [&](const typename B::I64& number) {
    const auto scales = b.load_ptr(b.at(a.args, offsetof(GemmArgs, x) + offsetof(Operand, scales)));
    return b.splat_floats(b.at(scales, b.mul(number, b.constant(4))));
  };
  const auto none = b.constant(0);
  if (input.columns > 0) {
    b.loop(none, launch.k, input.columns, {}, [&](const typename B::I64& first) {
      const auto last = b.add(first, b.constant(input.columns));
      const auto group = b.div(b.add(b.mul(a.block, ldx), first), b.constant(input.columns));
      widen_columns(first, last, type == Type::e4m3 ? stored(group) : chosen(first, last));
    });
  } else if (input.rows) {
    widen_columns(none, launch.k, type == Type::e4m3 ? stored(a.block) : chosen(none, launch.k));
  } else {
    widen_columns(none, launch.k, b.zero_floats());
  }
  b.loop(launch.k, even(b, launch.k), 1, {}, [&](const typename B::I64& column) {
    b.store_first(b.at(to, b.mul(column, b.constant(4 * tokens))), b.zero_floats());
  });
}

// A vector of a panel's rows: of column `column` of those at p, column_step(w) of them.
template <class B, class Weights>
TW_INLINE inline typename B::Floats column_of(B& b, Weights w, const typename B::Ptr& p, int column) {
  if (column_step(w) == 1) return load_as(b, w, p);
  const auto pairs = b.load_ints(p);
  return b.of_bits(column == 0 ? b.shifted(pairs, 16) : b.both(pairs, b.every(static_cast<int>(0xffff0000u))));
}

// Adds the products of some columns, whole steps of them, of a tile's tokens with panels side by side to the tile's
// sums. x_step, token_step: bytes from one column of x to the next, and from one token to the next. scales: of each
// panel's rows, that the products are multiplied by first; null: none.
template <class B, class Weights, class Tokens, class Panels>
TW_INLINE inline void add_products(B& b, Weights w, Tokens tokens, Panels panels, const typename B::I64& columns,
                                   const typename B::Ptr& x, int x_step, int token_step,
                                   const std::array<typename B::Ptr, kFloatSums>& from, const typename B::Ptr& sums,
                                   const std::array<typename B::Ptr, kFloatSums>* scales = nullptr) {
  const int parts = kPanelRows / b.lanes(), vector_bytes = 4 * b.lanes(), count = panels * parts;  // of a token
  const int step = column_step(w), step_bytes = step * bytes_of(w);                                // of a row
  std::array<typename B::Floats, kFloatSums> acc;
  for (int i = 0; i < count * tokens; ++i) acc[i] = b.zero_floats();
  const auto some = [&](const typename B::I64& k) TW_INLINE {
    const auto x_at = b.at(x, b.mul(k, b.constant(x_step)));
    const auto w_offset = b.mul(k, b.constant(kPanelRows * bytes_of(w)));
    for (int c = 0; c < step; ++c) {
      std::array<typename B::Floats, kFloatSums> rows;
      for (int i = 0; i < count; ++i)
        rows[i] = column_of(b, w, b.at(b.at(from[i / parts], w_offset), step_bytes * b.lanes() * (i % parts)), c);
      for (int t = 0; t < tokens; ++t) {
        const auto of_token = b.splat_floats(b.at(x_at, x_step * c + token_step * t));
        for (int i = 0; i < count; ++i) acc[count * t + i] = b.fma(rows[i], of_token, acc[count * t + i]);
      }
    }
  };
  b.loop(b.constant(0), columns, step, std::span(acc.data(), static_cast<std::size_t>(count * tokens)), some);
  for (int i = 0; i < count * tokens; ++i) {
    const auto at = b.at(sums, vector_bytes * i);
    const auto before = b.load_floats(at);
    if (scales) {
      const int in_panel = vector_bytes * (i % count % parts);
      b.store_floats(at, b.fma(acc[i], b.load_floats(b.at((*scales)[i % count / parts], in_panel)), before));
    } else {
      b.store_floats(at, b.add(before, acc[i]));
    }
  }
}

// The numbers of a block of codes, column behind column, those of the panel's rows.
template <class B>
void decode_block(B& b, PanelCodes w, const typename B::Ptr& group, const typename B::Ptr& block,
                  const typename B::Ptr& to) {
  for (int part = 0; part < kPanelRows / b.lanes(); ++part) {
    const Block<B> rows(b, w, group, block, part);
    // A number is code * scale - rest, rounded once. The rest, offset * scale or the minimum, is exact.
    std::array<typename B::Floats, 2> rest;
    for (int s = 0; s < w.scales; ++s)
      rest[s] = w.minima ? b.mul(rows.minima[s], b.splat(-1.0f))
                         : b.mul(rows.scales[s], b.splat(-static_cast<float>(w.offset)));
    for (int i = 0; i < 8; ++i) {
      const auto codes = rows.whole(b, w, i);
      const auto four = b.ints(b.signed_codes() ? b.less_offset(codes, -w.offset) : codes);
      const int s = i * w.scales / 8;
      for (int j = 0; j < 4; ++j) {
        const auto code = j == 3 ? b.right(four, 24) : b.both(j ? b.right(four, 8 * j) : four, b.every(255));
        b.store_floats(b.at(to, 4 * (kPanelRows * (4 * i + j) + b.lanes() * part)),
                       b.fma(b.floats(code), rows.scales[s], rest[s]));
      }
    }
  }
}

// scales: what of a panel's scales stands in front of it. codes: how the panels are coded, or null if they are of
// floats. Codes are decoded to single precision, so w is f32 then.
template <class B, class Weights, class Tokens, class Panels>
void floats(B& b, const typename B::Arguments& a, Weights w, FloatScales scales, const Epilogue& e, Tokens tokens,
            Panels panels, int tiles, const PanelCodes* codes = nullptr) {
  const Launch<B> launch(b, a);
  const int parts = kPanelRows / b.lanes(), vector_bytes = 4 * b.lanes(), count = panels * parts;  // of a token
  const std::int64_t tile_bytes = std::int64_t{tokens} * count * vector_bytes;
  const auto sums = b.stack(tiles * tile_bytes);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto first_tile = b.mul(place.tile, b.constant(tiles));
  const auto all_tiles = b.div(b.add(launch.m, b.constant(tokens - 1)), b.constant(tokens));
  const auto here = b.min(b.sub(all_tiles, first_tile), b.constant(tiles));
  const auto columns = column_step(w) == 2 ? even(b, launch.k) : launch.k;
  const auto x_bytes = b.mul(even(b, launch.k), b.constant(4 * tokens));
  const auto x = b.at(launch.scratch, b.mul(first_tile, x_bytes));
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto head_bytes = scales == FloatScales::none ? b.constant(0)
                          : scales == FloatScales::row
                              ? b.constant(4 * kPanelRows)
                              : b.mul(b.div(columns, b.constant(kScaleColumns)), b.constant(4 * kPanelRows));
  const auto panel_bytes =
      codes ? launch.panel_bytes(b, *codes) : b.add(head_bytes, b.mul(columns, b.constant(kPanelRows * bytes_of(w))));
  constexpr std::int64_t kDecoded = std::int64_t{kPart} * kPanelRows * 4;  // bytes of a panel's part
  const auto decoded = codes ? b.stack(panels * kDecoded) : sums;
  // Where fewer panels are left than a block has, the last one stands for those that are missing, and is stored once.
  std::array<typename B::I64, kFloatSums> panel;
  std::array<typename B::Ptr, kFloatSums> from;
  for (int p = 0; p < panels; ++p) {
    panel[p] = b.min(b.add(place.first, b.constant(p)), b.sub(place.last, b.constant(1)));
    from[p] = b.at(w_at, b.mul(panel[p], panel_bytes));
  }
  b.loop(b.constant(0), b.mul(here, b.constant(tile_bytes)), vector_bytes, {},
         [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
  b.loop(b.constant(0), columns, kPart, {}, [&](const typename B::I64& begin) {
    const auto end = b.min(b.add(begin, b.constant(kPart)), columns);
    std::array<typename B::Ptr, kFloatSums> part;
    std::array<typename B::Ptr, kFloatSums> scales_of_part;
    for (int p = 0; p < panels; ++p) {
      part[p] = b.at(b.at(from[p], head_bytes), b.mul(begin, b.constant(kPanelRows * bytes_of(w))));
      scales_of_part[p] = from[p];
      if (scales == FloatScales::columns)
        scales_of_part[p] = b.at(from[p], b.mul(b.div(begin, b.constant(kScaleColumns)), b.constant(4 * kPanelRows)));
      if (!codes) continue;
      part[p] = b.at(decoded, p * kDecoded);
      b.loop(begin, end, kBlock, {}, [&](const typename B::I64& column) {
        const BlockPlace<B> where(b, *codes, from[p], b.div(column, b.constant(kBlock)));
        decode_block(b, *codes, where.group, where.at,
                     b.at(part[p], b.mul(b.sub(column, begin), b.constant(4 * kPanelRows))));
      });
    }
    b.loop(b.constant(0), here, 1, {}, [&](const typename B::I64& tile) {
      const auto tile_x = b.at(b.at(x, b.mul(tile, x_bytes)), b.mul(begin, b.constant(4 * tokens)));
      add_products(b, w, tokens, panels, b.sub(end, begin), tile_x, 4 * tokens, 4, part,
                   b.at(sums, b.mul(tile, b.constant(tile_bytes))),
                   scales == FloatScales::none ? nullptr : &scales_of_part);
    });
  });
  const auto first_token = b.mul(first_tile, b.constant(tokens));
  const auto many = b.min(b.sub(launch.m, first_token), b.mul(here, b.constant(tokens)));
  for (int p = 0; p < panels; ++p)
    b.if_less(b.add(place.first, b.constant(p)), place.last, [&] {
      b.loop(b.constant(0), many, 1, {}, [&](const typename B::I64& t) {
        const auto of_token = b.at(b.at(sums, b.mul(t, b.constant(count * vector_bytes))), p * parts * vector_bytes);
        const auto row = b.mul(panel[p], b.constant(kPanelRows));
        for (int i = 0; i < parts; ++i)
          output.store(b, b.add(first_token, t), b.add(row, b.constant(i * b.lanes())),
                       b.load_floats(b.at(of_token, i * vector_bytes)));
      });
    });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
