// SPDX-License-Identifier: Apache-2.0
// Which candidate serves which number of rows: as a search of all rows found it, or as the choices of the buckets and
// the cost model say.
#include <algorithm>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "templates/common/families.h"
#include "tuner/engine_impl.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

constexpr std::string_view kTuned = "tuned";  // StoredRows::inputs of a search of all rows

struct StoredRows {
  std::string inputs;
  tuner::RowTable table;
};

std::optional<StoredRows> stored(Store& store, const Problem& problem, const Device& device) {
  auto list = store.find_list(tuner::rows_key(device), problem.with_rows(1).text());
  if (!list) return {};
  std::string inputs = list->inputs;
  auto table = tuner::RowTable::of(std::move(*list));
  if (!table) return {};
  return StoredRows{std::move(inputs), std::move(*table)};
}

bool contains(const std::vector<Candidate>& list, const Candidate& candidate) {
  return std::find(list.begin(), list.end(), candidate) != list.end();
}

void add(tuner::RowTable& table, const Candidate& candidate, std::int64_t rows, double microseconds) {
  auto found = std::find_if(table.candidates.begin(), table.candidates.end(),
                            [&](const RowCandidate& c) { return c.candidate == candidate; });
  if (found == table.candidates.end()) found = table.candidates.insert(table.candidates.end(), {candidate, rows, {}});
  if (microseconds > 0) found->times[rows] = microseconds;
}

}  // namespace

void Engine::Impl::store_rows(const Problem& problem, const Device& device, const tuner::RowTable& table,
                              std::string_view inputs) {
  store.put_list(tuner::rows_key(device), table.list(problem, std::string(inputs)));
}

void Engine::Impl::store_tuned_rows(const Problem& problem, const Device& device, const tuner::RowTable& table) {
  store_rows(problem, device, table, kTuned);
}

std::optional<tuner::RowTable> Engine::Impl::tuned_rows(const Problem& problem, const Device& device,
                                                        const std::vector<Candidate>& faulty) {
  std::optional<StoredRows> rows = stored(store, problem, device);
  if (!rows || rows->inputs != kTuned) return {};
  tuner::RowTable& table = rows->table;
  const auto refused = [&](const RowCandidate& c) {
    if (contains(faulty, c.candidate)) return true;
    const Problem listed = problem.with_rows(c.listed);
    const std::string why = illegal(listed, device.arch(), c.candidate);
    if (!why.empty())
      log(LogLevel::info,
          fmt::format("{}: the stored candidate {} is ignored: {}", listed.text(), c.candidate.text(), why));
    return !why.empty();
  };
  tuner::RowTable used = table;
  used.drop_unused(false);
  if (std::none_of(used.candidates.begin(), used.candidates.end(), refused)) return used;
  std::erase_if(table.candidates, refused);
  if (table.candidates.empty()) return {};
  tuner::RowModel model(problem, device.arch(), tuner::model_of(device));
  tuner::decide(table, model);
  table.drop_unused(false);
  return std::move(table);
}

void Engine::Impl::teach_rows(const Problem& problem, const Device& device, const TuneReport& report) {
  std::optional<StoredRows> rows = stored(store, problem, device);
  if (!rows || rows->inputs != kTuned || report.choice.grade != Grade::exact) return;
  // One that serves no row makes room: its times are lost, and a search of all rows would find them again.
  if (rows->table.candidates.size() == tuner::RowTable::kMostCandidates) rows->table.drop_unused(false);
  if (rows->table.candidates.size() == tuner::RowTable::kMostCandidates) return;
  for (const Outcome& o : report.outcomes)
    if (o.kind == OutcomeKind::wrong)
      std::erase_if(rows->table.candidates, [&](const RowCandidate& c) { return c.candidate == o.candidate; });
  add(rows->table, report.choice.candidate, problem.rows(), report.choice.microseconds);
  tuner::RowModel model(problem, device.arch(), tuner::model_of(device));
  tuner::decide(rows->table, model);
  store_tuned_rows(problem, device, rows->table);
}

tuner::RowTable Engine::Impl::rows_for(const Problem& problem, const Device& device,
                                       const std::vector<Candidate>& faulty) {
  if (auto tuned = tuned_rows(problem, device, faulty)) return std::move(*tuned);
  tuner::RowTable table;
  std::string inputs;
  for (const std::int64_t rows : kBuckets) {
    const Problem bucket = problem.with_rows(rows);
    tuner::Choices order = choices(bucket, device);
    // The last one stands whatever is wrong with it.
    while (contains(faulty, order.current().candidate) && !order.last()) order.next();
    const Choice& choice = order.current();
    const double us = choice.grade == Grade::exact ? choice.microseconds : 0;
    add(table, choice.candidate, rows, us);
    inputs += fmt::format("{} {} {:.4g}\n", rows, choice.candidate.text(), us);
    if (problem.fixed_rows()) return table;  // the same in every bucket
  }
  inputs = sha256_hex(inputs).substr(0, 16);
  if (auto known = stored(store, problem, device); known && known->inputs == inputs) {
    known->table.drop_unused(false);
    if (std::none_of(known->table.candidates.begin(), known->table.candidates.end(),
                     [&](const RowCandidate& c) { return contains(faulty, c.candidate); }))
      return std::move(known->table);
  }
  tuner::RowModel model(problem, device.arch(), tuner::model_of(device));
  // What was compiled ahead is to need no compiler here either.
  const bool ahead = !options.compile || !prewarmed(tuner::bucketed(problem), device.arch()).empty();
  tuner::add_between_buckets(table, model, [&](std::int64_t rows) -> std::optional<Candidate> {
    const Problem between = problem.with_rows(rows);
    std::vector<Candidate> ready = prewarmed(between, device.arch());
    std::optional<Candidate> first = !ready.empty() ? std::optional(std::move(ready.front()))
                                     : ahead        ? std::nullopt
                                             : tuner::ranked_first(between, device.arch(), tuner::model_of(device));
    if (first && (contains(faulty, *first) || history(between, device).ruled_out(*first))) first.reset();
    return first;
  });
  tuner::decide(table, model);
  table.drop_unused(false);
  store_rows(problem, device, table, inputs);
  return table;
}

}  // namespace tilewright
