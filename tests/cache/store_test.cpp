// SPDX-License-Identifier: Apache-2.0
#include <tilewright/store.h>

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "child.h"
#include "scratch.h"
#include "support/catch.h"
#include "system.h"

using namespace scratch;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void wait_for(const std::string& path) {
  while (!exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace

TEST_CASE("look-ups within a Reading are of one moment, but for what this store puts") {
  Directory dir;
  Log log;
  Store mine(options(dir.file(), &log)), other(options(dir.file(), &log));
  REQUIRE(mine.put_choice(device_key(), choice("gemm a", 10)));
  {
    const Store::Reading reading(mine), nested(mine);
    CHECK(mine.find_choice(device_key(), "gemm a")->microseconds == 10);
    REQUIRE(other.put_choice(device_key(), choice("gemm a", 5)));
    CHECK(mine.find_choice(device_key(), "gemm a")->microseconds == 10);
    CHECK(mine.choices(device_key(), "gemm").size() == 1);
    CHECK(mine.put_binary(binary_key(1), binary(1)));
    CHECK(mine.find_binary(binary_key(1)));
    CHECK(mine.find_choice(device_key(), "gemm a")->microseconds == 5);
    REQUIRE(other.put_choice(device_key(), choice("gemm b", 7)));
    CHECK_FALSE(mine.find_choice(device_key(), "gemm b"));
  }
  CHECK(mine.find_choice(device_key(), "gemm b"));
  {
    const Store::Reading reading(mine);
    CHECK(mine.find_choice(device_key(), "gemm b"));
    CHECK(mine.verify().damaged.empty());  // maintenance ends it
    mine.gc(1 << 20);
    CHECK(mine.find_choice(device_key(), "gemm b"));
  }
  Store moved;
  {
    Store from(options(dir.file(), &log));
    const Store::Reading reading(from);
    CHECK(from.find_choice(device_key(), "gemm b"));
    moved = std::move(from);
    const Store::Reading empty(from);
  }
  REQUIRE(other.put_choice(device_key(), choice("gemm b", 6)));
  CHECK(moved.find_choice(device_key(), "gemm b")->microseconds == 6);
  CHECK(log.all() == "");
}

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

TEST_CASE("every measurement is kept, the latest of each candidate is returned") {
  Directory dir;
  Store store(options(dir.file()));
  for (int round = 0; round < 3; ++round) {
    CHECK(store.put_outcome(device_key(), "gemm a", outcome(64, 10 + round), "driver=580\n"));
    CHECK(store.put_outcome(device_key(), "gemm a", outcome(128, 0, OutcomeKind::pruned), "driver=580\n"));
  }
  CHECK(store.put_outcome(device_key(108), "gemm a", outcome(64, 99), ""));
  const auto all = store.outcomes(device_key(), "gemm a");
  REQUIRE(all.size() == 2);
  CHECK(all[0].microseconds == 12);
  CHECK(all[1].kind == OutcomeKind::pruned);
  CHECK(all[1].stored);
  CHECK(Raw(dir.file()).number("SELECT count(*) FROM measurements") == 7);
  CHECK(Raw(dir.file()).number("SELECT count(*) FROM environments") == 1);
}

TEST_CASE("choices are found by the beginning of their problem") {
  Store store(options(""));
  for (const char* problem : {"gemm a=1", "gemm a=10", "gemm b=1", "cast", "gemm a", "gemm a%_"}) {
    CHECK(store.put_choice(device_key(), choice(problem, 1)));
  }
  CHECK(store.choices(device_key(), "gemm a").size() == 4);
  CHECK(store.choices(device_key(), "gemm a=1").size() == 2);
  CHECK(store.choices(device_key(), "gemm a%").size() == 1);
  CHECK(store.choices(device_key(), "").size() == 6);
  CHECK(store.choices(device_key(108), "").empty());
}

TEST_CASE("values out of range are not stored") {
  Log log;
  Store store(options("", &log));
  CHECK_FALSE(store.put_choice(device_key(), choice("gemm a", -1)));
  CHECK_FALSE(store.put_choice(device_key(), choice(std::string(100000, 'x'), 1)));
  CHECK_FALSE(store.put_outcome(device_key(), "gemm a", outcome(1, std::nan("")), ""));
  CHECK_FALSE(store.put_binary(Key().add("x", std::string(2 << 20, 'x')), binary(1)));
  CHECK(log.count() == 2);
}

TEST_CASE("a store behaves like a map, across processes and reopening") {
  Directory dir;
  std::mt19937 random(20260101);
  std::map<int, int> binaries;                 // key -> content
  std::map<int, double> chosen;                // problem -> time
  std::map<int, std::map<int, double>> seen;   // problem -> bm -> time
  std::vector<std::unique_ptr<Store>> stores;  // two at a time on one file
  for (int i = 0; i < 2; ++i) stores.push_back(std::make_unique<Store>(options(dir.file())));
  for (int step = 0; step < 3000; ++step) {
    Store& store = *stores[random() % 2];
    const int id = static_cast<int>(random() % 20);
    const std::string problem = "gemm " + std::to_string(id);
    switch (random() % 8) {
      case 0: {
        const int content = static_cast<int>(random() % 1000);
        REQUIRE(store.put_binary(binary_key(id), binary(content, random() % 2 ? 300 : 9000 + content)));
        binaries[id] = content;
        break;
      }
      case 1:
        REQUIRE(store.put_choice(device_key(), choice(problem, step)));
        chosen[id] = step;
        break;
      case 2: {
        const int bm = 16 << random() % 4;
        REQUIRE(
            store.put_outcome(device_key(), problem, outcome(bm, step), "e=" + std::to_string(random() % 3) + "\n"));
        seen[id][bm] = step;
        break;
      }
      case 3:
      case 4: {
        const auto found = store.find_binary(binary_key(id));
        REQUIRE(found.has_value() == (binaries.count(id) == 1));
        if (found) CHECK(found->entry == "kernel_" + std::to_string(binaries[id]));
        break;
      }
      case 5: {
        const auto found = store.find_choice(device_key(), problem);
        REQUIRE(found.has_value() == (chosen.count(id) == 1));
        if (found) CHECK(found->microseconds == chosen[id]);
        break;
      }
      case 6: {
        std::map<int, double> found;
        for (const auto& o : store.outcomes(device_key(), problem)) {
          found[static_cast<int>(o.candidate.knobs[0].second)] = o.microseconds;
        }
        CHECK(found == seen[id]);
        break;
      }
      default:
        if (random() % 20 == 0) {
          const auto which = random() % 2;
          stores[which].reset();
          stores[which] = std::make_unique<Store>(options(dir.file()));
        } else {
          CHECK(store.choices(device_key(), "gemm ").size() == chosen.size());
        }
    }
  }
  CHECK(stores[0]->verify().damaged.empty());
}

TEST_CASE("a lock held by a stopped process costs at most a second, then stores go on") {
  for (const char* mode : {"WAL", "DELETE"}) {
    CAPTURE(mode);
    Directory dir;
    const std::string path = make_cache(dir);
    Raw(path).exec(std::string("PRAGMA journal_mode=") + mode);
    if (mode[0] == 'D') fake::filesystem_type = 0x6969;  // keeps the store from switching it back to WAL
    Log log;
    Store store(options(path, &log));
    const int before = log.count();
    const pid_t pid = child::start("lock holder", {path, dir.file("ready")});
    wait_for(dir.file("ready"));
    kill(pid, SIGSTOP);
    auto start = Clock::now();
    const bool found = store.find_binary(binary_key(0)).has_value();
    CHECK(found == (mode[0] == 'W'));  // a write-ahead log lets readers pass
    CHECK(seconds_since(start) <= 1.0);
    start = Clock::now();
    CHECK_FALSE(store.put_binary(binary_key(1), binary(1)));
    CHECK(seconds_since(start) <= 1.0);
    start = Clock::now();
    {
      Store late(options(path));  // opening it, too
    }
    CHECK(seconds_since(start) <= 1.2);
    kill(pid, SIGKILL);
    kill(pid, SIGCONT);
    child::wait(pid);
    CHECK(store.put_binary(binary_key(1), binary(1)));
    CHECK(store.find_binary(binary_key(1)));
    CHECK_FALSE(store.degraded());
    CHECK(log.count() == before + 1);
    fake::filesystem_type = 0;
  }
}

static child::Work lock_holder("lock holder", [](const child::Arguments& a) -> int {
  Raw raw(a[0]);
  raw.exec("BEGIN EXCLUSIVE");
  write_file(a[1], "");
  for (;;) pause();
});

TEST_CASE("a file that is removed or replaced while open is opened again") {
  for (const bool replace : {false, true}) {
    Directory dir;
    Log log;
    const std::string path = make_cache(dir);
    Store store(options(path, &log));
    CHECK(store.put_binary(binary_key(1), binary(1)));
    for (const char* side : {"", "-wal", "-shm"}) unlink((path + side).c_str());
    if (replace) make_cache(dir);
    CHECK(store.put_binary(binary_key(2), binary(2)));
    CHECK(log.count() == 1);
    Store other(options(path));
    CHECK(other.find_binary(binary_key(2)));  // what was reported as stored is in the file that has the name
    CHECK_FALSE(other.find_binary(binary_key(1)));
    CHECK(other.find_binary(binary_key(0)).has_value() == replace);
    CHECK(other.verify().damaged.empty());
  }
}

TEST_CASE("side files removed under a live process are a miss, and it recovers") {
  for (const std::vector<std::string>& sides :
       {std::vector<std::string>{"-wal"}, std::vector<std::string>{"-shm"}, std::vector<std::string>{"-wal", "-shm"}}) {
    Directory dir;
    const std::string path = make_cache(dir);
    Store store(options(path));
    CHECK(store.put_binary(binary_key(1), binary(1)));
    for (const auto& side : sides) unlink((path + side).c_str());
    Store other(options(path));
    for (int i = 0; i < 3; ++i) {
      const auto found = other.find_binary(binary_key(i));
      CHECK((!found || same(*found, binary(i))));
    }
    (void)store.find_binary(binary_key(0));
    CHECK(store.put_binary(binary_key(2), binary(2)));
    CHECK(store.find_binary(binary_key(2)));
    CHECK(Store(options(path)).find_binary(binary_key(2)));
    CHECK(Store(options(path)).verify().damaged.empty());
  }
}

TEST_CASE("a forked child does not use the parent's handle") {
  Directory dir;
  Log log;
  Store store(options(dir.file(), &log));
  CHECK(store.put_binary(binary_key(1), binary(1)));
  const pid_t pid = fork();
  if (pid == 0) {
    int bad = 0;
    bad |= store.find_binary(binary_key(1)).has_value();
    bad |= store.put_binary(binary_key(2), binary(2));
    bad |= !store.claim(binary_key(1), 0);
    bad |= store.find_choice(device_key(), "gemm a").has_value();
    bad |= log.count("forked") != 1;
    Store fresh(options(dir.file(), &log));  // even a new one: SQLite's lock table is the parent's
    bad |= !fresh.degraded();
    bad |= !fresh.put_binary(binary_key(3), binary(3)) || !fresh.find_binary(binary_key(3));
    try {
      store.gc(0);
      bad |= 1;
    } catch (const Error& error) {
      bad |= error.code() != ErrorCode::forked;
    }
    { Store dies = std::move(store); }  // destroying it in the child undoes nothing of the parent's
    _exit(bad);
  }
  CHECK(child::wait(pid) == 0);
  CHECK(store.find_binary(binary_key(1)));
  CHECK(store.put_binary(binary_key(2), binary(2)));
  CHECK(Store(options(dir.file())).find_binary(binary_key(2)));
  CHECK_FALSE(Store(options(dir.file())).find_binary(binary_key(3)));
  CHECK(exists(dir.file() + "-wal"));
  CHECK(log.all() == "");
}

TEST_CASE("the order of use and deadlines do not depend on the wall clock") {
  Directory dir;
  StoreOptions o = options(dir.file());
  o.cap = 256 << 10;
  const long year = 365 * 86400;
  {
    Store store(o);
    for (int i = 0; i < 60; ++i) {
      fake::clock_shift = i % 3 == 0 ? -year : i % 3 == 1 ? 10 * year : 0;
      CHECK(store.put_binary(binary_key(i), binary(i, 8000)));
      if (i > 0) CHECK(store.find_binary(binary_key(0)));
    }
    CHECK(store.find_binary(binary_key(0)));
    CHECK(store.find_binary(binary_key(59)));
    CHECK(store.find_binary(binary_key(50)));
    CHECK_FALSE(store.find_binary(binary_key(1)));
  }
  Store store(o);
  Raw raw(dir.file());
  raw.exec("BEGIN IMMEDIATE");
  std::atomic<bool> done{false};
  std::thread clock([&] {
    for (long shift = 0; !done; shift += year) {
      fake::clock_shift = shift % (20 * year) - 10 * year;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const auto start = Clock::now();
  CHECK_FALSE(store.put_binary(binary_key(99), binary(99)));
  const double waited = seconds_since(start);
  done = true;
  clock.join();
  fake::clock_shift = 0;
  CHECK(waited > 0.3);
  CHECK(waited <= 1.0);
}

TEST_CASE("a log callback may use the store") {
  Directory dir;
  write_file(dir.file(),
             std::string(8192, '\0'));  // a warning while it is opened, and one more when a value is refused
  Store* opened = nullptr;
  std::vector<std::string> lines;
  StoreOptions o = options(dir.file());
  o.log = [&](LogLevel, std::string_view text) {
    lines.emplace_back(text);
    if (!opened) return;
    CHECK(opened->find_binary(binary_key(1)));
    CHECK_FALSE(opened->put_binary(binary_key(2), binary(2, 80 << 20)));  // warns again, from within
    CHECK(opened->verify().damaged.empty());
  };
  Store store(o);
  opened = &store;
  REQUIRE(store.put_binary(binary_key(1), binary(1)));
  CHECK_FALSE(store.put_choice(device_key(), choice("gemm a", -1)));
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("damaged") != std::string::npos);
  CHECK(lines[1].find("choice") != std::string::npos);
  CHECK(lines[2].find("binary") != std::string::npos);
}

TEST_CASE("a callback that waits for another thread's message does not deadlock") {
  Directory dir;
  std::atomic<bool> second_done{false};
  std::thread second;
  Store* opened = nullptr;
  StoreOptions o = options(dir.file());
  o.log = [&](LogLevel, std::string_view) {
    if (second.joinable()) return;
    second = std::thread([&] {
      (void)opened->put_binary(binary_key(2), binary(2, 80 << 20));  // warns, too
      second_done = true;
    });
    while (!second_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Store store(o);
  opened = &store;
  CHECK_FALSE(store.put_choice(device_key(), choice("gemm a", -1)));
  second.join();
  CHECK(second_done);
}

TEST_CASE("a store that was moved from misses, takes nothing and says so") {
  Directory dir;
  Store store(options(dir.file()));
  REQUIRE(store.put_binary(binary_key(1), binary(1)));
  Store moved = std::move(store);
  CHECK(moved.find_binary(binary_key(1)));
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK_FALSE(store.find_binary(binary_key(1)));
  CHECK_FALSE(store.put_binary(binary_key(2), binary(2)));
  CHECK_FALSE(store.find_choice(device_key(), "gemm a"));
  CHECK_FALSE(store.put_choice(device_key(), choice("gemm a", 1)));
  CHECK(store.choices(device_key(), "").empty());
  CHECK(store.outcomes(device_key(), "gemm a").empty());
  CHECK_FALSE(store.put_outcome(device_key(), "gemm a", outcome(64, 1), ""));
  CHECK(store.claim(binary_key(1), 0));
  store.release(binary_key(1));
  store.touch_all();
  CHECK(store.degraded());
  CHECK(store.path().empty());
  CHECK_THROWS_AS(store.list(), Error);
  CHECK_THROWS_AS(store.show("0"), Error);
  CHECK_THROWS_AS(store.verify(), Error);
  CHECK_THROWS_AS(store.gc(0), Error);
  CHECK_THROWS_AS(store.export_to(dir.file("out.db")), Error);
  CHECK_THROWS_AS(store.merge_from(dir.file()), Error);
  // NOLINTEND(bugprone-use-after-move)
  store = std::move(moved);
  CHECK(store.find_binary(binary_key(1)));
}

TEST_CASE("many threads share a store") {
  Directory dir;
  Log log;
  Store store(options(dir.file(), &log));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 60; ++i) {
        const int n = static_cast<int>(random() % 10);
        if (store.claim(binary_key(n), 0.01)) store.release(binary_key(n));
        store.put_binary(binary_key(n), binary(n));
        const auto found = store.find_binary(binary_key(n));
        wrong += found && !same(*found, binary(n));
        store.put_outcome(device_key(), "gemm a", outcome(16 << (n % 4), i), "");
        store.outcomes(device_key(), "gemm a");
        (void)store.degraded();
        (void)store.path();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(store.verify().damaged.empty());
}

// ---- killed writers

static child::Work writer("writer", [](const child::Arguments& a) -> int {
  Store store(options(a[0]));
  std::mt19937 random(static_cast<unsigned>(std::stoul(a[1])));
  for (;;) {
    const int n = static_cast<int>(random() % 50);
    store.put_binary(binary_key(n), binary(n, 4000 + random() % 20000));
    store.put_choice(device_key(), choice("gemm " + std::to_string(n), 1 + n));
    store.put_outcome(device_key(), "gemm " + std::to_string(n), outcome(64, n), "driver=580\n");
    const auto found = store.find_binary(binary_key(n));
    if (found && found->entry != "kernel_" + std::to_string(n)) _exit(1);
  }
});

TEST_CASE("kill -9 of eight writers at 200 random points") {
  Directory dir;
  std::mt19937 random(9);
  const auto begin = [&] { return child::start("writer", {dir.file(), std::to_string(random())}); };
  std::vector<pid_t> writers;
  for (int i = 0; i < 8; ++i) writers.push_back(begin());
  for (int kills = 0; kills < 200; ++kills) {
    std::this_thread::sleep_for(std::chrono::microseconds(5000 + random() % 40000));
    pid_t& victim = writers[random() % writers.size()];
    kill(victim, SIGKILL);
    CHECK(child::wait(victim) == -SIGKILL);
    victim = begin();
    if (kills % 50 != 25) continue;
    Log log;
    Store store(options(dir.file(), &log));  // a survivor, while the others go on
    CHECK_FALSE(store.degraded());
    CHECK(store.verify().damaged.empty());
    CHECK(log.all() == "");
  }
  for (const pid_t pid : writers) kill(pid, SIGKILL);
  for (const pid_t pid : writers) CHECK(child::wait(pid) == -SIGKILL);
  Log log;
  Store store(options(dir.file(), &log));
  const VerifyReport report = store.verify();
  CHECK(report.damaged.empty());
  CHECK(report.checked > 50);
  int found = 0;
  for (int n = 0; n < 50; ++n) {
    const auto hit = store.find_binary(binary_key(n));
    found += hit.has_value();
    if (hit) CHECK(hit->entry == "kernel_" + std::to_string(n));
  }
  CHECK(found > 20);
  CHECK(log.all() == "");
  CHECK_FALSE(exists(dir.file() + ".corrupt-1"));
}
