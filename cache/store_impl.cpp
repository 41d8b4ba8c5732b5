// SPDX-License-Identifier: Apache-2.0
// Store's state: opening, failing, and writing (cache/store_impl.h).
#include "cache/store_impl.h"

#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>

#include <tilewright/version.h>

#include "cache/key.h"

namespace tilewright {

using namespace cache;

Store::Impl::Impl(StoreOptions options)
    : options_(std::move(options)), path_(options_.path), pid_(getpid()), log_(options_.log) {
  // A store that is only read may have to be copied first.
  deadline_ = Clock::now() + (options_.read_only ? Clock::duration(kPatience) : Clock::duration(kCallTime));
  if (memory_only()) {
    path_ = ":memory:";
    memory_ = open_memory(options_.cap);
  } else if (forked_after_open()) {
    degrade("a cache file was open in the parent process at fork(); this process keeps its cache in memory");
  } else {
    open_file();
  }
  for (const std::string& path : forked_after_open() ? std::vector<std::string>() : options_.shipped) {
    OpenRequest request;
    request.path = path;
    request.allow_shared = options_.allow_shared;
    request.deadline = deadline_;
    Opened opened = open_shipped(request);
    if (opened.layer) {
      shipped_.push_back(std::move(opened.layer));
    } else {
      // What is wrong may be a directory above it.
      std::string reason = opened.reason.find(path) == std::string::npos ? path + ": " + opened.reason : opened.reason;
      warn("shipped " + path, "shipped store not used: " + reason);
      refused_.push_back(std::move(reason));
    }
  }
  constructed_ = true;
  emit(std::exchange(pending_, {}));
}

Store::Impl::~Impl() {
  if (getpid() == pid_) return;
  // In a child the handles are the parent's: closing them would undo its locks and its log.
  for (auto* layer : layers()) layer->abandon();
}

bool Store::Impl::in_child() {
  if (getpid() == pid_) return false;
  // No lock is taken here: another thread of the parent may have held it at fork().
  if (!child_warned_.exchange(true) && options_.log) {
    options_.log(LogLevel::warning, "the cache is not used in a process forked from the one that opened it");
  }
  return true;
}

std::vector<Layer*> Store::Impl::layers() {
  std::vector<Layer*> all;
  if (memory_) all.push_back(memory_.get());
  if (file_) all.push_back(file_.get());
  for (auto& layer : shipped_) all.push_back(layer.get());
  return all;
}

void Store::Impl::warn(const std::string& kind, std::string text) {
  if (warned_.insert(kind).second) pending_.push_back("cache: " + std::move(text));
}

void Store::Impl::emit(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) log_(LogLevel::warning, warning);
}

void Store::Impl::degrade(const std::string& reason) {
  if (degraded_) return;
  degraded_ = true;
  reason_ = reason;
  if (file_) file_->set_writable(false);
  warn("degraded", reason + "; this process keeps its cache in memory");
  if (!memory_) memory_ = open_memory(options_.cap);
}

void Store::Impl::end_reading() {
  for (Layer* layer : layers()) {
    try {
      layer->end_reading();
    } catch (const SqliteError& error) {
      warn("reading", layer->name() + ": " + error.what());
    }
  }
}

void Store::Impl::be_patient() {
  end_reading();
  deadline_ = Clock::now() + kPatience;
  for (Layer* layer : layers()) layer->db().set_deadline(deadline_);
}

Store::Impl::Layer& Store::Impl::home() {
  if (memory_only()) return *memory_;
  retry_at_ = Clock::time_point::min();
  if (degraded_ || !open_file()) throw Error(ErrorCode::io, "cache", path_, "cannot be used: " + reason_);
  file_->db().set_deadline(deadline_);
  return *file_;
}

void Store::Impl::close_file(bool detached) {
  if (file_ && detached) file_->detach();
  file_.reset();
}

// Nothing of ours writes such a file. Deleting a row of gigabytes would take many seconds, renaming the file takes
// none.
void Store::Impl::discard_file(const std::string& why) {
  if (!file_) return;
  const FileId id = file_->id();
  const bool may_rename = file_->writable();
  close_file(true);
  if (!may_rename) return degrade(path_ + " cannot be used: " + why);
  const RenameLock lock(path_ + "-lock", 0.1);
  const std::string kept = lock.held() ? quarantine(path_, id) : std::string();
  warn("damaged", path_ + " was damaged (" + why + "); " +
                      (kept.empty() ? "it was replaced" : "it is now " + kept + " and a new cache was started"));
}

bool Store::Impl::open_file() {
  if (file_) return true;
  if (memory_only() || degraded_ || Clock::now() < retry_at_) return false;
  if (reopens_++ > kMaxReopens) {
    degrade(path_ + " keeps failing");
    return false;
  }
  OpenRequest request;
  request.path = options_.path;
  request.cap = options_.cap;
  request.allow_shared = options_.allow_shared;
  request.read_only = options_.read_only;
  request.check = std::exchange(check_next_, false);
  request.deadline = deadline_;
  Opened opened = open_own(request);
  if (!constructed_) path_ = opened.path;
  for (auto& [kind, text] : opened.notes) warn(kind, std::move(text));
  reason_ = opened.reason;
  switch (opened.trouble) {
    case Trouble::none: break;
    case Trouble::absent: retry_at_ = Clock::now() + kRetryTime, --reopens_; return false;
    case Trouble::transient:
      retry_at_ = Clock::now() + kRetryTime;
      --reopens_;
      warn("busy", opened.reason);
      return false;
    case Trouble::lasting: degrade(opened.reason); return false;
  }
  file_ = std::move(opened.layer);
  // Lock calls on a network may hang, and a directory that cannot be written needs no single flight.
  claims_.use(file_->writable() && !opened.network ? path_ + "-lock" : "");
  return true;
}

void Store::Impl::file_failed(const SqliteError& error, bool writing) {
  const int primary = error.code() & 0xff;
  if (error.busy()) {
    warn("busy", path_ + " is locked by another process; going on without it: " + error.what());
  } else if (error.memory()) {
    warn("memory", path_ + ": " + error.what());
  } else if (error.too_big()) {
    discard_file("it holds a value larger than any that was ever stored");
  } else if (error.index() && rebuild_indexes()) {
    warn("index", path_ + ": an index was damaged; all were made anew from the rows");
  } else if (error.corrupt()) {
    check_next_ = true;
    warn("corrupt", path_ + ": " + error.what());
    close_file(true);
  } else if (writing &&
             (primary == SQLITE_FULL || primary == SQLITE_READONLY || primary == SQLITE_IOERR ||
              primary == SQLITE_CANTOPEN) &&
             !(file_ && file_->moved())) {
    degrade(path_ + " cannot be written: " + error.what());
  } else {
    // A side file is missing, or the file was replaced. Opening it anew finds out.
    warn("reading", path_ + ": " + error.what());
    close_file(true);
  }
}

bool Store::Impl::rebuild_indexes() {
  if (!file_ || !file_->writable() || file_->moved()) return false;
  try {
    file_->rebuild_indexes();
    return true;
  } catch (const std::runtime_error&) {  // SqliteError, BadValue: more than an index is damaged, or time is up
    return false;
  }
}

std::vector<OtherVersion> Store::Impl::other_versions() {
  std::vector<OtherVersion> others;
  for (Layer* layer : layers())
    for (OtherVersion& rows : layer->versions())
      if (rows.version != TILEWRIGHT_VERSION_STRING) others.push_back(std::move(rows));
  return others;
}

void Store::Impl::tell_of_other_versions() {
  if (std::exchange(versions_told_, true)) return;
  for (Layer* layer : layers()) try {
      std::int64_t ours = 0, others = 0;
      OtherVersion most;
      for (OtherVersion& v : layer->versions()) {
        const std::int64_t rows = v.binaries + v.choices;
        const bool own = v.version == TILEWRIGHT_VERSION_STRING;
        (own ? ours : others) += rows;
        if (!own && rows > most.binaries + most.choices) most = std::move(v);
      }
      if (others > ours) warn("version of " + layer->name(), most.text());
    } catch (const SqliteError&) {  // the look-up itself has said what is wrong with the file
    }
}

void Store::Impl::report_damage(Layer& layer) {
  const int rows = layer.take_damaged();
  if (rows == 0) return;
  warn("damaged row", layer.name() + ": a stored row did not match its hash and was ignored");
  layer.drop_damaged();
}

bool Store::Impl::write_to(Layer& layer, const std::function<void(Layer&)>& body) {
  layer.write([&] { body(layer); });
  return true;
}

bool Store::Impl::write(const std::function<void(Layer&)>& body) {
  if (!memory_only() && !degraded_) {
    if (file_ && file_->writable() && file_->moved()) {
      warn("moved", path_ + " was removed or replaced while in use; opening it again");
      close_file(true);
    }
    bool again = true;
    for (int attempt = 0; again && attempt < 2 && open_file(); ++attempt) {
      if (!file_->writable()) return false;
      again = false;
      try {
        file_->db().set_deadline(deadline_);
        return write_to(*file_, body);
      } catch (const SqliteError& error) {
        file_failed(error, true);
        again = error.index() && file_;  // whose indexes were made anew
      } catch (const BadValue&) {
        check_next_ = true;
        close_file(false);
      }
    }
    if (!degraded_) return false;
  }
  return memory_ && write_to(*memory_, body);
}

}  // namespace tilewright
