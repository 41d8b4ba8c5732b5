// SPDX-License-Identifier: Apache-2.0
// What tuning was asked to do, what it saw, and what it decided. Values, usable from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/candidate.h>
#include <tilewright/export.h>
#include <tilewright/kernel.h>

namespace tilewright {

struct TunePolicy {
  int max_candidates = 16;     // measured per problem, best-ranked first
  double budget_seconds = 30;  // wall clock per problem, plus a tenth and two seconds at most; at least the default
                               // candidate is measured
  int patience = 0;            // stop after this many measured candidates without improvement; 0: never
  bool exhaustive = false;     // every legal candidate, no budget, no patience
  bool retune = false;         // ignore stored choices and measurements
  // Tune a layer: choose for every number of rows at once, whatever the problem's own. The candidates that are measured
  // are max_binaries at most, each at the numbers of rows where it may win; budget_seconds then counts for all of it.
  // What there is no time to measure is estimated (RowRange::measured); memory stays within 2 * cold_bytes and two
  // copies of the operands of the most rows that are measured.
  bool all_rows = false;
  int max_binaries = 40;
  int jobs = 0;             // compile threads; 0: one per core, at most 16
  double cold_bytes = 4e8;  // inputs rotate over at least this much memory
  std::function<void(std::string_view stage, int done, int total)> progress = {};  // may be empty
  std::function<bool()> cancelled = {};                                            // polled; may be empty
};

enum class OutcomeKind {
  measured,
  pruned,        // beyond a limit of the device
  rejected,      // spills, or its wgmma is serialized
  not_compiled,  // the compiler refused it
  wrong,         // a result beyond the bound, NaN, an unwritten element, a byte outside a buffer
  failed,        // the driver refused to load or launch it
};
TILEWRIGHT_EXPORT const char* to_string(OutcomeKind kind);

// One candidate's fate. Every one is stored, not only the winner's.
struct Outcome {
  Candidate candidate = {};
  OutcomeKind kind = OutcomeKind::failed;
  std::string detail = {};   // why not; for `wrong`, where and by how much
  std::int64_t rows = 0;     // that were measured; 0: the problem's
  double microseconds = 0;   // median over rounds, cold
  double low = 0, high = 0;  // 20th and 80th percentile over rounds
  int rounds = 0;
  double error = 0;  // largest error seen in verification, relative to the bound (<= 1)
  double mhz = 0;    // SM clock during the measurement, 0 when unknown
  Resources resources = {};
  bool stored = false;    // came out of the cache
  bool imported = false;  // measured by somebody else (`cache import`): listed, but never believed
};

// How well a stored choice fits a request.
enum class Grade {
  exact,        // measured for this problem
  same_bucket,  // measured for another number of rows, or other sizes, of the same bucket
  imported,     // measured by somebody else for this problem, and not yet here
  neighbour,    // measured for another n and k
  ranked,       // not measured
};
TILEWRIGHT_EXPORT const char* to_string(Grade grade);

struct Choice {
  Candidate candidate = {};
  Grade grade = Grade::ranked;
  double microseconds = 0;  // 0 when it was never measured
};

// What serves some numbers of rows.
struct RowRange {
  std::int64_t first = 1, last = 0;  // last 0: and all above, where waves of tiles may decide for another
  Candidate candidate = {};
  double microseconds = 0;  // expected at `last` rows, or at kMostStepRows
  bool measured = false;    // the candidate was measured for this problem at some of these rows; else it is estimated
};

struct TuneReport {
  std::string key = {};
  Choice choice = {};
  Candidate first = {};                // the ranked first choice, for comparison
  std::vector<Outcome> outcomes = {};  // in the order tried
  int compiled = 0;                    // by this call; the rest came out of the cache
  int measured = 0;                    // by this call
  double seconds = 0;
  bool noisy = false;                 // the clock or the repeats moved too much: the choice is used but not stored
  std::string stopped = {};           // "all", "budget", "patience", "cancelled"
  std::vector<RowRange> ranges = {};  // of TunePolicy::all_rows: what serves which numbers of rows
};

}  // namespace tilewright
