// SPDX-License-Identifier: Apache-2.0
// Every encoder and decoder against the golden vectors of its reference (tests/golden). Vectors are found by their
// names: FORMAT[_ENCODER][_CASE].bin, without ENCODER for a format's first one.
#include <tilewright/error.h>
#include <tilewright/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats_test.h"
#include "golden.h"
#include "support/catch.h"

using namespace formats_test;

TEST_CASE("encoders and decoders agree with their references, bit for bit", "[formats][golden]") {
  for (const GoldenFile& file : golden_files()) check_golden(file);
}

TEST_CASE("every encoder has golden vectors, and every file is one's", "[formats][golden]") {
  std::set<std::string> covered;
  for (const GoldenFile& file : golden_files())
    covered.insert(file.format + " " + Format::parse(file.format).info().encoders[file.encoder]);
  for (const Format f : Format::all())
    for (const char* encoder : f.info().encoders) {
      const bool first = encoder == f.info().encoders[0];
      INFO("tests/golden/" << f.name() << (first ? "" : "_") << (first ? "" : encoder)
                           << ".bin is missing: see tests/golden/README.md");
      CHECK(covered.count(std::string(f.name()) + " " + encoder) == 1);
    }
}

// Adds the formats that a file of importance has to `covered`.
static void check_importance(const std::string& file, std::set<std::string>& covered) {
  std::ifstream in(tilewright::paths::source_dir() + "/tests/golden/" + file, std::ios::binary);
  const auto read = [&]<class T>(std::vector<T>& v, std::size_t count) {
    v.resize(count);
    in.read(reinterpret_cast<char*>(v.data()), static_cast<std::streamsize>(count * sizeof(T)));
    REQUIRE(in);
  };
  std::vector<std::uint32_t> head;
  read(head, 4);
  const std::int64_t rows = head[0], cols = head[1];
  std::vector<float> x;
  read(x, static_cast<std::size_t>(rows * cols));
  std::vector<std::vector<float>> importances(head[2]);
  for (auto& importance : importances) read(importance, head[1]);
  for (std::uint32_t i = 0; i < head[3]; ++i) {
    std::vector<char> name;
    read(name, 8);
    name.push_back('\0');
    const Format f = Format::parse(name.data());
    covered.insert(std::string(f.name()));
    REQUIRE(f.info().encode_weighted);
    for (const auto& importance : importances) {
      INFO(f.name() << " importance " << &importance - importances.data());
      std::vector<u8> expected, data(static_cast<std::size_t>(f.stream_bytes(0, rows, cols)), 0xaa);
      read(expected, data.size());
      f.info().encode_weighted(x.data(), rows, cols, importance.data(), {data.data(), nullptr, nullptr});
      CHECK(first_difference(data, expected) == -1);
    }
  }
}
TEST_CASE("encoders with importance have ggml's bytes", "[formats][golden]") {
  std::set<std::string> covered;
  for (const char* file : {"importance.bin", "importance_lists.bin"}) check_importance(file, covered);
  for (const Format f : Format::all())
    CHECK((f.info().encode_weighted != nullptr) == (covered.count(std::string(f.name())) == 1));
}

TEST_CASE("importance moves errors away from the columns that have it", "[formats]") {
  const auto x = gauss(16 * 256, 0.5f, 9);
  std::vector<float> importance(256, 0.01f);
  for (std::size_t i = 0; i < 256; i += 8) importance[i] = 10;
  for (const Format f : Format::all()) {
    if (!f.info().encode_weighted) continue;
    INFO(f.name());
    const auto errors = [&](const std::vector<float>& y) {
      double weighted = 0;
      for (std::size_t i = 0; i < x.size(); ++i) weighted += importance[i % 256] * (y[i] - x[i]) * (y[i] - x[i]);
      return weighted;
    };
    const auto searched = static_cast<int>(f.info().encoders.size()) - 1;
    Encoded e = encode(f, x, 256, searched);
    const double before = errors(decode(f, e, x.size(), 256));
    f.info().encode_weighted(x.data(), 16, 256, importance.data(), {e.data.data(), nullptr, nullptr});
    CHECK(errors(decode(f, e, x.size(), 256)) < before * 0.9);
    // What cannot be searched is some number all the same, and no other block's matter.
    auto bad = x;
    bad[5] = kNan, bad[300] = 3e38f;
    const Encoded clean = e;
    f.info().encode_weighted(bad.data(), 16, 256, importance.data(), {e.data.data(), nullptr, nullptr});
    const auto bytes = static_cast<std::ptrdiff_t>(e.data.size() / 16);
    CHECK(std::equal(clean.data.begin() + 2 * bytes, clean.data.end(), e.data.begin() + 2 * bytes));
  }
}

// The rule by which files are found, on names that could be mistaken.
TEST_CASE("a file of golden vectors belongs to the longest format that its name begins with", "[formats][golden]") {
  const auto owner = [](const char* stem) {
    const GoldenFile file = golden_file(stem);
    return file.format.empty() ? std::string("none") : file.format + " " + std::to_string(file.encoder);
  };
  CHECK(owner("e4m3") == "e4m3 0");
  CHECK(owner("e4m3_edge") == "e4m3 0");
  CHECK(owner("e4m3_row_edge") == "e4m3_row 0");
  CHECK(owner("e4m3_tensor") == "e4m3_tensor 0");
  CHECK(owner("q4_0_amax7_edge") == "q4_0 1");
  CHECK(owner("q4_0_amax7") == "q4_0 1");
  CHECK(owner("q4_0_amax") == "q4_0 0");
  CHECK(owner("q8_1_sum_x") == "q8_1 1");
  CHECK(owner("q8_1_ggml_edge") == "q8_1 0");
  CHECK(owner("q9_0_edge") == "none");
}
