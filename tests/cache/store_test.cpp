// SPDX-License-Identifier: Apache-2.0
#include <tilewright/store.h>

#include <map>
#include <random>
#include <thread>

#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

TEST_CASE("what was put is found, by this process and by the next") {
  for (const bool memory : {true, false}) {
    Directory dir;
    Log log;
    const std::string path = memory ? "" : dir.file();
    {
      Store store(options(path, &log));
      CHECK_FALSE(store.degraded());
      CHECK_FALSE(store.find_binary(binary_key(1)));
      CHECK(store.put_binary(binary_key(1), binary(1)));
      REQUIRE(store.find_binary(binary_key(1)));
      CHECK(same(*store.find_binary(binary_key(1)), binary(1)));
      CHECK(store.put_choice(device_key(), choice("gemm a", 10)));
      CHECK(store.put_outcome(device_key(), "gemm a", outcome(128, 10), "driver=580\n"));
    }
    Store store(options(path, &log));
    CHECK(static_cast<bool>(store.find_binary(binary_key(1))) == !memory);
    const auto found = store.find_choice(device_key(), "gemm a");
    CHECK(static_cast<bool>(found) == !memory);
    if (found) {
      CHECK(found->candidate == candidate(128));
      CHECK(found->microseconds == 10);
      CHECK(found->first == "mma bm=64");
      CHECK(found->first_microseconds == 20);
      CHECK(found->environment == "driver=580\ndate=2026-01-01\n");
      CHECK_FALSE(store.find_choice(device_key(108), "gemm a"));
      CHECK_FALSE(store.find_choice(device_key(), "gemm b"));
    }
    CHECK(log.all() == "");
  }
}
