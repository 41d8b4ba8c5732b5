// SPDX-License-Identifier: Apache-2.0
// Shared by the cache tests: a private directory, sample rows, a log, and raw access to a cache file.
#pragma once

#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <tilewright/error.h>
#include <tilewright/store.h>

namespace scratch {

using namespace tilewright;

enum class On { memory, disk };

// A directory with mode 0700, removed at the end. In memory unless that has no room, because a test that syncs a few
// hundred times is slow on a disk.
class Directory {
 public:
  explicit Directory(On on = On::memory) {
    std::error_code error;
    const auto room = std::filesystem::space("/dev/shm", error).available;
    const bool memory = on == On::memory && !error && room > (48u << 20) && access("/dev/shm", W_OK) == 0;
    const std::filesystem::path base = memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (base / "tilewright-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name = "cache.db") const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Log {
 public:
  std::function<void(LogLevel, std::string_view)> callback() {
    return [this](LogLevel, std::string_view text) {
      const std::lock_guard guard(mutex_);
      lines_.emplace_back(text);
    };
  }
  int count(const std::string& part = "") const {
    int n = 0;
    for (const auto& line : lines_) n += line.find(part) != std::string::npos;
    return n;
  }
  std::string all() const {
    std::string text;
    for (const auto& line : lines_) text += line + "\n";
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

inline StoreOptions options(const std::string& path, Log* log = nullptr) {
  StoreOptions o;
  o.path = path;
  if (log) o.log = log->callback();
  return o;
}

inline Key binary_key(int n) { return Key().add("target", "sm_90a").add("source", "text " + std::to_string(n)); }
inline Key device_key(int sms = 132) { return Key().add("device", "NVIDIA H200").add("sms", sms); }

inline Binary binary(int n, std::size_t bytes = 12000) {
  Binary b;
  b.target = "sm_90a";
  b.entry = "kernel_" + std::to_string(n);
  b.plan = {{1, 128, 0}, {1, 0, 64}, {2, 0, 0}, 256, 1, 49152};
  b.resources = {168, 1024, 0, 16, false};
  b.log = "line one\nline \"two\"\n";
  b.image.resize(bytes);
  std::uint32_t state = 12345u + static_cast<std::uint32_t>(n);
  for (auto& byte : b.image) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return b;
}

inline bool same(const Binary& a, const Binary& b) {
  return a.target == b.target && a.entry == b.entry && a.plan == b.plan && a.resources == b.resources &&
         a.image == b.image && a.log == b.log;
}

inline Candidate candidate(int bm) { return {"mma", {{"bm", bm}, {"bn", 64}, {"stages", 3}}}; }

inline StoredChoice choice(const std::string& problem, double microseconds, int bm = 128) {
  return {problem, candidate(bm), microseconds, "mma bm=64", microseconds * 2, "driver=580\ndate=2026-01-01\n"};
}

inline Outcome outcome(int bm, double microseconds, OutcomeKind kind = OutcomeKind::measured) {
  Outcome o;
  o.candidate = candidate(bm);
  o.kind = kind;
  o.detail = "detail";
  o.microseconds = microseconds;
  o.low = microseconds * 0.9;
  o.high = microseconds * 1.1;
  o.rounds = 7;
  o.error = 0.25;
  o.mhz = 1980;
  o.resources = {64, 0, 0, 0, false};
  return o;
}

// The file with no protection at all, as an attacker or an accident would change it.
class Raw {
 public:
  explicit Raw(const std::string& path) {
    if (sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr) != SQLITE_OK) {
      throw std::runtime_error("open " + path);
    }
    sqlite3_busy_timeout(db_, 5000);
  }
  ~Raw() { sqlite3_close(db_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  void exec(const std::string& sql) {
    char* message = nullptr;
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, &message) == SQLITE_OK) return;
    const std::string text = message ? message : "";
    sqlite3_free(message);
    throw std::runtime_error(sql + ": " + text);
  }
  std::string text(const std::string& sql) {
    sqlite3_stmt* s = nullptr;
    if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &s, nullptr) != SQLITE_OK)
      throw std::runtime_error(sqlite3_errmsg(db_));
    std::string out;
    if (sqlite3_step(s) == SQLITE_ROW && sqlite3_column_text(s, 0)) {
      out = reinterpret_cast<const char*>(sqlite3_column_text(s, 0));
    }
    sqlite3_finalize(s);
    return out;
  }
  long number(const std::string& sql) { return std::atol(text(sql).c_str()); }
  sqlite3* handle() { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  chmod(path.c_str(), 0600);
}
inline bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// A closed cache file with one binary (0), one choice and one measurement of problem "gemm a".
inline std::string make_cache(const Directory& dir, const std::string& name = "cache.db") {
  Store store(options(dir.file(name)));
  store.put_binary(binary_key(0), binary(0));
  store.put_choice(device_key(), choice("gemm a", 10));
  store.put_outcome(device_key(), "gemm a", outcome(128, 10), "driver=580\n");
  return dir.file(name);
}

}  // namespace scratch
