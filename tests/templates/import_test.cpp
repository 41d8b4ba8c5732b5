// SPDX-License-Identifier: Apache-2.0
// Checkpoints to formats and back: golden vectors, every element against the checkpoint's own formula read straight
// from its tensors, and the inverse.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/numeric.cuh"
#include "import_test.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"

using namespace import_test;

namespace {

std::vector<float> reordered(const std::vector<float>& v, std::int64_t k, const std::vector<std::int32_t>& order) {
  if (order.empty()) return v;
  std::vector<float> out(v.size());
  for (std::size_t at = 0; at < v.size(); at += static_cast<std::size_t>(k))
    for (std::size_t i = 0; i < order.size(); ++i) out[at + i] = v[at + static_cast<std::size_t>(order[i])];
  return out;
}
struct Golden {
  CheckpointWeight weight;
  Bytes tensors[4];
  std::vector<float> decoded;
};
Golden golden(const std::string& name) {
  std::ifstream in(tilewright::paths::source_dir() + "/tests/golden/checkpoint_" + name + ".bin", std::ios::binary);
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

}  // namespace

TEST_CASE("GPTQ's codes of 2, 3 and 8 bits give the weights that they say", "[import]") {
  const std::vector<std::string> all4 = {"uint4_g64", "uint4_g32"};
  struct Case {
    const char* name;
    int bits;
    std::vector<std::string> formats;
  };
  for (const auto& [name, bits, formats] :
       {Case{"gptq_2bit", 2, {"uint4_g32"}}, Case{"gptq_3bit", 3, all4},
        Case{"gptq_v2_3bit", 3, {"int4_g32", "uint4_g32"}}, Case{"gptq_8bit", 8, {"q8_0"}}}) {
    INFO(name);
    Golden g = golden(name);
    g.weight.bits = bits;
    REQUIRE(names(import_formats(g.weight)) == formats);
    const auto order = import_order(g.weight);
    for (const Format f : import_formats(g.weight)) {
      Streams s(f, g.weight.n, g.weight.k);
      if (f.info().streams.size() == 1) s.scales.clear();
      import_weights(g.weight, f, s.data, s.scales);
      CHECK(s.decoded() == reordered(g.decoded, g.weight.k, order));
    }
  }
  // What such weights may not be.
  Golden g = golden("gptq_8bit");
  g.weight.bits = 8;
  Streams s(Format::parse("q8_0"), g.weight.n, g.weight.k);
  Bytes scales(2);
  CHECK(refusal([&] { import_weights(g.weight, s.format, s.data, scales); }).field() == "scales");
  CheckpointWeight w = g.weight;
  w.group = 16;
  CHECK(refusal([&] { import_formats(w); }).field() == "qzeros");
  w = g.weight;
  g.tensors[1][3] ^= std::byte{1};
  CHECK(refusal([&] { import_formats(w); }).field() == "zero points");
  w.bits = 3;
  CHECK(refusal([&] { import_formats(w); }).field() == "n");
  w.n = 32;
  CHECK(refusal([&] { import_formats(w); }).field() == "qweight");
  CheckpointBytes to;
  CHECK(refusal([&] { export_weights(s.format, s.data, {}, g.weight, {}, to); }).field() == "bits");
}

TEST_CASE("formats of every width come back from GPTQ's packings, with the values that they had", "[import]") {
  std::mt19937 random(4);
  for (const Format f : integer_formats()) {
    if (f.info().checkpoint != CheckpointForm::integers) continue;
    const std::int64_t n = 64, k = 256;
    std::vector<float> values(static_cast<std::size_t>(n * k));
    for (float& v : values) v = static_cast<float>(random() % 4096) / 1024 - 1;
    Streams s(f, n, k);
    f.info().encode(values.data(), n, k, {s.data.data(), s.scales.data(), nullptr}, 0);
    for (const Checkpoint packing : {Checkpoint::gptq, Checkpoint::gptq_v2}) {
      INFO(f.name() << " " << to_string(packing));
      CheckpointWeight like;
      like.packing = packing, like.n = n, like.k = k, like.group = f.block(), like.bits = f.info().bits;
      like.scales.type = TensorType::f16;
      CheckpointBytes bytes;
      const CheckpointWeight w = export_weights(f, s.data, s.scales, like, {}, bytes);
      const std::vector<Format> fitting = import_formats(w);
      CHECK(fitting.front().info().bits == f.info().bits);
      for (const Format other : fitting) {
        const Streams again = imported(w, other);
        CHECK(again.decoded() == s.decoded());
        if (other == f) CHECK(again.data == s.data);
        if (other == f) CHECK(again.scales == s.scales);
      }
    }
  }
}

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
  CHECK(gather(negative, 32, bytes.data(), other.data()).allowed() == "must be each of 0 to 1 once");
  CHECK(gather(fine, 33, bytes.data(), other.data()).field() == "cols");
  CHECK(gather(fine, 32, nullptr, other.data()).field() == "from.data");
  CHECK(gather(fine, 32, bytes.data(), nullptr).field() == "to.data");
}
