// SPDX-License-Identifier: Apache-2.0
// Engine: ask for a kernel by problem. Made by its user; thread-safe; several may exist. Prints nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilewright/export.h>
#include <tilewright/family.h>
#include <tilewright/kernel.h>
#include <tilewright/options.h>
#include <tilewright/problem.h>
#include <tilewright/store.h>
#include <tilewright/task.h>
#include <tilewright/tuning.h>

namespace tilewright {

struct Stats {
  std::int64_t prepared = 0;     // prepare() calls
  std::int64_t memory_hits = 0;  // of them answered from memory
  std::int64_t compiled = 0;     // candidates handed to the compiler
  std::int64_t cache_hits = 0;   // binaries that came out of a store
  std::int64_t measured = 0;     // candidates timed
  std::int64_t warnings = 0;
  double compile_seconds = 0;
  std::int64_t built_in = 0;  // kernels of a CPU that were taken as this library was built with them: no libLLVM
};

// One ranked candidate as `plan` shows it.
struct Planned {
  Candidate candidate;
  double predicted_microseconds = 0;
  LaunchPlan plan;
};

struct PrewarmPolicy {
  int top = 4;               // candidates per problem, in the order in which tune() would try them
  int jobs = 0;              // compile processes or threads; 0: one per core
  bool every_bucket = true;  // also what serves all other numbers of rows, so that prepare() compiles nothing either
  // Compile `reference` too where no other kernel takes a problem. It is slow, so this is a failure unless asked for.
  bool reference = false;
  // A program that runs compile_worker_main(0, 1) when its only argument is "compile-worker". With it, and more than
  // two jobs, compiles run in that many processes, which scale better than NVRTC's threads and survive a compiler that
  // crashes (only its job fails). Empty: threads of this process.
  std::string worker = {};
  std::function<void(std::string_view stage, int done, int total)> progress = {};
  // Polled between compiles, as `progress` is called: never concurrently. Compiles that run are finished and kept,
  // those that wait are not started.
  std::function<bool()> cancelled = {};
};
struct PrewarmReport {
  // skipped: already stored, or the same binary as another candidate that did not fail
  int compiled = 0, skipped = 0, failed = 0;
  // Of what this and earlier calls of this Engine compiled or found, how many binaries the cache has evicted since,
  // because all of them exceed its cap (Options::cache_cap).
  int evicted = 0;
  double seconds = 0;                        // wall clock
  std::vector<double> compile_seconds = {};  // one per compiled candidate
  std::vector<std::string> failures = {};    // "sm_80 gemm ...: reason"
  bool cancelled = false;                    // PrewarmPolicy::cancelled ended it early
};

// Why a problem gets its kernel.
struct TILEWRIGHT_EXPORT Explanation {
  struct Ranked {
    Candidate candidate = {};
    double microseconds = 0;                                        // predicted
    double memory_us = 0, l2_us = 0, matrix_us = 0, scalar_us = 0;  // what each part alone would take
    double waves = 0;
  };
  struct FamilyAnswer {
    std::string family = {};
    std::size_t candidates = 0;
    std::string why_not = {};  // empty if it takes the problem
  };
  struct Stored {  // a choice of some device of the target
    std::string device = {};
    Candidate candidate = {};
    double microseconds = 0;
    std::string measured_for = {};  // the problem
    bool imported = false;
    std::string binary = {};  // "stored", "not compiled yet", or why the candidate cannot be used any more
  };
  std::string problem = {}, bucket = {}, target = {};
  std::string cache = {};                 // path
  bool cache_degraded = false;            // in memory, although a file was asked for
  bool device = false;                    // explained for a device, which stored choices belong to
  std::vector<Stored> stored = {};        // without a device: what is known of the target's devices
  std::vector<Candidate> prewarmed = {};  // without a device: what prewarm() compiled for the target
  std::optional<Choice> choice = {};      // unset: no kernel takes the problem
  std::string measured_for = {};          // the problem of the same bucket whose measurement answers; empty: its own
  std::vector<RowRange> ranges = {};      // of a device: what serves which number of rows
  std::optional<Key> choice_key = {};     // of a device
  std::vector<Outcome> outcomes = {};     // on this device, with this driver and compiler
  std::string binary = {};                // "stored", "not compiled yet", ...
  std::optional<Key> binary_key = {};     // of the choice
  std::vector<Ranked> ranking = {};       // all candidates, best first
  std::vector<FamilyAnswer> families = {};

  // Several readable lines. `keys`: with the keys, hashes included.
  std::string text(bool keys = false) const;
};

class TILEWRIGHT_EXPORT Engine {
 public:
  explicit Engine(Options options = Options::from_env());
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // One object for every number of rows: for each row step (row_step()) it has the binary that is expected to be
  // fastest there. What tune() with TunePolicy::all_rows found decides; else the stored choice of each bucket
  // (kBuckets), or the ranked first one, and the cost model between them. Compiles what no store has. May allocate and
  // take seconds. Repeated calls for an equal problem (its rows aside) return the same object from memory
  // (Options::prepared_cap of them are kept), and threads that ask for one problem at once wait for the first of them.
  // Warns of a problem that only the slow reference takes.
  // Under stream capture only those are served, the first throws Error would_tune; captures of blocking streams are
  // detected, and one of `stream`, the stream that you will launch on. Errors: unsupported with the reason of every
  // family; compile_failed; library_missing; driver_failed.
  Kernel prepare(const Problem& problem, const Device& device, Stream stream = nullptr);

  // The same problem with packed weights (a gemm's pack=tiles) if kernels of this target take them so, whatever the
  // number of rows; else the problem as it is. What to prepare and tune for weights that may be reordered once.
  Problem packed(const Problem& problem, const Arch& arch) const;
  // What a problem of a workload means on a target that it was not written for, since each target has its own order of
  // packed weights. A packed problem that only `reference` takes there comes in the order that the target's kernels
  // take, or unpacked if they take none. Any other problem stays as it is.
  Problem packed_for(const Problem& problem, const Arch& arch) const;
  // Reorders the weights of a packed problem on the device: once, at load, into streams of packed_bytes(). Prepares the
  // kernel that does it, so not first under stream capture. A null `to.global` leaves that stream to `from`'s. The
  // inverse is a problem of its own: Pack. Nothing can tell whether weights were packed: a kernel for packed ones
  // computes wrong results from others.
  void pack(const Problem& packed, const Device& device, Stream stream, Operand from, MutableOperand to);

  // Measures and remembers: for the bucket of the problem's rows, of its sizes where its rows are fixed
  // (Problem::size_bucket()), or for every number of rows (TunePolicy::all_rows). What was measured for other sizes of
  // the bucket answers, unless the policy is to retune or exhaustive. The report lists every candidate's fate. If all
  // fail, the choice is the reference kernel (a task's last candidate), provided that it is right. Throws Error:
  // unsupported with the reasons if that is not either; library_missing, would_tune, driver_failed.
  TuneReport tune(const Problem& problem, const Device& device, const TunePolicy& policy = {});
  TuneReport tune(const Task& task, const Device& device, const TunePolicy& policy = {});
  // The stored choice of a caller's own task, else the first of its candidates that was not found wrong here. Throws
  // Error as above.
  Kernel prepare(const Task& task, const Device& device);

  // No GPU needed for these.
  std::vector<Planned> plan(const Problem& problem, const Arch& arch) const;  // best first
  Source emit(const Problem& problem, const Arch& arch) const;                // of the stored choice, else the first
  Choice choose(const Problem& problem, const Device& device) const;          // of the problem's bucket alone
  std::vector<RowRange> ranges(const Problem& problem, const Device& device) const;  // what prepare() would take
  // Compiles what prepare() and tune() will need on those targets: of a packed problem the packing too, in each
  // target's own order (packed_for()); of a caller's own task its first candidates, the oracle included. Throws Error
  // (library_missing) without a compiler, unless all is stored; what fails by itself is in the report.
  PrewarmReport prewarm(std::span<const Problem> problems, std::span<const Arch* const> archs,
                        const PrewarmPolicy& policy = {});
  PrewarmReport prewarm(const Task& task, std::span<const Arch* const> archs, const PrewarmPolicy& policy = {});
  Task task(const Problem& problem, const Arch& arch) const;
  // Why this choice: stored or ranked, the grade of fit, the keys, what every family says.
  Explanation explanation(const Problem& problem, const Arch& arch, const Device* device = nullptr) const;
  // The same as text, with the keys.
  std::string explain(const Problem& problem, const Arch& arch, const Device* device = nullptr) const {
    return explanation(problem, arch, device).text(true);
  }

  // The problems that stored kernels serve, by StoreEntry::kernel: of every stored choice, and of what prewarm() left,
  // the measuring kernels ("oracle of ...") included. Takes about a millisecond per choice that the filter lets
  // through.
  std::map<std::string, std::vector<std::string>> served(const StoreFilter& choices = {}) const;

  Stats stats() const;
  const Options& options() const;
  Store& store();

  struct Impl;

 private:
  friend class Layer;
  std::unique_ptr<Impl> impl_;
};

// Empty unless no kernel but `reference`, which exists to check the others, takes the problem on this target; else one
// sentence with the reasons of the other families.
TILEWRIGHT_EXPORT std::string only_reference(const Problem& problem, const Arch& arch);

// The other end of PrewarmPolicy::worker: compiles what arrives on in_fd until it is closed, answering on out_fd.
// Messages are length-prefixed, at most 64 MiB. Returns the process's exit status. Prints nothing.
TILEWRIGHT_EXPORT int compile_worker_main(int in_fd, int out_fd);

// A workload: one problem per line, '#' starts a comment; lines have at most 4096 characters, a workload 16 MiB. Throws
// Error: io if the file is not a regular one that can be read; invalid_argument or too_large with the line's number.
TILEWRIGHT_EXPORT std::vector<Problem> read_workload(const std::string& path);
// From a stream (std::cin), which `name` stands for in errors.
TILEWRIGHT_EXPORT std::vector<Problem> read_workload(std::istream& stream, const std::string& name);

}  // namespace tilewright
