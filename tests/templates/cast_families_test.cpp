// SPDX-License-Identifier: Apache-2.0
// Casts between every pair of formats: candidates keep to what the templates assert (operations/cast/cuda/encode.cuh,
// decode.cuh, rows.cuh, operations/fused_cast/cuda/rows.cuh), so that none of them is refused by the compiler.
#include <fmt/format.h>
#include <tilewright/cast.h>
#include <tilewright/family.h>
#include <tilewright/problem.h>

#include <string>

#include "support/catch.h"
#include "templates/common/checks.h"
#include "templates/common/families.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/cast/cuda/lanes.h"

using namespace tilewright;

namespace {

void check_tile(const FastPath& coded, std::int64_t elements) {
  CHECK(elements % coded.block == 0);
  CHECK(elements / coded.block * coded.data_bytes % 16 == 0);
  CHECK(elements / coded.block * coded.scale_bytes % 16 == 0);
}

}  // namespace

TEST_CASE("casts to and from every format have candidates that its template takes", "[cast]") {
  const Arch& arch = archs().back();
  int checked = 0;
  for (const char* plain : {"f32", "f16", "bf16"})
    for (const Format f : Format::all())
      for (const bool encodes : {true, false}) {
        const std::string text = fmt::format("cast x={} y={} rows=4 cols={}", encodes ? plain : f.name(),
                                             encodes ? f.name() : plain, 16 * f.block());
        INFO(text);
        const FastPath& path = fast_path(f);
        if (encodes && path.scale_rows > 1) continue;  // refused: no row of it stands alone
        const Problem problem = Problem::parse(text);
        int all = 0;
        for (const Family* family : families("cast", arch))
          for (const Candidate& c : family->candidates(problem, arch)) {
            INFO(c.text());
            ++all;
            if (family->name() == "rows") {
              CHECK(path.row_bytes > 0);
              CHECK(cast::no_row_codes(path, 2) == "");
            }
            if (family->name() != "blocks") continue;
            const Cast& cast = *problem.as<Cast>();
            const bool narrows = is_float(cast.x) && (!is_float(cast.y) || fast_path(cast.y).element_bytes <=
                                                                               fast_path(cast.x).element_bytes);
            const std::int64_t lane = narrows ? c.at("lane") : 16 / fast_path(cast.y).element_bytes;
            check_tile(fast_path(narrows ? cast.y : cast.x), c.at("threads") * lane * c.at("passes"));
            ++checked;
          }
        CHECK(all > 0);
      }
  CHECK(checked > 500);
}

// Eight codes of three bits are three bytes: no thread makes one by itself.
TEST_CASE("casts to rows whose codes do not fill bytes are left to the reference", "[cast]") {
  FastPath rows = fast_path(Format::parse("int4_row"));
  CHECK(cast::no_row_codes(rows, 2) == "");
  rows.bits = 3, rows.block = 8, rows.data_bytes = 3;
  CHECK(cast::no_row_codes(rows, 2) == "has rows of 8 codes in 3 bytes, and 1 to 2 in one are what a thread makes");
  CHECK(cast::no_row_codes(rows, 8) != "");
  const FastPath& ternary = fast_path(Format::parse("ternary_row"));
  CHECK(cast::no_row_codes(ternary, 8) == "has a scale from the mean magnitude of a row");
}
