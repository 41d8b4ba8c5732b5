// SPDX-License-Identifier: Apache-2.0
// Candidate lists and compilers: rows of their own, verified, listed, evicted and taken over like all others.
#include <tilewright/store.h>
#include <tilewright/version.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

namespace {

Key target_key(const std::string& library = TILEWRIGHT_VERSION_STRING) {
  return Key().add("kind", "prewarm").add("target", "sm_90a").add("library", library);
}
Key rows_key() { return device_key().add("rows", "all"); }

CandidateList prewarmed(const std::string& problem) {
  return {problem, {{candidate(64)}, {candidate(128)}, {candidate(32)}}};
}
CandidateList table(const std::string& problem) {
  return {problem,
          {{candidate(64), 1, {{1, 2.5}, {8, 1e-7}}}, {candidate(128), 256, {{64, 1.0 / 3}}}},
          "tuned",
          {0, 0, 1, 1, 1, 0}};
}
StoredCompiler nvrtc() { return {"nvrtc", "13.0", "libnvrtc.so|a:b|", "/home/somebody/libnvrtc.so.13", 123, -456}; }

bool same(const CandidateList& a, const CandidateList& b) {
  return a.problem == b.problem && a.inputs == b.inputs && a.steps == b.steps &&
         std::equal(a.candidates.begin(), a.candidates.end(), b.candidates.begin(), b.candidates.end(),
                    [](const RowCandidate& c, const RowCandidate& d) {
                      return c.candidate == d.candidate && c.listed == d.listed && c.times == d.times;
                    });
}

// A closed cache file with two lists and a compiler.
std::string make_lists(const Directory& dir, const std::string& name = "cache.db") {
  Store store(options(dir.file(name)));
  REQUIRE(store.put_list(target_key(), prewarmed("gemm a")));
  REQUIRE(store.put_list(rows_key(), table("gemm a")));
  REQUIRE(store.put_compiler(nvrtc()));
  return dir.file(name);
}

bool whole(Store& store) {
  const auto list = store.find_list(target_key(), "gemm a"), rows = store.find_list(rows_key(), "gemm a");
  return list && rows && same(*list, prewarmed("gemm a")) && same(*rows, table("gemm a"));
}

}  // namespace

TEST_CASE("lists and compilers survive the process, and a later one takes the place of an earlier") {
  Directory dir;
  const std::string path = make_lists(dir);
  {
    Store store(options(path));
    CHECK(whole(store));
    CHECK(store.find_compiler("nvrtc") == nvrtc());
    CHECK_FALSE(store.find_compiler("llvm"));
    CHECK_FALSE(store.find_list(device_key(), "gemm a"));
    CHECK_FALSE(store.find_list(rows_key(), "gemm b"));
    CandidateList shorter = prewarmed("gemm a");
    shorter.candidates.pop_back();
    REQUIRE(store.put_list(target_key(), shorter));
    REQUIRE(store.put_compiler({"nvrtc", "13.1"}));
  }
  Store store(options(path));
  CHECK(store.find_list(target_key(), "gemm a")->candidates.size() == 2);
  CHECK(store.find_compiler("nvrtc") == StoredCompiler{"nvrtc", "13.1"});
  CHECK(store.verify().damaged.empty());
}

TEST_CASE("lists are found by the beginning of their problem, the user's own before shipped ones") {
  Directory dir;
  const std::string shipped = make_lists(dir, "shipped.db");
  {
    Store store(options(shipped));
    REQUIRE(store.put_list(target_key(), prewarmed("gemm b")));
    REQUIRE(store.put_list(target_key(), prewarmed("conv c")));
  }
  StoreOptions layered = options(dir.file());
  layered.shipped = {shipped};
  Store store(layered);
  CHECK(whole(store));
  CHECK(store.find_compiler("nvrtc") == nvrtc());
  CandidateList mine = prewarmed("gemm b");
  mine.candidates.pop_back();
  REQUIRE(store.put_list(target_key(), mine));
  REQUIRE(store.put_compiler({"nvrtc", "12.9"}));
  const auto lists = store.lists(target_key(), "gemm ");
  REQUIRE(lists.size() == 2);
  CHECK(lists[0].problem == "gemm b");
  CHECK(lists[0].candidates.size() == 2);
  CHECK(lists[1].problem == "gemm a");
  CHECK(store.find_compiler("nvrtc")->version == "12.9");
}

TEST_CASE("lists and compilers out of range are not stored") {
  Directory dir;
  Store store(options(dir.file()));
  const auto refused = [&](auto change) {
    CandidateList list = table("gemm a");
    change(list);
    return !store.put_list(rows_key(), list);
  };
  CHECK_FALSE(refused([](CandidateList&) {}));
  CHECK(refused([](CandidateList& l) { l.candidates.clear(), l.steps.clear(); }));
  CHECK(refused([](CandidateList& l) { l.steps.back() = 2; }));  // no such candidate
  CHECK(refused([](CandidateList& l) { l.steps.resize(100000); }));
  CHECK(refused([](CandidateList& l) { l.candidates[0].listed = 0; }));
  CHECK(refused([](CandidateList& l) { l.candidates[0].candidate.family = ""; }));
  CHECK(refused([](CandidateList& l) { l.candidates[0].times[0] = 1; }));
  CHECK(refused([](CandidateList& l) { l.candidates[0].times[5] = -1; }));
  CHECK(refused([](CandidateList& l) { l.candidates[0].times[5] = std::nan(""); }));
  CHECK(refused([](CandidateList& l) { l.candidates[0].times[5] = HUGE_VAL; }));
  CHECK(refused([](CandidateList& l) { l.candidates.resize(5000, l.candidates[0]); }));
  CHECK(refused([](CandidateList& l) { l.inputs.resize(100000); }));
  CHECK(refused([](CandidateList& l) { l.problem.resize(100000); }));
  CHECK(refused([](CandidateList& l) {
    for (std::int64_t rows = 1; rows < 1000000; ++rows) l.candidates[0].times[rows] = 1.5;
  }));
  StoredCompiler compiler = nvrtc();
  compiler.asked_for.resize(100000);
  CHECK_FALSE(store.put_compiler(compiler));
  CHECK(whole(store) == false);
  CHECK(same(*store.find_list(rows_key(), "gemm a"), table("gemm a")));
}

TEST_CASE("a damaged list or compiler is a miss, which verify finds and repair deletes") {
  const std::string changes[] = {
      "UPDATE lists SET inputs='other'",
      "UPDATE lists SET inputs=x'00'",
      "UPDATE lists SET steps=zeroblob(6)",
      "UPDATE lists SET steps='x'",
      "UPDATE lists SET steps=x'09'",
      "UPDATE lists SET hash='other'",
      "UPDATE candidates SET candidate='mma bm=1'",
      "UPDATE candidates SET candidate=x'00'",
      "UPDATE candidates SET listed=9",
      "UPDATE candidates SET listed='x'",
      "UPDATE candidates SET times='1:1'",
      "UPDATE candidates SET times='1:1e999'",
      "UPDATE candidates SET place=5-place",
      "DELETE FROM candidates WHERE place=1",
      "INSERT INTO candidates SELECT problem,place+10,candidate,listed,times FROM candidates",
      "UPDATE compilers SET version='other'",
      "UPDATE compilers SET bytes='x'",
      "UPDATE compilers SET path='/elsewhere'",
      "UPDATE compilers SET hash=x'00'",
  };
  for (const std::string& change : changes) {
    CAPTURE(change);
    Directory dir;
    const std::string path = make_lists(dir);
    Raw(path).exec(change);
    const bool compiler = change.find("compilers") != std::string::npos;
    Directory copy;
    write_file(copy.file(), read_file(path));
    {
      Log log;
      Store store(options(path, &log));
      const auto list = store.find_list(target_key(), "gemm a"), rows = store.find_list(rows_key(), "gemm a");
      CHECK((!list || !rows || compiler));  // the list without steps may be as it was
      CHECK(store.find_compiler("nvrtc").has_value() == !compiler);
      CHECK(log.count("did not match its hash") == 1);
      CHECK(store.verify().damaged.empty());  // look-ups have deleted it
      REQUIRE(store.put_list(target_key(), prewarmed("gemm a")));
      REQUIRE(store.put_list(rows_key(), table("gemm a")));
      CHECK(whole(store));
    }
    Store store(options(copy.file()));
    CHECK_FALSE(store.verify().damaged.empty());
    Store into(options(""));
    CHECK(into.merge_from(copy.file()).refused > 0);
    CHECK_FALSE(store.verify(true).damaged.empty());
    CHECK(store.verify().damaged.empty());
  }
}

TEST_CASE("more candidates than fit memory are not read") {
  Directory dir;
  const std::string path = make_lists(dir);
  Raw(path).exec(
      "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i+1 FROM n WHERE i<5000) INSERT INTO candidates"
      " SELECT problem,i,candidate,1,'' FROM n,(SELECT problem,candidate FROM candidates WHERE place=0)");
  Store store(options(path));
  CHECK_FALSE(store.find_list(target_key(), "gemm a"));
  CHECK(store.find_compiler("nvrtc"));
}

TEST_CASE("lists and compilers are exported and merged without this machine's paths, and never imported") {
  Directory dir;
  const std::string path = make_lists(dir), shipped = dir.file("out.db");
  Store(options(path)).export_to(shipped);
  CHECK(read_file(shipped).find("somebody") == std::string::npos);
  CHECK(read_file(shipped).find("libnvrtc") == std::string::npos);
  for (const std::string& from : {path, shipped}) {
    Store store(options(""));
    CHECK(store.merge_from(from).added == 3);
    CHECK(whole(store));
    CHECK(store.find_compiler("nvrtc") == StoredCompiler{"nvrtc", "13.0"});
    CHECK(store.merge_from(from).kept == 3);
    Store imported(options(""));
    CHECK(imported.import_from(from).added == 0);
    CHECK_FALSE(imported.find_list(target_key(), "gemm a"));
    CHECK_FALSE(imported.find_compiler("nvrtc"));
  }
  // What is there stays.
  Store mine(options(""));
  CandidateList own = prewarmed("gemm a");
  own.candidates.pop_back();
  REQUIRE(mine.put_list(target_key(), own));
  REQUIRE(mine.put_compiler({"nvrtc", "12.9"}));
  CHECK(mine.merge_from(path).added == 1);
  CHECK(mine.find_list(target_key(), "gemm a")->candidates.size() == 2);
  CHECK(mine.find_compiler("nvrtc")->version == "12.9");
}

TEST_CASE("gc evicts lists with their problem, and those of another version when asked") {
  Directory dir;
  Store store(options(make_lists(dir)));
  REQUIRE(store.put_list(target_key("0.0.9"), prewarmed("gemm old")));
  REQUIRE(store.other_versions().size() == 1);
  CHECK(store.other_versions()[0].choices == 1);
  store.gc(1 << 30, true);
  CHECK(store.other_versions().empty());
  CHECK(whole(store));
  CHECK_FALSE(store.find_list(target_key("0.0.9"), "gemm old"));
  CHECK(Raw(store.path()).number("SELECT count(*) FROM candidates") == 5);
  CHECK(store.find_compiler("nvrtc"));
  store.gc(0);
  CHECK_FALSE(store.find_list(target_key(), "gemm a"));
  CHECK_FALSE(store.find_compiler("nvrtc"));
  for (const std::string rows : {"lists", "candidates", "compilers", "problems"})
    CHECK(Raw(store.path()).number("SELECT count(*) FROM " + rows) == 0);
  CHECK(store.verify().damaged.empty());
}

TEST_CASE("a store that is full evicts lists, and never leaves a part of one") {
  Directory dir;
  StoreOptions o = options(dir.file());
  o.cap = 1 << 20;
  Store store(o);
  for (int i = 0; i < 400; ++i) {
    CandidateList list = prewarmed("gemm " + std::to_string(i));
    while (list.candidates.size() < 40) list.candidates.push_back({candidate(i)});
    REQUIRE(store.put_list(target_key(), list));
  }
  CHECK(store.find_list(target_key(), "gemm 399"));
  CHECK_FALSE(store.find_list(target_key(), "gemm 1"));
  CHECK(store.verify().damaged.empty());
}

TEST_CASE("lists and compilers are listed and shown") {
  Directory dir;
  Store store(options(make_lists(dir)));
  int lists = 0;
  for (const StoreEntry& e : store.list()) {
    CAPTURE(e.summary);
    const auto row = nlohmann::json::parse(store.show(e.id));
    CHECK(row["kind"] == e.kind);
    CHECK(row["valid"] == true);
    CHECK(e.bytes > 0);
    if (e.kind == "compiler") {
      CHECK(e.version == TILEWRIGHT_VERSION_STRING);
      CHECK(e.summary == "nvrtc 13.0 /home/somebody/libnvrtc.so.13");
      CHECK(row["modified"] == -456);
      continue;
    }
    ++lists;
    CHECK(e.kind == "list");
    CHECK(row["problem"] == "gemm a");
    CHECK(row["candidates"][0]["candidate"] == "mma bm=64 bn=64 stages=3");
    if (e.target == "sm_90a") {
      CHECK(e.summary == "gemm a : 3 candidates, compiled ahead");
      CHECK(row["steps"].empty());
    } else {
      CHECK(e.summary == "gemm a : 2 candidates for all rows");
      CHECK(row["inputs"] == "tuned");
      CHECK(row["steps"] == nlohmann::json{0, 0, 1, 1, 1, 0});
      CHECK(row["candidates"][0]["microseconds"]["1"] == 2.5);
    }
  }
  CHECK(lists == 2);
  CHECK(store.totals({.kind = "list"})["list"].rows == 2);
  CHECK(store.list({.target = "sm_90a"}).size() == 1);
  REQUIRE(store.all_lists().size() == 2);
  REQUIRE(store.all_lists({.target = "sm_90a"}).size() == 1);
  CHECK(same(store.all_lists({.target = "sm_90a", .limit = 5})[0].second, prewarmed("gemm a")));
}
