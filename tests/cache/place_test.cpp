// SPDX-License-Identifier: Apache-2.0
#include "cache/file/place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>

#include "child.h"
#include "scratch.h"
#include "support/catch.h"
#include "system.h"

using namespace scratch;
using namespace tilewright::cache;

namespace {

// A cache at this path is refused, with one warning that has `part` in it, and the process goes on in memory.
void check_refused(const std::string& path, const std::string& part, bool allow_shared = false) {
  CAPTURE(path, part);
  Log log;
  StoreOptions o = options(path, &log);
  o.allow_shared = allow_shared;
  Store store(std::move(o));
  CHECK(store.degraded());
  CAPTURE(log.all());
  CHECK(log.count() == 1);
  CHECK(log.count(part) == 1);
  CHECK(store.put_binary(binary_key(1), binary(1)));
  CHECK(store.find_binary(binary_key(1)));
}

bool usable(const std::string& path, bool allow_shared = false) {
  StoreOptions o = options(path);
  o.allow_shared = allow_shared;
  return !Store(std::move(o)).degraded();
}

mode_t mode_of(const std::string& path) {
  struct stat s {};
  return stat(path.c_str(), &s) == 0 ? s.st_mode & 07777 : 0;
}

}  // namespace

TEST_CASE("directory and files are private whatever the umask") {
  Directory dir;
  for (const mode_t mask : {0, 0777, 022}) {
    const mode_t before = umask(mask);
    const std::string path = dir.path() + "/" + std::to_string(mask) + "/v1/cache.db";
    if (mask != 0777) {
      Store store(options(path));
      CHECK(store.put_binary(binary_key(1), binary(1)));
      CHECK(mode_of(path) == 0600);
      CHECK(mode_of(path + "-wal") == 0600);
      CHECK(mode_of(path.substr(0, path.rfind('/'))) == 0700);
    }
    umask(before);
  }
}

TEST_CASE("a file that others could read is made private") {
  Directory dir;
  const std::string path = make_cache(dir);
  chmod(path.c_str(), 0644);
  CHECK(usable(path));
  CHECK(mode_of(path) == 0600);
}

TEST_CASE("a directory that others can write to is refused") {
  Directory dir;
  const std::string path = make_cache(dir);
  chmod(dir.path().c_str(), 0757);
  check_refused(path, "chmod go-w");
  chmod(dir.path().c_str(), 01777);  // sticky helps above the directory, not in it; nobody should change /tmp's mode
  check_refused(path, "use a directory of your own");
  chmod(dir.path().c_str(), 0770);
  check_refused(path, "chmod g-w");
  CHECK(usable(path, true));
  chmod(dir.path().c_str(), 0777);
  check_refused(path, "chmod go-w", true);  // allow_shared is not about everybody
  chmod(dir.path().c_str(), 0755);
  CHECK(usable(path));
}

TEST_CASE("a parent that others can write to is refused unless it is sticky") {
  Directory dir;
  const std::string inner = dir.path() + "/inner";
  mkdir(inner.c_str(), 0700);
  chmod(dir.path().c_str(), 0777);
  check_refused(inner + "/cache.db", dir.path());
  CHECK_FALSE(exists(inner + "/cache.db"));
  chmod(dir.path().c_str(), 01777);
  CHECK(usable(inner + "/cache.db"));
}

TEST_CASE("links are refused") {
  Directory dir;
  const std::string real = dir.path() + "/real", link = dir.path() + "/link";
  mkdir(real.c_str(), 0700);
  REQUIRE(symlink(real.c_str(), link.c_str()) == 0);
  check_refused(link + "/cache.db", "symbolic link");
  write_file(dir.file("target"), "");
  REQUIRE(symlink(dir.file("target").c_str(), (real + "/cache.db").c_str()) == 0);
  check_refused(real + "/cache.db", "symbolic link");
  CHECK(read_file(dir.file("target")).empty());
  mkfifo((real + "/pipe").c_str(), 0600);
  check_refused(real + "/pipe", "regular file");
  check_refused(real, "regular file");
}

TEST_CASE("a link above the cache directory is followed") {
  Directory dir;
  mkdir((dir.path() + "/data").c_str(), 0700);
  REQUIRE(symlink((dir.path() + "/data").c_str(), (dir.path() + "/home").c_str()) == 0);
  CHECK(usable(dir.path() + "/home/v1/cache.db"));
  CHECK(exists(dir.path() + "/data/v1/cache.db"));
}

static child::Work shipped_work("shipped", [](const child::Arguments& a) {
  // Arguments: path, "1" to allow shared stores.
  Log log;
  StoreOptions o = options("", &log);
  o.shipped = {a[0]};
  o.allow_shared = a[1] == "1";
  Store store(o);
  const bool found = store.find_binary(binary_key(0)).has_value();
  if (o.allow_shared) return found && log.count() == 0 ? 0 : 1;
  return !found && log.count("TILEWRIGHT_ALLOW_SHARED=1") == 1 && log.count("chown") == 1 ? 0 : 1;
});

TEST_CASE("a store shipped by another user is used if that is allowed, and the refusal says how") {
  if (!child::is_root()) {
    WARN("SKIPPED: needs root to act as another user");
    return;
  }
  Directory dir;
  const std::string path = make_cache(dir);
  Raw(path).exec("PRAGMA journal_mode=DELETE");
  const auto builder = child::kNobody - 1;
  REQUIRE(chown(path.c_str(), builder, builder) == 0);
  REQUIRE(chown(dir.path().c_str(), builder, builder) == 0);
  chmod(dir.path().c_str(), 0755);
  chmod(path.c_str(), 0644);
  CHECK(child::run("shipped", {path, "0"}, child::kNobody) == 0);
  CHECK(child::run("shipped", {path, "1"}, child::kNobody) == 0);
  chmod(path.c_str(), 0666);  // whoever owns it: nobody knows who wrote it
  CHECK(child::run("shipped", {path, "1"}, child::kNobody) == 1);
}

static child::Work refused_work("refused", [](const child::Arguments& a) {
  Log log;
  Store store(options(a[0], &log));
  return store.degraded() && log.count() == 1 && log.count(a[1]) == 1 ? 0 : 1;
});

TEST_CASE("a directory or file of another user is refused") {
  if (!child::is_root()) {
    WARN("SKIPPED: needs root to act as another user");
    return;
  }
  Directory dir;
  const std::string path = make_cache(dir);
  chmod(dir.path().c_str(), 0755);
  const auto other = child::kNobody - 1;
  REQUIRE(chown(dir.path().c_str(), other, other) == 0);
  CHECK(child::run("refused", {path, "belongs to user"}, child::kNobody) == 0);
  check_refused(path, "belongs to user");       // root may write there, and still must not run what is there
  check_refused(path, "set TILEWRIGHT_CACHE");  // and not take the directory from its owner
  REQUIRE(chown(dir.path().c_str(), child::kNobody, child::kNobody) == 0);
  REQUIRE(chown(path.c_str(), other, other) == 0);
  chmod(path.c_str(), 0644);
  CHECK(child::run("refused", {path, "belongs to user"}, child::kNobody) == 0);
}

TEST_CASE("a file that others can write to is refused") {
  Directory dir;
  const std::string path = make_cache(dir);
  chmod(path.c_str(), 0666);
  check_refused(path, "writable by everybody");
  chmod(path.c_str(), 0660);
  check_refused(path, "writable by its group");
  CHECK(usable(path, true));
}

TEST_CASE("odd paths are used or refused, and nothing appears elsewhere") {
  Directory dir;
  check_refused(dir.path() + "/" + std::string(PATH_MAX, 'x') + "/cache.db", "more than");
  check_refused(dir.path() + "/" + std::string(300, 'x'), dir.path());
  check_refused(dir.path() + "/", "directory");
  check_refused(std::string("a\0b", 3), "zero byte");
  check_refused("/proc/tilewright/cache.db", "/proc");
  const std::string odd = dir.path() + "/\xff\xfe %41?mode=memory#&'\n/c.db";
  CHECK(usable(odd));
  CHECK(exists(odd));
  CHECK(usable(odd));
  CHECK_FALSE(exists("a"));
}

TEST_CASE("a relative path is taken from where the process was at the start") {
  Directory dir;
  char before[PATH_MAX];
  REQUIRE(getcwd(before, sizeof before));
  REQUIRE(chdir(dir.path().c_str()) == 0);
  Store store(options("sub/cache.db"));
  REQUIRE(chdir(before) == 0);
  CHECK(store.path() == dir.path() + "/sub/cache.db");
  CHECK(store.put_binary(binary_key(1), binary(1)));
  CHECK(exists(dir.path() + "/sub/cache.db"));
}

TEST_CASE("on a network file system no write-ahead log is tried") {
  for (const long type : {0x6969L, 0x65735546L, 0x01021997L, 0xFF534D42L, 0x0BD00BD0L, 0x47504653L, 0x00C36400L}) {
    Directory dir;
    Log log;
    fake::filesystem_type = type;
    {
      Store store(options(dir.file(), &log));
      CHECK(store.put_binary(binary_key(1), binary(1)));
      CHECK(store.find_binary(binary_key(1)));
      CHECK_FALSE(store.degraded());
      CHECK_FALSE(exists(dir.file() + "-wal"));
      CHECK_FALSE(exists(dir.file() + "-shm"));
      CHECK(log.count() == 1);
      CHECK(log.count(network_filesystem(static_cast<unsigned long>(type))) == 1);
    }
    fake::filesystem_type = 0;
    CHECK(read_file(dir.file())[18] == 1);  // the header says: rollback journal
  }
  CHECK(network_filesystem(0xEF53) == nullptr);      // ext4
  CHECK(network_filesystem(0x01021994) == nullptr);  // tmpfs
}

TEST_CASE("quarantine keeps one damaged file and never takes a new one") {
  Directory dir;
  write_file(dir.file(), "one");
  const FileId first = file_id(dir.file());
  write_file(dir.file() + "-wal", "log");
  CHECK(quarantine(dir.file(), first) == dir.file() + ".corrupt-1");
  CHECK_FALSE(exists(dir.file() + "-wal"));
  write_file(dir.file(), "two");
  CHECK(quarantine(dir.file(), first).empty());  // somebody else was faster
  CHECK(exists(dir.file()));
  CHECK(quarantine(dir.file(), file_id(dir.file())) == dir.file() + ".corrupt-2");
  CHECK_FALSE(exists(dir.file() + ".corrupt-1"));
  CHECK(read_file(dir.file() + ".corrupt-2") == "two");
}
