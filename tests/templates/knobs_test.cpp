// SPDX-License-Identifier: Apache-2.0
// From a struct of knobs to a candidate, to a generated source and back.
#include "templates/common/knobs.h"

#include <tilewright/error.h>

#include "support/catch.h"
#include "support/refusal.h"

using namespace tilewright;

namespace {

enum class Order { forward, backward };
struct Knobs {
  int tile = 8;
  bool wide = false;
  Order order = Order::forward;
};
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::tile>("tile"), knob<&Knobs::wide>("wide"), knob<&Knobs::order>("order")};
const KnobTable<Knobs> kTable{"tw::Knobs", kKnobs};

}  // namespace

TEST_CASE("knobs become a candidate that names them, and come back", "[knobs]") {
  const Candidate c = kTable.candidate("toy", {.tile = 16, .wide = true, .order = Order::backward});
  CHECK(c.text() == "toy tile=16 wide=1 order=1");
  const Knobs k = kTable.knobs(c);
  CHECK(k.tile == 16);
  CHECK(k.wide);
  CHECK(k.order == Order::backward);
  CHECK(kTable.candidate("toy", {}).text() == "toy tile=8 wide=0 order=0");
}

TEST_CASE("a candidate names an option only where it is on", "[knobs]") {
  constexpr Knob<Knobs> kOptional[] = {knob<&Knobs::tile>("tile"), option<&Knobs::wide>("wide"),
                                       option<&Knobs::order>("order")};
  const KnobTable<Knobs> table{"tw::Knobs", kOptional};
  CHECK(table.candidate("toy", {}).text() == "toy tile=8");
  const Knobs backward{.order = Order::backward};
  const Candidate c = table.candidate("toy", backward);
  CHECK(c.text() == "toy tile=8 order=1");
  CHECK(table.knobs(c).order == Order::backward);
  CHECK_FALSE(table.knobs(c).wide);
  CHECK(table.names(c, backward));
  CHECK_FALSE(table.names(c, {}));
  CHECK_FALSE(table.names(Candidate::parse("toy tile=8"), backward));
  CHECK_FALSE(table.names(Candidate::parse("toy tile=8 wide=0 order=1"), backward));
  CHECK(table.text(backward).find("k.wide = 0;") != std::string::npos);
}

TEST_CASE("a candidate that lacks a knob is refused", "[knobs]") {
  CHECK_THROWS_AS(kTable.knobs(Candidate::parse("toy tile=16 wide=1")), Error);
}

TEST_CASE("a candidate names one choice of knobs, in their order", "[knobs]") {
  const Knobs k{.tile = 16, .wide = true};
  CHECK(kTable.names(kTable.candidate("toy", k), k));
  CHECK_FALSE(kTable.names(kTable.candidate("toy", {}), k));
  for (const char* text : {"toy tile=16 wide=1", "toy wide=1 tile=16 order=0", "toy tile=16 wide=1 order=0 more=1"})
    CHECK_FALSE(kTable.names(Candidate::parse(text), k));
}

TEST_CASE("a generated source names each knob", "[knobs]") {
  CHECK(kTable.text({.tile = 16, .order = Order::backward}) ==
        "inline constexpr tw::Knobs kKnobs = [] {\n"
        "  tw::Knobs k;\n"
        "  k.tile = 16;\n"
        "  k.wide = 0;\n"
        "  k.order = decltype(k.order)(1);\n"
        "  return k;\n"
        "}();\n");
}
