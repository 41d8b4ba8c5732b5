// SPDX-License-Identifier: Apache-2.0
// Store's look-ups and stores; maintenance is in maintenance.cpp and listing.cpp.
#include <unistd.h>

#include <tilewright/version.h>

#include <map>
#include <set>

#include "cache/key.h"
#include "cache/store_impl.h"

namespace tilewright {

using namespace cache;

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
  if (!impl_)
    throw Error(ErrorCode::invalid_argument, "store", "moved from", "must not be used: it was moved to another store");
  return *impl_;
}

bool Store::degraded() const { return !impl_ || impl_->degraded_; }
std::string Store::unwritable() const {
  return call(impl_, std::string(impl_ ? "the store is busy, or its parent process's" : "the store was moved from"),
              [&] {
                if (impl_->memory_only()) return std::string();
                if (impl_->degraded_ || !impl_->open_file()) return impl_->reason_;
                return impl_->file_->writable() ? std::string() : impl_->path_ + " is read-only";
              });
}

std::vector<std::string> Store::unread() const {
  return call(impl_, std::vector<std::string>(), [&] {
    std::vector<std::string> reasons;
    if (!impl_->memory_only() && !impl_->open_file()) reasons.push_back(impl_->reason_);
    reasons.insert(reasons.end(), impl_->refused_.begin(), impl_->refused_.end());
    return reasons;
  });
}

const std::string& Store::path() const {
  static const std::string none;
  return impl_ ? impl_->path_ : none;
}

std::optional<Binary> Store::find_binary(const Key& key) {
  std::optional<Binary> found;
  call(impl_, false, [&] {
    impl_->read([&](Layer& layer) {
      if (!found) found = layer.find_binary(key);
    });
    if (!found) impl_->tell_of_other_versions();
    return true;
  });
  return found;
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
  std::optional<StoredChoice> found;
  call(impl_, false, [&] {
    impl_->read([&](Layer& layer) {
      if (found && !found->imported) return;
      auto choice = layer.find_choice(device.transcript(), problem);
      if (choice && (!found || !choice->imported)) found = std::move(choice);
    });
    return true;
  });
  return found;
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

std::optional<CandidateList> Store::find_list(const Key& device, std::string_view problem) {
  return call(impl_, std::optional<CandidateList>(), [&] {
    std::optional<CandidateList> found;
    impl_->read([&](Layer& layer) {
      if (!found) found = layer.find_list(device.transcript(), problem);
    });
    return found;
  });
}

std::vector<CandidateList> Store::lists(const Key& device, std::string_view problem_prefix) {
  return call(impl_, std::vector<CandidateList>(), [&] {
    std::vector<CandidateList> all;
    std::set<std::string> seen;
    impl_->read([&](Layer& layer) {
      for (CandidateList& list : layer.lists(device.transcript(), problem_prefix))
        if (seen.insert(list.problem).second) all.push_back(std::move(list));
    });
    return all;
  });
}

bool Store::put_list(const Key& device, const CandidateList& list) {
  return call(impl_, false, [&] {
    auto row = to_row(list);
    const std::string transcript = device.transcript();
    if (!row || list.problem.size() > kMaxText || transcript.size() > kMaxText) {
      impl_->warn("range", "a list with a value out of range was not stored: " + list.problem.substr(0, 200));
      return false;
    }
    return impl_->write([&](Layer& layer) {
      row->problem = layer.insert_problem(transcript, list.problem);
      insert_list(layer.db(), *row);
    });
  });
}

std::optional<StoredCompiler> Store::find_compiler(std::string_view name) {
  return call(impl_, std::optional<StoredCompiler>(), [&] {
    std::optional<StoredCompiler> found;
    impl_->read([&](Layer& layer) {
      if (!found) found = layer.find_compiler(std::string(name), TILEWRIGHT_VERSION_STRING);
    });
    return found;
  });
}

bool Store::put_compiler(const StoredCompiler& compiler) {
  return call(impl_, false, [&] {
    const CompilerRow row{compiler, TILEWRIGHT_VERSION_STRING};
    if (!row.valid()) {
      impl_->warn("range", "a compiler with a value out of range was not stored: " + compiler.name.substr(0, 200));
      return false;
    }
    return impl_->write([&](Layer& layer) { insert_compiler(layer.db(), row); });
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

Store::Reading::Reading(Store& store) : impl_(store.impl_.get()) {
  if (impl_) ++impl_->readings_;
}

Store::Reading::~Reading() {
  if (!impl_ || --impl_->readings_ > 0) return;
  impl_->call(false, [&] {
    impl_->end_reading();
    return true;
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
