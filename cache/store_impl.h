// SPDX-License-Identifier: Apache-2.0
// Store's state: the user's file, a memory database, the shipped stores, and what to do when one of them fails.
// Invariant: once `degraded_`, no row is written to the file again; reading it goes on for as long as that works.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tilewright/error.h>
#include <tilewright/store.h>

#include "cache/file/claims.h"
#include "cache/file/gate.h"
#include "cache/file/open.h"
#include "cache/serial_log.h"

namespace tilewright {

struct Store::Impl {
  using Layer = cache::Layer;
  using Clock = cache::Clock;

  explicit Impl(StoreOptions options);
  ~Impl();

  // ---- calls
  // Runs `body` under the lock, with a deadline. Returns `otherwise` if the lock was not free in time or anything
  // failed.
  template <class Result, class Body>
  Result call(Result otherwise, Body body) noexcept {
    try {
      if (in_child()) return otherwise;
      const auto deadline = Clock::now() + kCallTime;
      std::vector<std::string> warnings;
      {
        std::unique_lock lock(mutex_, deadline);
        if (!lock.owns_lock()) return otherwise;
        deadline_ = deadline;
        try {
          otherwise = body();
        } catch (const std::exception& error) {
          warn("failure", error.what());
        }
        warnings.swap(pending_);
      }
      emit(warnings);
    } catch (...) {
    }
    return otherwise;
  }

  // Runs `body` on every layer in the order of look-up. A layer that fails is skipped, and the file is opened again
  // where that may help.
  template <class Body>
  void read(Body body) {
    if (memory_) read_layer(*memory_, body);
    if (open_file()) {
      try {
        file_->db().set_deadline(deadline_);
        keep_reading(*file_);
        read_layer(*file_, body);
        report_damage(*file_);
      } catch (const cache::SqliteError& error) {
        file_failed(error, false);
      }
    }
    for (auto& layer : shipped_) {
      try {
        layer->db().set_deadline(deadline_);
        keep_reading(*layer);
        read_layer(*layer, body);
        report_damage(*layer);
      } catch (const cache::SqliteError& error) {
        warn("shipped", layer->name() + ": " + error.what());
      }
    }
  }

  void end_reading();  // of all layers, under the lock

  // Runs `body` in one transaction of the layer that takes new rows. False if there is no such layer.
  bool write(const std::function<void(Layer&)>& body);

  // ---- maintenance
  // Runs `body` under the lock, with a deadline of a minute. SQLite's errors become Error (io), naming their file.
  template <class Body>
  auto maintain(Body body) {
    if (in_child())
      throw Error(ErrorCode::forked, "cache", path_, "must be used in the process that opened it, not in a child");
    std::vector<std::string> warnings;
    const auto finish = [&](std::unique_lock<cache::Gate>& lock) {
      warnings.swap(pending_);
      lock.unlock();
      emit(warnings);
    };
    std::unique_lock lock(mutex_);
    try {
      be_patient();
      auto result = body();
      finish(lock);
      return result;
    } catch (const std::exception& error) {
      const auto* ours = dynamic_cast<const Error*>(&error);
      const auto* sqlite = dynamic_cast<const cache::SqliteError*>(&error);
      const std::string file = sqlite && !sqlite->file().empty() ? sqlite->file() : path_, text = error.what();
      finish(lock);
      if (ours) throw;
      throw Error(ErrorCode::io, "cache", file, "cannot be used: " + text);
    }
  }
  void be_patient();             // a new, generous deadline for what follows
  Layer& home();                 // where rows go: the file, or memory if that was asked for; else throws Error (io)
  std::vector<Layer*> layers();  // all that are open, in order of look-up

  bool memory_only() const { return options_.path.empty() || options_.path == ":memory:"; }
  bool in_child();
  bool open_file();
  void close_file(bool detached);
  void discard_file(const std::string& why);
  void degrade(const std::string& reason);
  std::vector<OtherVersion> other_versions();  // of all layers
  // Once: that most of a store's rows are another version's, which explains a look-up that misses.
  void tell_of_other_versions();
  void warn(const std::string& kind, std::string text);

  StoreOptions options_;
  std::string path_;  // resolved by the constructor, then constant
  cache::Gate mutex_;
  std::unique_ptr<Layer> file_, memory_;
  std::vector<std::unique_ptr<Layer>> shipped_;
  std::vector<std::string> refused_;  // why shipped stores are not among them
  std::atomic<bool> degraded_ = false;
  std::string reason_;  // why there is no file
  bool versions_told_ = false;
  cache::Claims claims_;
  const pid_t pid_;
  std::atomic<int> readings_{0};  // live Store::Readings

 private:
  // A call takes at most a second: this, plus what a statement may still run when the deadline passes.
  static constexpr auto kCallTime = std::chrono::milliseconds(700);
  static constexpr auto kPatience = std::chrono::seconds(60);
  static constexpr auto kRetryTime = std::chrono::seconds(1);
  static constexpr int kMaxReopens = 8;

  template <class Body>
  void read_layer(Layer& layer, Body& body) {
    try {
      body(layer);
    } catch (const cache::BadValue&) {
      warn("damaged", layer.name() + ": a damaged row was ignored");
    }
  }
  void keep_reading(Layer& layer) { readings_ > 0 ? layer.begin_reading() : layer.end_reading(); }
  void report_damage(Layer& layer);
  bool write_to(Layer& layer, const std::function<void(Layer&)>& body);
  void file_failed(const cache::SqliteError& error, bool writing);
  bool rebuild_indexes();                               // of the file; false: it did not help
  void emit(const std::vector<std::string>& warnings);  // without the lock: the callback may use the store

  std::atomic<bool> child_warned_{false};
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point retry_at_ = Clock::time_point::min();
  int reopens_ = 0;
  bool constructed_ = false;
  bool check_next_ = false;           // the next opening must look for structural damage
  std::vector<std::string> pending_;  // warnings to emit when the lock is released
  std::set<std::string> warned_;      // kinds
  cache::SerialLog log_;
};

}  // namespace tilewright
