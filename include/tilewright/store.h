// SPDX-License-Identifier: Apache-2.0
// Store: the cache file. Bytes and rows under keys; it knows nothing of CUDA. Format: docs/internals/cache-format.md.
// Thread-safe; safe between processes. Every failure is a miss: after construction no function throws for what is in
// or around the file, and the constructor itself never throws for the file either (it degrades to memory and says so
// through the log). Only maintenance functions that were asked to do something specific report errors.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tilewright/candidate.h>
#include <tilewright/export.h>
#include <tilewright/kernel.h>
#include <tilewright/options.h>
#include <tilewright/tuning.h>

namespace tilewright {

// A key is a list of tagged fields. Its transcript is readable ("target=sm_90a\nentry=...\n"); its hash is the SHA-256
// of the unambiguous serialisation (each tag and value with its length). Rows keep both, and a hit compares both.
class TILEWRIGHT_EXPORT Key {
 public:
  Key& add(std::string_view tag, std::string_view value);
  Key& add(std::string_view tag, std::int64_t value);
  std::string transcript() const;
  std::string hash() const;  // 64 hex digits
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

TILEWRIGHT_EXPORT std::string sha256_hex(std::string_view bytes);

struct StoredChoice {
  std::string problem = {};  // canonical text, with the bucket's rows or the sizes that were measured
  Candidate candidate = {};
  double microseconds = 0;
  std::string first = {};  // ranked first choice at that time, and its time
  double first_microseconds = 0;
  std::string environment = {};  // transcript: driver, compiler, library version, date; informative
  bool imported = false;         // by import_from(): to be measured here before it is believed
};

// A candidate with what is known of its times on one device.
struct RowCandidate {
  Candidate candidate = {};
  std::int64_t listed = 1;                    // a number of rows for which its family lists it
  std::map<std::int64_t, double> times = {};  // microseconds by number of rows
};

// Candidates for one problem, in order: what was compiled ahead for a target, or a device's row table.
struct CandidateList {
  std::string problem = {};  // canonical text; a row table's has one row
  std::vector<RowCandidate> candidates = {};
  std::string inputs = {};               // of a row table: what it was made from
  std::vector<std::uint8_t> steps = {};  // of a row table: for each row step the place of its candidate
};

// A compiler that filled a store, and the file that it is on this machine, which exports and merges leave out.
struct StoredCompiler {
  std::string name = {};  // "nvrtc"
  std::string version = {};
  std::string asked_for = {};            // where the options looked for it
  std::string path = {};                 // empty: not on this machine
  std::int64_t bytes = 0, modified = 0;  // the file's size and time, in nanoseconds since 1970
  friend bool operator==(const StoredCompiler&, const StoredCompiler&) = default;
};

// A stored binary whose key differs from the one asked for in the field "compiler" alone.
struct OtherBuild {
  Key key = {};
  Binary binary = {};
};

struct StoreOptions {
  std::string path = {};                  // empty or ":memory:": memory only
  std::vector<std::string> shipped = {};  // read-only stores, searched after the user's own, first wins
  std::int64_t cap = 512ll << 20;         // bytes of the file
  bool allow_shared = false;
  bool read_only = false;  // look-ups only
  // Called from any thread, never concurrently with itself. It may use the store.
  std::function<void(LogLevel, std::string_view)> log = {};
};

struct StoreEntry {          // for `cache ls`
  std::string kind = {};     // "binary", "choice", "measurement", "list", "compiler", "environment"
  std::string id = {};       // hash prefix that show() accepts
  std::string summary = {};  // one line, printable
  std::int64_t bytes = 0;
  std::int64_t sequence = 0;  // of last use; larger is later
  std::string layer = {};     // path of the store it is in
  std::string kernel = {};    // of a binary: hash that its builds by several compilers share, see Engine::served()
  std::string target = {};    // "sm_90a"; empty where the row's key has none, as of an environment
  std::string device = {};    // model of the GPU or CPU of a choice or measurement; empty: for any
  std::string version = {};   // of the library that wrote it; empty where the row's key does not say
};

struct StoreFilter {         // empty fields: any
  std::string kind = {};     // of StoreEntry
  std::string target = {};   // of StoreEntry
  std::string problem = {};  // part of the text of a choice's or measurement's problem; no other row has one
  std::int64_t limit = 0;    // rows, those used last; 0: all
};

struct StoreTotal {
  std::int64_t rows = 0, bytes = 0;
};

// Rows that another version of the library wrote: this one does not find them.
struct TILEWRIGHT_EXPORT OtherVersion {
  std::string layer = {};  // path of the store
  std::string version = {};
  std::int64_t binaries = 0, choices = 0, measurements = 0;
  bool writable = false;     // the store's own file, which gc() cleans
  std::string text() const;  // one sentence: what is where, and what to do
};

struct VerifyReport {
  std::int64_t checked = 0;
  std::vector<std::string> damaged = {};  // one sentence per damaged row or structure
};

struct MergeReport {
  std::int64_t added = 0, kept = 0, replaced = 0, refused = 0;
  std::map<std::string, std::int64_t> reasons = {};  // why rows were refused, and how many for each reason
};

// Movable. A store that was moved from is empty and takes nothing: look-ups miss, maintenance throws.
class TILEWRIGHT_EXPORT Store {
 public:
  struct Impl;

  explicit Store(StoreOptions options = {});
  ~Store();
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;

  // ---- hot path: never throws, never waits longer than one second
  std::optional<Binary> find_binary(const Key& key);      // content hash verified; Binary::seconds is 0
  bool put_binary(const Key& key, const Binary& binary);  // false: could not be stored
  // What other compilers made of the same kernel, the one stored last first, at most four. Verified as find_binary()'s.
  std::vector<OtherBuild> other_builds(const Key& key);
  // A choice's key: device fields + problem. `device` separates choices of different GPUs.
  std::optional<StoredChoice> find_choice(const Key& device, std::string_view problem);
  std::vector<StoredChoice> choices(const Key& device, std::string_view problem_prefix);  // for neighbours
  bool put_choice(const Key& device, const StoredChoice& choice);
  // A list's key: that of a target, or of a device, and the problem.
  std::optional<CandidateList> find_list(const Key& device, std::string_view problem);
  std::vector<CandidateList> lists(const Key& device, std::string_view problem_prefix);  // for neighbours
  bool put_list(const Key& device, const CandidateList& list);
  // What this version of the library noted.
  std::optional<StoredCompiler> find_compiler(std::string_view name);
  bool put_compiler(const StoredCompiler& compiler);
  // Every outcome ever seen for (device, problem, candidate); the latest per candidate is returned, an imported one
  // only where there is none of one's own. find_choice() and choices() prefer in the same way.
  std::vector<Outcome> outcomes(const Key& device, std::string_view problem);
  bool put_outcome(const Key& device, std::string_view problem, const Outcome& outcome, std::string_view environment);
  // Advisory single flight between processes, threads and Stores: true if this caller should build `key`; false if
  // another one is at it and did not finish within `wait_seconds` (<= 10), in which case build anyway. After a wait,
  // true means that the other one finished or died: look the key up again before building. Release after storing; a
  // holder that died frees its claim.
  bool claim(const Key& key, double wait_seconds);
  void release(const Key& key);
  void touch_all();  // writes buffered use marks

  bool degraded() const;  // memory only, although a file was asked for
  // Why what is put now does not reach the file of `path`: refused, read-only, locked, full. Empty if it does, or if
  // memory was asked for.
  std::string unwritable() const;
  // Why a file that was asked for is not read, one sentence for each such file: the own store's, then shipped ones'.
  std::vector<std::string> unread() const;
  const std::string& path() const;

  // While one lives, look-ups are one transaction of each file: they find what it held when the first of them began,
  // and take its lock once. What this Store puts meanwhile is kept and found. For the milliseconds of a few look-ups: a
  // lock that is held keeps other processes' logs from being written back.
  class TILEWRIGHT_EXPORT Reading {
   public:
    explicit Reading(Store& store);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    Impl* impl_;
  };

  // ---- maintenance; these throw Error (io, invalid_argument)
  std::vector<StoreEntry> list(const StoreFilter& filter = {}) const;
  std::map<std::string, StoreTotal> totals(const StoreFilter& filter = {}) const;  // by kind; without the limit
  // With the fields of each one's device. The filter's limit counts for each file.
  std::vector<std::pair<Key, StoredChoice>> all_choices(const StoreFilter& filter = {}) const;
  std::vector<std::pair<Key, CandidateList>> all_lists(const StoreFilter& filter = {}) const;
  std::vector<OtherVersion> other_versions() const;    // empty: every row is this version's, or says nothing of it
  std::string show(std::string_view id_prefix) const;  // a readable rendering of one row, JSON
  // `repair`: damaged rows are deleted, damaged indexes made anew.
  VerifyReport verify(bool repair = false);
  // Evicts, then compacts; bytes freed. `stale`: what other versions of the library wrote goes first.
  std::int64_t gc(std::int64_t cap, bool stale = false);
  // One file with a DELETE journal, ready to ship. `replace`: atomically takes the place of a file that is there.
  void export_to(const std::string& path, bool with_binaries = true, bool replace = false);
  // merge: everything from another trusted store; on a conflict the faster choice (lower microseconds) wins.
  // import: choices and outcomes only; every value range-checked; binaries are never taken. What comes in is marked as
  // imported, and displaces nothing that was measured here.
  MergeReport merge_from(const std::string& path, bool binaries = true);
  MergeReport import_from(const std::string& path) { return merge_from(path, false); }

 private:
  Impl& impl() const;  // throws Error (invalid_argument) if this was moved from

  std::unique_ptr<Impl> impl_;
};

}  // namespace tilewright
