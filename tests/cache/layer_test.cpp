// SPDX-License-Identifier: Apache-2.0
#include "cache/layer.h"

#include "cache/key.h"
#include "child.h"
#include "scratch.h"
#include "support/catch.h"

using namespace scratch;

namespace {

// After `change` the binary is a miss with one warning, its row is gone, and it can be stored again.
void check_row_missed(const std::string& change) {
  CAPTURE(change);
  Directory dir;
  const std::string path = make_cache(dir);
  {
    Store store(options(path));
    store.put_binary(binary_key(1), binary(1));
  }
  {
    Raw raw(path);
    raw.exec(change);
    CHECK(raw.text("PRAGMA integrity_check") == "ok");
  }
  Log log;
  Store store(options(path, &log));
  CHECK_FALSE(store.find_binary(binary_key(0)));
  CHECK_FALSE(store.find_binary(binary_key(0)));
  CHECK(log.count() == 1);
  CHECK(log.count(path) == 1);
  CHECK(Raw(path).number("SELECT count(*) FROM binaries WHERE key='" + binary_key(0).hash() + "'") == 0);
  CHECK(same(*store.find_binary(binary_key(1)), binary(1)));
  CHECK(store.put_binary(binary_key(0), binary(0)));
  CHECK(same(*store.find_binary(binary_key(0)), binary(0)));
  CHECK_FALSE(store.degraded());
}

std::string where(int n) { return " WHERE key='" + binary_key(n).hash() + "'"; }
std::string from(int n, const std::string& column) { return "(SELECT " + column + " FROM binaries" + where(n) + ")"; }

}  // namespace

TEST_CASE("one flipped bit in a stored binary is a miss") {
  Directory dir;
  const std::string path = make_cache(dir);
  std::string file = read_file(path);
  const auto image = binary(0).image;
  // The image is long, so that its bytes lie in overflow pages; find a piece of it in the file and flip one bit.
  const std::string piece(reinterpret_cast<const char*>(image.data()) + 6000, 64);
  const std::size_t at = file.find(piece);
  REQUIRE(at != std::string::npos);
  file[at + 10] = static_cast<char>(file[at + 10] ^ 4);
  write_file(path, file);
  CHECK(Raw(path).text("PRAGMA integrity_check") == "ok");
  Log log;
  Store store(options(path, &log));
  CHECK_FALSE(store.find_binary(binary_key(0)));
  CHECK(log.count() == 1);
  CHECK(Raw(path).number("SELECT count(*) FROM binaries") == 0);
  CHECK(store.put_binary(binary_key(0), binary(0)));
  CHECK(same(*store.find_binary(binary_key(0)), binary(0)));
}

TEST_CASE("another kernel's valid image and hash under this key are a miss") {
  check_row_missed("UPDATE binaries SET image=" + from(1, "image") + ",hash=" + from(1, "hash") + where(0));
  check_row_missed("UPDATE binaries SET image=" + from(1, "image") + ",hash=" + from(1, "hash") +
                   ",metadata=" + from(1, "metadata") + ",transcript=" + from(1, "transcript") + where(0));
}

TEST_CASE("edited launch metadata is a miss") {
  check_row_missed("UPDATE binaries SET metadata=replace(metadata,'threads=256','threads=128')" + where(0));
  check_row_missed("UPDATE binaries SET metadata=replace(metadata,'shared_bytes=49152','shared_bytes=49153')" +
                   where(0));
  check_row_missed("UPDATE binaries SET metadata=''" + where(0));
  check_row_missed("UPDATE binaries SET transcript=replace(transcript,'sm_90a','sm_80')" + where(0));
}

TEST_CASE("values of another type or size are a miss") {
  for (const char* value : {"7", "x''", "'text'", "3.5", "zeroblob(12000)", "-9223372036854775808"}) {
    check_row_missed(std::string("UPDATE binaries SET image=") + value + where(0));
  }
  for (const char* column : {"metadata", "transcript", "hash"}) {
    check_row_missed(std::string("UPDATE binaries SET ") + column + "=x'00ff'" + where(0));
  }
}

TEST_CASE("damaged choices and measurements are a miss") {
  const std::string changes[] = {
      "UPDATE choices SET microseconds=5",       "UPDATE choices SET microseconds='x'",
      "UPDATE choices SET microseconds=9e999",   "UPDATE choices SET candidate='mma bm=9223372036854775807'",
      "UPDATE choices SET candidate=x'00'",      "UPDATE choices SET first='other'",
      "UPDATE measurements SET rounds=-1",       "UPDATE measurements SET rounds=9223372036854775807",
      "UPDATE measurements SET kind='other'",    "UPDATE measurements SET low='x'",
      "UPDATE measurements SET resources=x'00'", "UPDATE measurements SET problem='" + std::string(64, '0') + "'",
  };
  for (const std::string& change : changes) {
    CAPTURE(change);
    Directory dir;
    const std::string path = make_cache(dir);
    Raw(path).exec(change);
    Store store(options(path));
    const bool is_choice = change.find("choices") != std::string::npos;
    CHECK(store.find_choice(device_key(), "gemm a").has_value() == !is_choice);
    CHECK(store.choices(device_key(), "gemm").size() == (is_choice ? 0 : 1));
    CHECK(store.outcomes(device_key(), "gemm a").size() == (is_choice ? 1 : 0));
    CHECK(store.put_choice(device_key(), choice("gemm a", 3)));
    CHECK(store.find_choice(device_key(), "gemm a"));
  }
}

static child::Work bomb_work("bomb", [](const child::Arguments& a) {
  Log log;
  Store store(options(a[0], &log));
  const bool found = store.find_binary(binary_key(0)).has_value();
  const bool stored = store.put_binary(binary_key(0), binary(0)) && store.find_binary(binary_key(0));
  (void)store.list();
  // Not getrusage(): its peak begins with that of the process which started this one.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0 && std::stol(line.substr(6)) > 128 << 10) return 2;  // KiB
  }
  return !found && stored && log.count() == 1 ? 0 : 1;
});

TEST_CASE("a zeroblob beyond every limit is a miss and is never read") {
  Directory dir(On::disk);
  const std::string path = make_cache(dir);
  {
    Raw ours(path);
    std::string sql = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA page_size=65536;";
    for (const char* pragma : {"application_id", "user_version"}) {
      sql += std::string("PRAGMA ") + pragma + "=" + ours.text(std::string("PRAGMA ") + pragma) + ";";
    }
    sql += ours.text("SELECT group_concat(sql,';') FROM (SELECT sql FROM sqlite_schema ORDER BY type DESC)");
    // More than the memory that the reader may use. (900 MB behave the same and take ten seconds to write.)
    sql += ";INSERT INTO binaries VALUES('" + binary_key(0).hash() + "','t','m',zeroblob(200000000),'h')";
    Raw(dir.file("bomb.db")).exec(sql);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  CHECK(child::run("bomb", {dir.file("bomb.db")}) != 1);  // a sanitizer's own memory breaks the limit
#else
  CHECK(child::run("bomb", {dir.file("bomb.db")}) == 0);
#endif
}

TEST_CASE("the file stays below its cap and the oldest go first") {
  Directory dir;
  constexpr std::int64_t kCap = 1 << 20;
  StoreOptions o = options(dir.file());
  o.cap = kCap;
  Store store(o);
  for (int i = 0; i < 1000; ++i) {
    CHECK(store.put_binary(binary_key(i), binary(i, 10000)));
    CHECK(store.put_choice(device_key(), choice("gemm " + std::to_string(i), 10)));
    CHECK(store.put_outcome(device_key(), "gemm " + std::to_string(i), outcome(64, 10), "driver=1\n"));
    // Row 0 is used throughout, so that it is never the oldest.
    if (i % 10 == 0) CHECK(store.find_binary(binary_key(0)));
    if (i % 100 == 0) {
      CHECK(std::filesystem::file_size(dir.file()) <= kCap);
      const std::string log = dir.file() + "-wal";
      CHECK((!exists(log) || std::filesystem::file_size(log) <= (5 << 20)));
    }
  }
  CHECK(std::filesystem::file_size(dir.file()) <= kCap);
  CHECK(store.find_binary(binary_key(0)));
  CHECK(store.find_binary(binary_key(999)));
  CHECK(store.find_choice(device_key(), "gemm 999"));
  CHECK_FALSE(store.find_binary(binary_key(1)));
  CHECK_FALSE(store.find_choice(device_key(), "gemm 1"));
  CHECK(store.outcomes(device_key(), "gemm 1").empty());
  int kept = 0, last_missing = 0;
  for (int i = 1; i < 1000; ++i) store.find_binary(binary_key(i)) ? ++kept : last_missing = i;
  CHECK(kept > 40);
  CHECK(last_missing == 999 - kept);  // what is kept is what came last
  CHECK(store.verify().damaged.empty());
  CHECK_FALSE(store.degraded());
}

TEST_CASE("a binary that would fill the cache by itself is not stored") {
  Log log;
  StoreOptions o = options("", &log);
  o.cap = 1 << 20;
  Store store(o);
  CHECK_FALSE(store.put_binary(binary_key(0), binary(0, 1 << 20)));
  CHECK(log.count() == 1);
  CHECK(store.put_binary(binary_key(1), binary(1)));
}

TEST_CASE("a damaged order of use is started anew") {
  for (const char* change :
       {"UPDATE uses SET sequence='x'", "UPDATE uses SET sequence=9223372036854775807", "DELETE FROM uses",
        "UPDATE uses SET id=x'00' WHERE rowid=1", "UPDATE uses SET sequence=-5"}) {
    CAPTURE(change);
    Directory dir;
    const std::string path = make_cache(dir);
    Raw(path).exec(change);
    StoreOptions o = options(path);
    o.cap = 1 << 20;
    Store store(o);
    for (int i = 1; i < 200; ++i) CHECK(store.put_binary(binary_key(i), binary(i)));
    CHECK_FALSE(store.find_binary(binary_key(1)));
    CHECK(store.find_binary(binary_key(199)));
    CHECK(std::filesystem::file_size(path) <= 1 << 20);
  }
}
