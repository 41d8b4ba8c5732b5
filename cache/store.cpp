// SPDX-License-Identifier: Apache-2.0
#include "cache/store_impl.h"

#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cache/key.h"

namespace tilewright {

using namespace cache;

// ---- state

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
      warn("shipped " + path, "shipped store not used: " + opened.reason);
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

void Store::Impl::be_patient() {
  deadline_ = Clock::now() + kPatience;
  for (Layer* layer : layers()) layer->db().set_deadline(deadline_);
}

Store::Impl::Layer& Store::Impl::home() {
  if (memory_only()) return *memory_;
  retry_at_ = Clock::time_point::min();
  if (degraded_ || !open_file()) throw Error(ErrorCode::io, "cache", path_, reason_);
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
    if (open_file() && !file_->writable()) return false;
    if (file_) {
      try {
        file_->db().set_deadline(deadline_);
        return write_to(*file_, body);
      } catch (const SqliteError& error) {
        file_failed(error, true);
      } catch (const BadValue&) {
        check_next_ = true;
        close_file(false);
      }
    }
    if (!degraded_) return false;
  }
  return memory_ && write_to(*memory_, body);
}

// ---- the public face

namespace {

// Rows of several layers: the first of each name stays, unless it was imported and a later one was not.
template <class Row>
class Merged {
 public:
  explicit Merged(std::vector<Row>& rows) : rows_(rows) {}
  void add(const std::string& name, Row&& row) {
    const auto [at, first] = index_.emplace(name, rows_.size());
    if (first) {
      rows_.push_back(std::move(row));
    } else if (Row& known = rows_[at->second]; known.imported && !row.imported) {
      known = std::move(row);
    }
  }

 private:
  std::vector<Row>& rows_;
  std::map<std::string, std::size_t> index_;
};

template <class Result, class Body>
Result call(const std::unique_ptr<Store::Impl>& impl, Result otherwise, Body body) noexcept {
  return impl ? impl->call(std::move(otherwise), std::move(body)) : otherwise;
}

}  // namespace

Store::Store(StoreOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Store::~Store() {
  if (impl_ && impl_->pid_ == getpid()) touch_all();
}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;

Store::Impl& Store::impl() const {
  if (!impl_) throw Error(ErrorCode::invalid_argument, "store", "moved from", "the store it was moved to");
  return *impl_;
}

bool Store::degraded() const { return !impl_ || impl_->degraded_; }
std::string Store::unwritable() const {
  return call(impl_, std::string("moved from"), [&] {
    if (impl_->memory_only()) return std::string();
    if (!impl_->open_file()) return impl_->reason_;
    return impl_->file_->writable() ? std::string() : impl_->path_ + " is read-only";
  });
}

const std::string& Store::path() const {
  static const std::string none;
  return impl_ ? impl_->path_ : none;
}

std::optional<Binary> Store::find_binary(const Key& key) {
  return call(impl_, std::optional<Binary>(), [&] {
    std::optional<Binary> found;
    impl_->read([&](Layer& layer) {
      if (!found) found = layer.find_binary(key);
    });
    return found;
  });
}

bool Store::put_binary(const Key& key, const Binary& binary) {
  return call(impl_, false, [&] {
    const std::string hash = key.hash(), transcript = key.transcript(), metadata = encode_metadata(binary);
    const auto bytes = static_cast<std::int64_t>(binary.image.size() + transcript.size() + metadata.size());
    Binary check;
    if (transcript.size() > kMaxTranscript || metadata.size() > kMaxText || bytes > kMaxValueBytes - (1 << 20) ||
        bytes > impl_->options_.cap / 2 || !decode_metadata(metadata, check)) {
      impl_->warn("size", "a binary of " + std::to_string(bytes) + " bytes is too large to be stored, or malformed");
      return false;
    }
    return impl_->write([&](Layer& layer) { layer.insert_binary(hash, transcript, metadata, binary.image); });
  });
}

std::vector<OtherBuild> Store::other_builds(const Key& key) {
  return call(impl_, std::vector<OtherBuild>(), [&] {
    std::vector<OtherBuild> all;
    std::set<std::string> seen;
    impl_->read([&](Layer& layer) {
      for (OtherBuild& build : layer.other_builds(key)) {
        if (all.size() < Layer::kMaxBuilds && seen.insert(build.key.hash()).second) all.push_back(std::move(build));
      }
    });
    return all;
  });
}

std::optional<StoredChoice> Store::find_choice(const Key& device, std::string_view problem) {
  return call(impl_, std::optional<StoredChoice>(), [&] {
    std::optional<StoredChoice> found;
    impl_->read([&](Layer& layer) {
      if (found && !found->imported) return;
      auto choice = layer.find_choice(device.transcript(), problem);
      if (choice && (!found || !choice->imported)) found = std::move(choice);
    });
    return found;
  });
}

std::vector<StoredChoice> Store::choices(const Key& device, std::string_view problem_prefix) {
  return call(impl_, std::vector<StoredChoice>(), [&] {
    std::vector<StoredChoice> all;
    Merged merged(all);
    impl_->read([&](Layer& layer) {
      for (StoredChoice& choice : layer.choices(device.transcript(), problem_prefix)) {
        merged.add(choice.problem, std::move(choice));
      }
    });
    return all;
  });
}

bool Store::put_choice(const Key& device, const StoredChoice& choice) {
  return call(impl_, false, [&] {
    ChoiceRow row;
    row.candidate = encode_candidate(choice.candidate);
    row.microseconds = choice.microseconds + 0.0;  // no negative zero, which SQLite does not keep
    row.first = choice.first;
    row.first_microseconds = choice.first_microseconds + 0.0;
    row.imported = choice.imported;
    const std::string transcript = device.transcript();
    if (!row.valid() || choice.problem.size() > kMaxText || choice.environment.size() > kMaxText ||
        transcript.size() > kMaxText) {
      impl_->warn("range", "a choice with a value out of range was not stored: " + choice.problem.substr(0, 200));
      return false;
    }
    return impl_->write([&](Layer& layer) {
      row.problem = layer.insert_problem(transcript, choice.problem);
      row.environment = layer.insert_environment(choice.environment);
      layer.insert_choice(row);
    });
  });
}

std::vector<Outcome> Store::outcomes(const Key& device, std::string_view problem) {
  return call(impl_, std::vector<Outcome>(), [&] {
    std::vector<Outcome> all;
    Merged merged(all);
    impl_->read([&](Layer& layer) {
      for (Outcome& outcome : layer.outcomes(device.transcript(), problem)) {
        merged.add(encode_candidate(outcome.candidate), std::move(outcome));
      }
    });
    return all;
  });
}

bool Store::put_outcome(const Key& device, std::string_view problem, const Outcome& outcome,
                        std::string_view environment) {
  return call(impl_, false, [&] {
    auto row = to_row(outcome);
    const std::string transcript = device.transcript();
    if (!row || problem.size() > kMaxText || environment.size() > kMaxText || transcript.size() > kMaxText) {
      impl_->warn("range",
                  "an outcome with a value out of range was not stored: " + std::string(problem.substr(0, 200)));
      return false;
    }
    return impl_->write([&](Layer& layer) {
      row->problem = layer.insert_problem(transcript, problem);
      row->environment = layer.insert_environment(environment);
      layer.insert_measurement(*row);
    });
  });
}

bool Store::claim(const Key& key, double wait_seconds) {
  try {
    // Not under the store's lock: a claim may wait for seconds.
    return !impl_ || impl_->in_child() || impl_->claims_.claim(key.hash(), wait_seconds);
  } catch (...) {
    return true;
  }
}

void Store::release(const Key& key) {
  try {
    if (impl_ && !impl_->in_child()) impl_->claims_.release(key.hash());
  } catch (...) {
  }
}

void Store::touch_all() {
  call(impl_, false, [&] {
    return impl_->file_ && impl_->file_->writable() && impl_->file_->has_marks() && impl_->write([](Layer&) {});
  });
}

}  // namespace tilewright
