// SPDX-License-Identifier: Apache-2.0
// Checkpoints to formats and back: golden vectors, every element against the checkpoint's own formula read straight
// from its tensors, the inverse, and each refusal.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/numeric.cuh"
#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;

namespace {

using Bytes = std::vector<std::byte>;

struct Streams {
  Format format;
  std::int64_t n, k;
  Bytes data, scales;
  Streams(Format f, std::int64_t rows, std::int64_t cols)
      : format(f),
        n(rows),
        k(cols),
        data(static_cast<std::size_t>(f.stream_bytes(0, rows, cols)), std::byte{0xee}),
        scales(static_cast<std::size_t>(f.stream_bytes(1, rows, cols)), std::byte{0xee}) {}
  std::vector<float> decoded() const {
    std::vector<float> v(static_cast<std::size_t>(n * k));
    format.info().decode({data.data(), scales.data(), nullptr}, n, k, v.data());
    return v;
  }
};
Streams imported(const CheckpointWeight& w, Format f) {
  Streams s(f, w.n, w.k);
  import_weights(w, f, s.data, s.scales);
  return s;
}

// w[n, k] in the checkpoint's own order of columns, element by element as the packing's text in import.h says.
std::vector<float> formula(const CheckpointWeight& w) {
  const std::int64_t group = w.group == -1 ? w.k : w.group, groups = w.k / group;
  const auto word = [](const CheckpointTensor& t, std::int64_t row, std::int64_t col) {
    std::uint32_t v;
    std::memcpy(&v, t.bytes.data() + 4 * (row * t.cols + col), 4);
    return v;
  };
  const int awq_nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // where column j of eight lies
  const auto nibble = [](std::uint32_t v, std::int64_t i) { return static_cast<int>(v >> (4 * i) & 15u); };
  std::vector<float> values;
  for (std::int64_t n = 0; n < w.n; ++n)
    for (std::int64_t k = 0; k < w.k; ++k) {
      const std::int64_t g = w.g_idx.bytes.empty() ? k / group : static_cast<std::int32_t>(word(w.g_idx, 0, k));
      int code = 0, zero = 8;
      switch (w.packing) {
        case Checkpoint::gptq:
        case Checkpoint::gptq_v2:
          code = nibble(word(w.codes, k / 8, n), k % 8);
          zero = nibble(word(w.zeros, g, n / 8) + (w.packing == Checkpoint::gptq ? 0x11111111u : 0u), n % 8);
          break;
        case Checkpoint::awq:
          code = nibble(word(w.codes, k, n / 8), awq_nibble[n % 8]);
          zero = nibble(word(w.zeros, g, n / 8), awq_nibble[n % 8]);
          break;
        case Checkpoint::compressed_tensors:
          code = nibble(word(w.codes, n, k / 8), k % 8);
          if (!w.zeros.bytes.empty()) zero = nibble(word(w.zeros, n / 8, g), n % 8);
      }
      std::uint16_t bits;
      const bool by_group = w.packing != Checkpoint::compressed_tensors;
      std::memcpy(&bits, w.scales.bytes.data() + 2 * (by_group ? g * w.n + n : n * groups + g), 2);
      const float scale = w.scales.type == TensorType::bf16 ? std::bit_cast<float>(std::uint32_t{bits} << 16)
                                                            : tw::f16_bits_to_f32(bits);
      values.push_back(static_cast<float>(code - zero) * scale);
    }
  return values;
}
std::vector<float> reordered(const std::vector<float>& v, std::int64_t k, const std::vector<std::int32_t>& order) {
  if (order.empty()) return v;
  std::vector<float> out(v.size());
  for (std::size_t at = 0; at < v.size(); at += static_cast<std::size_t>(k))
    for (std::size_t i = 0; i < order.size(); ++i) out[at + i] = v[at + static_cast<std::size_t>(order[i])];
  return out;
}
std::vector<std::string> names(const std::vector<Format>& formats) {
  std::vector<std::string> list;
  for (Format f : formats) list.emplace_back(f.name());
  return list;
}

struct Golden {
  CheckpointWeight weight;
  Bytes tensors[4];
  std::vector<float> decoded;
};
Golden golden(const std::string& name) {
  std::ifstream in(std::string(TILEWRIGHT_SOURCE_DIR) + "/tests/golden/checkpoint_" + name + ".bin", std::ios::binary);
  REQUIRE(in);
  const auto u32 = [&] {
    std::uint32_t v = 0;
    in.read(reinterpret_cast<char*>(&v), 4);
    return v;
  };
  Golden g;
  CheckpointWeight& w = g.weight;
  w.packing = static_cast<Checkpoint>(u32());
  w.n = u32(), w.k = u32(), w.group = u32();
  w.scales.type = static_cast<TensorType>(u32());
  CheckpointTensor* tensors[] = {&w.codes, &w.zeros, &w.scales, &w.g_idx};
  for (int i = 0; i < 4; ++i) {
    tensors[i]->rows = u32(), tensors[i]->cols = u32();
    g.tensors[i].resize(u32());
    in.read(reinterpret_cast<char*>(g.tensors[i].data()), static_cast<std::streamsize>(g.tensors[i].size()));
    tensors[i]->bytes = g.tensors[i];
  }
  g.decoded.resize(static_cast<std::size_t>(w.n * w.k));
  in.read(reinterpret_cast<char*>(g.decoded.data()), static_cast<std::streamsize>(4 * g.decoded.size()));
  REQUIRE(in);
  return g;
}

void check_equal(const CheckpointTensor& a, const CheckpointTensor& b) {
  CHECK(a.rows == b.rows);
  CHECK(a.cols == b.cols);
  CHECK(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end()));
}

// A weight with any bits as codes and zero points, and finite scales that both 16-bit types hold.
struct Random {
  CheckpointWeight weight;
  Bytes codes, zeros, scales, g_idx;
  Random(Checkpoint packing, std::int64_t n, std::int64_t k, std::int64_t group, TensorType type, bool symmetric,
         bool act_order, unsigned seed) {
    std::mt19937 random(seed);
    const std::int64_t size = group == -1 ? k : group, groups = k / size;
    weight.packing = packing, weight.n = n, weight.k = k, weight.group = group;
    const auto words = [&](Bytes& bytes, std::int64_t rows, std::int64_t cols, auto&& next) {
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        const std::uint32_t v = next(i);
        const auto* p = reinterpret_cast<const std::byte*>(&v);
        bytes.insert(bytes.end(), p, p + 4);
      }
      return CheckpointTensor{bytes, rows, cols, TensorType::i32};
    };
    const auto any = [&](std::int64_t) { return static_cast<std::uint32_t>(random()); };
    const auto eights = [&](std::int64_t) { return packing == Checkpoint::gptq ? 0x77777777u : 0x88888888u; };
    const bool compressed = packing == Checkpoint::compressed_tensors;
    weight.codes = packing == Checkpoint::awq ? words(codes, k, n / 8, any)
                   : compressed               ? words(codes, n, k / 8, any)
                                              : words(codes, k / 8, n, any);
    const std::int64_t tall = compressed ? (n + 7) / 8 : groups, wide = compressed ? groups : n / 8;
    if (!symmetric)
      weight.zeros = words(zeros, tall, wide, any);
    else if (!compressed)
      weight.zeros = words(zeros, tall, wide, eights);
    if (compressed && !symmetric && n % 8)  // the packer leaves what is beyond the last row 0
      for (std::int64_t g = 0; g < groups; ++g) {
        std::uint32_t last;
        std::byte* at = zeros.data() + 4 * ((tall - 1) * groups + g);
        std::memcpy(&last, at, 4);
        last &= (1u << (4 * (n % 8))) - 1u;
        std::memcpy(at, &last, 4);
      }
    for (std::int64_t i = 0; i < n * groups; ++i) {
      const float v = static_cast<float>(static_cast<int>(random() % 255) - 127) * 0.0009765625f;
      const std::uint16_t bits = type == TensorType::bf16 ? tw::f32_to_bf16_bits(v) : tw::f32_to_f16_bits(v);
      scales.push_back(static_cast<std::byte>(bits & 255)), scales.push_back(static_cast<std::byte>(bits >> 8));
    }
    weight.scales = compressed ? CheckpointTensor{scales, n, groups, type} : CheckpointTensor{scales, groups, n, type};
    if (packing == Checkpoint::awq || (compressed && !act_order)) return;
    std::vector<std::uint32_t> group_of(static_cast<std::size_t>(k));
    for (std::size_t i = 0; i < group_of.size(); ++i)
      group_of[i] = static_cast<std::uint32_t>(static_cast<std::int64_t>(i) / size);
    if (act_order) std::shuffle(group_of.begin(), group_of.end(), random);
    weight.g_idx = words(g_idx, 1, k, [&](std::int64_t i) { return group_of[static_cast<std::size_t>(i)]; });
  }
  Random(const Random&) = delete;
};

}  // namespace

TEST_CASE("checkpoints give the weights that they say, and come back byte for byte", "[import]") {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"gptq", {"uint4_g32"}},
      {"gptq_act_order", {"uint4_g32"}},
      {"gptq_v2", {"int4_g128", "int4_g64", "int4_g32", "uint4_g128", "uint4_g64", "uint4_g32"}},
      {"awq", {"uint4_g64", "uint4_g32"}},
      {"compressed_tensors", {"int4_g32", "uint4_g32"}},
      {"compressed_tensors_act_order", {"uint4_g64", "uint4_g32"}},
      {"compressed_tensors_channel", {"int4_row"}}};
  for (const auto& [name, formats] : cases) {
    INFO(name);
    const Golden g = golden(name);
    CHECK(names(import_formats(g.weight)) == formats);
    const auto order = import_order(g.weight);
    CHECK(order.empty() == (std::string(name).find("act_order") == std::string::npos));
    for (Format f : import_formats(g.weight)) {
      INFO(f.name());
      const Streams s = imported(g.weight, f);
      CHECK(s.decoded() == reordered(g.decoded, g.weight.k, order));
      CheckpointBytes bytes;
      const CheckpointWeight back = export_weights(f, s.data, s.scales, g.weight, order, bytes);
      check_equal(back.codes, g.weight.codes);
      check_equal(back.scales, g.weight.scales);
      if (!g.weight.g_idx.bytes.empty()) check_equal(back.g_idx, g.weight.g_idx);
      if (!g.weight.zeros.bytes.empty()) check_equal(back.zeros, g.weight.zeros);
    }
  }
}

TEST_CASE("the streams of an imported row", "[import]") {
  // One row and one group of compressed-tensors: its bytes are the format's.
  Random r(Checkpoint::compressed_tensors, 1, 32, 32, TensorType::f16, true, false, 9);
  const Streams s = imported(r.weight, Format::parse("int4_g32"));
  CHECK(s.data == r.codes);
  CHECK(s.scales == r.scales);
  const Streams u = imported(r.weight, Format::parse("uint4_g32"));
  CHECK(u.data == r.codes);
  CHECK(u.scales == Bytes{r.scales[0], r.scales[1], std::byte{0x00}, std::byte{0x48}});  // 8 as a half
}

TEST_CASE("any checkpoint, any shape: every element is the formula's, and nothing is lost", "[import]") {
  std::mt19937 random(20261121);
  const auto below = [&](unsigned n) { return static_cast<std::int64_t>(random() % n); };
  for (unsigned seed = 0; seed < 120; ++seed) {
    const auto packing = static_cast<Checkpoint>(seed % 4);
    const bool symmetric = below(2), act_order = packing != Checkpoint::awq && below(2);
    const std::int64_t groups_of[] = {32, 64, 96, 128, 256, -1}, group = groups_of[below(6)];
    const std::int64_t k = group == -1 ? (symmetric ? 8 : 32) * (1 + below(20)) : group * (1 + below(4));
    const std::int64_t n = packing == Checkpoint::compressed_tensors ? 1 + below(70) : 8 * (1 + below(9));
    const TensorType type = below(2) ? TensorType::f16 : TensorType::bf16;
    Random r(packing, n, k, group, type, symmetric, act_order, seed);
    INFO(to_string(packing) << " n=" << n << " k=" << k << " group=" << group << " symmetric=" << symmetric
                            << " act_order=" << act_order << " type=" << static_cast<int>(type));
    const auto order = import_order(r.weight);
    if (!act_order) CHECK(order.empty());
    const auto expected = reordered(formula(r.weight), k, order);
    const auto formats = import_formats(r.weight);
    CHECK((formats.front().name()[0] == 'i') == symmetric);
    for (Format f : formats) {
      INFO(f.name());
      const Streams s = imported(r.weight, f);
      CHECK(s.decoded() == expected);
      CheckpointBytes bytes;
      const CheckpointWeight back = export_weights(f, s.data, s.scales, r.weight, order, bytes);
      check_equal(back.codes, r.weight.codes);
      check_equal(back.scales, r.weight.scales);
      if (!r.weight.zeros.bytes.empty() && f.name()[0] == 'u') check_equal(back.zeros, r.weight.zeros);
      if (!order.empty()) check_equal(back.g_idx, r.weight.g_idx);
      CHECK(formula(back) == formula(r.weight));
    }
  }
}

TEST_CASE("columns are put in the order of their groups", "[import]") {
  Random r(Checkpoint::gptq, 8, 64, 32, TensorType::f16, false, false, 3);
  const auto assign = [&](auto&& group) {
    for (int i = 0; i < 64; ++i) {
      const std::int32_t g = group(i);
      std::memcpy(r.g_idx.data() + 4 * i, &g, 4);
    }
  };
  CHECK(import_order(r.weight).empty());
  assign([](int i) { return i % 2; });
  const auto order = import_order(r.weight);
  for (int i = 0; i < 64; ++i) CHECK(order[static_cast<std::size_t>(i)] == (i < 32 ? 2 * i : 2 * (i - 32) + 1));
  assign([](int i) { return 1 - i / 32; });  // contiguous, the other way round
  CHECK(import_order(r.weight)[0] == 32);
  r.weight.g_idx = {};
  CHECK(import_order(r.weight).empty());

  Random c(Checkpoint::compressed_tensors, 8, 64, 32, TensorType::f16, false, true, 3);
  CHECK(import_order(c.weight).size() == 64);
  const std::int32_t unset = -1;  // never set: columns keep their places
  std::memcpy(c.g_idx.data() + 8, &unset, 4);
  CHECK(import_order(c.weight).empty());
}

TEST_CASE("a product with x in the imported order is the checkpoint's", "[import]") {
  Random next(Checkpoint::gptq, 16, 64, 32, TensorType::f16, false, true, 4);
  Random layer(Checkpoint::awq, 64, 32, 32, TensorType::f16, false, false, 5);
  const auto order = import_order(next.weight);
  // The layer before computes x: its rows, in its own order and in the next one's.
  const Streams rows = imported(layer.weight, Format::parse("uint4_g32"));
  Streams gathered(rows.format, rows.n, rows.k);
  gather_rows(rows.format, rows.k, order, {rows.data.data(), rows.scales.data(), nullptr},
              {gathered.data.data(), gathered.scales.data(), nullptr});
  const auto before = rows.decoded(), after = gathered.decoded(), w = formula(next.weight),
             w_new = imported(next.weight, Format::parse("uint4_g32")).decoded();
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = 0; j < 32; ++j)
      CHECK(after[i * 32 + j] == before[static_cast<std::size_t>(order[i]) * 32 + j]);
  const auto product = [](const std::vector<float>& weights, std::size_t row, const std::vector<float>& x) {
    double sum = 0;  // exact: integers times scales that are multiples of 2^-20
    for (std::size_t i = 0; i < 64; ++i) sum += double{weights[row * 64 + i]} * double{x[i * 32]};
    return sum;
  };
  for (std::size_t row = 0; row < 16; ++row) CHECK(product(w, row, before) == product(w_new, row, after));
}

TEST_CASE("rows of every kind of stream are gathered", "[import]") {
  const std::vector<std::int32_t> order{2, 0, 1};
  for (const char* name : {"f16", "q4_0", "int4_g32", "int4_row", "nvfp4", "f32"}) {
    const Format f = Format::parse(name);
    const std::int64_t cols = std::max(f.block(), 32);
    std::vector<float> x;
    for (int i = 0; i < 3 * cols; ++i) x.push_back(static_cast<float>(i % 13 - 6) * static_cast<float>(1 + i / cols));
    const bool scales = f.info().streams.size() > 1;
    float global = 0.5f, global_to = 0;
    Bytes data[2], items[2];
    for (int i = 0; i < 2; ++i) {
      data[i].resize(static_cast<std::size_t>(f.stream_bytes(0, 3, cols)));
      items[i].resize(static_cast<std::size_t>(scales ? f.stream_bytes(1, 3, cols) : 1));
    }
    f.info().encode(x.data(), 3, cols, {data[0].data(), items[0].data(), &global}, 0);
    gather_rows(f, cols, order, {data[0].data(), items[0].data(), &global},
                {data[1].data(), items[1].data(), &global_to});
    std::vector<float> from(x.size()), to(x.size());
    f.info().decode({data[0].data(), items[0].data(), &global}, 3, cols, from.data());
    f.info().decode({data[1].data(), items[1].data(), &global}, 3, cols, to.data());
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto c = static_cast<std::size_t>(cols);
      CHECK(to[i] == from[static_cast<std::size_t>(order[i / c]) * c + i % c]);
    }
    CHECK(global_to == (std::string(name) == "nvfp4" ? 0.5f : 0.0f));
  }
  const Format f = Format::parse("q4_0");
  Bytes bytes(36);
  const std::vector<std::int32_t> twice{0, 0}, beyond{0, 2}, negative{-1, 0}, fine{1, 0};
  const auto gather = [&](const std::vector<std::int32_t>& o, std::int64_t cols, void* from, void* to) {
    return refusal([&] { gather_rows(f, cols, o, {from, nullptr, nullptr}, {to, nullptr, nullptr}); });
  };
  Bytes other(36);
  CHECK(gather(twice, 32, bytes.data(), other.data()).field() == "order[1]");
  CHECK(gather(beyond, 32, bytes.data(), other.data()).value() == "2");
  CHECK(gather(negative, 32, bytes.data(), other.data()).allowed() == "each of 0 to 1 once");
  CHECK(gather(fine, 33, bytes.data(), other.data()).field() == "cols");
  CHECK(gather(fine, 32, nullptr, other.data()).field() == "from.data");
  CHECK(gather(fine, 32, bytes.data(), nullptr).field() == "to.data");
}

TEST_CASE("scales keep their value or are refused by name", "[import]") {
  const auto with_scale = [](Checkpoint packing, std::int64_t group, std::uint16_t bits) {
    auto r = std::make_unique<Random>(packing, 8, 64, group, TensorType::bf16, true, false, 7);
    std::memcpy(r->scales.data() + 2 * 3, &bits, 2);
    return r;
  };
  const Format half = Format::parse("int4_g32");
  // 65280 fits, 65536 does not; 2^-24 and 3 2^-24 are the smallest that fit, 2^-25 and 5 2^-25 do not; infinity is one.
  for (std::uint16_t bits : {0x477f, 0xc77f, 0x3380, 0x3440, 0x7f80, 0x0000, 0x8000}) {
    auto r = with_scale(Checkpoint::gptq, 32, bits);
    std::uint16_t stored;
    const Streams s = imported(r->weight, half);
    std::memcpy(&stored, s.scales.data() + 2 * 3 * 2, 2);  // row 3, first of two groups
    CHECK(std::bit_cast<std::uint32_t>(tw::f16_bits_to_f32(stored)) == std::uint32_t{bits} << 16);
  }
  auto nan = with_scale(Checkpoint::gptq, 32, 0x7fc0);
  CHECK(imported(nan->weight, half).decoded()[3 * 64] != imported(nan->weight, half).decoded()[3 * 64]);
  for (std::uint16_t bits : {0x4780, 0xc780, 0x3300, 0x3420, 0x0001}) {
    auto r = with_scale(Checkpoint::gptq, 32, bits);
    const Error e = refusal([&] { imported(r->weight, half); });
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "scales[0, 3]");
    CHECK(e.allowed() == "up to 65504 and a multiple of 2^-24: int4_g32 has scales in half precision");
    auto channel = with_scale(Checkpoint::compressed_tensors, -1, bits);  // floats hold them all
    CHECK(imported(channel->weight, Format::parse("int4_row")).decoded() == formula(channel->weight));
    CHECK(refusal([&] { imported(channel->weight, half); }).field() == "weight_scale[3, 0]");
  }
}

TEST_CASE("what is no checkpoint is refused by name", "[import]") {
  const auto check = [](Checkpoint packing, auto&& spoil, const std::string& field, const std::string& value,
                        const std::string& allowed, ErrorCode code = ErrorCode::invalid_argument) {
    Random r(packing, 24, 128, 32, TensorType::f16, false, packing != Checkpoint::awq, 2);
    CheckpointWeight w = r.weight;
    spoil(w);
    const Error e = refusal([&] { import_formats(w); });
    INFO(e.what());
    CHECK(e.code() == code);
    CHECK(e.field() == field);
    CHECK(e.value() == value);
    CHECK(e.allowed() == allowed);
    Bytes stream(24 * 128);
    CHECK_THROWS_AS(import_weights(w, Format::parse("uint4_g32"), stream, stream), Error);
  };
  using W = CheckpointWeight;
  const auto gptq = Checkpoint::gptq, v2 = Checkpoint::gptq_v2, awq = Checkpoint::awq,
             compressed = Checkpoint::compressed_tensors;
  const auto unsupported = ErrorCode::unsupported;
  check(
      gptq, [](W& w) { w.bits = 8; }, "bits", "8", "4", unsupported);
  check(
      gptq, [](W& w) { w.bits = 3; }, "bits", "3", "4", unsupported);
  check(
      gptq, [](W& w) { w.packing = static_cast<Checkpoint>(9); }, "packing", "9",
      "gptq, gptq_v2, awq or compressed_tensors");
  check(
      gptq, [](W& w) { w.n = 12; }, "n", "12", "a multiple of 8 below 2147483648");
  check(
      compressed, [](W& w) { w.n = 0; }, "n", "0", "1 to 2147483647");
  check(
      awq, [](W& w) { w.k = 36; }, "k", "36", "a multiple of 8 below 2147483648");
  check(
      awq, [](W& w) { w.k = std::int64_t{1} << 31; }, "k", "2147483648", "a multiple of 8 below 2147483648");
  check(
      gptq, [](W& w) { w.group = 48; }, "group", "48", "a divisor of k = 128, or -1 for all of k");
  check(
      gptq, [](W& w) { w.group = 0; }, "group", "0", "a divisor of k = 128, or -1 for all of k");
  check(
      gptq, [](W& w) { std::swap(w.codes.rows, w.codes.cols); }, "qweight", "i32 [24, 16]", "i32 [16, 24] (k / 8, n)");
  check(
      v2, [](W& w) { w.group = 64; }, "qzeros", "i32 [4, 3]", "i32 [2, 3] (k / group, n / 8)");
  check(
      awq, [](W& w) { w.codes.type = TensorType::f16; }, "qweight", "f16 [128, 3]", "i32 [128, 3] (k, n / 8)");
  check(
      awq, [](W& w) { w.zeros.cols = 24; }, "qzeros", "i32 [4, 24]", "i32 [4, 3] (k / group, n / 8)");
  check(
      awq, [](W& w) { w.scales.rows = 1; }, "scales", "f16 [1, 24]", "f16 or bf16 [4, 24] (k / group, n)");
  check(
      compressed, [](W& w) { w.codes.cols = 128; }, "weight_packed", "i32 [24, 128]", "i32 [24, 16] (n, k / 8)");
  check(
      compressed, [](W& w) { std::swap(w.zeros.rows, w.zeros.cols); }, "weight_zero_point", "i32 [4, 3]",
      "i32 [3, 4] (n / 8, k / group)");
  check(
      compressed, [](W& w) { w.scales.type = TensorType::i32; }, "weight_scale", "i32 [24, 4]",
      "f16 or bf16 [24, 4] (n, k / group)");
  check(
      compressed, [](W& w) { w.g_idx.cols = 64; }, "weight_g_idx", "i32 [1, 64]", "i32 [1, 128] (1, k)");
  check(
      gptq, [](W& w) { w.codes.bytes = w.codes.bytes.first(12); }, "qweight.bytes", "12", "1536 of i32 [16, 24]");
  check(
      gptq, [](W& w) { w.codes.bytes = {}; }, "qweight", "missing", "i32 [16, 24]");
  check(
      gptq, [](W& w) { w.zeros.bytes = {}; }, "qzeros", "missing", "i32 [4, 3]");
  check(
      compressed, [](W& w) { w.scales.bytes = {}; }, "weight_scale", "missing", "f16 or bf16 [24, 4]");
  check(
      awq, [](W& w) { w.g_idx = w.scales; }, "g_idx", "given", "nothing: awq has none", unsupported);
}

TEST_CASE("groups that no format has", "[import]") {
  for (const bool symmetric : {true, false}) {
    Random sixteen(Checkpoint::awq, 8, 64, 16, TensorType::f16, symmetric, false, 1);
    const Error e = refusal([&] { import_formats(sixteen.weight); });
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "group");
    CHECK(e.value() == "16");
    CHECK(e.allowed() ==
          (symmetric ? "a multiple of 32, or all of k" : "a multiple of 32, as there are zero points other than 8"));
    Random row(Checkpoint::awq, 8, 72, -1, TensorType::f16, symmetric, false, 1);
    if (symmetric)
      CHECK(names(import_formats(row.weight)) == std::vector<std::string>{"int4_row"});
    else
      CHECK(refusal([&] { import_formats(row.weight); }).value() == "72");
  }
}

TEST_CASE("groups of other sizes than they should have", "[import]") {
  Random r(Checkpoint::gptq, 8, 64, 32, TensorType::f16, false, false, 1);
  const auto set = [&](int i, std::int32_t g) { std::memcpy(r.g_idx.data() + 4 * i, &g, 4); };
  set(5, 1);
  Error e = refusal([&] { import_order(r.weight); });
  CHECK(e.field() == "g_idx");
  CHECK(e.value() == "31 columns in group 0");
  CHECK(e.allowed() == "32 in each, as group says");
  for (const std::int32_t g : {2, -1}) {
    set(5, g);
    e = refusal([&] { import_order(r.weight); });
    CHECK(e.field() == "g_idx[5]");
    CHECK(e.value() == std::to_string(g));
    CHECK(e.allowed() == "0 to 1, of k / group = 2 groups");
  }
  Bytes stream(8 * 64);
  CHECK_THROWS_AS(
      import_weights(r.weight, Format::parse("uint4_g32"), std::span(stream).first(256), std::span(stream).first(64)),
      Error);
}

TEST_CASE("what an import writes to", "[import]") {
  Random r(Checkpoint::awq, 8, 64, 32, TensorType::f16, false, false, 1);
  Bytes data(8 * 64 / 2), scales(8 * 2 * 4), one(1);
  const auto into = [&](const char* format, std::span<std::byte> d, std::span<std::byte> s) {
    return refusal([&] { import_weights(r.weight, Format::parse(format), d, s); });
  };
  CHECK(into("int4_g32", data, scales).field() == "format");
  CHECK(into("q4_0", data, scales).allowed() == "one of uint4_g32");
  Error e = into("uint4_g32", one, scales);
  CHECK(e.field() == "data");
  CHECK(e.value() == "1 bytes");
  CHECK(e.allowed() == "256: uint4_g32 of 8 x 64");
  e = into("uint4_g32", data, data);
  CHECK(e.field() == "scales");
  CHECK(e.allowed() == "64: uint4_g32 of 8 x 64");
}

TEST_CASE("what a checkpoint cannot hold is not exported", "[import]") {
  const Format uint4 = Format::parse("uint4_g32"), int4 = Format::parse("int4_g32"), row = Format::parse("int4_row");
  const std::int64_t n = 8, k = 64;
  CheckpointBytes bytes;
  const auto exporting = [&](const Streams& s, CheckpointWeight like, const std::vector<std::int32_t>& order = {}) {
    like.n = n, like.k = k;
    return refusal([&] { export_weights(s.format, s.data, s.scales, like, order, bytes); });
  };
  const auto like = [](Checkpoint packing, std::int64_t group, TensorType type) {
    CheckpointWeight w{.packing = packing, .group = group, .codes = {}, .zeros = {}, .scales = {}, .g_idx = {}};
    w.scales.type = type;
    return w;
  };
  const auto gptq = like(Checkpoint::gptq, 32, TensorType::f16);
  const auto halves = [](Streams& s, std::vector<float> values) {
    for (std::size_t at = 0; at < s.scales.size() / 2; ++at) {
      const std::uint16_t bits = tw::f32_to_f16_bits(values[at % values.size()]);
      std::memcpy(s.scales.data() + 2 * at, &bits, 2);
    }
  };
  Streams s(uint4, n, k);
  halves(s, {1.0f, 8.0f, 1.0f, 15.0f});
  for (const float zero : {7.5f, 16.0f, -1.0f}) {
    Streams odd(uint4, n, k);
    halves(odd, {1.0f, 8.0f, 1.0f, zero});
    const Error e = exporting(odd, gptq);
    CHECK(e.code() == ErrorCode::unsupported);
    CHECK(e.field() == "zero point of row 0, group 1");
    CHECK(e.allowed() == "an integer of 0 to 15");
  }
  CHECK(exporting(s, like(Checkpoint::gptq, 64, TensorType::f16)).value() ==
        "row 0, block 1, differs from its group's first");
  CHECK(exporting(s, like(Checkpoint::awq, 16, TensorType::f16)).field() == "group");
  CHECK(exporting(s, like(Checkpoint::awq, 32, TensorType::i32)).field() == "scales.type");
  CHECK(exporting(s, like(Checkpoint::awq, 32, TensorType::f16), {1, 0}).allowed() == "none: awq has no g_idx");
  CHECK(exporting(s, gptq, {1, 0}).allowed() == "64 (k), or none");
  std::vector<std::int32_t> order(64);
  CHECK(exporting(s, gptq, order).field() == "order[1]");
  std::iota(order.begin(), order.end(), 0);
  order[9] = 64;
  CHECK(exporting(s, gptq, order).field() == "order[9]");
  Streams fine(int4, n, k);
  halves(fine, {1.0f, 1.0009765625f});
  Error e = exporting(fine, like(Checkpoint::compressed_tensors, 32, TensorType::bf16));
  CHECK(e.field() == "weight_scale[0, 1]");
  CHECK(e.allowed() == "what bf16 holds exactly");
  Streams rows(row, n, k);
  for (int i = 0; i < 8; ++i) {
    const float v = 1e-30f;
    std::memcpy(rows.scales.data() + 4 * i, &v, 4);
  }
  CHECK(exporting(rows, like(Checkpoint::awq, -1, TensorType::f16)).field() == "scales[0, 0]");
  CHECK(exporting(rows, gptq).field() == "format");
  rows.scales.pop_back();
  CHECK(exporting(rows, like(Checkpoint::awq, -1, TensorType::f16)).field() == "scales");
  CHECK(exporting(Streams(Format::parse("int8_row"), n, k), gptq).field() == "format");
  auto eight = gptq;
  eight.bits = 8;
  CHECK(exporting(s, eight).field() == "bits");
}
