// SPDX-License-Identifier: Apache-2.0
// NF4 weights of bitsandbytes' checkpoints: golden vectors (tests/golden/make_checkpoints.py) and refusals.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/paths.h"
#include "support/refusal.h"

using namespace tilewright;

namespace {

using Bytes = std::vector<std::byte>;

struct Case {
  std::uint32_t n = 0, k = 0, blocksize = 0, nested_blocksize = 0;
  float offset = 0;
  Bytes tensors[5];  // weight, absmax, quant_map, nested_absmax, nested_quant_map
  std::vector<float> decoded;

  explicit Case(const std::string& name) {
    const std::string path = tilewright::paths::source_dir() + "/tests/golden/checkpoint_" + name + ".bin";
    std::ifstream in(path, std::ios::binary);
    const auto read = [&](void* to, std::size_t bytes) {
      in.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    };
    for (std::uint32_t* v : {&n, &k, &blocksize, &nested_blocksize}) read(v, 4);
    read(&offset, 4);
    for (Bytes& t : tensors) {
      std::uint32_t bytes = 0;
      read(&bytes, 4);
      t.resize(bytes);
      read(t.data(), bytes);
    }
    decoded.resize(std::size_t{n} * k);
    read(decoded.data(), decoded.size() * 4);
    INFO(path);
    REQUIRE(in.good());
    REQUIRE(in.peek() == std::ifstream::traits_type::eof());
  }
  BitsandbytesWeight weight() const {
    BitsandbytesWeight w;
    w.n = n, w.k = k, w.blocksize = blocksize, w.nested_blocksize = nested_blocksize, w.nested_offset = offset;
    w.weight = tensors[0], w.absmax = tensors[1], w.quant_map = tensors[2];
    w.nested_absmax = tensors[3], w.nested_quant_map = tensors[4];
    return w;
  }
};

struct Streams {
  Bytes data, scales;
  explicit Streams(const BitsandbytesWeight& w)
      : data(static_cast<std::size_t>(Format::parse("nf4").stream_bytes(0, w.n, w.k)), std::byte{0xee}),
        scales(static_cast<std::size_t>(Format::parse("nf4").stream_bytes(1, w.n, w.k)), std::byte{0xee}) {}
};

}  // namespace

TEST_CASE("bitsandbytes: NF4 weights decode as bitsandbytes dequantizes them, bit for bit", "[import]") {
  for (const char* name : {"bitsandbytes", "bitsandbytes_double", "bitsandbytes_long"}) {
    INFO(name);
    const Case c(name);
    for (const bool table : {true, false}) {
      BitsandbytesWeight w = c.weight();
      if (!table) w.quant_map = {};
      Streams s(w);
      import_bitsandbytes(w, s.data, s.scales);
      std::vector<float> v(c.decoded.size());
      Format::parse("nf4").info().decode({s.data.data(), s.scales.data(), nullptr}, w.n, w.k, v.data());
      CHECK(std::memcmp(v.data(), c.decoded.data(), 4 * v.size()) == 0);
    }
    // At any address.
    BitsandbytesWeight w = c.weight();
    Bytes moved[5];
    std::span<const std::byte>* spans[] = {&w.weight, &w.absmax, &w.quant_map, &w.nested_absmax, &w.nested_quant_map};
    for (int i = 0; i < 5; ++i) {
      if (spans[i]->empty()) continue;
      moved[i].assign(1, std::byte{0});
      moved[i].insert(moved[i].end(), spans[i]->begin(), spans[i]->end());
      *spans[i] = std::span<const std::byte>(moved[i]).subspan(1);
    }
    Streams aligned(w), other(w);
    import_bitsandbytes(c.weight(), aligned.data, aligned.scales);
    import_bitsandbytes(w, other.data, other.scales);
    CHECK(aligned.data == other.data);
    CHECK(aligned.scales == other.scales);
  }
}

TEST_CASE("bitsandbytes: a weight that NF4's format quantizes is its own import", "[import]") {
  const Format nf4 = Format::parse("nf4");
  std::vector<float> x(3 * 128);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 97)) * 0.1f;
  BitsandbytesWeight w;
  w.n = 3, w.k = 128;
  Streams encoded(w), s(w);
  nf4.info().encode(x.data(), 3, 128, {encoded.data.data(), encoded.scales.data(), nullptr}, 0);
  w.weight = encoded.data, w.absmax = encoded.scales;
  import_bitsandbytes(w, s.data, s.scales);
  CHECK(s.data == encoded.data);
  CHECK(s.scales == encoded.scales);
}

TEST_CASE("bitsandbytes: what is not as the weight says is refused by its name, and nothing is written", "[import]") {
  const Case plain("bitsandbytes"), nested("bitsandbytes_double");
  const auto refused = [](const Case& c, auto change) {
    BitsandbytesWeight w = c.weight();
    Streams s(w);
    const Bytes before = s.data;
    change(w);
    const Error e = refusal([&] { import_bitsandbytes(w, s.data, s.scales); });
    CHECK(s.data == before);
    return e;
  };
  using W = BitsandbytesWeight;
  const auto shorter = [](std::span<const std::byte>& t) { t = t.first(t.size() - 1); };
  CHECK(refused(plain, [](W& w) { w.n = 0; }).field() == "n");
  CHECK(refused(plain, [](W& w) { w.n = -3; }).field() == "n");
  CHECK(refused(plain, [](W& w) { w.n = std::int64_t{1} << 40; }).field() == "n");
  CHECK(refused(plain, [](W& w) { w.k = 96; }).field() == "k");
  CHECK(refused(plain, [](W& w) { w.k = 0; }).field() == "k");
  for (const int blocksize : {0, 32, -64, 96}) {
    const Error e = refused(plain, [&](W& w) { w.blocksize = blocksize; });
    CHECK(e.field() == "blocksize");
    CHECK(e.value() == std::to_string(blocksize));
    CHECK(e.allowed().find("a multiple of 64") != std::string::npos);
  }
  CHECK(refused(plain, [&](W& w) { shorter(w.weight); }).field() == "weight");
  CHECK(refused(plain, [&](W& w) { shorter(w.absmax); }).field() == "absmax");
  CHECK(refused(plain, [&](W& w) { w.absmax = {}; }).field() == "absmax");
  CHECK(refused(plain, [&](W& w) { w.blocksize = 128; }).field() == "absmax");
  CHECK(refused(plain, [&](W& w) { shorter(w.quant_map); }).field() == "quant_map");
  CHECK(refused(nested, [&](W& w) { w.nested_absmax = {}; }).field() == "nested_absmax");
  CHECK(refused(nested, [&](W& w) { w.nested_quant_map = {}; }).field() == "nested_quant_map");
  CHECK(refused(nested, [&](W& w) { shorter(w.nested_quant_map); }).field() == "nested_quant_map");
  CHECK(refused(nested, [&](W& w) { w.nested_blocksize = 0; }).field() == "nested_blocksize");
  CHECK(refused(nested, [&](W& w) { w.nested_blocksize = 512; }).field() == "nested_absmax");
  CHECK(refused(nested, [&](W& w) { w.nested_absmax = {}, w.nested_quant_map = {}; }).field() == "absmax");
  // FP4's table.
  Bytes table = plain.tensors[2];
  const float other = 0.0052083333f;
  std::memcpy(table.data() + 4, &other, 4);
  const Error fp4 = refused(plain, [&](W& w) { w.quant_map = table; });
  CHECK(fp4.code() == ErrorCode::unsupported);
  CHECK(fp4.field() == "quant_map[1]");
  // Streams of another size.
  W w = plain.weight();
  Streams s(w);
  CHECK(refusal([&] { import_bitsandbytes(w, std::span(s.data).first(1), s.scales); }).field() == "data");
  CHECK(refusal([&] { import_bitsandbytes(w, s.data, std::span(s.scales).first(4)); }).field() == "scales");
}
