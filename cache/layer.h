// SPDX-License-Identifier: Apache-2.0
// Layer: reads and writes the rows of one open cache database. Every row that it returns has been verified; a damaged
// row is a miss and counts in take_damaged(). Throws SqliteError. Used by one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/file/place.h"
#include "cache/file/sqlite.h"
#include "cache/rows.h"

namespace tilewright::cache {

// Tag of a key's field with the version of the library that wrote the row. In keys of binaries and devices.
inline constexpr const char* kVersionTag = "library";

class Layer {
 public:
  // `name`: its path, or ":memory:". `cap`: bytes of the file.
  Layer(std::unique_ptr<Database> db, std::string name, std::int64_t cap, bool writable);
  ~Layer();
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  Database& db() { return *db_; }
  const std::string& name() const { return name_; }
  bool writable() const { return writable_; }
  void set_writable(bool writable) { writable_ = writable; }
  // True if the path, or a side file's, names another file than the one that was opened.
  bool moved() const;
  const FileId& id() const { return id_; }
  void abandon();
  void detach() { db_->detach(); }

  // ---- reading
  // Between these two calls all reads belong to one transaction, which takes its locks once. A write ends it.
  void begin_reading();
  void end_reading();
  std::optional<Binary> find_binary(const Key& key);
  std::vector<OtherBuild> other_builds(const Key& key);
  std::optional<StoredChoice> find_choice(const std::string& device, std::string_view problem);
  // Choices of problems that start with `prefix`, at most kMaxChoices.
  std::vector<StoredChoice> choices(const std::string& device, std::string_view prefix);
  std::vector<std::pair<Key, StoredChoice>> all_choices(const StoreFilter& filter);
  std::optional<CandidateList> find_list(const std::string& device, std::string_view problem);
  std::vector<CandidateList> lists(const std::string& device, std::string_view prefix);  // as choices()
  std::vector<std::pair<Key, CandidateList>> all_lists(const StoreFilter& filter);
  std::optional<StoredCompiler> find_compiler(const std::string& name, const std::string& library);
  std::vector<Outcome> outcomes(const std::string& device, std::string_view problem);  // latest per candidate
  // Rows by the versions of the library that wrote them, those of this version included.
  std::vector<OtherVersion> versions();
  int take_damaged() { return std::exchange(damaged_, 0); }

  // ---- writing. Rows are inserted inside write().
  void write(const std::function<void()>& body);  // one transaction, with the use marks that have gathered
  bool has_marks() const { return !marks_.empty(); }
  bool has_room_for(std::int64_t bytes) const { return bytes <= cap_ / 2; }
  void insert_binary(const std::string& key, const std::string& transcript, const std::string& metadata,
                     std::span<const std::byte> image);
  std::string insert_problem(const std::string& device, std::string_view problem);  // its hash
  std::string insert_environment(std::string_view text);                            // its hash, empty for no text
  void insert_choice(const ChoiceRow& row);
  void insert_measurement(const MeasurementRow& row);
  // Deletes the damaged rows that look-ups met. What cannot be deleted now is replaced by the next store of its key.
  void drop_damaged();
  // Deletes what other versions of the library wrote. Inside write().
  void drop_other_versions();
  // Makes every index anew from its table, of rows with one key keeping the last. Throws if the file is damaged beyond
  // its indexes; nothing is changed then.
  void rebuild_indexes();
  // Evicts least recently used rows until the file's used part is at most `bytes`. Inside write().
  void shrink_to(std::int64_t bytes);
  std::int64_t used_bytes();
  std::int64_t file_bytes();
  void set_cap(std::int64_t cap) { cap_ = cap; }

  static constexpr int kMaxChoices = 10000, kMaxBuilds = 4;

 private:
  void mark_used(const std::string& id);
  void touch(const std::string& id);  // mark and write the mark, inside write()
  void flush_marks();
  void evict_for(std::int64_t bytes);
  bool evict_one();
  std::string environment(const std::string& hash);
  // Verified; nothing if it is damaged. `wanted`: the transcript that it must have; OtherBuild::key is then empty.
  std::optional<OtherBuild> load_binary(const std::string& hash, const std::string* wanted = nullptr);
  std::optional<StoredChoice> verified_choice(Statement& rows);
  std::optional<CandidateList> load_list(const std::string& device, std::string_view problem);
  StoredChoice stored_choice(std::string problem, const Candidate& candidate, const ChoiceRow& row);
  void note_damage(const char* table, const char* column, const std::string& id);

  std::unique_ptr<Database> db_;
  std::string name_;
  std::int64_t cap_;
  bool writable_;
  FileId id_, wal_, shm_;
  bool reading_ = false;
  int damaged_ = 0;
  std::vector<std::pair<std::string, std::string>> damaged_rows_;  // DELETE statement, its parameter
  std::map<std::string, std::int64_t> marks_;                      // id -> order of use, not yet written
  std::int64_t next_mark_ = 0;
};

}  // namespace tilewright::cache
