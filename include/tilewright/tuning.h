// SPDX-License-Identifier: Apache-2.0
// The input of tuning (TunePolicy), its measurements (Outcome) and its result (Choice, TuneReport). Values; any thread
// may use them.
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
  bool exhaustive = false;     // measure every legal candidate; ignore budget and patience
  bool retune = false;         // ignore stored choices and measurements
  // Tunes for every number of rows together, whatever the problem's own number. At most max_binaries candidates are
  // measured, each at the numbers of rows where it may be fastest. budget_seconds is then for everything. Ranges that
  // there is no time to measure are estimated (RowRange::measured). Memory is at most 2 * cold_bytes plus two copies of
  // the operands for the largest number of rows that is measured.
  bool all_rows = false;
  int max_binaries = 40;
  int jobs = 0;             // compile threads; 0: one per core, at most 16
  double cold_bytes = 4e8;  // inputs rotate through at least this much memory
  std::function<void(std::string_view stage, int done, int total)> progress = {};  // may be empty
  std::function<bool()> cancelled = {};                                            // polled; may be empty
};

enum class OutcomeKind {
  measured,
  pruned,        // beyond a limit of the device
  rejected,      // it spills, or its wgmma is serialized
  not_compiled,  // the compiler refused it
  wrong,         // a result outside the bound, NaN, an unwritten element, a byte written outside a buffer
  failed,        // the driver refused to load or launch it
};
TILEWRIGHT_EXPORT const char* to_string(OutcomeKind kind);

// What happened to one candidate. All outcomes are stored, not only the winner's.
struct Outcome {
  Candidate candidate = {};
  OutcomeKind kind = OutcomeKind::failed;
  std::string detail = {};   // why not; for `wrong`, where and by how much
  std::int64_t rows = 0;     // at which it was measured; 0: the problem's rows
  double microseconds = 0;   // median over rounds, cold
  double low = 0, high = 0;  // 20th and 80th percentile over rounds
  int rounds = 0;
  double error = 0;  // largest error seen in verification, relative to the bound (<= 1)
  double mhz = 0;    // SM clock during the measurement, 0 when unknown
  Resources resources = {};
  bool stored = false;    // came out of the cache
  bool imported = false;  // measured elsewhere (`cache import`): listed, but never used
};

// How well a stored choice fits a request.
enum class Grade {
  exact,        // measured for this problem
  same_bucket,  // measured for another number of rows, or another size, in the same bucket
  imported,     // measured elsewhere for this problem, and not yet here
  neighbour,    // measured for another n and k
  ranked,       // not measured
};
TILEWRIGHT_EXPORT const char* to_string(Grade grade);

struct Choice {
  Candidate candidate = {};
  Grade grade = Grade::ranked;
  double microseconds = 0;  // 0 if it was never measured
};

// The candidate for a range of rows.
struct RowRange {
  // last 0: no upper end. There a launch may use another candidate that fills waves of tiles better.
  std::int64_t first = 1, last = 0;
  Candidate candidate = {};
  double microseconds = 0;  // expected at `last` rows, or at kMostStepRows
  bool measured = false;    // at some of these rows for this problem; else the time is estimated
};

struct TuneReport {
  std::string key = {};
  Choice choice = {};
  Candidate first = {};                // the ranked first choice, for comparison
  std::vector<Outcome> outcomes = {};  // in the order tried
  int compiled = 0;                    // by this call; the rest came from the cache
  int measured = 0;                    // by this call
  double seconds = 0;
  bool noisy = false;                 // the clock or the repetitions varied too much: the choice is used but not stored
  std::string stopped = {};           // "all", "budget", "patience", "cancelled"
  std::vector<RowRange> ranges = {};  // of TunePolicy::all_rows: the candidate for each range of rows
};

}  // namespace tilewright
