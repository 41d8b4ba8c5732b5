// SPDX-License-Identifier: Apache-2.0
// The conversions of backends/cuda/numeric.cuh against models that share nothing with them: a search for the nearest
// representable value in double precision, ties to the code whose last bit is zero.
#include "backends/cuda/numeric.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/catch.h"

namespace {
using namespace tw;

// A float format with `mantissa` bits: value of a magnitude code by definition.
double value_of(u32 code, int mantissa, int bias) {
  const u32 e = code >> mantissa, m = code & ((1u << mantissa) - 1);
  return e ? std::ldexp(1.0 + std::ldexp(m, -mantissa), static_cast<int>(e) - bias)
           : std::ldexp(m, 1 - bias - mantissa);
}

// Magnitude codes 0 .. last, ascending; `beyond` is what lies above the largest finite value (its code is last + 1).
class Nearest {
 public:
  Nearest(u32 last, int mantissa, int bias, bool saturate) : last_(last), saturate_(saturate) {
    for (u32 c = 0; c <= last + 1; ++c) values_.push_back(value_of(c, mantissa, bias));
  }
  u32 operator()(double magnitude) const {
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return saturate_ ? last_ : last_ + 1;
    auto hi = static_cast<u32>(above - values_.begin());
    if (*above != magnitude) {
      const double down = magnitude - values_[hi - 1], up = *above - magnitude;
      if (down < up || (down == up && hi % 2 == 1)) --hi;
    }
    return saturate_ ? std::min(hi, last_) : hi;
  }
  const std::vector<double>& values() const { return values_; }

 private:
  u32 last_;
  bool saturate_;
  std::vector<double> values_;
};

// Every representable value, every tie, their neighbours in float, specials, and random bits; of both signs.
std::vector<float> inputs(const Nearest& format, unsigned seed) {
  std::vector<float> x{0.0f, 1e-45f, 1e-40f, 1.17549435e-38f, 3.4e38f, std::numeric_limits<float>::infinity()};
  const auto around = [&](double v) {
    const auto f = static_cast<float>(v);
    if (!std::isfinite(f)) return;
    x.insert(x.end(), {f, std::nextafter(f, 0.0f), std::nextafter(f, std::numeric_limits<float>::infinity())});
  };
  for (std::size_t i = 0; i + 1 < format.values().size(); ++i) {
    around(format.values()[i]);
    around((format.values()[i] + format.values()[i + 1]) / 2);
  }
  around(format.values().back());
  std::mt19937 random(seed);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto f = bits_as<float>(static_cast<u32>(random()) & 0x7fffffffu);
    if (!is_nan(f)) x.push_back(f);
  }
  return x;
}

// How many inputs, of either sign, are encoded otherwise than by the model.
template <class Encode>
long mismatches(const Nearest& model, u32 sign_bit, unsigned seed, Encode encode) {
  long wrong = 0;
  for (const float f : inputs(model, seed)) {
    const u32 expected = model(f);
    wrong += encode(f) != expected;
    wrong += encode(-f) != (expected | sign_bit);
  }
  return wrong;
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

TEST_CASE("all f16 and bf16 values round trip", "[numeric]") {
  for (u32 h = 0; h < 65536; ++h) {
    const auto bits = static_cast<u16>(h);
    const float a = f16_bits_to_f32(bits), b = bf16_bits_to_f32(bits);
    const bool nan_a = (h & 0x7fff) > 0x7c00, nan_b = (h & 0x7fff) > 0x7f80;
    const u32 sign = h & 0x8000;
    bool ok = is_nan(a) == nan_a && is_nan(b) == nan_b;
    ok = ok && f32_to_f16_bits(a) == (nan_a ? 0x7fff : h) && f32_to_bf16_bits(b) == (nan_b ? 0x7fff : h);
    ok = ok && std::signbit(a) == (sign != 0) && std::signbit(b) == (sign != 0);
    if (!nan_a && (h & 0x7fff) < 0x7c00) ok = ok && std::fabs(a) == value_of(h & 0x7fff, 10, 15);
    if (!nan_b && (h & 0x7fff) < 0x7f80) ok = ok && std::fabs(b) == value_of(h & 0x7fff, 7, 127);
    if (!ok) FAIL("bits " << h);
  }
  CHECK(f16_bits_to_f32(0x7c00) == kInfinity);
  CHECK(f16_bits_to_f32(0xfc00) == -kInfinity);
  CHECK(bf16_bits_to_f32(0xff80) == -kInfinity);
}

TEST_CASE("f32 to f16 and bf16 rounds to nearest even", "[numeric]") {
  CHECK(mismatches(Nearest(0x7bff, 10, 15, false), 0x8000, 1, f32_to_f16_bits) == 0);
  CHECK(mismatches(Nearest(0x7f7f, 7, 127, false), 0x8000, 2, f32_to_bf16_bits) == 0);
  // Random floats seldom fall into f16's range.
  const Nearest f16_model(0x7bff, 10, 15, false);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> exponent(-27, 17), mantissa(1, 2);
  long wrong = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const float f = std::ldexp(mantissa(random), static_cast<int>(exponent(random)));
    wrong += f32_to_f16_bits(f) != f16_model(f);
  }
  CHECK(wrong == 0);
  CHECK(f32_to_f16_bits(65519.996f) == 0x7bff);
  CHECK(f32_to_f16_bits(65520.0f) == 0x7c00);
  CHECK(f32_to_f16_bits(kNan) == 0x7fff);
  CHECK(f32_to_f16_bits(-kNan) == 0x7fff);
  CHECK(f32_to_bf16_bits(-kNan) == 0x7fff);
  CHECK(f32_to_bf16_bits(bits_as<float>(0x7f800001u)) == 0x7fff);  // a NaN whose payload would be rounded away
}

TEST_CASE("all e5m2 codes decode and encode, to nearest even and saturating", "[numeric]") {
  for (u32 c = 0; c < 256; ++c) {
    const float f = e5m2_to_f32(static_cast<u8>(c));
    const u32 magnitude = c & 0x7f;
    CHECK(is_nan(f) == (magnitude > 0x7c));
    CHECK((std::fabs(f) == kInfinity) == (magnitude == 0x7c));
    if (magnitude < 0x7c) CHECK(std::fabs(f) == value_of(magnitude, 2, 15));
    if (magnitude <= 0x7c) CHECK(std::signbit(f) == (c >= 128));
    CHECK(f32_to_e5m2(f) == (magnitude > 0x7c ? 0x7f : magnitude == 0x7c ? c - 1 : c));
  }
  CHECK(mismatches(Nearest(0x7b, 2, 15, true), 0x80, 14, f32_to_e5m2) == 0);
  CHECK(f32_to_e5m2(-kNan) == 0x7f);
}

TEST_CASE("floats to integers round to nearest even and saturate", "[numeric]") {
  for (int i = -300; i <= 300; ++i)
    for (float fraction : {0.0f, 0.25f, 0.5f, 0.75f}) {
      const float f = static_cast<float>(i) + fraction;
      CHECK(f32_to_i8(f) == std::clamp(std::nearbyint(f), -128.0f, 127.0f));
      CHECK(f32_to_i32(f) == static_cast<int>(std::nearbyint(f)));
    }
  CHECK(f32_to_i8(kInfinity) == 127);
  CHECK(f32_to_i8(-kInfinity) == -128);
  CHECK(f32_to_i8(kNan) == 0);
  CHECK(f32_to_i32(3e9f) == 2147483647);
  CHECK(f32_to_i32(-3e9f) == -2147483647 - 1);
}

TEST_CASE("all e4m3 codes decode and encode", "[numeric]") {
  for (u32 c = 0; c < 256; ++c) {
    const float f = e4m3_to_f32(static_cast<u8>(c));
    if ((c & 0x7f) == 0x7f) {
      CHECK(is_nan(f));
      CHECK(f32_to_e4m3(f) == 0x7f);
      continue;
    }
    CHECK(std::fabs(f) == value_of(c & 0x7f, 3, 7));
    CHECK(std::signbit(f) == (c >= 128));
    CHECK(f32_to_e4m3(f) == c);
  }
}

TEST_CASE("f32 to e4m3 rounds to nearest even and saturates", "[numeric]") {
  CHECK(mismatches(Nearest(0x7e, 3, 7, true), 0x80, 4, f32_to_e4m3) == 0);
  CHECK(f32_to_e4m3(kInfinity) == 0x7e);
  CHECK(f32_to_e4m3(-kInfinity) == 0xfe);
  CHECK(f32_to_e4m3(448.0f) == 0x7e);
  CHECK(f32_to_e4m3(1e30f) == 0x7e);
  CHECK(f32_to_e4m3(0.0009765625f) == 0);  // half of the smallest: to even
}

TEST_CASE("e2m1 decodes, rounds to nearest even and saturates", "[numeric]") {
  const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (u32 c = 0; c < 16; ++c) {
    CHECK(std::fabs(e2m1_to_f32(c)) == values[c & 7]);
    CHECK(std::signbit(e2m1_to_f32(c)) == (c >= 8));
    CHECK(f32_to_e2m1(e2m1_to_f32(c)) == c);
  }
  CHECK(mismatches(Nearest(7, 1, 1, true), 8, 5, f32_to_e2m1) == 0);
  CHECK(f32_to_e2m1(kNan) == 7);
  std::uint64_t rounded_otherwise = 0;
  for (std::uint32_t bits = 0; bits<0x80000000u; bits += bits> 0x3e000000u && bits < 0x40e00000u ? 7 : 4099)
    rounded_otherwise += e2m1_rounded(bits_as<float>(bits)) != e2m1_to_f32(e2m1_magnitude(bits_as<float>(bits)));
  CHECK(rounded_otherwise == 0);
  CHECK(f32_to_e2m1(-kNan) == 7);
}

// x / d in the binade of 1/2 to 1, and nearer to the middle of two floats than 2^-20 ulp: x = m d + s 2^-48 with m in
// the middle, so that m is a multiplicative inverse. f(x) of every such x of the divisor d = D 2^-23. False if an x is
// none: the construction is wrong.
template <class F>
bool hard_quotients(std::uint64_t D, F&& f) {
  const int shift = std::countr_zero(D);
  std::uint64_t inverse = D >> shift;
  for (int i = 0; i < 6; ++i) inverse *= 2 - (D >> shift) * inverse;  // modulo 2^64
  const int bits = 25 - shift;
  for (std::int64_t s = -16; s <= 16; ++s) {
    if (s == 0 || s % (std::int64_t{1} << shift) != 0) continue;
    const std::uint64_t least =
        static_cast<std::uint64_t>(-s / (std::int64_t{1} << shift)) * inverse & ((1ull << bits) - 1);
    for (std::uint64_t m = least; m < 1ull << 25; m += 1ull << bits) {
      if (m < 1ull << 24 || m % 2 == 0) continue;
      const std::int64_t product = static_cast<std::int64_t>(m * D) + s;
      if (product % (1 << 25) != 0) return false;
      f(static_cast<float>(product >> 25) * 0x1p-23f);
    }
  }
  return true;
}

TEST_CASE("a divider's quotients are correctly rounded", "[numeric]") {
  long cases = 0, wrong = 0;
  const auto check = [&](const Divider& by, float x) {
    ++cases;
    wrong += by.quotient_unsigned(x) != x / by.divisor;
  };
  // With one correction only quotients next to the middle of two floats could be wrong: all of those, of every divisor.
  bool constructed = true;
  for (std::uint64_t D = 1u << 23; D < 1u << 24; ++D) {
    const Divider by(static_cast<float>(D) * 0x1p-23f, 2.0f);
    constructed &= hard_quotients(D, [&](float x) { check(by, x); });
  }
  CHECK(constructed);
  CHECK(cases > 50'000'000);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> significand(1, 2);
  std::uniform_int_distribution<int> exponent(-59, 59), below(0, 40);
  for (int i = 0; i < 1000000; ++i) {
    const Divider by(std::ldexp(significand(random), exponent(random)), 1.0f);
    REQUIRE(by.direct);
    check(by, std::min(0x1p60f, by.divisor * std::ldexp(significand(random), 20 - below(random))));
  }
  CHECK(wrong == 0);
}

TEST_CASE("round_away is C's roundf and rint_even rounds ties to even", "[numeric]") {
  std::mt19937 random(6);
  long wrong = 0;
  const auto check = [&](float f) {
    wrong += bits_as<u32>(round_away(f)) != bits_as<u32>(std::round(f)) && std::round(f) != round_away(f);
    wrong += rint_even(f) != std::nearbyint(f);
    wrong += trunc_zero(f) != std::trunc(f);
  };
  for (int i = -4000; i <= 4000; ++i)
    for (const float f : {static_cast<float>(i) / 4, std::nextafter(static_cast<float>(i) / 4, 0.0f)}) check(f);
  for (const float f : {0.49999997f, -0.49999997f, 8388607.5f, 8388609.0f, 1e20f, kInfinity, -kInfinity}) check(f);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto f = bits_as<float>(static_cast<u32>(random()));
    if (!is_nan(f)) check(f);
  }
  CHECK(wrong == 0);
}

TEST_CASE("to_int truncates, saturates and maps NaN to 0", "[numeric]") {
  CHECK(to_int(1.9f) == 1);
  CHECK(to_int(-1.9f) == -1);
  CHECK(to_int(2147483520.0f) == 2147483520);
  CHECK(to_int(2147483648.0f) == 2147483647);
  CHECK(to_int(-2147483648.0f) == -2147483647 - 1);
  CHECK(to_int(kInfinity) == 2147483647);
  CHECK(to_int(-kInfinity) == -2147483647 - 1);
  CHECK(to_int(kNan) == 0);
}

TEST_CASE("from_f32 and to_f32 choose the conversion by type", "[numeric]") {
  CHECK(from_f32<f16>(1.0f).bits == 0x3c00);
  CHECK(from_f32<bf16>(1.0f).bits == 0x3f80);
  CHECK(from_f32<float>(0.1f) == 0.1f);
  CHECK(to_f32(f16{0xc000}) == -2.0f);
  CHECK(to_f32(bf16{0x4040}) == 3.0f);
  CHECK(abs_f(-0.0f) == 0.0f);
  CHECK_FALSE(std::signbit(abs_f(-0.0f)));
}
