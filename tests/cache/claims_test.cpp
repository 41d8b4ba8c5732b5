// SPDX-License-Identifier: Apache-2.0
#include "cache/file/claims.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "child.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void append(const std::string& path, char c) {
  // O_APPEND writes of one byte do not overwrite each other.
  FILE* file = std::fopen(path.c_str(), "a");
  std::fputc(c, file);
  std::fclose(file);
}

}  // namespace

TEST_CASE("a claim excludes other stores and threads until it is released") {
  Directory dir;
  Store a(options(dir.file())), b(options(dir.file()));
  CHECK(a.claim(binary_key(1), 0));
  const auto start = Clock::now();
  CHECK_FALSE(b.claim(binary_key(1), 0.1));
  CHECK_FALSE(a.claim(binary_key(1), 0));  // another thread of the same process, say
  CHECK(seconds_since(start) < 5);
  CHECK(b.claim(binary_key(2), 0));
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    a.release(binary_key(1));
  });
  CHECK(b.claim(binary_key(1), 10));
  release.join();
  b.release(binary_key(1));
  b.release(binary_key(1));  // once too often does no harm
  CHECK(a.claim(binary_key(1), 0));
}

TEST_CASE("without a directory to lock in, every claim is granted") {
  Store store(options(""));
  CHECK(store.claim(binary_key(1), 10));
  CHECK(store.claim(binary_key(1), 10));
}

static child::Work claimer("claimer", [](const child::Arguments& a) {
  Store store(options(a[0]));
  if (!store.claim(binary_key(1), 0)) return 1;
  append(a[1], 'x');
  for (;;) pause();
});

TEST_CASE("a holder that is killed frees its claim") {
  Directory dir;
  Store store(options(dir.file()));
  const pid_t pid = child::start("claimer", {dir.file(), dir.file("ready")});
  while (!exists(dir.file("ready"))) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK_FALSE(store.claim(binary_key(1), 0.05));
  kill(pid, SIGKILL);
  CHECK(child::wait(pid) == -SIGKILL);
  CHECK(store.claim(binary_key(1), 0));
}

// A process that needs a kernel: look up, claim, look up again, build, store, release.
static child::Work cold_start("cold start", [](const child::Arguments& a) {
  Store store(options(a[0]));
  const Key key = binary_key(1);
  auto found = store.find_binary(key);
  if (!found) {
    const bool mine = store.claim(key, 10);
    found = store.find_binary(key);
    if (!found) {
      append(a[1], mine ? 'b' : 'w');
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a compiler at work
      found = binary(1);
      store.put_binary(key, *found);
    }
    store.release(key);
  }
  return same(*found, binary(1)) ? 0 : 1;
});

TEST_CASE("of 64 processes that start cold, a few build") {
  Directory dir;
  std::vector<pid_t> processes;
  for (int i = 0; i < 64; ++i) processes.push_back(child::start("cold start", {dir.file(), dir.file("builds")}));
  for (const pid_t pid : processes) CHECK(child::wait(pid) == 0);
  const std::string builds = read_file(dir.file("builds"));
  CAPTURE(builds);
  CHECK(!builds.empty());
  CHECK(builds.size() <= 3);
  CHECK(Raw(dir.file()).number("SELECT count(*) FROM binaries") == 1);
  CHECK_FALSE(exists(dir.file() + ".corrupt-1"));
  Store store(options(dir.file()));
  CHECK(store.verify().damaged.empty());
}
