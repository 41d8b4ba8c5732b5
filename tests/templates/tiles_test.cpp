// SPDX-License-Identifier: Apache-2.0
// Tests what the threads of a kernel unpack from tiles: for every pair that has them, each fragment's elements are the
// weights that the scalar decoder gives, as near as the tile claims.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "format_includes.inc"
#include "operations/pack/cuda/tiles.cuh"
#include "support/catch.h"

using namespace tw;

namespace {

template <class W>
struct Rows {
  static constexpr int kRows = 64;  // a strip
  i64 k;
  std::vector<u8> data, scales;

  explicit Rows(i64 columns) : k(columns), data(bytes(W::kDataBytes)), scales(bytes(W::kScaleBytes)) {}
  std::size_t bytes(int per_block) const { return static_cast<std::size_t>(kRows * k / W::kBlock * per_block); }
  u8* block(i64 row, i64 column) { return &data[at(row, column, W::kDataBytes)]; }
  u8* block_scales(i64 row, i64 column) { return W::kScaleBytes ? &scales[at(row, column, W::kScaleBytes)] : nullptr; }

 private:
  std::size_t at(i64 row, i64 column, int per_block) const {
    return static_cast<std::size_t>((row * k + column) / W::kBlock * per_block);
  }
};

// The bits of a block that hold codes of any value; none of those that are indices of a list.
template <class W, class Tile>
void find_codes(u8 (&codes)[W::kDataBytes]) {
  if constexpr (requires(u8 * block) { Tile::put_code(block, 0, 0); })
    for (int i = 0; i < W::kBlock; ++i)
      for (u32 code = 0; code < 1u << Tile::kBits; ++code) {
        u8 one[W::kDataBytes] = {};
        Tile::put_code(one, i, code);
        for (int b = 0; b < W::kDataBytes; ++b) codes[b] |= one[b];
      }
}
// Scales and indices as an encoder leaves them, then codes of any value.
template <class W, class Tile>
void fill(Rows<W>& w, unsigned seed) {
  u8 codes[W::kDataBytes] = {};
  find_codes<W, Tile>(codes);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (i64 row = 0; row < w.kRows; ++row)
    for (i64 k = 0; k < w.k; k += W::kBlock) {
      float x[W::kBlock];
      for (float& v : x) v = normal(random);
      u8* block = w.block(row, k);
      W::encode(x, block, w.block_scales(row, k), 1.0f, 0);
      for (int b = 0; b < W::kDataBytes; ++b)
        block[b] = static_cast<u8>((block[b] & ~codes[b]) | (static_cast<u8>(random()) & codes[b]));
    }
}

template <class Element>
double element(const u32 (&a)[4], int r, int e) {
  if constexpr (same<Element, Codes>()) return element<f16>(a, r, e);
  if constexpr (sizeof(Element) == 2) return e ? high_half<Element>(a[r]) : low_half<Element>(a[r]);
  const u8 byte = static_cast<u8>(a[r] >> (8 * e));
  return same<Element, i8>() ? static_cast<i8>(byte) : static_cast<double>(e4m3_to_f32(byte));
}

// Those of two steps as bytes: element e of register r, in the order that x's bytes are brought into.
template <class Unpacked>
double byte_of(const u32 (&a)[4], int step, int r, int e) {
  const u32 place = static_cast<u32>(r / 2 * 4 + e);
  for (int j = 0; j < 4; ++j)
    if (((Unpacked::Bytes::kOrder >> (4 * j)) & 15u) == place)
      return static_cast<i8>(a[r % 2 + 2 * (step % 2)] >> (8 * j));
  return NAN;
}
template <class T, class = void>
constexpr bool as_bytes = false;
template <class T>
constexpr bool as_bytes<T, void_of<typename T::Bytes>> = true;

// Unpacked: the tile, or its AfterMma, which keeps the same promise.
template <class W, class Element, class Unpacked>
void check_unpacked(Rows<W>& w) {
  using Tile = typename W::template Tile<Element>;
  using Pack = pack::Tiles<W, Element, false>;
  constexpr int kWidth = tile_width<Element>(), kWords = Pack::kWords;
  const pack::Shape shape{w.kRows, w.k};
  std::vector<u32> data(static_cast<std::size_t>(Pack::tiles(shape) * 128 * kWords));
  std::vector<u32> scales(static_cast<std::size_t>(Pack::scale_items(shape) * Tile::kScaleBytes / 4));
  const pack::Args args{{w.data.data(), w.scales.data(), nullptr}, {data.data(), scales.data(), nullptr}};
  for (i64 tile = 0; tile < Pack::tiles(shape); ++tile)
    for (int thread = 0; thread < 128; ++thread) Pack::codes(args, shape, tile, thread);
  for (i64 i = 0; i < Pack::scale_items(shape); ++i) Pack::scales(args, shape, i);

  i64 wrong = 0;
  for (i64 panel = 0; panel < Pack::tiles(shape); ++panel)
    for (int thread = 0; thread < 128; ++thread) {
      u32 words[kWords];
      for (int i = 0; i < kWords; ++i)
        words[i] = data[static_cast<std::size_t>(panel * 128 * kWords + tile_word<kWords>(thread, i))];
      typename Unpacked::Scales of_rows{};
      if constexpr (Tile::kScaleBytes > 0) {
        const i64 first = panel * Pack::kPanelK;
        const u8* chunk = reinterpret_cast<const u8*>(scales.data()) + first / Tile::kScaleK * 64 * Tile::kScaleBytes;
        const int part = static_cast<int>(first % Tile::kScaleK / Pack::kPanelK);
        of_rows = Unpacked::scales(chunk, thread / 32 * 8 + thread % 32 / 4, part);
      }
      for (int step = 0; step < 4; ++step) {
        u32 a[4];
        if constexpr (as_bytes<Unpacked>)
          Unpacked::Bytes::fragment(words, step / 2, a);
        else
          Unpacked::fragment(words, step, of_rows, a);
        for (int r = 0; r < 4; ++r)
          for (int e = 0; e < kWidth; ++e) {
            double value;
            if constexpr (as_bytes<Unpacked>)
              value = byte_of<Unpacked>(a, step, r, e) * Unpacked::factor();
            else
              value = element<Element>(a, r, e) * Unpacked::factor();
            if constexpr (Unpacked::kScaleAfterMma) value *= Unpacked::row_scale(of_rows, r % 2, step);
            if constexpr (tw::x_groups<Unpacked>() > 0) value += Unpacked::row_minimum(of_rows, r % 2, step);
            const i64 row = tile_row<kWidth>(thread, r);
            const i64 k = panel * Pack::kPanelK + tile_column<kWidth>(thread, step, r, e);
            const int i = static_cast<int>(k % W::kBlock);
            const u8 *block = w.block(row, k), *block_scales = w.block_scales(row, k);
            const double exact = W::decode(block, block_scales, 1.0f, i);
            double parts = std::fabs(exact);
            if constexpr (Tile::kOffset) {
              u8 base[W::kDataBytes], codes[W::kDataBytes] = {};
              std::memcpy(base, block, sizeof(base));
              for (int j = 0; j < W::kBlock; ++j) Tile::put_code(codes, j, Tile::code(block, j));
              for (int b = 0; b < W::kDataBytes; ++b) base[b] &= static_cast<u8>(~codes[b]);
              parts += 2 * std::fabs(static_cast<double>(W::decode(base, block_scales, 1.0f, i)));
            }
            const bool alike = std::isnan(exact) ? std::isnan(value) : value == exact;  // infinities too
            wrong += !(alike || std::fabs(value - exact) <= Tile::rounding() * parts);
          }
      }
    }
  CHECK(wrong == 0);
}
template <class W, class Element>
void check(Rows<W>& w) {
  using Tile = typename W::template Tile<Element>;
  check_unpacked<W, Element, Tile>(w);
  using AfterMma = typename UnpackedFor<Tile, 1>::type;
  if constexpr (!same<AfterMma, Tile>()) check_unpacked<W, Element, AfterMma>(w);
}

template <class W, class Element>
void check_pair(const char* w, const char* x) {
  if constexpr (has_tile<W, Element>()) {
    INFO(w << " for " << x);
    using Unit = TiledUnit<W, Element>;
    Rows<W> rows(2 * max2(Unit::kColumns, Unit::kPanelK));
    fill<W, typename W::template Tile<Element>>(rows, 1);
    check<W, Element>(rows);
  }
}
template <class W>
void check_format(const char* w) {
  check_pair<W, f16>(w, "f16");
  check_pair<W, bf16>(w, "bf16");
  check_pair<W, e4m3>(w, "e4m3");
  check_pair<W, i8>(w, "i8");
  check_pair<W, Codes>(w, "codes");
}

}  // namespace

TEST_CASE("fragments unpacked from tiles are the weights", "[tiles]") {
#define FORMAT(NAME) check_format<tw::fmt::NAME>(#NAME);
#include "format_list.inc"
#undef FORMAT
}

// Zero points that are no integers of four bits: the claim holds for any.
TEST_CASE("fragments unpacked from tiles: zero points", "[tiles]") {
  Rows<fmt::uint4_g64> rows(128);
  fill<fmt::uint4_g64, fmt::uint4_g64::Tile<f16>>(rows, 2);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> unit(-1, 1);
  for (float most : {1.0f, 16.0f, 100.0f, 3000.0f}) {
    INFO("up to " << most);
    for (std::size_t i = 2; i < rows.scales.size(); i += 4)
      fmt::write16(&rows.scales[i], f32_to_f16_bits(most * unit(random)));
    check<fmt::uint4_g64, f16>(rows);
    check<fmt::uint4_g64, bf16>(rows);
  }
}

TEST_CASE("integers of four bits as E4M3", "[tiles]") {
  for (u32 code = 0; code < 16; ++code) {
    const u32 stored = SignedNibbles<e4m3>::stored(code);
    CHECK(SignedNibbles<e4m3>::code(stored) == code);
    const u32 words[8] = {stored * 0x11111111u, stored * 0x11111111u};
    u32 a[4];
    SignedNibbles<e4m3>::fragment(words, 0, a);
    for (int r = 0; r < 4; ++r) {
      CHECK(a[r] == (a[0] & 255u) * 0x01010101u);
      CHECK(e4m3_to_f32(static_cast<u8>(a[r])) * SignedNibbles<e4m3>::factor() == static_cast<float>(code) - 8.0f);
    }
  }
}

// Every scale there is: the least lies below bf16's normal numbers, the last is a NaN.
TEST_CASE("MXFP4's scales in a tile are bf16", "[tiles]") {
  using W = fmt::mxfp4;
  using Tile = W::Tile<bf16>;
  for (u32 code = 0; code < 256; ++code) {
    INFO("scale " << code);
    const u8 scales[2] = {static_cast<u8>(code), static_cast<u8>(255 - code)};
    alignas(8) u8 chunk[2 * Tile::kScaleBytes] = {};
    u8 back[2] = {};
    Tile::put_scales(chunk + Tile::kScaleBytes, nullptr, scales, 0);  // of the second row
    Tile::take_scales(chunk + Tile::kScaleBytes, nullptr, back, 0);
    CHECK((back[0] == scales[0] && back[1] == scales[1]));
    const Tile::Scales of_rows = Tile::scales(chunk, 0, 0);
    u32 words[Tile::Place::kWords] = {};
    for (int step = 0; step < 4; ++step)
      for (int r = 0; r < 4; ++r)
        for (int e = 0; e < 2; ++e) Tile::Place::put(words, step, r, e, 2);  // 1
    for (int step = 0; step < 4; ++step) {
      u8 one[W::kDataBytes] = {};
      Tile::put_code(one, step * 16, 2);
      const float exact = W::decode(one, scales, 1.0f, step * 16);
      CHECK(std::isnan(exact) == (scales[step / 2] == 255));
      u32 a[4];
      Tile::fragment(words, step, of_rows, a);
      for (const float got : {Tile::AfterMma::row_scale(of_rows, 1, step), low_half<bf16>(a[1]), high_half<bf16>(a[3])})
        CHECK((got == exact || (std::isnan(got) && std::isnan(exact))));
    }
  }
}
