// SPDX-License-Identifier: Apache-2.0
#include "cache/file/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <thread>
#include <utility>

namespace tilewright::cache {
namespace {

// How many database files this process has open. fork() copies SQLite's table of their locks, but not the locks.
std::atomic<int> open_files{0};
std::atomic<pid_t> opener{0};

// How SQLite's unix files are opened, in place of the function that it had. Other threads' files go to that unchanged.
using Open = int (*)(const char* path, int flags, int mode);
Open next_open = nullptr;
thread_local bool no_waiting = false;

int open_without_waiting(const char* path, int flags, int mode) {
  if (!no_waiting) return next_open(path, flags, mode);
  const int fd = next_open(path, flags | O_NONBLOCK, mode);  // means nothing to a regular file
  struct stat s {};
  if (fd < 0 || (fstat(fd, &s) == 0 && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode)))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

int on_busy(void* deadline, int attempt) {
  if (Clock::now() >= *static_cast<const Clock::time_point*>(deadline)) return 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(attempt < 4 ? 1 : attempt < 20 ? 5 : 20));
  return 1;
}

int on_progress(void* deadline) { return Clock::now() >= *static_cast<const Clock::time_point*>(deadline); }

[[noreturn]] void fail(sqlite3* db) {
  const char* file = sqlite3_db_filename(db, "main");
  throw SqliteError(sqlite3_extended_errcode(db), sqlite3_errmsg(db), file ? file : "");
}

// A path as an SQLite URI. Every byte outside a small safe set is percent-encoded, so any path is representable.
std::string uri(const std::string& path, const char* query) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = path.rfind('/', 0) == 0 ? "file://" : "file:";
  for (char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool safe = (byte < 0x80 && std::isalnum(byte)) || c == '/' || c == '.' || c == '_' || c == '-';
    if (safe) {
      out += c;
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out + query;
}

}  // namespace

SqliteError::SqliteError(int code, const std::string& message, std::string file)
    : std::runtime_error(message + " (SQLite " + std::to_string(code) + ")"), code_(code), file_(std::move(file)) {}

bool SqliteError::busy() const {
  const int primary = code_ & 0xff;
  return primary == SQLITE_BUSY || primary == SQLITE_LOCKED || primary == SQLITE_INTERRUPT ||
         primary == SQLITE_PROTOCOL;
}

bool SqliteError::corrupt() const {
  const int primary = code_ & 0xff;
  // ERROR: a table or column of ours is missing, which after the schema check can only be damage.
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB || primary == SQLITE_ERROR || primary == SQLITE_SCHEMA ||
         primary == SQLITE_FORMAT;
}

bool SqliteError::interrupted() const { return (code_ & 0xff) == SQLITE_INTERRUPT; }
bool SqliteError::index() const { return code_ == SQLITE_CORRUPT_INDEX; }
bool SqliteError::too_big() const { return (code_ & 0xff) == SQLITE_TOOBIG; }
bool SqliteError::memory() const { return (code_ & 0xff) == SQLITE_NOMEM; }

// ---- Statement

sqlite3_stmt* IdleStatements::take(std::string_view sql) {
  const auto found = statements_.find(sql);
  return found == statements_.end() ? nullptr : statements_.extract(found).mapped();
}

void IdleStatements::put(std::string sql, sqlite3_stmt* statement) noexcept {
  // One that failed is not kept, nor a second one of the same text.
  bool kept = sqlite3_reset(statement) == SQLITE_OK && sqlite3_clear_bindings(statement) == SQLITE_OK;
  try {
    kept = kept && statements_.emplace(std::move(sql), statement).second;
  } catch (const std::bad_alloc&) {
    kept = false;
  }
  if (!kept) sqlite3_finalize(statement);
}

void IdleStatements::clear() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  statements_.clear();
}

Statement::Statement(sqlite3* db, IdleStatements& idle, std::string sql)
    : db_(db), idle_(&idle), sql_(std::move(sql)), statement_(idle.take(sql_)) {
  if (!statement_)
    check(sqlite3_prepare_v3(db, sql_.c_str(), static_cast<int>(sql_.size()) + 1, SQLITE_PREPARE_PERSISTENT,
                             &statement_, nullptr));
}
Statement::~Statement() {
  if (statement_) idle_->put(std::move(sql_), statement_);
}
Statement::Statement(Statement&& other) noexcept
    : db_(other.db_),
      idle_(other.idle_),
      sql_(std::move(other.sql_)),
      statement_(std::exchange(other.statement_, nullptr)) {}

void Statement::check(int rc) const {
  if (rc != SQLITE_OK) fail(db_);
}

Statement& Statement::bind(int index, std::string_view text) {
  check(sqlite3_bind_text64(statement_, index, text.data() ? text.data() : "", text.size(), SQLITE_TRANSIENT,
                            SQLITE_UTF8));
  return *this;
}
Statement& Statement::bind(int index, std::int64_t value) {
  check(sqlite3_bind_int64(statement_, index, value));
  return *this;
}
Statement& Statement::bind(int index, double value) {
  check(sqlite3_bind_double(statement_, index, value));
  return *this;
}
Statement& Statement::bind(int index, std::span<const std::byte> bytes) {
  // A null pointer would bind NULL; an empty image is still a blob.
  check(sqlite3_bind_blob64(statement_, index, bytes.empty() ? "" : static_cast<const void*>(bytes.data()),
                            bytes.size(), SQLITE_STATIC));
  return *this;
}

bool Statement::step() {
  const int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  fail(db_);
}

void Statement::run() {
  while (step()) {
  }
  reset();
}

void Statement::reset() { sqlite3_reset(statement_); }

void Statement::expect(int column, int type, const char* what) const {
  if (sqlite3_column_type(statement_, column) != type) {
    throw BadValue(std::string(sqlite3_column_name(statement_, column)) + " is not " + what);
  }
}

std::string Statement::text(int column) const {
  expect(column, SQLITE_TEXT, "text");
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (data == nullptr) throw SqliteError(SQLITE_NOMEM, "out of memory", "");
  return {data, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

std::int64_t Statement::integer(int column) const {
  expect(column, SQLITE_INTEGER, "an integer");
  return sqlite3_column_int64(statement_, column);
}

double Statement::real(int column) const {
  expect(column, SQLITE_FLOAT, "a real number");
  return sqlite3_column_double(statement_, column);
}

std::span<const std::byte> Statement::bytes(int column) const {
  expect(column, SQLITE_BLOB, "a blob");
  const void* data = sqlite3_column_blob(statement_, column);
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

// ---- Database

NoWaiting::NoWaiting() : before_(std::exchange(no_waiting, true)) {
  static const bool installed = [] {
    sqlite3_initialize();
    sqlite3_vfs* unix_files = sqlite3_vfs_find("unix");
    if (!unix_files || unix_files->iVersion < 3) return false;
    next_open = reinterpret_cast<Open>(unix_files->xGetSystemCall(unix_files, "open"));
    return next_open &&
           unix_files->xSetSystemCall(unix_files, "open",
                                      reinterpret_cast<sqlite3_syscall_ptr>(open_without_waiting)) == SQLITE_OK;
  }();
  (void)installed;
}

NoWaiting::~NoWaiting() { no_waiting = before_; }

Database::Database(const std::string& path, Mode mode)
    : deadline_(std::make_unique<Clock::time_point>(Clock::time_point::max())) {
  int flags = SQLITE_OPEN_FULLMUTEX | SQLITE_OPEN_PRIVATECACHE;
  std::string name = path;
  switch (mode) {
    case Mode::memory:
      name = ":memory:";
      flags |= SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY;
      break;
    case Mode::read_write: flags |= SQLITE_OPEN_READWRITE; break;
    case Mode::read_only: flags |= SQLITE_OPEN_READONLY; break;
    case Mode::immutable: flags |= SQLITE_OPEN_READONLY; break;
  }
  if (mode != Mode::memory) {
    flags |= SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_URI;
    name = uri(path, mode == Mode::immutable ? "?immutable=1" : "");
  }
  const int rc = sqlite3_open_v2(name.c_str(), &db_, flags, nullptr);
  if (rc != SQLITE_OK) {
    const int code = db_ ? sqlite3_extended_errcode(db_) : rc;
    const std::string message = db_ ? sqlite3_errmsg(db_) : "out of memory";
    sqlite3_close(db_);
    throw SqliteError(code, message, path);
  }
  if (mode != Mode::memory) {
    counted_ = true;
    if (open_files++ == 0) opener = getpid();
  }
  configure();
}

Database::~Database() {
  if (!db_) return;
  idle_.clear();
  sqlite3_close(db_);
  if (counted_) --open_files;
}

void Database::configure() {
  sqlite3_extended_result_codes(db_, 1);
  const std::pair<int, int> settings[] = {
      {SQLITE_DBCONFIG_DEFENSIVE, 1},
      {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
      {SQLITE_DBCONFIG_ENABLE_VIEW, 0},
      {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
      {SQLITE_DBCONFIG_DQS_DML, 0},
      {SQLITE_DBCONFIG_DQS_DDL, 0},
      {SQLITE_DBCONFIG_WRITABLE_SCHEMA, 0},
      {SQLITE_DBCONFIG_ENABLE_FKEY, 0},
      {SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
  };
  for (auto [option, value] : settings) sqlite3_db_config(db_, option, value, nullptr);
  sqlite3_limit(db_, SQLITE_LIMIT_LENGTH, static_cast<int>(kMaxValueBytes));
  sqlite3_limit(db_, SQLITE_LIMIT_ATTACHED, 1);  // VACUUM attaches its temporary database
  sqlite3_limit(db_, SQLITE_LIMIT_TRIGGER_DEPTH, 1);
  sqlite3_busy_handler(db_, on_busy, deadline_.get());
  sqlite3_progress_handler(db_, 1000, on_progress, deadline_.get());
}

void Database::set_deadline(Clock::time_point deadline) { *deadline_ = deadline; }

void Database::exec(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail(db_);
}

std::int64_t Database::integer(const char* sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Database::text(const char* sql) {
  Statement statement = prepare(sql);
  return statement.step() ? statement.text(0) : "";
}

int Database::changes() const { return sqlite3_changes(db_); }
bool Database::in_transaction() const { return !sqlite3_get_autocommit(db_); }

bool Database::moved() const {
  int moved = 0;
  return sqlite3_file_control(db_, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved != 0;
}

bool Database::truncated() {
  sqlite3_file* file = nullptr;
  sqlite3_int64 size = 0;
  if (sqlite3_file_control(db_, "main", SQLITE_FCNTL_FILE_POINTER, &file) != SQLITE_OK || file == nullptr ||
      file->pMethods == nullptr || file->pMethods->xFileSize(file, &size) != SQLITE_OK) {
    return false;
  }
  return size < integer("PRAGMA page_count") * integer("PRAGMA page_size");
}

void Database::detach() { sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr); }

// ---- Transaction

Transaction::Transaction(Database& db) : db_(db) { db_.exec("BEGIN IMMEDIATE"); }

Transaction::~Transaction() {
  // Some errors have already rolled back.
  if (!db_.in_transaction()) return;
  try {
    db_.exec("ROLLBACK");
  } catch (const SqliteError&) {
  }
}

void Transaction::commit() { db_.exec("COMMIT"); }

bool forked_after_open() { return open_files.load() > 0 && opener.load() != getpid(); }

}  // namespace tilewright::cache
