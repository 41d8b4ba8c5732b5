// SPDX-License-Identifier: Apache-2.0
// Golden vectors (tests/golden/README.md has their layout): which files there are, whose they are, and how an encoder
// and a decoder are held to one.
#pragma once

#include <tilewright/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "formats_test.h"
#include "support/catch.h"
#include "support/paths.h"

namespace formats_test {

struct GoldenFile {
  std::string stem, format;  // no format: nobody's
  std::size_t encoder = 0;
};

// FORMAT[_ENCODER][_CASE], of the longest format and encoder that fit.
inline GoldenFile golden_file(const std::string& stem) {
  const auto after = [](std::string_view text, std::string_view word) -> std::string_view {
    const bool fits = text.substr(0, word.size()) == word && (text.size() == word.size() || text[word.size()] == '_');
    return fits ? text.substr(word.size()) : std::string_view("?");
  };
  GoldenFile file{stem, {}, 0};
  for (const Format f : Format::all()) {
    const std::string_view rest = after(stem, f.name());
    if (rest == "?" || f.name().size() < file.format.size()) continue;
    file.format = f.name(), file.encoder = 0;
    for (std::size_t i = 0; i < f.info().encoders.size() && !rest.empty(); ++i)
      if (after(rest.substr(1), f.info().encoders[i]) != "?") file.encoder = i;
  }
  return file;
}

// All of encoders, in alphabetical order.
inline std::vector<GoldenFile> golden_files() {
  std::vector<GoldenFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(tilewright::paths::source_dir() + "/tests/golden")) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".bin" || stem.starts_with("checkpoint_") || stem == "fake_quant" ||
        stem.starts_with("importance"))
      continue;
    files.push_back(golden_file(stem));
    INFO("tests/golden/" << stem << ".bin");
    REQUIRE(!files.back().format.empty());
  }
  std::sort(files.begin(), files.end(), [](const GoldenFile& a, const GoldenFile& b) { return a.stem < b.stem; });
  return files;
}

struct Golden {
  std::uint32_t rows = 0, cols = 0;
  std::vector<float> input, decoded;
  std::vector<std::vector<u8>> streams;
};
inline Golden read_golden(const std::string& stem) {
  std::ifstream in(tilewright::paths::source_dir() + "/tests/golden/" + stem + ".bin", std::ios::binary);
  const auto read = [&]<class T>(std::vector<T>& v, std::size_t count) {
    v.resize(count);
    in.read(reinterpret_cast<char*>(v.data()), static_cast<std::streamsize>(count * sizeof(T)));
  };
  const auto number = [&] {
    std::vector<std::uint32_t> v;
    read(v, 1);
    return v[0];
  };
  Golden g;
  g.rows = number(), g.cols = number();
  read(g.input, std::size_t{g.rows} * g.cols);
  g.streams.resize(number());
  for (auto& stream : g.streams) read(stream, number());
  read(g.decoded, g.input.size());
  INFO("tests/golden/" << stem << ".bin");
  REQUIRE(in);
  return g;
}

inline void check_golden(const GoldenFile& file) {
  INFO("tests/golden/" << file.stem << ".bin");
  const Golden g = read_golden(file.stem);
  const Format f = Format::parse(file.format);
  REQUIRE(g.streams.size() == f.info().streams.size());
  float global = 1.0f;
  if (f.info().global_for) {
    std::memcpy(&global, g.streams.back().data(), 4);
    CHECK(same(f.info().global_for(largest(g.input)), global));
  }
  const Encoded e = encode(f, g.input, g.cols, static_cast<int>(file.encoder), global);
  CHECK(first_difference(e.data, g.streams[0]) == -1);
  if (!e.scales.empty()) CHECK(first_difference(e.scales, g.streams[1]) == -1);
  CHECK(first_difference(decode(f, e, g.input.size(), g.cols), g.decoded) == -1);
}

}  // namespace formats_test
