// SPDX-License-Identifier: Apache-2.0
// BitNet weights of transformers' checkpoints: golden vectors (tests/golden/make_checkpoints.py) and refusals.
#include <tilewright/error.h>
#include <tilewright/import.h>

#include <cmath>
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
  BitnetWeight weight;
  Bytes packed, data, scales;
  std::vector<float> expected;

  explicit Case(const std::string& name) {
    std::ifstream in(tilewright::paths::source_dir() + "/tests/golden/checkpoint_" + name + ".bin", std::ios::binary);
    const auto read = [&](void* to, std::size_t bytes) {
      in.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    };
    std::uint32_t head[3] = {}, bytes = 0;
    read(head, 12);
    read(&weight.scale, 4);
    read(&bytes, 4);
    packed.resize(bytes);
    read(packed.data(), bytes);
    weight.n = head[0], weight.k = head[1], weight.divides = head[2], weight.weight = packed;
    expected.resize(std::size_t{head[0]} * head[1]);
    read(expected.data(), 4 * expected.size());
    REQUIRE(in.good());
    const Format f = Format::parse("ternary_row");
    data.assign(static_cast<std::size_t>(f.stream_bytes(0, weight.n, weight.k)), std::byte{0xee});
    scales.assign(static_cast<std::size_t>(f.stream_bytes(1, weight.n, weight.k)), std::byte{0xee});
  }
  std::vector<float> decoded() {
    import_bitnet(weight, data, scales);
    std::vector<float> values(expected.size());
    Format::parse("ternary_row")
        .info()
        .decode({data.data(), scales.data(), nullptr}, weight.n, weight.k, values.data());
    return values;
  }
};

}  // namespace

TEST_CASE("BitNet layers give the weights that they say", "[import]") {
  for (const char* name : {"bitnet", "bitnet_ragged"}) {
    INFO(name);
    Case c(name);
    CHECK(c.decoded() == c.expected);
  }
}

TEST_CASE("BitNet layers that are none are refused by name", "[import]") {
  const auto refused = [](auto change, const char* field) {
    Case c("bitnet_ragged");
    change(c);
    CHECK(refusal([&] { import_bitnet(c.weight, c.data, c.scales); }).field() == field);
  };
  refused([](Case& c) { c.weight.n = 0; }, "n");
  refused([](Case& c) { c.weight.k = 38; }, "k");
  refused([](Case& c) { c.weight.n = 16; }, "weight");
  refused([](Case& c) { c.weight.weight = c.weight.weight.first(7); }, "weight");
  refused([](Case& c) { c.data.pop_back(); }, "data");
  refused([](Case& c) { c.scales.pop_back(); }, "scales");
  refused([](Case& c) { c.weight.scale = NAN; }, "weight_scale");
  refused([](Case& c) { c.weight.scale = 0; }, "weight_scale");
  refused([](Case& c) { c.packed[36 + 5] |= std::byte{3 << 4}; }, "weight of row 7, column 5");
}
