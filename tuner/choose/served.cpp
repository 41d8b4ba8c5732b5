// SPDX-License-Identifier: Apache-2.0
// Which problems a stored kernel is for. A binary's row does not say: problems share kernels, and a kernel outlives the
// choice it was compiled for. So the choices are asked which kernels they want.
#include <algorithm>
#include <sstream>

#include <tilewright/error.h>

#include "templates/common/families.h"
#include "tuner/engine_impl.h"
#include "tuner/measure/clock.h"
#include "tuner/task.h"

namespace tilewright {
namespace {

std::string field(const Key& key, std::string_view tag) {
  for (const auto& [name, value] : key.fields())
    if (name == tag) return value;
  return {};
}

struct Named {
  Problem problem;
  Candidate candidate;
};

// The candidates that a stored choice names: its own; with a note of prewarm() all that were compiled; of a table of
// all rows those that serve some.
std::vector<Named> candidates_of(const Key& device, const StoredChoice& row, const Problem& problem) {
  if (!field(device, "rows").empty()) {
    std::vector<Named> all;
    const auto end = row.environment.find('\n');
    auto table =
        tuner::RowTable::parse(std::string_view(row.environment).substr(end == row.environment.npos ? 0 : end + 1));
    if (!table) return all;
    table->drop_unused(false);
    for (const tuner::RowCandidate& c : table->candidates) all.push_back({problem.with_rows(c.listed), c.candidate});
    return all;
  }
  std::vector<Named> all{{problem, row.candidate}};
  if (field(device, "kind") != field(tuner::prewarm_key(arch(field(device, "target"))), "kind")) return all;
  std::istringstream lines(row.environment);
  for (std::string line; std::getline(lines, line);) all.push_back({problem, Candidate::parse(line)});
  return all;
}

}  // namespace

std::map<std::string, std::vector<std::string>> Engine::served(const StoreFilter& choices) const {
  std::map<std::string, std::vector<std::string>> served;
  const auto add = [&](const Source& source, const Arch& target, const std::string& what) {
    std::vector<std::string>& problems = served[impl_->builder.kernel(source, target)];
    if (std::find(problems.begin(), problems.end(), what) == problems.end()) problems.push_back(what);
  };
  for (const auto& [device, row] : impl_->store.all_choices(choices)) {
    try {
      const Arch& target = arch(field(device, "target"));
      const Problem problem = Problem::parse(row.problem);
      for (const auto& [named, candidate] : candidates_of(device, row, problem))
        if (illegal(named, target, candidate).empty())
          add(impl_->source(named, target, candidate), target, named.text());
      const Task task = tuner::make_task(problem, target, {}, impl_->options.templates);
      if (task.oracle) add(task.oracle(), target, "the oracle of " + problem.text());
      if (!target.cpu) add(tuner::clock_source(), target, "the clock of measurements");
    } catch (const Error&) {
      // Another library's operation or target, or a caller's own task: nothing can be said of its kernels.
    }
  }
  return served;
}

}  // namespace tilewright
