// SPDX-License-Identifier: Apache-2.0
// Stores that commit 279095f wrote, in format version 2 (tests/cache/fixtures/README.md): read without being written,
// migrated once, and used.
#include <sys/stat.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "cache/file/notes.h"
#include "cache/file/schema.h"
#include "cache/key.h"
#include "child.h"
#include "scratch.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace scratch;
using namespace tilewright::cache;

namespace {

std::string fixture(const std::string& name) {
  return tilewright::paths::source_dir() + "/tests/cache/fixtures/" + name;
}

std::string copy_of(const std::string& name, const Directory& dir) {
  write_file(dir.file(), read_file(fixture(name)));
  return dir.file();
}

// A note of the old store: device, problem and text.
struct Old {
  Key device;
  std::string problem, text;
};

std::vector<Old> notes(const std::string& path, const std::string& part) {
  const std::string from =
      " FROM choices c JOIN problems p ON p.hash=c.problem JOIN environments e ON e.hash=c.environment"
      " WHERE instr(p.device,'" +
      part + "')";
  Raw raw(path);
  std::vector<Old> all;
  for (long i = 0, count = raw.number("SELECT count(*)" + from); i < count; ++i) {
    const auto column = [&](const std::string& name) {
      return raw.text("SELECT " + name + from + " ORDER BY c.rowid LIMIT 1 OFFSET " + std::to_string(i));
    };
    all.push_back({*parse_transcript(column("p.device")), column("p.problem"), column("e.text")});
  }
  return all;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// What must be found in a store that was made from the file at `old`.
void check_all(Store& store, const std::string& old) {
  const std::vector<Old> tables = notes(old, "rows=all"), ahead = notes(old, "kind=prewarm"),
                         compilers = notes(old, "kind=compiler");
  REQUIRE(tables.size() >= 1);
  REQUIRE(ahead.size() >= 1);
  REQUIRE(compilers.size() == 2);
  for (const Old& note : tables) {
    const auto list = store.find_list(note.device, note.problem);
    REQUIRE(list);
    const auto lines = lines_of(note.text);
    CHECK(list->inputs == lines[0]);
    CHECK(list->steps.size() == 505);
    CHECK(list->candidates.size() == (lines.size() - 3) / 2);
    for (std::size_t i = 0; i < list->candidates.size(); ++i) {
      const RowCandidate& c = list->candidates[i];
      CHECK(lines[2 + 2 * i] == "candidate " + std::to_string(c.listed) + " " + encode_candidate(c.candidate));
      std::string times = "times";
      for (const auto& [rows, us] : c.times) {
        char text[64];
        std::snprintf(text, sizeof text, " %lld:%.4g", static_cast<long long>(rows), us);
        times += text;
      }
      CHECK(lines[3 + 2 * i] == times);
    }
  }
  for (const Old& note : ahead) {
    const auto list = store.find_list(note.device, note.problem);
    REQUIRE(list);
    CHECK(list->steps.empty());
    std::vector<std::string> candidates;
    for (const RowCandidate& c : list->candidates) candidates.push_back(encode_candidate(c.candidate));
    CHECK(candidates == lines_of(note.text));
  }
  for (const Old& note : compilers) {
    const auto compiler = store.find_compiler(note.problem == "compiler" ? "nvrtc" : "llvm");
    REQUIRE(compiler);
    const auto lines = lines_of(note.text);
    CHECK(compiler->version == lines[0]);
  }
  for (const Old& note : tables) CHECK_FALSE(store.find_choice(note.device, note.problem));
  for (const Old& note : ahead) CHECK_FALSE(store.find_choice(note.device, note.problem));
  for (const Old& choice : notes(old, "kind=choice"))
    CHECK((store.find_choice(choice.device, choice.problem) || store.find_list(choice.device, choice.problem)));
  CHECK(store.all_lists().size() == tables.size() + ahead.size());
  Raw raw(old);
  auto totals = store.totals();
  CHECK(totals["binary"].rows == raw.number("SELECT count(*) FROM binaries"));
  CHECK(totals["measurement"].rows == raw.number("SELECT count(*) FROM measurements"));
  CHECK(totals["choice"].rows + totals["list"].rows + 2 == raw.number("SELECT count(*) FROM choices"));
  CHECK(store.verify().damaged.empty());
}

}  // namespace

TEST_CASE("a store of 279095f is read without being written") {
  for (const std::string name : {"own.db", "exported.db"}) {
    CAPTURE(name);
    Directory dir, old;
    const std::string path = copy_of(name, dir), before = read_file(path);
    chmod(path.c_str(), 0444);
    StoreOptions look = options(path), ship = options("");
    look.read_only = true;
    ship.shipped = {path};
    for (StoreOptions o : {look, ship}) {
      Log log;
      o.log = log.callback();
      Store store(o);
      check_all(store, copy_of(name, old));
      CHECK(log.all() == "");
    }
    Store merged(options(""));
    CHECK(merged.merge_from(path).refused == 0);
    check_all(merged, copy_of(name, old));
    CHECK(merged.find_compiler("nvrtc")->path.empty());
    Store imported(options(""));
    CHECK(imported.import_from(path).added > 0);
    CHECK(imported.all_lists().empty());
    CHECK((read_file(path) == before));
    CHECK_FALSE(exists(path + "-wal"));
    CHECK_FALSE(exists(path + "-journal"));
  }
}

TEST_CASE("a store of 279095f is migrated once, when it is opened for writing") {
  for (const std::string name : {"own.db", "exported.db"}) {
    CAPTURE(name);
    Directory dir, old;
    const std::string path = copy_of(name, dir);
    CHECK(Raw(path).number("PRAGMA user_version") == 2);
    Log log;
    {
      Store store(options(path, &log));
      check_all(store, copy_of(name, old));
      // Where the compilers are is this machine's, and what nothing refers to is gone.
      const auto note = notes(old.file(), "kind=compiler").front();
      const auto lines = lines_of(note.text);
      const auto compiler = store.find_compiler(note.problem == "compiler" ? "nvrtc" : "llvm");
      REQUIRE(lines.size() == 5);
      CHECK(compiler->asked_for == lines[1]);
      CHECK(compiler->path == lines[2]);
      CHECK(compiler->bytes == std::stol(lines[3]));
      CHECK(std::to_string(compiler->modified) ==
            lines[4].substr(0, lines[4].find('.')) + lines[4].substr(lines[4].find('.') + 1));
    }
    CHECK(Raw(path).number("PRAGMA user_version") == schema_version());
    CHECK(Raw(path).number("SELECT count(*) FROM problems WHERE instr(device,'kind=compiler')") == 0);
    CHECK(Raw(path).number("SELECT count(*) FROM environments WHERE instr(text,'rows 1')") == 0);
    const std::string migrated = read_file(path);
    {
      Store store(options(path, &log));
      CHECK(store.verify().damaged.empty());
      CHECK(store.all_lists().size() > 0);
    }
    CHECK((read_file(path) == migrated));
    Store store(options(path, &log));
    check_all(store, old.file());
    CHECK(log.all() == "");
    CHECK_FALSE(exists(path + ".corrupt-1"));
  }
}

static child::Work migrate_work("migrate", [](const child::Arguments& a) {
  Log log;
  Store store(options(a[0], &log));
  const bool found = store.all_lists().size() == static_cast<std::size_t>(std::stol(a[1])) &&
                     store.find_compiler("nvrtc") && store.verify().damaged.empty();
  return found && !store.degraded() && log.count() == 0 ? 0 : 1;
});

TEST_CASE("processes that open a store of 279095f at once migrate it once") {
  for (int round = 0; round < 5; ++round) {
    Directory dir, old;
    const std::string path = copy_of("own.db", dir);
    const std::size_t lists =
        notes(copy_of("own.db", old), "rows=all").size() + notes(old.file(), "kind=prewarm").size();
    std::vector<pid_t> all;
    for (int i = 0; i < 4; ++i) all.push_back(child::start("migrate", {path, std::to_string(lists)}));
    for (const pid_t pid : all) CHECK(child::wait(pid) == 0);
    Store store(options(path));
    check_all(store, old.file());
  }
}

TEST_CASE("a damaged note of an old store is left behind, and the others are moved") {
  const std::string row = "(SELECT p.hash FROM problems p WHERE instr(p.device,'rows=all') ORDER BY p.rowid LIMIT 1)";
  const std::string text = "(SELECT environment FROM choices WHERE problem=" + row + ")";
  const std::string changes[] = {
      "UPDATE choices SET candidate='mma bm=1' WHERE problem=" + row,
      "UPDATE choices SET candidate=x'00' WHERE problem=" + row,
      "UPDATE choices SET imported=1 WHERE problem=" + row,
      "UPDATE environments SET text=replace(text,'candidate 16','candidate 17') WHERE hash=" + text,
      "UPDATE environments SET text=x'00' WHERE hash=" + text,
      "DELETE FROM environments WHERE hash=" + text,
      "UPDATE problems SET problem='other' WHERE hash=" + row,
  };
  for (const std::string& change : changes) {
    CAPTURE(change);
    Directory dir, old;
    const std::string path = copy_of("own.db", dir);
    const std::vector<Old> tables = notes(copy_of("own.db", old), "rows=all"),
                           ahead = notes(old.file(), "kind=prewarm");
    Raw(path).exec(change);
    Store store(options(path));
    CHECK(store.all_lists().size() == tables.size() + ahead.size() - 1);
    CHECK_FALSE(store.find_list(tables[0].device, tables[0].problem));
    CHECK(store.find_list(ahead[0].device, ahead[0].problem));
    CHECK(store.find_compiler("nvrtc"));
    (void)store.verify(true);
    CHECK(store.verify().damaged.empty());
    CandidateList again{tables[0].problem, {{candidate(64)}}};
    CHECK(store.put_list(tables[0].device, again));
    CHECK(store.find_list(tables[0].device, again.problem));
  }
}

TEST_CASE("nothing damaged is taken for a row table of version 2") {
  const std::string text =
      "tuned\nrows 1\ncandidate 256 mma bm=64\ntimes 64:12.5 8192:1.234e+04\ncandidate 1 reference\ntimes\n"
      "steps 0x200 1x305\n";
  const auto list = parse_row_table(text);
  REQUIRE(list);
  CHECK(list->inputs == "tuned");
  CHECK(list->steps.size() == 505);
  CHECK(list->candidates[0].listed == 256);
  CHECK(list->candidates[0].times.at(8192) == 12340);
  CHECK(list->candidates[1].times.empty());
  CHECK_FALSE(parse_row_table(""));
  CHECK_FALSE(parse_row_table(text.substr(0, text.size() / 2)));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return other.replace(other.find(from), from.size(), to);
  };
  for (const auto& [from, to] :
       std::initializer_list<std::pair<const char*, const char*>>{{"rows 1", "rows 2"},
                                                                  {"steps 0x", "steps 3x"},
                                                                  {"0x200", "0x99999999999"},
                                                                  {"64:12.5", "64:-1"},
                                                                  {"64:12.5", "64:nan"},
                                                                  {"64:12.5", "0:1"},
                                                                  {"candidate 256", "candidate x"},
                                                                  {"candidate 256 mma", "candidate 0 mma"},
                                                                  {"times 64", "other 64"}}) {
    CAPTURE(from, to);
    CHECK_FALSE(parse_row_table(with(from, to)));
  }
  // Whatever a damaged byte makes of it, it is either refused or a whole table.
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string other = text;
    other[random() % other.size()] = static_cast<char>(random());
    if (const auto parsed = parse_row_table(other))
      for (const std::uint8_t s : parsed->steps) REQUIRE(s < parsed->candidates.size());
  }
}

TEST_CASE("a compiler of version 2 is its version alone, or its file too") {
  CHECK(parse_compiler("13.0") == StoredCompiler{"", "13.0"});
  CHECK(parse_compiler("13.0\na|b|c\n/lib/nvrtc.so\n12\n7.000000009") ==
        StoredCompiler{"", "13.0", "a|b|c", "/lib/nvrtc.so", 12, 7'000'000'009});
  CHECK(parse_compiler("13.0\na|b|c\n") == StoredCompiler{"", "13.0"});
  for (const char* file : {"x\n7.0", "12\n7", "12\n9223372036854775807.0", "12\n-7.0", "12\n7.9223372036854775807"})
    CHECK(parse_compiler(std::string("13.0\na|b|c\n/lib/nvrtc.so\n") + file) == StoredCompiler{"", "13.0"});
}
