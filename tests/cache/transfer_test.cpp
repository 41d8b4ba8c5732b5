// SPDX-License-Identifier: Apache-2.0
#include "cache/transfer.h"

#include <tilewright/text.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "cache/key.h"
#include "cache/record.h"
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

TEST_CASE("an import takes no binary, checks every value and has a cap") {
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
             "',0)");
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

TEST_CASE("of a million rows only the allowed number is looked at") {
  Directory dir(On::disk);
  const std::string pack = make_cache(dir, "pack.db");
  Raw(pack).exec(
      "PRAGMA synchronous=OFF; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n LIMIT 1000000)"
      " INSERT INTO choices SELECT 'p'||i,'mma bm=1',1.0,'',1.0,'','h',0 FROM n");
  Store store(options(dir.file()));
  const MergeReport report = store.import_from(pack);
  CHECK(report.added <= 2);
  CHECK(report.refused >= 999999);
}

TEST_CASE("an import takes no text that a terminal would obey") {
  Directory dir;
  const std::string bad[] = {"\x1b[2J",
                             "\x9b"
                             "31m",
                             "\xc2\x9b"
                             "31m",
                             "a\nb",
                             "\x7f",
                             "\xe2\x80\xae",
                             "\xff\xfe",
                             "\xc0\xaf"};
  {
    Store pack(options(dir.file("pack.db")));
    int n = 0;
    for (const std::string& text : bad) {
      pack.put_choice(device_key(), choice("gemm " + text, 1));
      pack.put_outcome(device_key(), "cast " + text, outcome(64, 1), "driver=1\n");
      if (text[1] == '\n') continue;
      Outcome o = outcome(64, 1);
      o.detail = text;
      pack.put_outcome(device_key(), "gemm " + std::to_string(n++), o, "driver=1\n");
      pack.put_choice(Key().add("device", static_cast<unsigned char>(text[0]) < 0x80 ? "\xff" : text),
                      choice("gemm d", 1));
    }
    Outcome o = outcome(64, 1);
    o.detail = "a log\n\twith lines, and an \xc3\xa4";
    pack.put_outcome(device_key(), "gemm good", o, "driver=1\n");
    pack.put_choice(device_key(), choice("gemm good", 1));
  }
  Store store(options(dir.file()));
  CHECK(store.import_from(dir.file("pack.db")).added == 2);
  CHECK(store.find_choice(device_key(), "gemm good"));
  CHECK(store.outcomes(device_key(), "gemm good").size() == 1);
  CHECK(store.merge_from(dir.file("pack.db")).added > 10);  // trusted: taken as it is, and escaped in every listing
  for (const StoreEntry& entry : store.list()) {
    CAPTURE(entry.id);
    CHECK(is_printable(entry.summary));
    if (entry.kind == "choice" || entry.kind == "measurement") {
      const std::string shown = store.show(entry.id);
      CHECK(is_printable(shown, true));
      CHECK(nlohmann::json::accept(shown));
    }
  }
}

TEST_CASE("what was imported displaces nothing that was measured here") {
  Directory dir;
  {
    Store pack(options(dir.file("pack.db")));
    pack.put_choice(device_key(), choice("gemm own", 1e-9, 32));
    pack.put_choice(device_key(), choice("gemm new", 1e-9, 32));
    pack.put_outcome(device_key(), "gemm own", outcome(64, 1e-9), "");
    pack.put_outcome(device_key(), "gemm own", outcome(32, 1e-9), "");
  }
  Store store(options(dir.file()));
  store.put_choice(device_key(), choice("gemm own", 10, 64));
  store.put_outcome(device_key(), "gemm own", outcome(64, 10), "");
  const MergeReport first = store.import_from(dir.file("pack.db"));
  CHECK(first.added == 3);  // "gemm new", two measurements
  CHECK(first.kept == 1);
  CHECK(store.find_choice(device_key(), "gemm own")->microseconds == 10);
  CHECK_FALSE(store.find_choice(device_key(), "gemm own")->imported);
  CHECK(store.find_choice(device_key(), "gemm new")->imported);
  const auto outcomes = store.outcomes(device_key(), "gemm own");
  REQUIRE(outcomes.size() == 2);
  for (const Outcome& o : outcomes) {
    CHECK(o.imported == (o.candidate == candidate(32)));
    CHECK(o.microseconds == (o.imported ? 1e-9 : 10));
  }
  CHECK(store.import_from(dir.file("pack.db")).added == 0);  // nothing comes twice

  // A measurement of one's own takes the place of an imported one, whichever is faster and however it arrives.
  {
    Store other(options(dir.file("other.db")));
    other.import_from(dir.file("pack.db"));
    CHECK(other.put_choice(device_key(), choice("gemm own", 20, 128)));
    CHECK_FALSE(other.find_choice(device_key(), "gemm own")->imported);
  }
  Store third(options(dir.file("third.db")));
  third.import_from(dir.file("pack.db"));
  CHECK(third.merge_from(dir.file("other.db")).replaced == 1);
  CHECK(third.find_choice(device_key(), "gemm own")->microseconds == 20);
  CHECK(third.merge_from(dir.file("pack.db")).replaced == 2);
  CHECK(third.find_choice(device_key(), "gemm new")->imported == false);  // merged: trusted
  CHECK(third.verify().damaged.empty());
}

TEST_CASE("a shipped choice that was measured hides an imported one of the user's") {
  Directory dir;
  {
    Store pack(options(dir.file("pack.db")));
    pack.put_choice(device_key(), choice("gemm a", 1, 32));
    pack.put_outcome(device_key(), "gemm a", outcome(64, 1), "");
    Store shipped(options(dir.file("shipped.db")));
    shipped.put_choice(device_key(), choice("gemm a", 10, 64));
    shipped.put_outcome(device_key(), "gemm a", outcome(64, 10), "");
  }
  StoreOptions o = options(dir.file());
  o.shipped = {dir.file("shipped.db")};
  Store store(o);
  store.import_from(dir.file("pack.db"));
  CHECK(store.find_choice(device_key(), "gemm a")->microseconds == 10);
  REQUIRE(store.choices(device_key(), "gemm").size() == 1);
  CHECK(store.choices(device_key(), "gemm")[0].microseconds == 10);
  REQUIRE(store.outcomes(device_key(), "gemm a").size() == 1);
  CHECK(store.outcomes(device_key(), "gemm a")[0].microseconds == 10);
}

TEST_CASE("an import takes time in proportion to its rows, and lets others write") {
  Directory dir;
  constexpr int kRows = 20000;
  {
    Store pack(options(dir.file("pack.db")));
    pack.put_outcome(device_key(), "gemm a", outcome(64, 1), "");
    cache::MeasurementRow row = *cache::to_row(outcome(64, 1));
    row.problem = cache::problem_hash(device_key().transcript(), "gemm a");
    Raw raw(dir.file("pack.db"));
    raw.exec("BEGIN");
    for (int i = 0; i < kRows; ++i) {
      row.microseconds = 2 + i;
      raw.exec("INSERT INTO measurements SELECT NULL,problem,candidate,kind,detail," + std::to_string(2 + i) +
               ".0,low,high,rounds,error,mhz,resources,environment,'" + row.content_hash() +
               "',0 FROM measurements WHERE id=1");
    }
    raw.exec("COMMIT");
  }
  Store store(options(dir.file()));
  Store other(options(dir.file()));
  std::atomic<bool> done{false};
  std::atomic<int> stored{0}, refused{0};
  std::thread writer([&] {
    for (int i = 0; !done; ++i) {
      ++(other.put_choice(device_key(), choice("gemm " + std::to_string(i), 1)) ? stored : refused);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const MergeReport report = store.import_from(dir.file("pack.db"));
  done = true;
  writer.join();
  CHECK(report.added == kRows + 1);
  CHECK(refused == 0);  // no store waited for longer than its 0.7 s
  CHECK(stored > 0);
  // Whether a row is there already is found by its hash, not by going through the rows of its problem.
  std::string plan;
  const auto collect = [](void* text, int columns, char** values, char**) {
    *static_cast<std::string*>(text) += values[columns - 1];
    return 0;
  };
  sqlite3_exec(Raw(dir.file()).handle(), "EXPLAIN QUERY PLAN SELECT 1 FROM measurements WHERE problem='a' AND hash='b'",
               collect, &plan, nullptr);
  CHECK(plan.find("(problem=? AND hash=?)") != std::string::npos);
}

TEST_CASE("a merge and an import say why rows were refused") {
  Directory dir;
  const std::string path = make_cache(dir, "other.db");
  {
    Store other(options(path));
    other.put_choice(device_key(), choice("gemm \x1b[2J", 3));
    other.put_choice(device_key(), choice("gemm damaged", 3));
  }
  Raw(path).exec(
      "UPDATE choices SET microseconds=1 WHERE problem=(SELECT hash FROM problems WHERE problem='gemm damaged')");
  Store store(options(""));
  const MergeReport report = store.import_from(path);
  CHECK(report.refused == 3);
  std::int64_t rows = 0;
  std::string all;
  for (const auto& [why, count] : report.reasons) rows += count, all += why + "\n";
  INFO(all);
  CHECK(rows == report.refused);
  CHECK(report.reasons.size() == 3);
  CHECK(all.find("binaries: machine code") != std::string::npos);
  CHECK(all.find("choices: a text has control characters") != std::string::npos);
  CHECK(all.find("choices: damaged") != std::string::npos);
}
