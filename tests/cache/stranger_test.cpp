// SPDX-License-Identifier: Apache-2.0
// A store that somebody else made: whoever opens it loses nothing by it.
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <map>
#include <thread>

#include "cache/file/open.h"
#include "cache/file/snapshot.h"
#include "cache/file/sqlite.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

namespace {

// A hot rollback journal that changes no page and ends with the name of a super-journal. SQLite, when it rolls such a
// journal back, deletes the file of that name.
std::string hot_journal(const std::string& super) {
  std::string journal("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8);
  const auto number = [&](std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) journal += static_cast<char>(value >> shift);
  };
  for (const std::uint32_t value : {0u, 12345u, 1000u, 512u, 4096u}) number(value);  // records, nonce, pages, sizes
  journal.resize(512, '\0');
  number((1u << 30) / 4096 + 1);  // the page of the lock byte, which marks the name
  journal += super;
  number(static_cast<std::uint32_t>(super.size()));
  std::uint32_t sum = 0;
  for (const char c : super) sum += static_cast<std::uint32_t>(static_cast<signed char>(c));
  number(sum);
  return journal + std::string("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8);
}

std::map<std::string, std::string> contents(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files[entry.path()] = read_file(entry.path());
  }
  return files;
}

// A closed store, whose header names the journal mode, with whatever side files the test wants.
std::string stranger(const Directory& dir, bool wal) {
  const std::string path = make_cache(dir, "stranger.db");
  Raw(path).exec(wal ? "PRAGMA journal_mode=WAL" : "PRAGMA journal_mode=DELETE");
  return path;
}

// Everything that opens a store which it does not own.
const std::pair<const char*, void (*)(const std::string& path)> kReaders[] = {
    {"merge", [](const std::string& path) { Store(options("")).merge_from(path); }},
    {"import", [](const std::string& path) { Store(options("")).import_from(path); }},
    {"shipped",
     [](const std::string& path) {
       StoreOptions o;
       o.shipped = {path};
       (void)Store(o).find_binary(binary_key(0));
     }},
    {"read only",
     [](const std::string& path) {
       StoreOptions o = options(path);
       o.read_only = true;
       Store store(o);
       (void)store.find_binary(binary_key(0));
       (void)store.list();
       (void)store.verify();
       (void)store.put_binary(binary_key(1), binary(1));
       try {
         (void)store.show("0");
       } catch (const Error&) {
       }
       try {
         Directory out;
         store.export_to(out.file("export.db"));
       } catch (const Error&) {
       }
     }},
};

}  // namespace

TEST_CASE("the crafted journal makes SQLite delete a file") {
  // The tests below rely on this: if SQLite alone opens the database for writing, the journal does its work.
  Directory dir;
  const std::string path = stranger(dir, false), victim = dir.file("victim");
  write_file(victim, "precious");
  write_file(path + "-journal", hot_journal(victim));
  Raw(path).number("SELECT count(*) FROM problems");
  CHECK_FALSE(exists(victim));
}

TEST_CASE("a stranger's store changes and deletes nothing") {
  for (const auto& [name, open] : kReaders) {
    for (const bool wal : {false, true}) {
      for (const std::string side : {"", "-journal", "-wal", "-journal -wal", "-wal -shm"}) {
        CAPTURE(name, wal, side);
        Directory dir, other;
        const std::string path = stranger(dir, wal), victim = other.file("victim");
        write_file(victim, "precious");
        if (side.find("-journal") != side.npos) write_file(path + "-journal", hot_journal(victim));
        if (side.find("-wal") != side.npos) write_file(path + "-wal", std::string(3000, 'w'));
        if (side.find("-shm") != side.npos) write_file(path + "-shm", std::string(3000, 's'));
        const auto before = contents(dir.path());
        std::string refusal;
        try {
          open(path);
        } catch (const Error& error) {
          refusal = error.what();
        }
        CHECK(read_file(victim) == "precious");
        CHECK((contents(dir.path()) == before));
        if (std::strlen(name) < 7 && side.find("-journal") != side.npos)
          CHECK(refusal.find("-journal") != refusal.npos);
        if (std::strlen(name) < 7 && side.empty()) CHECK(refusal.empty());
      }
    }
  }
}

TEST_CASE("a stranger's side files that are links are neither followed nor removed") {
  for (const char* side : {"-wal", "-shm", "-journal"}) {
    for (const auto& [name, open] : kReaders) {
      for (const bool hard : {false, true}) {
        CAPTURE(name, side, hard);
        Directory dir;
        const std::string path = stranger(dir, true), victim = dir.file("victim");
        write_file(victim, std::string(5000, 'v'));
        REQUIRE((hard ? link(victim.c_str(), (path + side).c_str()) : symlink(victim.c_str(), (path + side).c_str())) ==
                0);
        const auto before = contents(dir.path());
        try {
          open(path);
        } catch (const Error&) {
        }
        CHECK((contents(dir.path()) == before));
        struct stat s {};
        CHECK(lstat((path + side).c_str(), &s) == 0);
      }
    }
  }
}

TEST_CASE("a FIFO beside a stranger's store is refused, not waited for") {
  for (const char* side : {"-wal", "-shm", "-journal"}) {
    for (const auto& [name, open] : kReaders) {
      CAPTURE(name, side);
      Directory dir;
      const std::string path = stranger(dir, true);
      REQUIRE(mkfifo((path + side).c_str(), 0600) == 0);
      const auto before = contents(dir.path());
      std::string refusal;
      try {
        open(path);
      } catch (const Error& error) {
        refusal = error.what();
      }
      if (std::strlen(name) < 7) CHECK(refusal.find("not a regular file") != refusal.npos);
      CHECK((contents(dir.path()) == before));
    }
  }
}

TEST_CASE("a log that SQLite would ignore is not copied, and none of gigabytes is") {
  Directory dir;
  const std::string path = stranger(dir, true), log = path + "-wal";
  write_file(log, "not a log");
  REQUIRE(truncate(log.c_str(), off_t{100} << 30) == 0);  // sparse
  Store store, other;
  const MergeReport report = store.import_from(path);
  unlink(log.c_str());
  CHECK(report.added == other.import_from(path).added);
  write_file(log, std::string("\x37\x7f\x06\x82", 4));
  REQUIRE(truncate(log.c_str(), off_t{100} << 30) == 0);
  std::string refusal;
  try {
    store.import_from(path);
  } catch (const Error& error) {
    refusal = error.what();
  }
  CHECK(refusal.find("write-ahead log has 107374182400 bytes") != refusal.npos);
}

TEST_CASE("a cache of one's own is not opened with a stranger's side files") {
  const auto check = [](const std::string& path, const std::string& victim, const std::string& part) {
    Log log;
    const std::string before = read_file(path);
    {
      Store store(options(path, &log));
      CHECK(store.degraded());
      CHECK(log.count(part) == 1);
      CHECK(store.put_binary(binary_key(7), binary(7)));
    }
    CHECK(read_file(victim) == "precious");
    CHECK((read_file(path) == before));
    CHECK_FALSE(exists(path + ".corrupt-1"));
  };
  for (const bool wal : {false, true}) {
    Directory dir;
    const std::string path = stranger(dir, wal), victim = dir.file("victim");
    write_file(victim, "precious");
    write_file(path + "-journal", hot_journal(victim));
    check(path, victim, "super-journal");
    unlink((path + "-journal").c_str());
    for (const std::string side : {"-wal", "-shm", "-journal"}) {
      REQUIRE(symlink(victim.c_str(), (path + side).c_str()) == 0);
      check(path, victim, "symbolic link");
      unlink((path + side).c_str());
      REQUIRE(link(victim.c_str(), (path + side).c_str()) == 0);
      check(path, victim, "hard links");
      unlink((path + side).c_str());
    }
    CHECK(Store(options(path)).find_binary(binary_key(0)));
  }
}

TEST_CASE("a hot journal of one's own is rolled back") {
  Directory dir;
  const std::string path = stranger(dir, false);
  {
    // A writer that dies in a transaction whose pages are in the file already.
    const pid_t pid = fork();
    if (pid == 0) {
      Raw raw(path);
      raw.exec(
          "PRAGMA cache_size=1; PRAGMA synchronous=FULL; BEGIN; DELETE FROM binaries; DELETE FROM problems;"
          "CREATE TABLE t(x); INSERT INTO t SELECT zeroblob(4000) FROM binaries, problems");
      for (int i = 0; i < 50; ++i) raw.exec("INSERT INTO t VALUES(zeroblob(4000))");
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
  }
  REQUIRE(exists(path + "-journal"));
  CHECK_THROWS_AS(Store(options("")).merge_from(path), Error);  // not ours to mend
  Store store(options(path));
  CHECK(store.find_binary(binary_key(0)));
  CHECK_FALSE(exists(path + "-journal"));
}

TEST_CASE("a schema that would run something is refused before anything runs") {
  for (const char* change : {
           "CREATE TRIGGER t AFTER INSERT ON uses BEGIN DELETE FROM binaries; END",
           "ALTER TABLE binaries RENAME TO b2; CREATE VIEW binaries AS SELECT * FROM b2",
           "ALTER TABLE choices ADD COLUMN c INTEGER DEFAULT 1 CHECK(abs(c)>0)",
           "CREATE INDEX extra ON binaries(length(image))",
           "CREATE VIRTUAL TABLE temp_v USING fts5(x)",
       }) {
    CAPTURE(change);
    for (const bool log : {false, true}) {
      Directory dir;
      const std::string path = stranger(dir, true);
      {
        Raw raw(path);
        raw.exec(change);
        if (log) std::filesystem::copy_file(path, dir.file("kept.db"));
        if (log) std::filesystem::copy_file(path + "-wal", dir.file("kept.db-wal"));
      }
      const std::string source = log ? dir.file("kept.db") : path;
      const auto before = contents(dir.path());
      Store store(options(""));
      CHECK_THROWS_AS(store.merge_from(source), Error);
      CHECK_THROWS_AS(store.import_from(source), Error);
      CHECK(store.list().empty());
      CHECK((contents(dir.path()) == before));
    }
  }
}

// The private copies that this process holds open, and those of them that still have a name.
struct Copies {
  int open = 0, named = 0;
};
Copies private_copies() {
  const std::string mark = "/tilewright-copy-" + std::to_string(getpid()) + "-";
  Copies copies;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    copies.open += std::filesystem::read_symlink(entry.path(), closed).string().find(mark) != std::string::npos;
  }
  for (const char* place : {"/tmp", "/var/tmp", "/dev/shm"}) {
    for (const auto& entry : std::filesystem::directory_iterator(place)) {
      copies.named += entry.path().string().find(mark) != std::string::npos;
    }
  }
  return copies;
}

TEST_CASE("a store in use is read from a private copy, log included") {
  Directory dir;
  const std::string path = stranger(dir, true);
  Store live(options(path));
  REQUIRE(live.put_binary(binary_key(1), binary(1)));
  REQUIRE(exists(path + "-wal"));
  const auto before = contents(dir.path());
  StoreOptions o = options(path);
  o.read_only = true;
  {
    Store look(o);
    CHECK_FALSE(look.degraded());
    CHECK(same(*look.find_binary(binary_key(1)), binary(1)));
    CHECK(look.verify().damaged.empty());
    CHECK(private_copies().open > 0);
    CHECK(private_copies().named == 0);
  }
  CHECK(Store(options("")).merge_from(path).added == 4);
  CHECK((contents(dir.path()) == before));
  CHECK(live.put_binary(binary_key(2), binary(2)));  // its locks are still its own
  CHECK(Store(o).find_binary(binary_key(2)));
  CHECK(private_copies().open == 0);
  CHECK(private_copies().named == 0);
}

TEST_CASE("holes of a store stay holes in its private copy, and none of many gigabytes is copied") {
  Directory dir(On::disk);
  const std::string path = make_cache(dir);
  write_file(path + "-wal", std::string(32, '\0'));  // so that a copy is read
  std::filesystem::resize_file(path, std::uintmax_t{256} << 20);
  std::int64_t copied = -1;
  StoreOptions o = options(path);
  o.read_only = true;
  {
    Store look(o);
    CHECK(look.find_binary(binary_key(0)));
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      struct stat s {};
      std::error_code closed;
      const std::string link = std::filesystem::read_symlink(entry.path(), closed).string();
      if (link.find("/tilewright-copy-") == std::string::npos || link.find("copy.db (deleted)") == std::string::npos)
        continue;
      REQUIRE(stat(entry.path().c_str(), &s) == 0);
      copied = s.st_blocks * std::int64_t{512};
    }
  }
  CHECK(copied >= 0);
  CHECK(copied < 4 << 20);
  std::filesystem::resize_file(path, std::uintmax_t{10} << 30);
  Log log;
  o.log = log.callback();
  const auto began = std::chrono::steady_clock::now();
  CHECK_FALSE(Store(o).find_binary(binary_key(0)));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(1));
  CHECK(log.count("its 10737418240 bytes are more than") == 1);
}

TEST_CASE("a private copy that a killed process left is removed by the next") {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status = 0;
  waitpid(pid, &status, 0);
  const std::string prefix = "/tmp/tilewright-copy-";
  const std::string abandoned = prefix + std::to_string(pid) + "-abcdef",
                    recent = prefix + std::to_string(pid) + "-ghijkl",
                    live = prefix + std::to_string(getpid()) + "-mnopqr";
  for (const std::string& copy : {abandoned, recent, live}) {
    REQUIRE(std::filesystem::create_directory(copy));
    write_file(copy + "/copy.db", "x");
    write_file(copy + "/copy.db-wal", "x");
    const timespec old[] = {{0, UTIME_OMIT}, {time(nullptr) - 3600, 0}};
    if (copy != recent) REQUIRE(utimensat(AT_FDCWD, copy.c_str(), old, 0) == 0);
  }
  Directory dir;
  const std::string path = stranger(dir, true);
  Store live_store(options(path));
  REQUIRE(live_store.put_binary(binary_key(1), binary(1)));
  StoreOptions o = options(path);
  o.read_only = true;
  CHECK(Store(o).find_binary(binary_key(1)));
  CHECK_FALSE(exists(abandoned));
  for (const std::string& copy : {recent, live}) {
    CHECK(exists(copy + "/copy.db"));
    std::filesystem::remove_all(copy);
  }
}

TEST_CASE("a schema of very many tables is refused within seconds") {
  Directory dir;
  const std::string path = make_cache(dir, "many.db");
  {
    Raw raw(path);
    raw.exec("PRAGMA journal_mode=DELETE; PRAGMA synchronous=OFF; PRAGMA writable_schema=1; BEGIN");
    // As 300000 statements would, within a second.
    raw.exec(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<300000) INSERT INTO sqlite_schema"
        " SELECT 'table','t'||i,'t'||i,(SELECT rootpage FROM sqlite_schema WHERE name='uses'),"
        "'CREATE TABLE t'||i||'(a,b,c,d,e,f,g,h,i,j,k,l)' FROM n; COMMIT");
  }
  Store store(options(""));
  const auto began = std::chrono::steady_clock::now();
  try {
    store.import_from(path);
    FAIL("imported");
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(std::string(error.what()).find("its schema") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(8));
}

TEST_CASE("a FIFO that takes a store's place while it is opened is refused, not waited for") {
  Directory dir;
  const std::string real = stranger(dir, true), fifo = dir.file("fifo"), name = dir.file("named.db"),
                    next = dir.file("next");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  {
    const cache::NoWaiting now;
    CHECK_THROWS_AS(cache::Database(fifo, cache::Database::Mode::immutable), cache::SqliteError);
  }
  REQUIRE(link(real.c_str(), name.c_str()) == 0);
  std::atomic<bool> stop{false}, stuck{false};
  std::atomic<int> imports{0};
  std::thread exchange([&] {
    for (int i = 0; !stop; ++i)
      if (link((i % 2 ? real : fifo).c_str(), next.c_str()) == 0) rename(next.c_str(), name.c_str());
  });
  std::thread watch([&] {  // a reader that waits for a writer gets one after two seconds
    for (int before = -1, same = 0; !stop; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
      same = before == imports ? same + 1 : 0;
      before = imports;
      if (same < 20) continue;
      const int fd = open(fifo.c_str(), O_WRONLY | O_NONBLOCK);
      stuck = stuck || fd >= 0;
      if (fd >= 0) close(fd);
    }
  });
  int taken = 0;
  for (; imports < 300; ++imports) {
    Store store(options(""));
    try {
      taken += store.import_from(name).added > 0;
    } catch (const Error&) {
    }
  }
  stop = true;
  exchange.join();
  watch.join();
  CHECK_FALSE(stuck);
  CHECK(taken > 0);
}
