// SPDX-License-Identifier: Apache-2.0
// list() and show() (cache/listing.cpp).
#include <tilewright/store.h>

#include <nlohmann/json.hpp>
#include <set>

#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

TEST_CASE("list names every row and show gives each as JSON") {
  Directory dir;
  const std::string shipped = make_cache(dir, "shipped.db");
  StoreOptions o = options(make_cache(dir));
  o.shipped = {shipped};
  Store store(o);
  const auto entries = store.list();
  std::multiset<std::string> kinds;
  for (const StoreEntry& entry : entries) {
    kinds.insert(entry.kind);
    CHECK_FALSE(entry.summary.empty());
    CHECK(entry.bytes > 0);
    const auto row = nlohmann::json::parse(store.show(entry.id));
    CHECK(row["kind"] == entry.kind);
    CHECK(row["valid"] == true);
    CHECK(row["id"].get<std::string>().rfind(entry.id, 0) == 0);
    CHECK(row["layer"] == store.path());  // the user's own is what look-ups see
  }
  CHECK(kinds.count("binary") == 2);
  CHECK(kinds.count("choice") == 2);
  CHECK(kinds.count("measurement") == 2);
  CHECK(kinds.count("environment") == 4);
}

TEST_CASE("show gives the key, the launch plan and the resources of a binary") {
  Directory dir;
  Store store(options(make_cache(dir)));
  const auto row = nlohmann::json::parse(store.show(binary_key(0).hash()));
  CHECK(row["key"]["target"] == "sm_90a");
  CHECK(row["metadata"]["threads"] == "256");
  CHECK(row["metadata"]["resources"]["registers"] == "168");
  CHECK(row["image_bytes"] == 12000);
}

TEST_CASE("show copes with any byte in a text") {
  Directory dir;
  Store store(options(dir.file()));
  Outcome o = outcome(64, 1);
  for (int c = 0; c < 256; ++c) o.detail += static_cast<char>(c);
  CHECK(store.put_outcome(device_key(), "gemm \"\xc3\xa4\"\n\xff", o, "a=\xe2\x82\n"));
  for (const StoreEntry& entry : store.list()) {
    if (entry.kind != "measurement") continue;
    const auto row = nlohmann::json::parse(store.show(entry.id));
    CHECK(row["problem"] == "gemm \"\xc3\xa4\"\n\xef\xbf\xbd");
  }
}

TEST_CASE("show refuses what names no row or several") {
  Directory dir;
  Store store(options(make_cache(dir)));
  for (int i = 0; i < 40; ++i) store.put_binary(binary_key(i), binary(i));
  for (const char* id : {"", "xyz", "0000000000000000", "'; DROP TABLE binaries"})
    CHECK_THROWS_AS(store.show(id), Error);
  int ambiguous = 0;
  for (const char* id : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
    try {
      (void)store.show(id);
    } catch (const Error& error) {
      ambiguous += std::string(error.what()).find("could be") != std::string::npos;
    }
  }
  CHECK(ambiguous > 0);
}
