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

TEST_CASE("a listing names target, device and version, is filtered, and ends at its limit") {
  Directory dir;
  Store store(options(dir.file()));
  const auto device = [](const std::string& name, const std::string& target) {
    return Key().add("kind", "choice").add("device", name).add("target", target).add("library", "0.1.0");
  };
  for (int i = 0; i < 5; ++i)
    REQUIRE(store.put_binary(Key().add("library", "0.1.0").add("target", i < 2 ? "sm_80" : "sm_90a").add("n", i),
                             binary(i)));
  REQUIRE(store.put_choice(device("NVIDIA H200", "sm_90a"), choice("gemm w=q4_0 m=1", 1)));
  REQUIRE(store.put_choice(device("NVIDIA A100", "sm_80"), choice("gemm w=q8_0 m=1", 1)));
  REQUIRE(store.put_outcome(device("NVIDIA A100", "sm_80"), "gemm w=q8_0 m=1", outcome(64, 1), ""));
  const auto ids = [&](const StoreFilter& filter) {
    std::multiset<std::string> kinds;
    for (const StoreEntry& e : store.list(filter)) kinds.insert(e.kind + " " + e.target + " " + e.device);
    return kinds;
  };
  using Kinds = std::multiset<std::string>;
  CHECK((ids({.target = "sm_80"}) ==
         Kinds{"binary sm_80 ", "binary sm_80 ", "choice sm_80 NVIDIA A100", "measurement sm_80 NVIDIA A100"}));
  CHECK((ids({.problem = "w=q8_0"}) == Kinds{"choice sm_80 NVIDIA A100", "measurement sm_80 NVIDIA A100"}));
  CHECK((ids({.kind = "choice", .target = "sm_90a", .problem = "w=q4_0"}) == Kinds{"choice sm_90a NVIDIA H200"}));
  CHECK(ids({.kind = "choice", .target = "sm_90"}).empty());  // a part of a target is none
  CHECK(store.list({.limit = 3}).size() == 3);
  CHECK(store.list({.limit = 6}).size() == 6);
  for (const StoreEntry& e : store.list())
    if (e.kind != "environment") CHECK(e.version == "0.1.0");
  REQUIRE(store.find_binary(Key().add("library", "0.1.0").add("target", "sm_80").add("n", 1)));
  store.touch_all();
  REQUIRE(store.put_choice(device("NVIDIA A100", "sm_80"), choice("gemm w=q8_0 m=2", 1)));  // writes the marks
  CHECK(store.list({.kind = "binary", .limit = 1})[0].summary.find("kernel_1") != std::string::npos);
  auto totals = store.totals({.target = "sm_90a"});
  CHECK(totals.size() == 2);
  CHECK(totals["binary"].rows == 3);
  CHECK(totals["binary"].bytes > 3 * 12000);
  CHECK(totals["choice"].rows == 1);
  CHECK(store.all_choices({.target = "sm_80"}).size() == 2);
  CHECK(store.all_choices({.limit = 1})[0].second.problem == "gemm w=q8_0 m=2");
}

TEST_CASE("show gives an environment as fields") {
  Directory dir;
  Store store(options(make_cache(dir)));
  for (const StoreEntry& e : store.list({.kind = "choice"}))
    CHECK(nlohmann::json::parse(store.show(e.id))["environment"]["driver"] == "580");
}
