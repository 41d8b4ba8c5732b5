// SPDX-License-Identifier: Apache-2.0
// ldmatrix and mma against their definitions. The layouts are written out again here in the manual's own terms
// (groupID, threadID_in_group, element i of the fragment), not shared with the code under test.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "support/catch.h"

using namespace tw;

namespace {
struct At {
  int row, col;
};
// Where element i of a lane's fragment lies.
using Layout = std::function<At(int group, int in_group, int i)>;

struct Shape {
  emu::Mma kind;
  int m, k, bits;  // of an element of a and b
  Layout a, b, d;
};

At wide_d(int g, int t, int i) { return {i < 2 ? g : g + 8, 2 * t + (i & 1)}; }

const Shape kK8{emu::Mma::f16_k8,
                16,
                8,
                16,
                [](int g, int t, int i) {
                  return At{i < 2 ? g : g + 8, 2 * t + (i & 1)};
                },
                [](int g, int t, int i) {
                  return At{2 * t + i, g};
                },
                wide_d};
const Shape kK16{emu::Mma::f16_k16,
                 16,
                 16,
                 16,
                 [](int g, int t, int i) {
                   return At{i < 2 || (i >= 4 && i < 6) ? g : g + 8, 2 * t + (i & 1) + (i < 4 ? 0 : 8)};
                 },
                 [](int g, int t, int i) {
                   return At{2 * t + (i & 1) + (i < 2 ? 0 : 8), g};
                 },
                 wide_d};
const Shape kByte32{emu::Mma::s8_k32,
                    16,
                    32,
                    8,
                    [](int g, int t, int i) {
                      return At{i < 4 || (i >= 8 && i < 12) ? g : g + 8, 4 * t + (i & 3) + (i < 8 ? 0 : 16)};
                    },
                    [](int g, int t, int i) {
                      return At{4 * t + (i & 3) + (i < 4 ? 0 : 16), g};
                    },
                    wide_d};
const Shape kBits{emu::Mma::b1_k256,
                  16,
                  256,
                  1,
                  [](int g, int t, int i) {
                    return At{i / 32 % 2 ? g + 8 : g, 32 * t + i % 32 + i / 64 * 128};
                  },
                  [](int g, int t, int i) {
                    return At{32 * t + i % 32 + i / 32 * 128, g};
                  },
                  wide_d};
const Shape kByte16{emu::Mma::s8_k16_m8,
                    8,
                    16,
                    8,
                    [](int g, int t, int i) {
                      return At{g, 4 * t + i};
                    },
                    [](int g, int t, int i) {
                      return At{4 * t + i, g};
                    },
                    [](int g, int t, int i) {
                      return At{g, 2 * t + i};
                    }};

// Runs one mma on matrices of small integers, which every kind represents exactly; a[m][k], b[k][8], d[m][8].
void check_mma(const Shape& s, emu::Mma kind, u32 seed) {
  std::mt19937 random(seed);
  const bool fp8 = kind >= emu::Mma::e4m3_k32;
  const bool a_e4m3 = kind == emu::Mma::e4m3_k32 || kind == emu::Mma::e4m3_e5m2_k32;
  const bool b_e4m3 = kind == emu::Mma::e4m3_k32 || kind == emu::Mma::e5m2_e4m3_k32;
  std::vector<int> a(static_cast<std::size_t>(s.m * s.k)), b(static_cast<std::size_t>(s.k * 8)),
      d(static_cast<std::size_t>(s.m * 8));
  for (auto* v : {&a, &b, &d})
    for (int& x : *v)
      x = s.bits == 1 && v != &d ? static_cast<int>(random() % 2)
          : fp8                  ? static_cast<int>(random() % 17) - 8
                                 : static_cast<int>(random() % 255) - 127;
  const bool bytes = s.bits <= 8 && !fp8, bf = kind == emu::Mma::bf16_k8 || kind == emu::Mma::bf16_k16;
  const auto encode = [&](int x, bool e4m3) -> u32 {
    const auto f = static_cast<float>(x);
    if (fp8) return e4m3 ? f32_to_e4m3(f) : f32_to_e5m2(f);
    return bytes ? static_cast<u8>(x) : bf ? f32_to_bf16_bits(f) : f32_to_f16_bits(f);
  };
  const int per_word = 32 / s.bits, words_a = s.m * s.k / 32 / per_word, words_b = s.k * 8 / 32 / per_word;
  std::vector<int> result(d.size());
  emu::run({{1, 1, 1}, 32, 1, 0, seed}, [&] {
    const int g = static_cast<int>(thread_x()) / 4, t = static_cast<int>(thread_x()) % 4;
    u32 fa[4] = {}, fb[2] = {}, fd[4] = {};
    for (int i = 0; i < words_a * per_word; ++i) {
      const At at = s.a(g, t, i);
      fa[i / per_word] |= encode(a[static_cast<std::size_t>(at.row * s.k + at.col)], a_e4m3)
                          << (s.bits * (i % per_word));
    }
    for (int i = 0; i < words_b * per_word; ++i) {
      const At at = s.b(g, t, i);
      fb[i / per_word] |= encode(b[static_cast<std::size_t>(at.row * 8 + at.col)], b_e4m3) << (s.bits * (i % per_word));
    }
    for (int i = 0; i < s.m / 4; ++i) {
      const At at = s.d(g, t, i);
      const int x = d[static_cast<std::size_t>(at.row * 8 + at.col)];
      fd[i] = bytes ? static_cast<u32>(x) : bits_as<u32>(static_cast<float>(x));
    }
    emu::mma(kind, fd, fa, fb);
    for (int i = 0; i < s.m / 4; ++i) {
      const At at = s.d(g, t, i);
      result[static_cast<std::size_t>(at.row * 8 + at.col)] =
          bytes ? static_cast<int>(fd[i]) : static_cast<int>(bits_as<float>(fd[i]));
    }
  });
  for (int m = 0; m < s.m; ++m)
    for (int n = 0; n < 8; ++n) {
      int sum = d[static_cast<std::size_t>(m * 8 + n)];
      for (int k = 0; k < s.k; ++k)
        sum += a[static_cast<std::size_t>(m * s.k + k)] * b[static_cast<std::size_t>(k * 8 + n)];
      CHECK(result[static_cast<std::size_t>(m * 8 + n)] == sum);
    }
}
}  // namespace

TEST_CASE("mma of every kind is a matrix product", "[emulator]") {
  for (u32 seed = 0; seed < 4; ++seed) {
    check_mma(kK8, emu::Mma::f16_k8, seed);
    check_mma(kK8, emu::Mma::bf16_k8, seed);
    check_mma(kK16, emu::Mma::f16_k16, seed);
    check_mma(kK16, emu::Mma::bf16_k16, seed);
    check_mma(kByte32, emu::Mma::s8_k32, seed);
    check_mma(kBits, emu::Mma::b1_k256, seed);
    check_mma(kByte32, emu::Mma::e4m3_k32, seed);
    check_mma(kByte32, emu::Mma::e5m2_k32, seed);
    check_mma(kByte32, emu::Mma::e4m3_e5m2_k32, seed);
    check_mma(kByte32, emu::Mma::e5m2_e4m3_k32, seed);
    check_mma(kByte16, emu::Mma::s8_k16_m8, seed);
  }
}

// Scales of blocks: a word of each row of A from lane 4 (row % 8) + row / 8, of each column of B from lane 4 column.
TEST_CASE("mma with scales of blocks is the product of what they scale", "[emulator]") {
  std::mt19937 random(5);
  const struct {
    ScaledMma kind;
    int k, block, bytes;
  } kinds[] = {{ScaledMma::mxf8, 32, 32, 1}, {ScaledMma::mxf4, 64, 32, 2}, {ScaledMma::nvf4, 64, 16, 4}};
  for (const auto& kind : kinds)
    for (int byte = 0; byte < 4; byte += kind.bytes) {
      INFO("k " << kind.k << " block " << kind.block << " byte " << byte);
      const bool nibbles = kind.k == 64;
      const int bits = nibbles ? 4 : 8, per_word = 32 / bits;
      u32 a[16][64], b[8][64], scale_a[16], scale_b[8];
      for (auto& row : a)
        for (u32& v : row)
          v = nibbles ? random() & 15u : f32_to_e4m3(static_cast<float>(static_cast<int>(random() % 17) - 8));
      for (auto& row : b)
        for (u32& v : row)
          v = nibbles ? random() & 15u : f32_to_e4m3(static_cast<float>(static_cast<int>(random() % 17) - 8));
      const auto scales = [&] {
        u32 word = 0;
        for (int i = 0; i < 4; ++i)
          word |= (kind.kind == ScaledMma::nvf4 ? 0x30u + random() % 16 : 125u + random() % 4) << (8 * i);
        return word;
      };
      for (u32& s : scale_a) s = scales();
      for (u32& s : scale_b) s = scales();
      const auto value = [&](u32 code, u32 word, int column) -> double {
        const u32 s = (word >> (8 * (byte + column / kind.block))) & 255u;
        return (nibbles ? e2m1_to_f32(code) : e4m3_to_f32(static_cast<u8>(code))) *
               (kind.kind == ScaledMma::nvf4 ? e4m3_to_f32(static_cast<u8>(s))
                                             : std::ldexp(1.0, static_cast<int>(s) - 127));
      };
      float d[16][8];
      emu::run({{1, 1, 1}, 32, 1, 0, 1}, [&] {
        const int lane = static_cast<int>(thread_x()), g = lane / 4, t = lane % 4;
        u32 fa[4] = {}, fb[2] = {}, fd[4] = {};
        for (int r = 0; r < 4; ++r)
          for (int i = 0; i < per_word; ++i)
            fa[r] |= a[g + 8 * (r % 2)][kind.k / 2 * (r / 2) + per_word * t + i] << (bits * i);
        for (int r = 0; r < 2; ++r)
          for (int i = 0; i < per_word; ++i) fb[r] |= b[g][kind.k / 2 * r + per_word * t + i] << (bits * i);
        // Words of lanes that are not asked must not matter.
        const u32 sa = t < 2 ? scale_a[g + 8 * t] : 0xffffffffu, sb = t == 0 ? scale_b[g] : 0xffffffffu;
        emu::scaled_mma(kind.kind, fd, fa, fb, sa, sb, byte);
        for (int i = 0; i < 4; ++i) d[g + 8 * (i / 2)][2 * t + i % 2] = bits_as<float>(fd[i]);
      });
      for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 8; ++n) {
          double sum = 0;
          for (int i = 0; i < kind.k; ++i) sum += value(a[m][i], scale_a[m], i) * value(b[n][i], scale_b[n], i);
          CHECK(d[m][n] == static_cast<float>(sum));
        }
    }
}

// On a chip without the large shapes ptx.cuh issues small ones, which must give the same product.
TEST_CASE("the large shapes are two or four of the small ones", "[emulator]") {
  std::mt19937 random(3);
  std::vector<u32> words(32 * 6);
  for (u32& w : words) w = random() & 0x3bff3bffu;  // f16 below 1
  int equal[32];
  emu::run({}, [&] {
    const u32* w = &words[6 * thread_x()];
    u32 wide[4] = {}, narrow[4] = {};
    emu::mma(emu::Mma::s8_k32, wide, w, w + 4);
    for (int r = 0; r < 2; ++r)
      for (int h = 0; h < 2; ++h) emu::mma(emu::Mma::s8_k16_m8, narrow + 2 * r, w + 2 * h + r, w + 4 + h);
    equal[thread_x()] = std::memcmp(wide, narrow, sizeof wide) == 0;
    u32 wide_f[4] = {}, narrow_f[4] = {};
    emu::mma(emu::Mma::f16_k16, wide_f, w, w + 4);
    for (int h = 0; h < 2; ++h) emu::mma(emu::Mma::f16_k8, narrow_f, w + 2 * h, w + 4 + h);
    equal[thread_x()] += std::memcmp(wide_f, narrow_f, sizeof wide_f) == 0;
  });
  CHECK(std::count(equal, equal + 32, 2) == 32);
}

TEST_CASE("signed byte products wrap around", "[emulator]") {
  i32 first = 0;
  emu::run({}, [&] {
    i32 d[4] = {2147483647, 0, 0, 0};
    u32 a[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101}, b[2] = {0x01010101, 0x01010101};
    mma_s8_k32(d, a, b);
    if (thread_x() == 0) first = d[0];
  });
  CHECK(first == -2147483647 - 1 + 31);
}

TEST_CASE("ldmatrix gives each lane two elements of a row, or of a column", "[emulator]") {
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (int count : {1, 2, 4})
      for (bool transpose : {false, true}) {
        u32 d[32][4];
        emu::run({{1, 1, 1}, 32, 1, 4 * 8 * 80, seed}, [&] {
          auto* s = reinterpret_cast<u16*>(dynamic_shared());
          const u32 lane = thread_x();
          u16* row = s + lane * 40;  // 80 bytes apart
          for (u32 c = 0; c < 8; ++c) row[c] = static_cast<u16>(lane * 8 + c);
          sync_warp();
          emu::ldmatrix(d[lane], lane < static_cast<u32>(8 * count) ? row : nullptr, count, transpose);
        });
        for (u32 lane = 0; lane < 32; ++lane)
          for (int i = 0; i < count; ++i)
            for (u32 half = 0; half < 2; ++half) {
              const u32 r = transpose ? 2 * (lane % 4) + half : lane / 4,
                        c = transpose ? lane / 4 : 2 * (lane % 4) + half;
              CHECK(((d[lane][i] >> (16 * half)) & 0xffffu) == (static_cast<u32>(i) * 8 + r) * 8 + c);
            }
      }
}

TEST_CASE("movmatrix transposes what a warp holds", "[emulator]") {
  u32 d[32];
  emu::run({{1, 1, 1}, 32, 1, 0, 7}, [&] {
    const u32 lane = thread_x(), first = lane / 4 * 8 + lane % 4 * 2;  // row by row
    d[lane] = transpose_matrix(first | (first + 1) << 16);
  });
  for (u32 lane = 0; lane < 32; ++lane)
    for (u32 half = 0; half < 2; ++half)
      CHECK(((d[lane] >> (16 * half)) & 0xffffu) == (2 * (lane % 4) + half) * 8 + lane / 4);
}

TEST_CASE("the wrappers of ptx.cuh reach the emulator", "[emulator]") {
  float product = 0;
  emu::run({{1, 1, 1}, 32, 1, 512, 0}, [&] {
    auto* row = dynamic_shared() + 16 * thread_x();
    for (int i = 0; i < 8; ++i) reinterpret_cast<u16*>(row)[i] = f32_to_f16_bits(2);
    sync_warp();
    u32 a[4], b[2];
    ldmatrix_x4(a, row);
    ldmatrix_x2(b, row);
    float d[4] = {1, 1, 1, 1};
    mma_k16<f16>(d, a, b);
    if (thread_x() == 9) product = d[3];
  });
  CHECK(product == 65);
}
