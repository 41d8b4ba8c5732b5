// SPDX-License-Identifier: Apache-2.0
// The fast path of every format that is weights, against its decoder.
#include "format_checks.h"
#include "format_includes.inc"
#include "support/catch.h"

namespace {

template <class F>
void check_fast_path(const char* name) {
  INFO(name);
  int units = 0;
  for (int e = 1; e <= 256; e *= 2) units += F::unit_ok(e);
  CHECK((units > 0) == (F::kGroup > 0));
  if constexpr (F::kGroup > 0) {
    CHECK(format_checks::load_difference<F>() == "");
    CHECK(format_checks::raw_difference<F>() == "");
    if constexpr (tw::fmt::is_table<F>()) {
      CHECK((format_checks::pairs_difference<F, tw::f16>()) == "");
      CHECK((format_checks::pairs_difference<F, tw::bf16>()) == "");
    }
  }
}

}  // namespace

TEST_CASE("the fast path of weights equals the decoder, read from the row and from a copy of a stretch", "[formats]") {
#define FORMAT(NAME) check_fast_path<tw::fmt::NAME>(#NAME);
#include "format_list.inc"
#undef FORMAT
}
