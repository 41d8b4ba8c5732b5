// SPDX-License-Identifier: Apache-2.0
// Thin RAII over SQLite: Database, Statement, Transaction. Errors are SqliteError, a value of the wrong type BadValue;
// neither leaves the cache folder. Used by one thread at a time.
//
// Every connection is hardened for files that somebody else may have written: defensive mode, no views, triggers,
// extensions or double-quoted strings, an untrusted schema, and a length limit on every value.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace tilewright::cache {

using Clock = std::chrono::steady_clock;

inline constexpr std::int64_t kMaxValueBytes = 64 << 20;  // of one value or row

class SqliteError : public std::runtime_error {
 public:
  SqliteError(int code, const std::string& message, std::string file);
  int code() const { return code_; }                 // extended result code
  const std::string& file() const { return file_; }  // path of the database; empty for one in memory
  // These say what the code means for the caller.
  bool busy() const;         // somebody holds a lock, or the deadline passed: try again later
  bool interrupted() const;  // the deadline passed
  bool corrupt() const;      // the file is not a usable database
  bool index() const;        // an index does not fit its table, whose rows may all be sound
  bool too_big() const;      // a value beyond kMaxValueBytes
  bool memory() const;       // out of memory: says nothing about the file

 private:
  int code_;
  std::string file_;
};

// A column held another type than our schema writes: the row was damaged or planted.
class BadValue : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Compiled statements of one connection that are not in use, by their text: compiling one takes longer than most of
// the look-ups it is for.
class IdleStatements {
 public:
  sqlite3_stmt* take(std::string_view sql);                     // null if there is none
  void put(std::string sql, sqlite3_stmt* statement) noexcept;  // finalizes what it does not keep
  void clear();
  void forget() { statements_.clear(); }  // without finalizing them

 private:
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
};

// Returns to the connection's idle statements, which outlive it.
class Statement {
 public:
  Statement(sqlite3* db, IdleStatements& idle, std::string sql);
  ~Statement();
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;

  // Parameters count from 1. Text is copied; bytes are not and must live until reset.
  Statement& bind(int index, std::string_view text);
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, double value);
  Statement& bind(int index, std::span<const std::byte> bytes);
  bool step();  // true: a row is there
  void run();   // to the end, then reset
  void reset();

  // Columns count from 0. Throw BadValue for another type.
  std::string text(int column) const;
  std::int64_t integer(int column) const;
  double real(int column) const;
  std::span<const std::byte> bytes(int column) const;  // valid until the next step

 private:
  void check(int rc) const;
  void expect(int column, int type, const char* what) const;

  sqlite3* db_;
  IdleStatements* idle_;
  std::string sql_;
  sqlite3_stmt* statement_ = nullptr;
};

// While one lives, this thread's SQLite opens regular files and directories only, and waits for none: somebody may put
// a FIFO, which opens once it has a writer, in the place of a file that was looked at before.
class NoWaiting {
 public:
  NoWaiting();
  ~NoWaiting();
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;

 private:
  bool before_;
};

class Database {
 public:
  enum class Mode {
    memory,
    read_write,
    read_only,  // takes locks; sees other processes' changes
    immutable,  // no locks, no side files: for a file that nobody writes
  };
  Database(const std::string& path, Mode mode);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Waiting for locks and running statements ends at the deadline with a busy() error. Default: never.
  void set_deadline(Clock::time_point deadline);
  void exec(const char* sql);
  Statement prepare(const char* sql) { return Statement(db_, idle_, sql); }
  std::int64_t integer(const char* sql);  // first column of the first row, 0 without one
  std::string text(const char* sql);
  int changes() const;
  bool in_transaction() const;
  bool truncated();    // the file ends before its last page. Only inside a transaction, and without a log
  bool moved() const;  // the path does not name the open file any more
  // Forgets the handle without closing it: after fork() it belongs to the parent.
  void abandon() {
    idle_.forget();
    db_ = nullptr;
  }
  // Closing must not checkpoint or delete side files: they are not this file's any more.
  void detach();

 private:
  void configure();

  sqlite3* db_ = nullptr;
  IdleStatements idle_;
  bool counted_ = false;                         // among the open files of forked_after_open()
  std::unique_ptr<Clock::time_point> deadline_;  // on the heap: SQLite's callbacks hold its address
};

// BEGIN IMMEDIATE ... COMMIT; rolls back unless committed. A deferred transaction would fail at once where it begins to
// write, if somebody else has written since it began to read.
class Transaction {
 public:
  explicit Transaction(Database& db);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& db_;
};

// True in a child process whose parent had a database file open at fork(). SQLite's table of file locks is inherited
// but the locks are not, so that no database file may be opened here at all.
bool forked_after_open();

}  // namespace tilewright::cache
