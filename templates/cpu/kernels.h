// SPDX-License-Identifier: Apache-2.0
// The CPU's gemm kernels, each written once over a backend B (ir.h, native_*), for weights in panels (panels.h) and x
// in blocks of 32 codes:
//
//   y[t, r] = alpha sum over blocks of ((sum of code_w code_x) d_w - minimum_w (sum of code_x)) d_x + bias[r]
//
// The products of columns that share a scale are summed exactly in integers, as ggml does, and so are codes of x;
// scales are exact, too. What is rounded is one addition for each of these sums, in the order of k, whatever a kernel's
// knobs, threads and vectors are. So all of them give the same bits.
//
// The first phase quantizes x (or takes its blocks apart) into scratch memory, in tiles of `tokens` rows. A tile has a
// record for each block of k: 32 codes of each token, their scales, and what the sums of their codes come to: where w
// has minima, minus the sum times the scale; else, for each scale of w, -offset times the sum of its columns, which is
// where sums of products with unsigned codes begin.
//
// Rows of x with one scale (int8_row) have it in each record. Where scales are floats, a product of two is rounded,
// too.
//
// This text is compiled for several targets: no function of it may be one that the rest of the library shares.
// Whoever includes it names a namespace of its own: TILEWRIGHT_CPU_KERNELS.
#include <tilewright/gemm.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "templates/cpu/options.h"
#include "templates/cpu/panels.h"
#include "templates/gemm/params.cuh"

// Native's kernels are fast where everything that depends on the format is known to the compiler, so all is one
// function there; Ir's are text, for which that would be code without a use.
#if !defined(TW_INLINE)
#define TW_INLINE
#endif

#include "templates/cpu/epilogue.h"

namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kPanelRows = 16;   // rows of w side by side
constexpr int kBlock = 32;       // columns of k that share a scale
constexpr int kMostTokens = 8;   // of few(): their sums are in registers
constexpr int kTileTokens = 16;  // of by_tiles(): of a tile, and of a record of x

constexpr int token_bytes(PanelCodes w) { return kBlock + 4 + 4 * w.scales; }  // of scratch memory, for a block

constexpr int bytes_of(Type type) { return type == Type::f32 ? 4 : has_scale(type) ? 1 : 2; }
template <class B>
typename B::Floats load_as(B& b, Type type, const typename B::Ptr& p) {
  if (type == Type::f32) return b.load_floats(p);
  if (type == Type::int8) return b.floats(b.load_codes(p));
  return type == Type::f16 ? b.load_halves(p) : b.load_bf16s(p);
}

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
  Ptr tile(B& b, const I64& index, int tokens, PanelCodes w) const {
    return b.at(scratch, b.mul(index, b.mul(blocks, b.constant(tokens * token_bytes(w)))));
  }
  I64 panel_bytes(B& b, PanelCodes w) const {
    auto bytes = b.add(b.mul(blocks, b.constant(w.bytes())), b.constant(w.head_bytes()));
    if (w.group_bytes())
      bytes = b.add(bytes, b.mul(b.div(blocks, b.constant(w.blocks())), b.constant(w.group_bytes())));
    return bytes;
  }
};

// ---- the first phase: one token a block

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
  const bool floats = type != Type::q8_1 && type != Type::int8_row;
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
        // Half away from zero (core/numeric.cuh, nudged_away()).
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

// ---- the second: products

// Whether sums of products begin with what unsigned codes add too much.
template <class B>
bool begins(B& b, PanelCodes w) {
  return !w.minima && !b.signed_codes();
}

// A block of w, of lanes() rows. Codes are unsigned bytes, but for signed_codes(), four columns a row; without dot4()
// those of 8 bits are nibbles, since sums of larger products do not fit in 16 bits.
template <class B>
struct Block {
  std::array<typename B::Bytes, 8> low, high;
  std::array<typename B::Floats, 2> scales;
  typename B::Floats minimum;

  // `part`: of the panel's rows.
  TW_INLINE Block(B& b, PanelCodes w, const typename B::Ptr& group, const typename B::Ptr& block, int part) {
    const int bytes = 4 * b.lanes(), step = 4 * kPanelRows;  // of four columns
    const auto vector = [&](int i) { return b.load_bytes(b.at(block, step * i + bytes * part)); };
    if (w.bits == 8) {
      for (int i = 0; i < 8; ++i) {
        const auto v = vector(i);
        if (b.dot4())
          low[i] = v;
        else
          low[i] = b.field(v, 0, 4, 0), high[i] = b.field(v, 4, 4, 0);
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        const auto v = vector(i);
        low[i] = b.field(v, 0, 4, 0), low[i + 4] = b.field(v, 4, 4, 0);
      }
      if (w.e2m1)
        for (int i = 0; i < 8; ++i) low[i] = b.e2m1(low[i]);
      for (int v = 0; v < w.bits - 4; ++v) {
        const auto upper = vector(4 + v);
        const int count = 8 / (w.bits - 4);  // of groups of four columns
        for (int i = 0; i < count; ++i) {
          auto& code = low[count * v + i];
          code = b.either(code, b.field(upper, (w.bits - 4) * i, w.bits - 4, 4));
        }
      }
    }
    if (b.signed_codes())
      for (auto& code : low) code = b.less_offset(code, w.offset);
    const int first = b.lanes() * part;  // row
    if (w.scale == PanelScale::row) scales[0] = b.load_floats(b.at(group, 4 * first));
    if (w.scale == PanelScale::front) {
      scales[0] = b.load_halves(b.at(group, 2 * first));
      if (w.minima) minimum = b.mul(b.load_halves(b.at(group, 2 * (kPanelRows + first))), scales[0]);
      return;
    }
    for (int s = 0; s < w.scales && w.scale != PanelScale::row; ++s) {
      const int at = w.code_bytes() + kPanelRows * (w.scale == PanelScale::grouped ? 1 : 2) * s;
      scales[s] = w.scale == PanelScale::grouped
                      ? b.mul(b.load_halves(b.at(group, 2 * first)), b.floats(b.load_codes(b.at(block, at + first))))
                  : w.scale == PanelScale::half ? b.load_halves(b.at(block, at + 2 * first))
                                                : b.load_bf16s(b.at(block, at + 2 * first));
    }
    if (w.minima)
      minimum = b.mul(b.load_halves(b.at(group, 2 * (kPanelRows + first))),
                      b.floats(b.load_codes(b.at(block, w.code_bytes() + kPanelRows * w.scales + first))));
  }

  // Four columns' codes, whole ones.
  typename B::Bytes whole(B& b, PanelCodes w, int i) const {
    return w.bits == 8 && !b.dot4() ? b.either(low[i], b.field(high[i], 0, 4, 4)) : low[i];
  }
  // Products of the columns of scale s.
  TW_INLINE typename B::Ints products(B& b, PanelCodes w, int s, int largest,
                                      const std::array<typename B::Bytes, 8>& codes,
                                      const std::array<typename B::Bytes, 8>& x) const {
    const int each = 8 / w.scales, fit = 32767 / (2 * 128 * largest), together = fit >= 8 ? 8 : fit >= 4 ? 4 : fit;
    const int step = together < each ? together : each;
    typename B::Ints sum;
    for (int first = each * s; first < each * (s + 1); first += step) {
      auto words = b.pairs(codes[first], x[first]);
      for (int i = 1; i < step; ++i) words = b.add(words, b.pairs(codes[first + i], x[first + i]));
      sum = first == each * s ? b.pair_sums(words) : b.add(sum, b.pair_sums(words));
    }
    return sum;
  }
  // acc + the products with one token, whose codes and scale are at `token` and `scale`.
  TW_INLINE typename B::Floats add(B& b, PanelCodes w, const typename B::Ptr& token, const typename B::Ptr& scale,
                                   int tokens, typename B::Floats acc) const {
    std::array<typename B::Bytes, 8> x;
    for (int i = 0; i < 8; ++i) x[i] = b.splat_bytes(b.at(token, 4 * i));
    const auto d = b.splat_floats(scale);
    for (int s = 0; s < w.scales; ++s) {
      const auto begin = b.at(scale, 4 * tokens * (s + 1));
      auto sum = begins(b, w) ? b.splat_ints(begin) : b.zero_ints();
      if (b.dot4()) {
        for (int i = 8 / w.scales * s; i < 8 / w.scales * (s + 1); ++i) sum = b.dot4(sum, low[i], x[i]);
      } else if (w.bits == 8) {
        sum = b.add(sum, products(b, w, s, 15, low, x));
        sum = b.add(sum, b.shifted(products(b, w, s, 15, high, x), 4));
      } else {
        sum = b.add(sum, products(b, w, s, w.largest(), low, x));
      }
      acc = b.fma(b.floats(sum), b.mul(scales[s], d), acc);
    }
    return w.minima ? b.fma(minimum, b.splat_floats(b.at(scale, 4 * tokens)), acc) : acc;
  }
};

// Where block `block` of a panel is, and what stands in front of its group, or of the panel.
template <class B>
struct BlockPlace {
  typename B::Ptr at, group;
  TW_INLINE BlockPlace(B& b, PanelCodes w, const typename B::Ptr& panel, const typename B::I64& block)
      : at(b.at(b.at(panel, w.head_bytes()), b.mul(block, b.constant(w.bytes())))), group(panel) {
    if (w.group_bytes() == 0) return;
    const auto number = b.div(block, b.constant(w.blocks()));
    group = b.at(panel, b.mul(number, b.constant(w.blocks() * w.bytes() + w.group_bytes())));
    at = b.at(b.at(at, b.mul(number, b.constant(w.group_bytes()))), w.group_bytes());
  }
};

// Where factors are: in the constants, and in the arguments.
struct Factors {
  int alpha, beta, y_factor, launch_alpha, launch_beta, global;
};
constexpr Factors kGemmFactors = {offsetof(tw::gemm::Shape, alpha),
                                  offsetof(tw::gemm::Shape, beta),
                                  offsetof(tw::gemm::Shape, y_factor),
                                  offsetof(GemmArgs, alpha),
                                  offsetof(GemmArgs, beta),
                                  offsetof(GemmArgs, w) + offsetof(Operand, global)};

// From sums to what is stored.
template <class B>
struct Finish {
  typename B::Floats scale, beta, factor;
  Epilogue e;
  Finish(B& b, const typename B::Ptr& args, const typename B::Ptr& constants, const Factors& at,
         const Epilogue& epilogue)
      : e(epilogue) {
    // The problem's factor times the launch's.
    const auto product = [&](int of_problem, int of_launch) {
      return b.splat(b.mul(b.load_f32(b.at(constants, of_problem)), b.load_f32(b.at(args, of_launch))));
    };
    scale = product(at.alpha, at.launch_alpha);
    if (e.has_c) beta = product(at.beta, at.launch_beta);
    if (has_scale(e.y)) factor = b.splat_floats(b.at(constants, at.y_factor));
    if (e.global == Global::none) return;
    const auto global = b.splat_floats(b.load_ptr(b.at(args, at.global)));
    scale = e.global == Global::div ? b.div(scale, global) : b.mul(scale, global);
  }
  // bias, c: where they are for these sums.
  TW_INLINE typename B::Floats of(B& b, const typename B::Floats& sum, const typename B::Ptr& bias,
                                  const typename B::Ptr& c) const {
    auto v = b.mul(sum, scale);
    if (e.has_bias) v = b.add(v, load_as(b, e.bias, bias));
    v = activate(b, e.act, v);
    if (e.has_c) v = b.fma(beta, load_as(b, e.c, c), v);
    return has_scale(e.y) ? b.mul(v, factor) : v;
  }
};

template <class B>
struct Output {
  typename B::Ptr y, bias, c;
  typename B::I64 ldy, ldc;
  Finish<B> finish;
  Output(B& b, const Launch<B>& l, const Epilogue& e)
      : y(b.load_ptr(b.at(l.args, offsetof(GemmArgs, y)))),
        bias(e.has_bias ? b.load_ptr(b.at(l.args, offsetof(GemmArgs, bias))) : y),
        c(e.has_c ? b.load_ptr(b.at(l.args, offsetof(GemmArgs, c))) : y),
        ldy(b.load_i64(b.at(l.args, offsetof(GemmArgs, ldy)))),
        ldc(e.has_c ? b.load_i64(b.at(l.args, offsetof(GemmArgs, ldc))) : ldy),
        finish(b, l.args, l.constants, kGemmFactors, e) {}
  // Not in line: it is long, and stands at several places of a kernel.
  __attribute__((noinline)) void store(B& b, const typename B::I64& token, const typename B::I64& row,
                                       const typename B::Floats& sum) const {
    const Epilogue& e = finish.e;
    const auto of_row = e.has_bias ? b.at(bias, b.mul(row, b.constant(bytes_of(e.bias)))) : bias;
    const auto of_c = e.has_c ? b.at(c, b.mul(b.add(b.mul(token, ldc), row), b.constant(bytes_of(e.c)))) : c;
    const auto to = b.at(y, b.mul(b.add(b.mul(token, ldy), row), b.constant(bytes_of(e.y))));
    store_as(b, e.y, to, finish.of(b, sum, of_row, of_c));
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
template <class B, class Codes, class Tokens, class Ahead>
void few(B& b, const typename B::Arguments& a, Codes codes, const Epilogue& e, Tokens tokens, int panels, Ahead ahead) {
  const PanelCodes w = codes;
  const Launch<B> launch(b, a);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, place.tile, tokens, w);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = launch.panel_bytes(b, w);
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) TW_INLINE {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    const int parts = kPanelRows / b.lanes();
    std::array<typename B::Floats, 2 * kMostTokens> sums;
    for (int i = 0; i < parts * tokens; ++i) sums[i] = b.zero_floats();
    b.loop(b.constant(0), launch.blocks, 1, std::span(sums.data(), static_cast<std::size_t>(parts * tokens)),
           [&](const typename B::I64& block) {
             const BlockPlace<B> where(b, w, from, block);
             if (ahead > 0)
               for (int line = 0; line < w.bytes(); line += 64) b.prefetch(b.at(where.at, ahead + line));
             const auto record = b.at(x, b.mul(block, b.constant(tokens * token_bytes(w))));
             for (int part = 0; part < parts; ++part) {
               const Block<B> rows(b, w, where.group, where.at, part);
               for (int t = 0; t < tokens; ++t)
                 sums[part * tokens + t] =
                     rows.add(b, w, b.at(record, kBlock * t), b.at(record, tokens * kBlock + 4 * t), tokens,
                              sums[part * tokens + t]);
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

// A block of w, of some vectors of rows, unpacked in memory: of each its codes, then its scales and its minimum.
template <class B>
struct Unpacked {
  typename B::Ptr at;
  PanelCodes w;
  int vectors, bytes;  // bytes: of a vector of 32 * lanes() bits

  TW_INLINE Unpacked(B& b, PanelCodes codes, const typename B::Ptr& memory, int count)
      : at(memory), w(codes), vectors(count), bytes(4 * b.lanes()) {}
  // Whether codes are in two parts of four bits (Block).
  static constexpr bool halved(B& b, PanelCodes w) { return w.bits == 8 && !b.dot4(); }
  static constexpr int count(B& b, PanelCodes w) { return (halved(b, w) ? 16 : 8) + w.scales + (w.minima ? 1 : 0); }

  TW_INLINE typename B::Ptr place(B& b, int vector, int i) const {
    return b.at(at, (vector * count(b, w) + i) * bytes);
  }
  TW_INLINE typename B::Bytes codes(B& b, int vector, int i) const { return b.load_bytes(place(b, vector, i)); }
  TW_INLINE typename B::Floats scales(B& b, int vector, int i) const {  // i = w.scales: the minima
    return b.load_floats(place(b, vector, (halved(b, w) ? 16 : 8) + i));
  }
  TW_INLINE void store(B& b, int vector, const Block<B>& rows) const {
    for (int i = 0; i < 8; ++i) b.store_bytes(place(b, vector, i), rows.low[i]);
    const int first = halved(b, w) ? 16 : 8;
    if (first == 16)
      for (int i = 0; i < 8; ++i) b.store_bytes(place(b, vector, 8 + i), rows.high[i]);
    for (int s = 0; s < w.scales; ++s) b.store_floats(place(b, vector, first + s), rows.scales[s]);
    if (w.minima) b.store_floats(place(b, vector, first + w.scales), rows.minimum);
  }
};

// body(i) for i from 0 to count - 1. Where count is a type's, each i is, too, so that a compiler sees that arrays which
// are indexed by it may be registers.
template <class Count, class Body>
TW_INLINE inline void repeat(Count count, const Body& body) {
  if constexpr (std::is_same_v<Count, int>) {
    for (int i = 0; i < count; ++i) body(i);
  } else {
    [&]<int... i>(std::integer_sequence<int, i...>) TW_INLINE { (body(std::integral_constant<int, i>()), ...); }
    (std::make_integer_sequence<int, Count::value>());
  }
}

constexpr int kMostProducts = 16;  // of integers that are in registers at a time

// The sums of a few tokens' products with a block's vectors of rows; those of token t and vector v at number
// v * together + t.
template <class B, class Vectors, class Together>
struct Products {
  std::array<typename B::Ints, kMostProducts> sums;

  // Of the columns of scale s. x, begin_at: of the first token.
  TW_INLINE Products(B& b, const Unpacked<B>& rows, int s, const typename B::Ptr& x, const typename B::Ptr& begin_at,
                     Vectors vectors, Together together) {
    const PanelCodes w = rows.w;
    const int each = 8 / w.scales, first = each * s;
    repeat(together, [&](auto t) TW_INLINE {
      const auto begin = begins(b, w) ? b.splat_ints(b.at(begin_at, 4 * t)) : b.zero_ints();
      repeat(vectors, [&](auto v) TW_INLINE { sums[v * together + t] = begin; });
    });
    if (b.dot4()) {
      for (int i = first; i < first + each; ++i)
        repeat(together, [&](auto t) TW_INLINE {
          const auto quad = b.splat_bytes(b.at(x, kBlock * t + 4 * i));
          repeat(vectors, [&](auto v) TW_INLINE {
            auto& sum = sums[v * together + t];
            sum = b.dot4(sum, rows.codes(b, v, i), quad);
          });
        });
    } else if (Unpacked<B>::halved(b, w)) {
      by_pairs(b, rows, first, each, 15, 0, 0, x, vectors, together);
      by_pairs(b, rows, first, each, 15, 8, 4, x, vectors, together);
    } else {
      by_pairs(b, rows, first, each, w.largest(), 0, 0, x, vectors, together);
    }
  }

 private:
  // Adds products of `each` groups of columns in words of 16 bits, as many as fit, shifted by `shift` bits.
  TW_INLINE void by_pairs(B& b, const Unpacked<B>& rows, int first, int each, int largest, int codes, int shift,
                          const typename B::Ptr& x, Vectors vectors, Together together) {
    const int fit = 32767 / (2 * 128 * largest),
              whole = fit >= 8   ? 8
                      : fit >= 4 ? 4
                                 : fit,
              n = whole < each ? whole : each;
    std::array<typename B::Words, kMostProducts> words;
    const auto quad = [&](int i, auto t) TW_INLINE { return b.splat_bytes(b.at(x, kBlock * t + 4 * i)); };
    for (int begin = first; begin < first + each; begin += n) {
      repeat(together, [&](auto t) TW_INLINE {
        const auto four = quad(begin, t);
        repeat(vectors,
               [&](auto v) TW_INLINE { words[v * together + t] = b.pairs(rows.codes(b, v, codes + begin), four); });
      });
      for (int i = begin + 1; i < begin + n; ++i)
        repeat(together, [&](auto t) TW_INLINE {
          const auto four = quad(i, t);
          repeat(vectors, [&](auto v) TW_INLINE {
            auto& word = words[v * together + t];
            word = b.add(word, b.pairs(rows.codes(b, v, codes + i), four));
          });
        });
      repeat(vectors, [&](auto v) TW_INLINE {
        repeat(together, [&](auto t) TW_INLINE {
          const auto sum = b.pair_sums(words[v * together + t]);
          auto& all = sums[v * together + t];
          all = b.add(all, shift ? b.shifted(sum, shift) : sum);
        });
      });
    }
  }
};

// Vectors of rows of some panels, a type's number where that of panels is.
template <class B, class Wide>
auto vectors_of(B& b, Wide wide) {
  if constexpr (std::is_same_v<Wide, int>)
    return kPanelRows / b.lanes() * wide;
  else
    return std::integral_constant<int, kPanelRows / B::lanes() * Wide::value>();
}

// n as a type's number where `like` is one.
template <int n, class Like>
auto number_like(Like) {
  if constexpr (std::is_same_v<Like, int>)
    return n;
  else
    return std::integral_constant<int, n>();
}

// Many tokens: sums of a tile are in memory, near enough to be fast, and a block of w is unpacked once for all of them.
// wide: panels side by side; together: tokens whose products with them are computed together. vectors of rows *
// together <= kMostProducts; n / 16 and `panels` are multiples of wide, tokens of together.
template <class B, class Codes, class Tokens, class Wide, class Together>
void many(B& b, const typename B::Arguments& a, Codes codes, const Epilogue& e, Tokens tokens, int panels, Wide wide,
          Together together) {
  const PanelCodes w = codes;
  const Launch<B> launch(b, a);
  const int parts = kPanelRows / b.lanes(), bytes = 4 * b.lanes();
  const auto vectors = vectors_of(b, wide);
  const auto sums = b.stack(bytes * vectors * (tokens + Unpacked<B>::count(b, w)));
  const Unpacked<B> rows(b, w, b.at(sums, bytes * vectors * tokens), vectors);
  const Output<B> output(b, launch, e);
  const Place<B> place(b, launch, a.block, panels);
  const auto x = launch.tile(b, place.tile, tokens, w);
  const auto w_at = b.load_ptr(b.at(a.args, offsetof(GemmArgs, w)));
  const auto panel_bytes = launch.panel_bytes(b, w);
  const auto first_token = b.mul(place.tile, b.constant(tokens));
  const auto count = b.less(b.sub(launch.m, first_token), b.constant(tokens));
  // Sums of vector v and token t are at number t * vectors + v.
  const auto sum_at = [&](const typename B::Ptr& token, int t, int v) {
    return b.at(token, bytes * (t * vectors + v));
  };
  b.loop(place.first, place.last, wide, {}, [&](const typename B::I64& panel) {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    b.loop(b.constant(0), b.constant(std::int64_t{bytes} * vectors * tokens), bytes, {},
           [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
    b.loop(b.constant(0), launch.blocks, 1, {}, [&](const typename B::I64& block) {
      auto next = from;
      for (int p = 0; p < wide; ++p) {
        const BlockPlace<B> where(b, w, next, block);
        for (int part = 0; part < parts; ++part)
          rows.store(b, p * parts + part, Block<B>(b, w, where.group, where.at, part));
        if (p + 1 < wide) next = b.at(next, panel_bytes);
      }
      const auto record = b.at(x, b.mul(block, b.constant(tokens * token_bytes(w))));
      // Tokens beyond the last of a tile are computed where `together` has them, and not stored.
      b.loop(b.constant(0), count, together, {}, [&](const typename B::I64& t) {
        const auto token_codes = b.at(record, b.mul(t, b.constant(kBlock)));
        const auto token_scale = b.at(b.at(record, tokens * kBlock), b.mul(t, b.constant(4)));
        const auto token_sums = b.at(sums, b.mul(t, b.constant(bytes * vectors)));
        for (int s = 0; s < w.scales; ++s) {
          const Products<B, std::remove_const_t<decltype(vectors)>, Together> products(
              b, rows, s, token_codes, b.at(token_scale, 4 * tokens * (s + 1)), vectors, together);
          repeat(together, [&](auto i) TW_INLINE {
            const auto d = b.splat_floats(b.at(token_scale, 4 * i));
            repeat(vectors, [&](auto v) TW_INLINE {
              const auto at = sum_at(token_sums, i, v);
              auto acc =
                  b.fma(b.floats(products.sums[v * together + i]), b.mul(rows.scales(b, v, s), d), b.load_floats(at));
              if (w.minima && s + 1 == w.scales)
                acc = b.fma(rows.scales(b, v, w.scales), b.splat_floats(b.at(token_scale, 4 * (tokens + i))), acc);
              b.store_floats(at, acc);
            });
          });
        }
      });
    });
    const auto row = b.mul(panel, b.constant(kPanelRows));
    b.loop(b.constant(0), count, 1, {}, [&](const typename B::I64& t) {
      const auto token_sums = b.at(sums, b.mul(t, b.constant(bytes * vectors)));
      for (int v = 0; v < vectors; ++v)
        output.store(b, b.add(first_token, t), b.add(row, b.constant(v * b.lanes())),
                     b.load_floats(sum_at(token_sums, 0, v)));
    });
  });
}

// ---- many tokens by AMX: tiles of 16 tokens by 16 rows

// Blocks of a panel, unpacked in memory: of each its signed codes, four columns of 16 rows in 64 bytes, then its scales
// and its minima.
struct TileBlocks {
  PanelCodes w;
  constexpr int columns() const { return kBlock / w.scales; }  // that share a scale
  constexpr int codes() const { return kPanelRows * kBlock; }
  constexpr int factors() const { return w.scales + (w.minima ? 1 : 0); }
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
    for (int s = 0; s < w.scales; ++s) b.store_floats(b.at(to, scales + 4 * kPanelRows * s), rows.scales[s]);
    if (w.minima) b.store_floats(b.at(to, scales + 4 * kPanelRows * w.scales), rows.minimum);
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
    std::array<typename B::Floats, 3> factors;
    for (int f = 0; f < blocks.factors(); ++f)
      factors[f] = b.load_floats(b.at(block, blocks.codes() + 4 * kPanelRows * f + bytes * part));
    repeat(number_like<kTileTokens>(together), [&](auto r) TW_INLINE {
      auto& sum = acc[number_of(r, part, parts)];
      const auto d = b.splat_floats(b.at(scale, 4 * r));
      for (int s = 0; s < w.scales; ++s) {
        const auto products = b.load_ints(b.at(integers, kBytes * s + 4 * kPanelRows * r + bytes * part));
        sum = b.fma(b.floats(products), b.mul(factors[s], d), sum);
      }
      if (w.minima) sum = b.fma(factors[w.scales], b.splat_floats(b.at(scale, 4 * (kTileTokens + r))), sum);
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
  const auto count = b.less(b.sub(launch.m, first_token), b.constant(tokens));
  b.begin_tiles(config, TileBlocks{w}.columns());
  b.loop(place.first, place.last, 1, {}, [&](const typename B::I64& panel) TW_INLINE {
    const auto from = b.at(w_at, b.mul(panel, panel_bytes));
    b.loop(b.constant(0), b.constant(std::int64_t{tokens} * token_sums), bytes, {},
           [&](const typename B::I64& at) { b.store_floats(b.at(sums, at), b.zero_floats()); });
    b.loop(b.constant(0), launch.blocks, chunk, {}, [&](const typename B::I64& first) TW_INLINE {
      const auto some = b.less(b.sub(launch.blocks, first), b.constant(chunk));
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

#undef TILEWRIGHT_CPU_KERNELS
