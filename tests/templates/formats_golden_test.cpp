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
