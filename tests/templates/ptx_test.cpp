// SPDX-License-Identifier: Apache-2.0
// The scalar wrappers of backends/cuda/ptx.cuh against the instructions' definitions. Those that need other threads are
// tested in tests/emulator.
#include "backends/cuda/ptx.cuh"

#include "formats/shared/e2m1.cuh"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "support/catch.h"

using namespace tw;

TEST_CASE("prmt picks bytes of {b, a} and replicates signs", "[ptx]") {
  CHECK(prmt(0x33221100, 0x77665544, 0x3210) == 0x33221100);
  CHECK(prmt(0x33221100, 0x77665544, 0x7654) == 0x77665544);
  CHECK(prmt(0x33221100, 0x77665544, 0x0167) == 0x00116677);
  CHECK(prmt(0x8000007f, 0, 0xb8b8) == 0xff00ff00);
  std::mt19937 random(1);
  for (int i = 0; i < 10000; ++i) {
    const u32 a = static_cast<u32>(random()), b = static_cast<u32>(random()), s = static_cast<u32>(random()) & 0xffff;
    u8 bytes[8], expected[4];
    std::memcpy(bytes, &a, 4), std::memcpy(bytes + 4, &b, 4);
    for (int j = 0; j < 4; ++j) {
      const u32 nibble = (s >> (4 * j)) & 15;
      expected[j] = nibble < 8 ? bytes[nibble] : (bytes[nibble - 8] >= 128 ? 0xff : 0);
    }
    u32 word;
    std::memcpy(&word, expected, 4);
    if (prmt(a, b, s) != word) FAIL("prmt " << a << ' ' << b << ' ' << s);
  }
}

TEST_CASE("dp4a sums four signed products", "[ptx]") {
  CHECK(dp4a(0x80808080, 0x80808080, 0) == 4 * 128 * 128);
  CHECK(dp4a(0x80808080, 0x7f7f7f7f, 5) == 5 - 4 * 128 * 127);
  CHECK(dp4a(0x01010101, 0x01010101, 2147483647) == -2147483647 - 1 + 3);  // wraps around
  std::mt19937 random(2);
  for (int i = 0; i < 10000; ++i) {
    signed char a[4], b[4];
    int sum = i;
    for (int j = 0; j < 4; ++j) {
      a[j] = static_cast<signed char>(random()), b[j] = static_cast<signed char>(random());
      sum += a[j] * b[j];
    }
    u32 wa, wb;
    std::memcpy(&wa, a, 4), std::memcpy(&wb, b, 4);
    if (dp4a(wa, wb, i) != sum) FAIL("dp4a " << wa << ' ' << wb);
  }
}

TEST_CASE("packed halves keep their places and round once", "[ptx]") {
  CHECK(pack_f16x2(1.0f, -2.0f) == 0xc0003c00);
  CHECK(pack_bf16x2(1.0f, -2.0f) == 0xc0003f80);
  CHECK(pack2<f16>(1.0f, -2.0f) == 0xc0003c00);
  CHECK(pack2<bf16>(1.0f, -2.0f) == 0xc0003f80);
  CHECK(low_half<f16>(0xc0003c00) == 1.0f);
  CHECK(high_half<f16>(0xc0003c00) == -2.0f);
  CHECK(low_half<bf16>(0xc0003f80) == 1.0f);
  CHECK(high_half<bf16>(0xc0003f80) == -2.0f);
  CHECK(spread(0xc0003c00, 0) == 0x3c003c00);
  CHECK(spread(0xc0003c00, 1) == 0xc000c000);
  CHECK(neg_f16x2(0xc0003c00) == 0x4000bc00);
  // A product or a difference of two f16 rounded through float is rounded once: float has more than twice the bits.
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto a = static_cast<u16>(random()), b = static_cast<u16>(random());
    const double x = f16_bits_to_f32(a), y = f16_bits_to_f32(b);
    if (!std::isfinite(x) || !std::isfinite(y)) continue;
    const u32 wide_a = a * 0x10001u, wide_b = b * 0x10001u;
    // Both results are exact in float, or round to the same f16 whichever way float rounded.
    const u16 difference = f32_to_f16_bits(static_cast<float>(x - y)),
              product = f32_to_f16_bits(static_cast<float>(x * y));
    if (sub_f16x2(wide_a, wide_b) != difference * 0x10001u) FAIL("sub " << a << ' ' << b);
    if (mul_f16x2(wide_a, wide_b) != product * 0x10001u) FAIL("mul " << a << ' ' << b);
  }
}

namespace {
template <int bytes, int align>
void check_load(const u8* p) {
  u32 words[(bytes + 3) / 4];
  load_words<bytes, align>(words, p);
  for (int i = 0; i < bytes; ++i) CHECK(((words[i / 4] >> (8 * (i % 4))) & 255u) == p[i]);
  if (bytes % 4 == 2) CHECK(words[bytes / 4] < 65536);
}
}  // namespace

TEST_CASE("load_words reads the same bytes in pieces of any alignment", "[ptx]") {
  alignas(16) u8 memory[96];
  for (int i = 0; i < 96; ++i) memory[i] = static_cast<u8>(i * 37 + 11);
  check_load<16, 16>(memory);
  check_load<64, 16>(memory + 16);
  check_load<8, 8>(memory + 8);
  check_load<24, 8>(memory + 8);
  check_load<4, 4>(memory + 4);
  check_load<20, 4>(memory + 4);
  check_load<2, 2>(memory + 2);
  check_load<18, 2>(memory + 2);
  check_load<34, 2>(memory + 6);
  check_load<16, 2>(memory + 10);
  CHECK(load_global1(memory + 5) == memory[5]);
  CHECK(load_global2(memory + 6) == memory[6] + 256 * memory[7]);
  CHECK(load_stream16(memory + 16).w == load_global16(memory + 16).w);
}

// By additions or, where a lane is not ordinary, by divisions: what the scalar encoder makes of each quotient.
template <int E>
void check_e2m1_codes(unsigned seed) {
  // Ties between codes, where the smallest error shows, and the largest code; 7 and 300 saturate.
  constexpr float kLikely[] = {0.0f, 0.25f, 0.5f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f, 6.4f};
  std::mt19937 random(seed);
  const auto pick = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  for (int n = 0; n < 50000; ++n) {
    const bool round = pick(2) != 0;  // divisors with few bits, of which ties are multiples
    float scale = 1.0f + static_cast<float>(pick(round ? 8 : 1u << 23)) / static_cast<float>(round ? 8 : 1 << 23);
    scale = std::ldexp(scale, static_cast<int>(pick(n % 16 ? 40 : 250)) - (n % 16 ? 20 : 125));
    float v[E], largest = 0.0f;
    for (float& each : v) {
      each = (pick(2) ? kLikely[pick(11)] : 6.4f * static_cast<float>(pick(1u << 24)) * 0x1p-24f) * scale;
      if (pick(3) == 0) each = std::nextafter(each, pick(2) ? 1e30f : 0.0f);
      if (pick(2000) == 0) each = scale * (pick(2) ? 7.0f : 300.0f);
      if (pick(2000) == 0) each = std::nanf("");
      if (pick(2)) each = -each;
      largest = max_or_nan(largest, abs_f(each));
    }
    u32 words[ceil_div(E, 8)], expected[ceil_div(E, 8)] = {};
    fmt::e2m1_codes(words, v, Divider(scale, is_nan(largest) ? 300.0f * scale : largest), largest);
    for (int i = 0; i < E; ++i) expected[i / 8] |= f32_to_e2m1(div_rn(v[i], scale)) << (4 * (i % 8));
    REQUIRE(std::memcmp(words, expected, sizeof words) == 0);
  }
}
TEST_CASE("E2M1 codes of a lane are those of its quotients", "[ptx]") {
  check_e2m1_codes<4>(1);
  check_e2m1_codes<8>(2);
  check_e2m1_codes<16>(3);
}
