// SPDX-License-Identifier: Apache-2.0
// Activations and stores over a backend B (ir.h, native_*): what follows a gemm's sums. Part of kernels.h, in the
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
  const auto power = [&](const typename B::Floats& e) {
    return b.of_bits(b.shifted(b.add(b.ints(e), b.every(127)), 23));
  };
  return b.mul(b.mul(p, power(half)), power(rest));
}

// erfc(z) / 2 for z >= 0, by Abramowitz and Stegun 7.1.26: the error of erf is 1.5e-7 at most.
template <class B>
typename B::Floats half_erfc(B& b, const typename B::Floats& z) {
  const auto t = b.div(b.splat(1.0f), b.fma(z, b.splat(0.3275911f), b.splat(1.0f)));
  auto p = b.splat(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = b.fma(p, t, b.splat(c));
  return b.mul(b.mul(b.mul(p, t), b.splat(0.5f)), exp_of(b, b.mul(b.mul(z, z), b.splat(-1.0f))));
}

// As templates/operations/gemm/activation.cuh; gelu_tanh by (1 + tanh u) / 2 = 1 / (1 + e^(-2 u)).
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

// What f32_to_e4m3() and f32_to_e5m2() of backends/cuda/numeric.cuh give: to nearest even, saturating; NaN is 0x7f.
struct Fp8 {
  float largest, least;  // of the normal numbers
  int shift;             // bits of a float's mantissa that it has not
  int rebias;            // exponents of single precision, less its own
  float aligned;         // adding it leaves numbers below `least` in units of the last place
};
constexpr Fp8 kE4m3 = {448.0f, 0.015625f, 20, 120, 16384.0f};
constexpr Fp8 kE5m2 = {57344.0f, 6.103515625e-5f, 21, 112, 128.0f};

template <class B>
typename B::Ints fp8_of(B& b, const Fp8& f, const typename B::Floats& v) {
  const auto size = b.smaller(b.magnitude(v), b.splat(f.largest));
  const auto whole = b.bits(size), odd = b.both(b.right(whole, f.shift), b.every(1));
  const auto up = b.every((1 << (f.shift - 1)) - 1 - (f.rebias << 23));
  const auto normal = b.right(b.add(b.add(whole, up), odd), f.shift);
  const auto small = b.add(b.bits(b.add(size, b.splat(f.aligned))), b.times(b.bits(b.splat(f.aligned)), -1));
  const auto code = b.bits(b.if_smaller(size, b.splat(f.least), b.of_bits(small), b.of_bits(normal)));
  const auto with_sign = b.add(code, b.both(b.right(b.bits(v), 24), b.every(0x80)));
  return b.bits(b.if_smaller(size, b.splat(2 * f.largest), b.of_bits(with_sign), b.of_bits(b.every(0x7f))));
}

// Numbers of E4M3 codes, which are the lower eight bits.
template <class B>
typename B::Floats e4m3_of(B& b, const typename B::Ints& codes) {
  const auto size = b.both(codes, b.every(0x7f));
  const auto steps = b.floats(size);
  const auto normal = b.of_bits(b.add(b.shifted(size, kE4m3.shift), b.every(kE4m3.rebias << 23)));
  const auto v = b.if_smaller(steps, b.splat(8.0f), b.mul(steps, b.splat(kE4m3.least / 8)), normal);
  const auto or_nan = b.if_smaller(b.splat(126.5f), steps, b.of_bits(b.every(0x7fc00000)), v);
  return b.of_bits(b.add(b.bits(or_nan), b.shifted(b.both(codes, b.every(0x80)), 24)));
}

template <class B>
void store_as(B& b, Type type, const typename B::Ptr& to, const typename B::Floats& v) {
  switch (type) {
    case Type::f32: return b.store_floats(to, v);
    case Type::f16: return b.store_halves(to, v);
    case Type::bf16: return b.store_bf16s(to, v);
    case Type::e4m3: return b.store_codes(to, fp8_of(b, kE4m3, v));
    case Type::e5m2: return b.store_codes(to, fp8_of(b, kE5m2, v));
    default: break;
  }
  const auto held = b.larger(b.smaller(b.unless_nan(v), b.splat(127.0f)), b.splat(-128.0f));
  b.store_codes(to, b.ints(b.nearest(held)));
}

}  // namespace
}  // namespace tilewright::cpu::TILEWRIGHT_CPU_KERNELS
