// SPDX-License-Identifier: Apache-2.0
// What all kernels over a backend share: a launch's numbers, where a block's tokens and panels are, and what becomes of
// sums. Part of kernels.h.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

constexpr int kPanelRows = 16;  // rows of w side by side
constexpr int kBlock = 32;      // columns of k that share a scale

constexpr int token_bytes(PanelCodes w) { return kBlock + 4 + 4 * w.scales; }  // of scratch memory, for a block

constexpr int bytes_of(Type type) { return type == Type::f32 || type == Type::int32 ? 4 : has_scale(type) ? 1 : 2; }
template <class B>
typename B::Floats load_as(B& b, Type type, const typename B::Ptr& p) {
  if (type == Type::f32) return b.load_floats(p);
  if (type == Type::int8) return b.floats(b.load_codes(p));
  if (type == Type::e4m3) return e4m3_of(b, b.load_codes(p));
  return type == Type::f16 ? b.load_halves(p) : b.load_bf16s(p);
}

// One element, in every lane.
template <class B>
typename B::Floats splat_as(B& b, Type type, const typename B::Ptr& p) {
  if (type == Type::f32) return b.splat_floats(p);
  if (type == Type::int8) return b.floats(b.splat_code(p));
  if (type == Type::e4m3) return e4m3_of(b, b.splat_code(p));
  return type == Type::f16 ? b.splat_half(p) : b.splat_bf16(p);
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
    auto v = b.mul(e.integers ? b.floats(b.bits(sum)) : sum, scale);
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
    if (e.y == Type::int32) {  // wraps around
      auto v = b.bits(sum);
      if (e.has_bias) v = b.add(v, b.load_ints(of_row));
      return b.store_floats(to, b.of_bits(v));
    }
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
    last = b.min(b.add(first, b.constant(panels)), all);
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

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
