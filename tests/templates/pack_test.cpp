// SPDX-License-Identifier: Apache-2.0
// Weights as tiles: problems that want them, sizes, the layout, and that nothing is lost on the way there and back.
#include <tilewright/error.h>
#include <tilewright/family.h>
#include <tilewright/pack.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "format_includes.inc"
#include "operations/pack/cuda/tiles.cuh"
#include "support/catch.h"
#include "support/junk_bytes.h"
#include "support/refusal.h"
#include "templates/common/families.h"
#include "templates/formats/shared/fast_path.h"

using namespace tilewright;

namespace {

// Streams of an n x k matrix, either form. Scales of rows are floats like any others: bytes are all that counts.
struct Streams {
  std::vector<std::uint32_t> data, scales;
  float global = 0;
  Streams(std::int64_t data_bytes, std::int64_t scale_bytes)
      : data(static_cast<std::size_t>(data_bytes + 3) / 4, 0xa5a5a5a5u),
        scales(static_cast<std::size_t>(scale_bytes + 3) / 4, 0xa5a5a5a5u) {}
  MutableOperand out() { return {data.data(), scales.data(), &global}; }
  friend bool operator==(const Streams&, const Streams&) = default;
};

Gemm gemm_of(Format w, Format x, std::int64_t n, std::int64_t k) {
  Gemm g{.x = x, .w = w, .y = Format::parse("f32"), .bias = {}};
  g.m = 1, g.n = n, g.k = k, g.packing = Packing::tiles;
  for (const StreamSpec& s : w.info().streams)
    if (s.scope == Scope::tensor) g.global = Global::mul;
  return g;
}
Streams plain_streams(Gemm g) {
  g.packing = Packing::none;
  return {packed_bytes(g, StreamName::data), packed_bytes(g, StreamName::scales)};
}
Streams tiled_streams(const Gemm& g) {
  return {packed_bytes(g, StreamName::data), packed_bytes(g, StreamName::scales)};
}

// Any bits at all: no reordering may look at their meaning.
Streams junk(const Gemm& g, unsigned seed) {
  Streams s = plain_streams(g);
  std::mt19937 random(seed);
  for (auto& v : s.data) v = random();
  test::keep_stored(g.w, {reinterpret_cast<std::uint8_t*>(s.data.data()), 4 * s.data.size()});
  for (auto& v : s.scales) v = random();
  s.global = static_cast<float>(seed);
  return s;
}

struct Case {
  Format w, x;
  std::int64_t n, k;
};
// Every pair that has tiles, in shapes with one strip and several, chunks of scales that do and do not fill the row.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (Format w : Format::all())
    for (Format x : Format::all())
      if (const TileInfo* t = tile_info(w, x))
        for (auto [strips, panels] : {std::pair{1, 1}, {1, 5}, {3, 2}, {2, 8}}) {
          const std::int64_t k = panels * t->panel_k;
          if (k % w.block() == 0) all.push_back({w, x, 64 * strips, k});
        }
  return all;
}

}  // namespace

TEST_CASE("a problem says that its weights are packed", "[pack]") {
  const std::string text = "gemm x=f16 w=nvfp4 y=f16 m=2 n=128 k=192 global=mul pack=tiles bias=f32";
  const Problem p = Problem::parse(text);
  CHECK(p.text() == text);
  CHECK(p.as<Gemm>()->packing == Packing::tiles);
  CHECK(p.with_rows(7).as<Gemm>()->packing == Packing::tiles);
  CHECK_FALSE(p == Problem::parse("gemm x=f16 w=nvfp4 y=f16 m=2 n=128 k=192 global=mul bias=f32"));
  CHECK(Problem::parse("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=64 pack=none").text() ==
        "gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=64");
  CHECK(refusal("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=64 pack=strips").field() == "pack");
  CHECK(refusal("gemm x=f32 w=q4_0 y=f16 m=2 n=64 k=64 pack=tiles").field() == "pack");
  CHECK(refusal("gemm x=f16 w=f16 y=f16 m=2 n=64 k=64 pack=tiles").field() == "pack");
  CHECK(refusal("gemm x=f16 w=q4_0 y=f16 m=2 n=96 k=64 pack=tiles").field() == "n");
  CHECK(refusal("gemm x=f16 w=q4_0 y=f16 m=2 n=64 k=96 pack=tiles").field() == "k");
}

TEST_CASE("packing is an operation", "[pack]") {
  for (const char* text : {"pack w=q4_0 x=f16 n=4096 k=14336", "pack w=nvfp4 x=bf16 n=64 k=64 inverse=1"}) {
    const Problem p = Problem::parse(text);
    CHECK(p.text() == text);
    CHECK(p.op() == "pack");
    CHECK(p.with_rows(1) == p);
    CHECK(p == Problem(*p.as<Pack>()));
    CHECK(p.rows() == p.as<Pack>()->n);
    CHECK(p.cols() == p.as<Pack>()->k);
    CHECK(p.ops() == 0);
  }
  CHECK(Problem::parse("pack x=f16 w=q4_0 n=64 k=64 inverse=0").text() == "pack w=q4_0 x=f16 n=64 k=64");
  CHECK(Problem::parse("pack w=q4_0 x=f16 n=64 k=128").min_bytes() == 2.0 * 64 * 128 / 32 * 18);
  CHECK(refusal("pack w=q4_0 x=f16 n=64 k=64 inverse=2").field() == "inverse");
  CHECK(refusal("pack w=q4_0 x=f32 n=64 k=64").field() == "w");
  CHECK(refusal("pack w=q4_0 x=f16 n=65 k=64").field() == "n");
  CHECK(refusal("pack w=q4_0 x=f16 n=0 k=64").field() == "n");
  CHECK(refusal("pack w=q4_0 x=f16 n=2147483584 k=64000 inverse=1").code() == ErrorCode::too_large);
  std::vector<std::string> names;
  for (const PointerRule& rule : contract_for(Problem::parse("pack w=nvfp4 x=f16 n=64 k=64")).pointers)
    names.push_back(rule.name + std::string(rule.required ? "" : "?"));
  CHECK(names ==
        std::vector<std::string>{"w.data", "w.scales", "w.global?", "tiles.data", "tiles.scales", "tiles.global?"});
}

TEST_CASE("families that read formats as they are do not take tiles", "[pack]") {
  const Problem p = Problem::parse("gemm x=f16 w=q4_0 y=f16 m=16 n=64 k=64 pack=tiles");
  for (const char* target : {"sm_75", "sm_90a"}) {
    for (const char* name : {"mma", "gemv"}) CHECK(family("gemm", name).why_not(p, arch(target)) == "w is packed");
    CHECK(family("gemm", "reference").why_not(p, arch(target)).empty());
  }
  std::vector<std::string> names;
  for (const PointerRule& rule : contract_for(p).pointers) names.push_back(rule.name);
  CHECK(names == std::vector<std::string>{"x.data", "w.data (tiles)", "w.scales (tiles)", "y"});
}

TEST_CASE("sizes of packed streams", "[pack]") {
  const Gemm q4_0 = gemm_of(Format::parse("q4_0"), Format::parse("f16"), 128, 192);
  CHECK(packed_bytes(q4_0, StreamName::data) == 128 * 192 / 2);
  CHECK(packed_bytes(q4_0, StreamName::scales) == 128 * 192 / 32 * 2);
  CHECK(packed_bytes(q4_0, StreamName::global) == 0);
  const Gemm nvfp4 = gemm_of(Format::parse("nvfp4"), Format::parse("f16"), 64, 64);
  CHECK(packed_bytes(nvfp4, StreamName::data) == 64 * 64 / 2);
  CHECK(packed_bytes(nvfp4, StreamName::scales) == 64 * 64 / 16);
  CHECK(packed_bytes(nvfp4, StreamName::global) == 4);
  CHECK(Problem(q4_0).min_bytes() == 2.0 * 192 + 128 * 192 / 2 + 128 * 192 / 16 + 4.0 * 128);
}

TEST_CASE("the layout of packed q4_0", "[pack]") {
  const Gemm g = gemm_of(Format::parse("q4_0"), Format::parse("f16"), 64, 64);
  const auto code = [](int n, int k) { return static_cast<unsigned>(3 * n + k) % 16; };
  std::vector<unsigned char> rows(64 * 36);
  for (int n = 0; n < 64; ++n)
    for (int b = 0; b < 2; ++b) {
      unsigned char* block = &rows[static_cast<std::size_t>(n * 36 + b * 18)];
      block[0] = static_cast<unsigned char>(n), block[1] = static_cast<unsigned char>(0x30 + b);  // the scale
      for (int j = 0; j < 16; ++j)
        block[2 + j] = static_cast<unsigned char>(code(n, 32 * b + j) | code(n, 32 * b + j + 16) << 4);
    }
  Streams tiles = tiled_streams(g);
  pack_weights(g, {rows.data(), nullptr, nullptr}, tiles.out());
  // Thread 0, first step: rows 0 and 8, columns 0 1 and 8 9. Thread 37, last step: rows 17 and 25, columns 50 51,
  // 58 59.
  CHECK(tiles.data[0] == 0x19910880u);
  CHECK(tiles.data[4 * 37 + 3] == 0x6ee65dd5u);
  // Rows 0, 8, 1, 9: two scales each.
  CHECK(tiles.scales[0] == 0x31003000u);
  CHECK(tiles.scales[1] == 0x31083008u);
  CHECK(tiles.scales[2] == 0x31013001u);
  CHECK(tiles.scales[63] == 0x313f303fu);
}

TEST_CASE("packing loses nothing", "[pack]") {
  unsigned seed = 1;
  for (const Case& c : cases()) {
    INFO(c.w.name() << " for " << c.x.name() << " " << c.n << " x " << c.k);
    const Gemm g = gemm_of(c.w, c.x, c.n, c.k);
    Streams from = junk(g, ++seed), tiles = tiled_streams(g), back = plain_streams(g);
    pack_weights(g, from.out(), tiles.out());
    unpack_weights(g, tiles.out(), back.out());
    CHECK(back.data == from.data);
    CHECK(back.scales == from.scales);
    if (g.global != Global::none) CHECK(back.global == from.global);
    Streams other = tiled_streams(g);
    pack_weights(g, junk(g, seed + 1000).out(), other.out());
    CHECK_FALSE(other.data == tiles.data);
  }
  CHECK(seed > 8);
}

TEST_CASE("packing says which stream is missing", "[pack]") {
  const Gemm g = gemm_of(Format::parse("q4_0"), Format::parse("f16"), 64, 64);
  Streams from = plain_streams(g), tiles = tiled_streams(g);
  const auto field = [&](auto&& action) {
    try {
      action();
    } catch (const Error& e) {
      return std::string(e.field());
    }
    return std::string();
  };
  CHECK(field([&] { pack_weights(g, {}, tiles.out()); }) == "from.data");
  CHECK(field([&] { pack_weights(g, from.out(), {tiles.data.data(), nullptr, nullptr}); }) == "to.scales");
  CHECK(field([&] { unpack_weights(g, {tiles.data.data(), nullptr, nullptr}, from.out()); }) == "from.scales");
  Gemm plain = g;
  plain.packing = Packing::none;
  CHECK(field([&] { pack_weights(plain, from.out(), tiles.out()); }) == "pack");
}

namespace {

template <bool inverse, class W, class X>
void run_kernel(const Gemm& g, Streams& rows, Streams& tiles) {
  using Plan = tw::pack::Tiles<W, tw::tile_element<X, W>, inverse>;
  const auto operand = [](Streams& s) { return tw::MutableOperand{s.data.data(), s.scales.data(), &s.global}; };
  const tw::pack::Args args{operand(rows), operand(tiles)};
  const tw::pack::Shape shape{g.n, g.k};
  tw::emu::run({{static_cast<tw::u32>(Plan::tiles(shape)), 1, 1}, Plan::kThreads, 1, 0, 1},
               [&] { Plan::run(args, shape); });
}
template <class W, class X>
void check_kernels(const char* w, const char* x) {
  if constexpr (!tw::same<tw::tile_element<X, W>, void>())
    if constexpr (tw::has_tile<W, tw::tile_element<X, W>>())
      for (const Case& c : cases()) {
        if (c.w.name() != w || c.x.name() != x) continue;
        INFO(w << " for " << x << " " << c.n << " x " << c.k);
        const Gemm g = gemm_of(c.w, c.x, c.n, c.k);
        Streams from = junk(g, 5), host = tiled_streams(g), tiles = tiled_streams(g), back = plain_streams(g);
        pack_weights(g, from.out(), host.out());
        run_kernel<false, W, X>(g, from, tiles);
        CHECK(tiles.data == host.data);
        CHECK(tiles.scales == host.scales);
        run_kernel<true, W, X>(g, back, tiles);
        CHECK(back.data == from.data);
        CHECK(back.scales == from.scales);
        if (g.global != Global::none) CHECK(back.global == 5.0f);
      }
}
template <class W>
void check_kernels(const char* w) {
#define FORMAT(NAME) check_kernels<W, tw::fmt::NAME>(w, #NAME);
#include "format_list.inc"
#undef FORMAT
}

}  // namespace

TEST_CASE("the pack kernels give the host's bytes, both ways", "[pack]") {
#define FORMAT(NAME) check_kernels<tw::fmt::NAME>(#NAME);
#include "format_list.inc"
#undef FORMAT
}
