// SPDX-License-Identifier: Apache-2.0
// Activations and stores over a backend B (ir.h, native.h): what follows a gemm's sums. Part of kernels.h, in the
// namespace TILEWRIGHT_CPU_KERNELS. Operations are the same on every backend, and so are the bits.
namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS {
namespace {

// e^x = 2^n e^r with n = nearest(x log2 e) and |r| <= ln 2 / 2. The Taylor polynomial of degree 7 leaves less than
// 2^-27 of e^r. 2^n is multiplied in two halves, so that results may overflow to infinity and end at 0; NaN stays one.
template <class B>
typename B::Floats exp_of(B& b, const typename B::Floats& v) {
  const auto x = b.larger(b.smaller(v, b.splat(89.0f)), b.splat(-104.0f));
  const auto n = b.nearest(b.mul(x, b.splat(1.44269504f)));
  auto r = b.fma(n, b.splat(-0.693359375f), x);  // ln 2 in two parts: the first has ten bits, n eight
  r = b.fma(n, b.splat(2.12194440e-4f), r);
  auto p = b.splat(1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = b.fma(p, r, b.splat(c));
  const auto half = b.nearest(b.mul(n, b.splat(0.5f)));
  const auto rest = b.fma(half, b.splat(-1.0f), n);
  return b.mul(b.mul(p, b.power_of_two(b.ints(half))), b.power_of_two(b.ints(rest)));
}

// erfc(z) / 2 for z >= 0, by Abramowitz and Stegun 7.1.26: the error of erf is 1.5e-7 at most.
template <class B>
typename B::Floats half_erfc(B& b, const typename B::Floats& z) {
  const auto t = b.div(b.splat(1.0f), b.fma(z, b.splat(0.3275911f), b.splat(1.0f)));
  auto p = b.splat(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = b.fma(p, t, b.splat(c));
  return b.mul(b.mul(b.mul(p, t), b.splat(0.5f)), exp_of(b, b.mul(b.mul(z, z), b.splat(-1.0f))));
}

// As templates/gemm/activation.cuh; gelu_tanh by (1 + tanh u) / 2 = 1 / (1 + e^(-2 u)).
template <class B>
typename B::Floats activate(B& b, Activation act, const typename B::Floats& v) {
  const auto logistic = [&](const typename B::Floats& minus_u) {
    return b.div(v, b.add(b.splat(1.0f), exp_of(b, minus_u)));
  };
  switch (act) {
    case Activation::none: return v;
    case Activation::relu: return b.larger(v, b.zero_floats());
    case Activation::silu: return logistic(b.mul(v, b.splat(-1.0f)));
    case Activation::gelu_tanh: {
      const auto u = b.mul(v, b.fma(b.mul(v, v), b.splat(0.044715f), b.splat(1.0f)));
      return logistic(b.mul(u, b.splat(-1.5957691216f)));  // 2 sqrt(2 / pi)
    }
    case Activation::gelu: {
      // Beyond 20 nothing is left of erfc; -inf times it is to be NaN.
      const auto z = b.smaller(b.mul(b.magnitude(v), b.splat(0.70710678f)), b.splat(20.0f));
      const auto tail = half_erfc(b, z);
      const auto above = b.fma(tail, b.splat(-1.0f), b.splat(1.0f));
      return b.mul(v, b.if_smaller(v, b.zero_floats(), tail, above));
    }
  }
  return v;
}

template <class B>
void store_as(B& b, Type type, const typename B::Ptr& to, const typename B::Floats& v) {
  if (type == Type::f32) return b.store_floats(to, v);
  if (type == Type::f16) return b.store_halves(to, v);
  if (type == Type::bf16) return b.store_bf16s(to, v);
  const auto held = b.larger(b.smaller(b.unless_nan(v), b.splat(127.0f)), b.splat(-128.0f));
  b.store_codes(to, b.ints(b.nearest(held)));
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
