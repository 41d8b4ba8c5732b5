// SPDX-License-Identifier: Apache-2.0
// The first phase of kernels for codes: x in records of 32 codes of each of some tokens. One token a block. Part of
// kernels.h.
//
// A tile of `tokens` rows of x has a record for each block of k: 32 codes of each token, their scales, and what the
// sums of their codes come to: where w has minima, minus the sum times the scale; else, for each scale of w, -offset
// times the sum of its columns, which is where sums of products with unsigned codes begin. Rows of x with one scale
// (int8_row) have it in each record; those without (int8) have anything there.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

// Of a row of floats, its largest magnitude.
template <class B>
typename B::Floats largest_of_row(B& b, Type type, const typename B::Ptr& row, const typename B::I64& blocks) {
  std::array<typename B::Floats, 1> d = {b.zero_floats()};
  b.loop(b.constant(0), blocks, 1, d, [&](const typename B::I64& block) {
    const auto from = b.at(row, b.mul(block, b.constant(bytes_of(type) * kBlock)));
    for (int i = 0; i < kBlock; i += b.lanes())
      d[0] = b.larger(d[0], b.magnitude(load_as(b, type, b.at(from, bytes_of(type) * i))));
  });
  return b.largest_of_lanes(d[0]);
}

template <class B, class Tokens>
void quantize(B& b, const typename B::Arguments& a, Input input, Tokens tokens, PanelCodes w) {
  const Launch<B> launch(b, a);
  const int lanes = b.lanes();
  const auto x = b.load_ptr(b.at(a.args, offsetof(GemmArgs, x)));
  const auto ldx = b.load_i64(b.at(a.args, offsetof(GemmArgs, ldx)));
  const auto tile = b.div(a.block, b.constant(tokens));
  const auto token = b.sub(a.block, b.mul(tile, b.constant(tokens)));
  const auto records = launch.tile(b, tile, tokens, w);
  const auto row_elements = b.mul(a.block, ldx);
  const Type type = input.type;
  const bool floats = type != Type::q8_1 && type != Type::int8_row && type != Type::int8;
  const int block_bytes = floats ? bytes_of(type) * kBlock : type == Type::q8_1 ? 36 : kBlock;
  const auto row = type == Type::q8_1 ? b.at(x, b.mul(b.div(row_elements, b.constant(kBlock)), b.constant(36)))
                                      : b.at(x, b.mul(row_elements, b.constant(floats ? bytes_of(type) : 1)));
  auto of_row = b.zero_floats();  // the scale of all blocks
  if (type == Type::int8_row) {
    const auto scales = b.load_ptr(b.at(a.args, offsetof(GemmArgs, x) + offsetof(Operand, scales)));
    of_row = b.splat_floats(b.at(scales, b.mul(a.block, b.constant(4))));
  } else if (input.rows) {
    // int8_row's encoder: 1 where the row is zero.
    of_row = b.div(largest_of_row(b, type, row, launch.blocks), b.splat(127.0f));
    of_row = b.if_smaller(b.zero_floats(), of_row, of_row, b.splat(1.0f));
  }
  b.loop(b.constant(0), launch.blocks, 1, {}, [&](const typename B::I64& block) {
    const auto record = b.at(records, b.mul(block, b.constant(tokens * token_bytes(w))));
    const auto codes_at = b.at(record, b.mul(token, b.constant(kBlock)));
    const auto scale_at = b.at(b.at(record, tokens * kBlock), b.mul(token, b.constant(4)));
    const auto from = b.at(row, b.mul(block, b.constant(block_bytes)));
    std::array<typename B::Ints, 8> codes;
    auto d = of_row;
    if (floats && input.rows) {
      for (int i = 0; i < kBlock / lanes; ++i) {
        const auto q = b.div(load_as(b, type, b.at(from, bytes_of(type) * lanes * i)), d);
        const auto clamped = b.larger(b.smaller(b.unless_nan(q), b.splat(127.0f)), b.splat(-127.0f));
        codes[i] = b.ints(b.nearest(clamped));
      }
    } else if (floats) {
      std::array<typename B::Floats, 8> v;
      for (int i = 0; i < kBlock / lanes; ++i) {
        v[i] = load_as(b, type, b.at(from, bytes_of(type) * lanes * i));
        d = b.larger(d, b.magnitude(v[i]));
      }
      d = b.div(b.largest_of_lanes(d), b.splat(127.0f));
      const auto inverse = b.unless_zero(d, b.div(b.splat(1.0f), d));
      d = b.through_half(d);
      for (int i = 0; i < kBlock / lanes; ++i) {
        // Half away from zero (backends/cuda/numeric.cuh, nudged_away()).
        const auto scaled = b.mul(v[i], inverse);
        codes[i] = b.ints(b.add(scaled, b.with_sign(0.49999997f, scaled)));
      }
    } else {
      if (type == Type::q8_1) d = b.splat_half(from);
      const int first = type == Type::q8_1 ? 4 : 0;
      for (int i = 0; i < kBlock / lanes; ++i) codes[i] = b.load_codes(b.at(from, first + lanes * i));
    }
    for (int i = 0; i < kBlock / lanes; ++i) b.store_codes(b.at(codes_at, lanes * i), codes[i]);
    b.store_first(scale_at, d);
    const int each = kBlock / lanes / w.scales;
    for (int s = 0; s < w.scales; ++s) {
      auto sum = codes[each * s];
      for (int i = 1; i < each; ++i) sum = b.add(sum, codes[each * s + i]);
      sum = b.times(b.sum_of_lanes(sum), w.minima ? -1 : -w.offset);
      const auto to = b.at(scale_at, 4 * tokens * (s + 1));
      if (w.minima)
        b.store_first(to, b.mul(b.floats(sum), d));  // exact, if d is a half: 12 bits by 11
      else
        b.store_first(to, sum);
    }
  });
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
