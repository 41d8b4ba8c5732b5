// SPDX-License-Identifier: Apache-2.0
// Rows as values: their text forms, their content hashes and the limits that a value from outside must keep.
// Pure functions. The candidate's text is written here too, because the cache is a leaf: same grammar as
// Candidate::text(), with escapes so that any name survives.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilewright/candidate.h>
#include <tilewright/kernel.h>
#include <tilewright/store.h>
#include <tilewright/tuning.h>

namespace tilewright::cache {

inline constexpr std::size_t kMaxText = 64 << 10;  // bytes of a problem, candidate, detail, environment or metadata
inline constexpr std::size_t kMaxTranscript = 1 << 20;
inline constexpr std::size_t kMaxKnobs = 64;
inline constexpr std::size_t kMaxListed = 4096, kMaxListBytes = 4 << 20;  // candidates of a list, and their texts

std::string encode_candidate(const Candidate& candidate);  // empty if it cannot be represented
std::optional<Candidate> decode_candidate(std::string_view text);

// Everything of a Binary but its image and time.
std::string encode_metadata(const Binary& binary);
bool decode_metadata(std::string_view text, Binary& binary);
std::string encode_resources(const Resources& resources);
bool decode_resources(std::string_view text, Resources& resources);

// "ROWS:MICROSECONDS", separated by spaces.
std::string encode_times(const std::map<std::int64_t, double>& times);
std::optional<std::map<std::int64_t, double>> decode_times(std::string_view text);

std::string_view kind_name(OutcomeKind kind);
std::optional<OutcomeKind> kind_named(std::string_view name);

// The identity of (device, problem): what choices and measurements refer to.
std::string problem_hash(std::string_view device_transcript, std::string_view problem);

struct ChoiceRow {
  std::string problem;  // hash
  std::string candidate;
  double microseconds = 0;
  std::string first;
  double first_microseconds = 0;
  std::string environment;  // hash
  bool imported = false;    // measured by somebody else: counts less than anything measured here
  std::string content_hash() const;
  bool valid() const;  // within limits
};

struct MeasurementRow {
  std::string problem;  // hash
  std::string candidate, kind, detail;
  double microseconds = 0, low = 0, high = 0;
  std::int64_t rounds = 0;
  double error = 0, mhz = 0;
  std::string resources;
  std::string environment;  // hash
  bool imported = false;
  std::string content_hash() const;
  bool valid() const;
};

struct ListRow {
  struct Entry {
    std::string candidate;
    std::int64_t listed = 1;
    std::string times;
  };
  std::string problem;  // hash
  std::string inputs;
  std::vector<std::uint8_t> steps;
  std::vector<Entry> candidates;
  std::size_t bytes() const;         // of the candidates' texts
  std::string content_hash() const;  // of the candidates too
};

// Nothing if a value is out of range. The list's problem and the row's are the caller's to set.
std::optional<ListRow> to_row(const CandidateList& list);
std::optional<CandidateList> to_list(const ListRow& row);

struct CompilerRow {
  StoredCompiler compiler;
  std::string library;  // version that noted it
  std::string content_hash() const;
  bool valid() const;
};

// Nothing if a value is out of range.
std::optional<MeasurementRow> to_row(const Outcome& outcome);
std::optional<Outcome> to_outcome(const MeasurementRow& row);

std::string binary_hash(std::string_view key, std::string_view transcript, std::string_view metadata,
                        std::span<const std::byte> image);

}  // namespace tilewright::cache
