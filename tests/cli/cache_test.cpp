// SPDX-License-Identifier: Apache-2.0
// The cache commands, and what other commands do to the file of --cache.
#include <sqlite3.h>
#include <tilewright/store.h>
#include <tilewright/version.h>

#include <map>
#include <tuple>

#include "tool.h"

using namespace cli_tool;

namespace {

void sql(const std::string& path, const std::string& text) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  CHECK(sqlite3_exec(db, text.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path()] = slurp(entry.path());
  return files;
}

}  // namespace

TEST_CASE("cli: commands that look change nothing beside the file of --cache") {
  const fs::path folder = scratch() / "look";
  fs::create_directories(folder);
  ::chmod(folder.c_str(), 0700);
  const std::string cache = (folder / "cache.db").string(), flag = " --cache '" + cache + "' ";
  const std::string explain = std::string("cache explain --arch sm_90a ") + kGemm;
  const std::string plan = std::string("plan --arch sm_90a ") + kGemm,
                    emit = std::string("emit --arch sm_90a ") + kGemm;
  for (const std::string& command : {plan, emit, explain}) CHECK(tool(command + flag).code == 0);
  CHECK(fs::is_empty(folder));  // not even created
  std::ofstream(cache).flush();
  ::chmod(cache.c_str(), 0600);
  REQUIRE(tool("cache gc" + flag).code == 0);  // makes a cache of an empty file
  for (const bool wal : {true, false}) {
    sql(cache, wal ? "PRAGMA journal_mode=WAL" : "PRAGMA journal_mode=DELETE");
    for (const char* side : {"-journal", "-wal"}) {
      std::ofstream(cache + side) << "somebody else's";
      const auto before = contents(folder);
      const std::string out = scratch() / "look-out.db";
      for (const std::string& command : {plan, emit, explain, std::string("cache ls"), std::string("cache verify"),
                                         std::string("cache show 0"), "cache export '" + out + "'"}) {
        const Ran ran = tool(command + flag);
        INFO(command << " " << side << "\n" << ran.err);
        CHECK((contents(folder) == before));
        // A log that is nothing is replayed into the private copy; a journal is not ours to roll back.
        if (command == "cache ls") CHECK(ran.code == (side[1] == 'w' ? 0 : 1));
        if (command == "cache ls" && side[1] == 'j') CHECK(ran.err.find("-journal") != std::string::npos);
      }
      fs::remove(cache + side);
      fs::remove(out);
    }
  }
}

TEST_CASE("cli: prewarm into a place that keeps nothing gives 4 at once, and says why") {
  const std::string open_to_all = scratch() / "open";
  fs::create_directories(open_to_all);
  ::chmod(open_to_all.c_str(), 0777);
  const std::string prewarm = "prewarm --arch sm_80 --top 1 --no-buckets --workload tests/readme/workload.txt --cache ";
  const auto kept_nothing = [&](const std::string& path, const std::string& part) {
    const Ran r = tool(prewarm + "'" + path + "'");
    INFO(path << "\n" << r.out << r.err);
    CHECK(r.code == 4);
    CHECK(r.out.empty());
    CHECK(r.err.find(part) != std::string::npos);
  };
  kept_nothing(open_to_all + "/cache.db", "chmod go-w");
  kept_nothing("/proc/cache.db", "/proc");
  refused(prewarm + ":memory:", 1, "a file");
}

TEST_CASE("cli: an export replaces a file with --force only") {
  const std::string target = scratch() / "exported.db", cache = scratch() / "export-from.db";
  std::ofstream(cache).flush();
  ::chmod(cache.c_str(), 0600);
  REQUIRE(tool("cache gc --cache '" + cache + "'").code == 0);
  std::ofstream(target) << "something else";
  refused("cache export '" + target + "' --cache '" + cache + "'", 1, "--force");
  CHECK(slurp(target) == "something else");
  CHECK(tool("cache export --force '" + target + "' --cache '" + cache + "'").code == 0);
  CHECK(slurp(target).rfind("SQLite format 3", 0) == 0);
}

TEST_CASE("cli: ls escapes what a terminal would obey, and says what was not measured") {
  const std::string path = scratch() / "listed.db", flag = " --cache '" + path + "' ";
  const std::string gemm = "gemm x=f16 w=q4_0 y=f32 m=1 n=256 k=1024";
  {
    tilewright::StoreOptions o;
    o.path = path;
    tilewright::Store store(o);
    const tilewright::Key device = tilewright::Key().add("kind", "choice").add("target", "sm_90a");
    tilewright::StoredChoice choice;
    choice.candidate.family = "reference";
    choice.problem = gemm;
    REQUIRE(store.put_choice(device, choice));
    choice.problem =
        "own \x1b[2J task \xc2\x9b"
        "31m";
    choice.microseconds = 12.5;
    REQUIRE(store.put_choice(device, choice));
  }
  const Ran text = tool("cache ls" + flag);
  INFO(text.out);
  CHECK(text.out.find(gemm + " -> reference, not measured") != std::string::npos);
  CHECK(text.out.find("12.5 us") != std::string::npos);
  for (const char* arguments : {"cache ls", "cache ls --json", "cache verify", "cache ls -v"}) {
    const Ran r = tool(arguments + flag);
    CHECK(r.out.find_first_of("\x1b\x9b") == std::string::npos);
    CHECK(r.err.find_first_of("\x1b\x9b") == std::string::npos);
  }
}

TEST_CASE("cli: ls says which problems a binary serves") {
  const std::string flag = cache_flag("served.db");
  const Ran ran = tool("prewarm --arch sm_80 --top 1 --no-buckets --workload tests/readme/workload.txt" + flag);
  if (ran.code == 4 && ran.err.find("nvrtc") != std::string::npos) {
    WARN("no libnvrtc: " << ran.err);
    return;
  }
  REQUIRE(ran.code == 0);
  const Json list = tool("cache ls --json --kind binary" + flag).json();
  REQUIRE(list["entries"].size() >= 3);
  std::string all;
  for (const Json& entry : list["entries"]) {
    INFO(entry.dump());
    CHECK_FALSE(entry["problems"].empty());
    all += entry["problems"].dump();
  }
  CHECK(all.find("gemm x=q8_1 w=q4_0 y=f32 m=2 n=256 k=1024") != std::string::npos);
  CHECK(tool("cache ls --kind binary" + flag).out.find(" for gemm ") != std::string::npos);
}

TEST_CASE("cli: ls is filtered by target and problem, and shows devices and versions") {
  const std::string path = scratch() / "columns.db", flag = " --cache '" + path + "' ";
  {
    tilewright::StoreOptions o;
    o.path = path;
    tilewright::Store store(o);
    for (const auto& [device, target, problem] :
         {std::tuple{"NVIDIA H200", "sm_90a", "gemm x=f16 w=q4_0 y=f32 m=1 n=256 k=1024"},
          {"NVIDIA A100", "sm_80", "gemm x=f16 w=q8_0 y=f32 m=1 n=256 k=1024"}}) {
      tilewright::StoredChoice choice;
      choice.candidate.family = "reference";
      choice.problem = problem;
      REQUIRE(store.put_choice(
          tilewright::Key().add("kind", "choice").add("device", device).add("target", target).add("library", "0.0.9"),
          choice));
    }
  }
  const Ran all = tool("cache ls" + flag);
  INFO(all.out);
  for (const char* part : {"device", "version", "NVIDIA H200", "NVIDIA A100", "0.0.9", "choice 2 rows"})
    CHECK(all.out.find(part) != std::string::npos);
  for (const char* filter : {"--arch sm_90a", "--problem w=q4_0", "--limit 1 --problem w=q4_0"}) {
    INFO(filter);
    const Json list = tool(std::string("cache ls --json ") + filter + flag).json();
    REQUIRE(list["entries"].size() == 1);
    CHECK(list["entries"][0]["device"] == "NVIDIA H200");
    CHECK(list["entries"][0]["target"] == "sm_90a");
    CHECK(list["entries"][0]["version"] == "0.0.9");
    CHECK(list["totals"]["choice"]["rows"] == 1);
  }
  CHECK(tool("cache ls --problem w=nf4" + flag).out.find("no such row") != std::string::npos);
  const Json limited = tool("cache ls --json --limit 1" + flag).json();
  CHECK(limited["entries"].size() == 1);
  CHECK(limited["totals"]["choice"]["rows"] == 2);
  refused("cache ls --arch sm_1" + flag, 1, "sm_1");
}

TEST_CASE("cli: doctor names stores of another version, and gc --stale empties one's own") {
  const std::string path = scratch() / "old.db", flag = " --cache '" + path + "' ",
                    shipped = scratch() / "old-shipped.db";
  {
    tilewright::StoreOptions o;
    o.path = path;
    tilewright::Store store(o);
    tilewright::Binary binary;
    binary.target = "sm_90a", binary.entry = "e", binary.image.resize(10);
    binary.plan = {{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, 32, 1, 0};
    REQUIRE(store.put_binary(tilewright::Key().add("kind", "binary").add("library", "0.0.9"), binary));
    store.export_to(shipped);
  }
  const Ran ran = tool("doctor --json" + flag, "TILEWRIGHT_SHIPPED='" + shipped + "'");
  const Json report = ran.json();
  CHECK(ran.code == 4);
  for (const auto& [subject, state, fix] :
       {std::tuple{"cache", "note", "cache gc --stale"}, {"shipped", "problem", "export it again with this version"}}) {
    const Json found = finding(report, subject);
    INFO(found.dump());
    CHECK(found["state"] == state);
    CHECK(found["fix"].get<std::string>().find(fix) != std::string::npos);
    CHECK(found["other_versions"][0]["version"] == "0.0.9");
    CHECK(found["other_versions"][0]["binaries"] == 1);
  }
  CHECK(tool("cache gc" + flag).code == 0);
  CHECK(tool("cache ls --json" + flag).json()["totals"]["binary"]["rows"] == 1);
  CHECK(tool("cache gc --stale" + flag).code == 0);
  CHECK(tool("cache ls --json" + flag).json()["totals"].empty());
  CHECK(finding(tool("doctor --json" + flag).json(), "cache")["state"] == "ok");
}

TEST_CASE("cli: explain gives fields, and keys with -v") {
  const std::string explain = std::string("cache explain --arch sm_90a ") + kGemm + cache_flag("explained.db");
  const Json fields = tool(explain + "--json").json();
  CHECK(fields["problem"] == "gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536");
  CHECK(fields["arch"] == "sm_90a");
  CHECK(fields["choice"]["grade"] == "ranked");
  CHECK(fields["choice"]["candidate"] == fields["ranking"][0]["candidate"]);
  CHECK(fields["ranking"][0]["microseconds"] > 0);
  CHECK(fields["binary"] == "not compiled yet");
  CHECK(fields["families"].back()["family"] == "reference");
  CHECK(fields["families"].back()["why_not"].is_null());
  CHECK_FALSE(fields.contains("binary_key"));
  const Json keys = tool(explain + "--json -v").json();
  CHECK(keys["binary_key"]["hash"].get<std::string>().size() == 64);
  CHECK(keys["binary_key"]["fields"]["target"] == "sm_90a");
  CHECK(keys["choice_key"].is_null());
  CHECK(tool(explain).out.find("binary key") == std::string::npos);
  CHECK(tool(explain + "-v").out.find("binary key") != std::string::npos);
}

TEST_CASE("cli: explain for a GPU that is absent says what the store has of it, and measures nothing") {
  const std::string flag = cache_flag("absent.db");
  const std::string explain = std::string("cache explain ") + kGemm + flag;
  const Json empty = tool(explain + "--json --device H100").json();
  CHECK(empty["arch"] == "sm_90a");
  CHECK(empty["device"] == false);
  CHECK(empty["stored"].empty());
  CHECK(empty["prewarmed"].empty());
  CHECK(tool(explain + "--arch sm_90a").out.find("stored choices: none of any device\nprewarmed: nothing\n") !=
        std::string::npos);
  const std::string second = empty["ranking"][1]["candidate"];
  {
    tilewright::StoreOptions o;
    o.path = scratch() / "absent.db";
    tilewright::Store store(o);
    tilewright::Key key;
    key.add("kind", "choice").add("device", "NVIDIA H100 80GB HBM3").add("sms", 132).add("l2", 50 << 20);
    key.add("target", "sm_90a").add("library", TILEWRIGHT_VERSION_STRING);
    tilewright::StoredChoice choice;
    choice.problem = empty["bucket"];
    choice.candidate = tilewright::Candidate::parse(second);
    choice.microseconds = 12.5;
    REQUIRE(store.put_choice(key, choice));
  }
  for (const char* named : {"--device H100", "--device 'h100 80gb'", "--arch sm_90a"}) {
    const Json known = tool(explain + "--json " + named).json();
    REQUIRE(known["stored"].size() == 1);
    CHECK(known["stored"][0]["device"] == "NVIDIA H100 80GB HBM3");
    CHECK(known["stored"][0]["candidate"] == second);
    CHECK(known["stored"][0]["microseconds"] == 12.5);
    CHECK(known["stored"][0]["binary"] == "not compiled yet");
    CHECK(known["choice"]["grade"] == "ranked");  // no device is here that the stored choice is for
    CHECK(known["measurements"].empty());
  }
  CHECK(
      tool(explain + "--device H100").out.find("  NVIDIA H100 80GB HBM3: " + second + ", 12.50 us; not compiled yet") !=
      std::string::npos);
  refused(explain + "--device nonesuch", 1, "NVIDIA H100 80GB HBM3");
  refused(explain + "--device H100 --arch sm_90a", 1, "--arch");
  refused(explain + "--device 0", 4, "explain needs an NVIDIA GPU");
}

TEST_CASE("cli: merge and import take several files, and say why rows are refused") {
  std::string files;
  for (const char* name : {"from-1.db", "from-2.db"}) {
    tilewright::StoreOptions o;
    o.path = scratch() / name;
    tilewright::Store store(o);
    tilewright::Binary binary;
    binary.target = "sm_90a", binary.entry = "e", binary.image.resize(10);
    binary.plan = {{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, 32, 1, 0};
    REQUIRE(store.put_binary(tilewright::Key().add("name", name), binary));
    files += " '" + o.path + "'";
  }
  const Json merged = tool("cache merge --json" + files + cache_flag("merged.db")).json();
  CHECK(merged["added"] == 2);
  CHECK(merged["files"].size() == 2);
  CHECK(merged["files"][1]["added"] == 1);
  CHECK(merged["files"][1]["file"].get<std::string>().find("from-2.db") != std::string::npos);
  const Ran imported = tool("cache import" + files + cache_flag("imported.db"));
  CHECK(imported.out.find("from-2.db: 0 added") != std::string::npos);
  CHECK(imported.out.find("refused: 1 binaries: machine code") != std::string::npos);
  refused("cache merge" + files + " /nonexistent.db" + cache_flag("none-merged.db"), 1, "/nonexistent.db");
  CHECK_FALSE(fs::exists(scratch() / "none-merged.db"));  // before anything is taken
}

TEST_CASE("cli: what a CPU recorded is prewarmed for GPUs, each in its own order") {
  const std::string record = scratch() / "recorded.txt";
  REQUIRE(tool("run --device cpu \"gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256\"" + cache_flag("recording.db"),
               "TILEWRIGHT_RECORD='" + record + "'")
              .code == 0);
  REQUIRE(slurp(record).find("pack=panels") != std::string::npos);
  for (const char* packed : {"", "--packed "}) {
    const Ran ran = tool(std::string("prewarm --json --top 1 --no-buckets --arch sm_80,sm_90a ") + packed +
                         "--workload '" + record + "'" + cache_flag("recorded.db"));
    INFO(ran.out << ran.err);
    CHECK(ran.code == 0);
    CHECK(ran.json()["failed"] == 0);
    CHECK(ran.json()["warnings"].size() == 2);  // that the order is another
  }
  const Json list = tool("cache ls --json --kind list" + cache_flag("recorded.db")).json();
  const std::string all = list.dump();
  CHECK(all.find("pack=tiles") != std::string::npos);
  CHECK(all.find("pack=panels") == std::string::npos);
}

TEST_CASE("cli: prewarm --layers compiles what a layer launches on each target") {
  const auto compiled = [](const std::string& arch, const std::string& problem) {
    const std::string cache = cache_flag("layers.db");
    const Ran ran =
        tool("prewarm --json --layers --top 1 --no-buckets --arch " + arch + " \"" + problem + "\"" + cache);
    INFO(ran.out << ran.err);
    CHECK(ran.code == 0);
    CHECK(ran.json()["failed"] == 0);
    return tool("cache ls --json --kind list" + cache).json().dump();
  };
  // As a layer on a CPU recorded it; its own packing is left out.
  CHECK(compiled("sm_90a", "pack w=q4_0 x=q8_1 n=128 k=256 order=panels").find("\"entries\":[]") != std::string::npos);
  const std::string all = compiled("sm_90a", "gemm x=q8_1 w=q4_0 y=f32 m=2 n=128 k=256 pack=panels x_from=f32");
  for (const char* part : {"pack=tiles workspace=34603008", "pack=tiles x_from=f32 workspace=34603008",
                           "cast x=f32 y=q8_1 rows=", "pack w=q4_0 x=q8_1 n=128 k=256"})
    CHECK(all.find(part) != std::string::npos);
  CHECK(all.find("pack=panels") == std::string::npos);
}

TEST_CASE("cli: Ctrl-C ends prewarm after the compile that runs, keeps what there is, and gives 130") {
  const Ran ran = shell("TILEWRIGHT_DRIVER=/nonexistent/libcuda.so timeout -s INT 2 " + tool_path() +
                        "prewarm --json --threads --jobs 1 --top 100 --arch all \"gemm x=f16 w=q4_0 y=f32 m=2 n=64 "
                        "k=256\"" +
                        cache_flag("interrupted.db") + "; test $? -eq 124");
  INFO(ran.out << ran.err);
  CHECK(ran.code == 0);  // timeout's own code
  CHECK(ran.json()["cancelled"] == true);
  CHECK(ran.json()["failed"] == 0);
  CHECK(ran.err.find("Ctrl-C") != std::string::npos);
}
