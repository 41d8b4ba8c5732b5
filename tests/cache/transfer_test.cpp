// SPDX-License-Identifier: Apache-2.0
#include "cache/transfer.h"

#include "cache/key.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

TEST_CASE("a merge takes what is new or faster") {
  Directory dir;
  {
    Store other(options(dir.file("other.db")));
    other.put_binary(binary_key(0), binary(0));
    other.put_binary(binary_key(1), binary(1));
    other.put_choice(device_key(), choice("gemm faster", 5, 32));
    other.put_choice(device_key(), choice("gemm slower", 50, 32));
    other.put_choice(device_key(), choice("gemm new", 7, 32));
    other.put_choice(device_key(), choice("gemm unmeasured", 0, 32));
    other.put_choice(device_key(), choice("gemm measured", 9, 32));
    other.put_outcome(device_key(), "gemm new", outcome(64, 1), "driver=1\n");
  }
  Store store(options(dir.file()));
  store.put_binary(binary_key(0), binary(0));
  for (const char* problem : {"gemm faster", "gemm slower", "gemm unmeasured"}) {
    store.put_choice(device_key(), choice(problem, 10, 64));
  }
  store.put_choice(device_key(), choice("gemm measured", 0, 64));
  const MergeReport report = store.merge_from(dir.file("other.db"));
  CHECK(report.added == 3);     // binary 1, "gemm new", its measurement
  CHECK(report.replaced == 2);  // faster; measured over not measured
  CHECK(report.kept == 3);
  CHECK(report.refused == 0);
  CHECK(store.find_binary(binary_key(1)));
  CHECK(store.find_choice(device_key(), "gemm faster")->microseconds == 5);
  CHECK(store.find_choice(device_key(), "gemm slower")->microseconds == 10);
  CHECK(store.find_choice(device_key(), "gemm unmeasured")->microseconds == 10);
  CHECK(store.find_choice(device_key(), "gemm measured")->microseconds == 9);
  CHECK(store.find_choice(device_key(), "gemm new")->environment == "driver=580\ndate=2026-01-01\n");
  const MergeReport again = store.merge_from(dir.file("other.db"));
  CHECK(again.added + again.replaced == 0);
  CHECK(store.verify().damaged.empty());
}

TEST_CASE("a merge reads a store that is in use") {
  Directory dir;
  Store other(options(dir.file("other.db")));
  other.put_binary(binary_key(1), binary(1));
  Store store(options(dir.file()));
  CHECK(store.merge_from(dir.file("other.db")).added == 1);
  CHECK(other.put_binary(binary_key(2), binary(2)));
  CHECK(store.merge_from(dir.file("other.db")).added == 1);
}

TEST_CASE("row 37: an import takes no binary, checks every value and has a cap") {
  Directory dir;
  const std::string pack = make_cache(dir, "pack.db");
  {
    Store store(options(pack));
    for (const char* problem : {"../../etc/passwd", "gemm b", "gemm c"}) {
      store.put_choice(device_key(), choice(problem, 10));
    }
  }
  // Rows with a right hash and a wrong value, as somebody would write who knows the format.
  const auto plant = [&](const std::string& problem, const std::string& candidate, double microseconds) {
    cache::ChoiceRow row{cache::problem_hash(device_key().transcript(), problem), candidate, microseconds, "", 0, ""};
    Raw raw(pack);
    raw.exec("INSERT INTO problems VALUES('" + row.problem + "','device=NVIDIA H200'||char(10)||'sms=132'||char(10),'" +
             problem + "')");
    raw.exec("INSERT INTO choices VALUES('" + row.problem + "','" + candidate + "'," +
             (microseconds > 1e300 ? "9e999" : std::to_string(microseconds)) + ",'',0.0,'','" + row.content_hash() +
             "')");
  };
  plant("gemm negative", "mma bm=1", -1);
  plant("gemm infinite", "mma bm=1", std::numeric_limits<double>::infinity());
  plant("gemm wide", "mma bm=4294967296", 1);
  plant("gemm odd", "mma bm", 1);
  Store store(options(dir.file()));
  const MergeReport report = store.import_from(pack);
  CHECK(report.added == 1 + 1 + 3);  // measurement, "gemm a", three more
  CHECK(report.refused == 1 + 4);    // the binary and the planted ones
  CHECK_FALSE(store.find_binary(binary_key(0)));
  CHECK(store.find_choice(device_key(), "../../etc/passwd"));  // a name is only a name
  CHECK_FALSE(store.find_choice(device_key(), "gemm negative"));
  CHECK_FALSE(store.find_choice(device_key(), "gemm wide"));
  CHECK(store.verify().damaged.empty());
}

TEST_CASE("what is no regular file is refused at once") {
  Directory dir;
  Store store(options(dir.file()));
  REQUIRE(mkfifo(dir.file("fifo").c_str(), 0600) == 0);
  REQUIRE(symlink(dir.file("fifo").c_str(), dir.file("link").c_str()) == 0);
  for (const std::string& path : {dir.file("fifo"), dir.file("link"), dir.path(), std::string("/dev/zero")}) {
    CAPTURE(path);
    try {
      store.import_from(path);
      FAIL("imported");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::io);
      CHECK(std::string(error.what()).find("regular file") != std::string::npos);
    }
    CHECK_THROWS_AS(store.merge_from(path), Error);
    CHECK(Store(options(path)).degraded());
  }
}

TEST_CASE("row 37: of a million rows only the allowed number is looked at") {
  Directory dir(On::disk);
  const std::string pack = make_cache(dir, "pack.db");
  Raw(pack).exec(
      "PRAGMA synchronous=OFF; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n LIMIT 1000000)"
      " INSERT INTO choices SELECT 'p'||i,'mma bm=1',1.0,'',1.0,'','h' FROM n");
  Store store(options(dir.file()));
  const MergeReport report = store.import_from(pack);
  CHECK(report.added <= 2);
  CHECK(report.refused >= 999999);
}
