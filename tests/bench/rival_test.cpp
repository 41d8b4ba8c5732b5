// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/rival.h"

#include "support/catch.h"

using namespace tilewright::bench;

TEST_CASE("bench: a rival's library is loaded, or it is said why not") {
  std::string why = "as it was";
  RivalLibrary math;
  REQUIRE(math.open("libm.so.6", why));
  CHECK(math.path().front() == '/');
  double (*cosine)(double) = nullptr;
  REQUIRE(math.find(cosine, "cos"));
  CHECK(cosine(0) == 1);
  CHECK_FALSE(math.find(cosine, "no_such_function"));
  CHECK(std::string(math.missing()) == "no_such_function");

  RivalLibrary none;
  CHECK_FALSE(none.open("libno_such.so.1", why));
  CHECK(why == "as it was");
  CHECK_FALSE(none.open("/nonexistent/libno_such.so.1", why));
  CHECK(why.find("/nonexistent/libno_such.so.1") != why.npos);
}

TEST_CASE("bench: versions as NVIDIA's libraries count them") {
  CHECK(version_text(91900) == "9.19.0");
  CHECK(version_text(130100) == "13.1.0");
}
