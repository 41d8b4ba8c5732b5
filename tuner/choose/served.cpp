// SPDX-License-Identifier: Apache-2.0
// Which problems a stored kernel is for. A binary's row does not say: problems share kernels, and a kernel outlives the
// choice it was compiled for. So the choices are asked which kernels they want.
#include <algorithm>

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

}  // namespace

std::map<std::string, std::vector<std::string>> Engine::served(const StoreFilter& choices) const {
  std::map<std::string, std::vector<std::string>> served;
  const auto add = [&](const Source& source, const Arch& target, const std::string& what) {
    std::vector<std::string>& problems = served[impl_->builder.kernel(source, target)];
    if (std::find(problems.begin(), problems.end(), what) == problems.end()) problems.push_back(what);
  };
  const auto add_candidate = [&](const Problem& problem, const Arch& target, const Candidate& candidate) {
    if (illegal(problem, target, candidate).empty())
      add(impl_->source(problem, target, candidate), target, problem.text());
  };
  // An error: another library's operation or target, or a caller's own task. Nothing can be said of its kernels.
  const auto add_stored = [&](const Key& device, const std::string& text, auto candidates) {
    try {
      const Arch& target = arch(field(device, "target"));
      const Problem problem = Problem::parse(text);
      candidates(problem, target);
      const Task task = tuner::make_task(problem, target, {}, impl_->options.templates);
      if (task.oracle) add(task.oracle(), target, "the oracle of " + problem.text());
      if (!target.cpu) add(tuner::clock_source(), target, "the clock of measurements");
    } catch (const Error&) {
    }
  };
  for (const auto& [device, row] : impl_->store.all_choices(choices))
    add_stored(device, row.problem,
               [&](const Problem& problem, const Arch& target) { add_candidate(problem, target, row.candidate); });
  // All that prewarm() compiled; of a row table those that serve some.
  for (const auto& [device, list] : impl_->store.all_lists(choices))
    add_stored(device, list.problem, [&](const Problem& problem, const Arch& target) {
      for (std::size_t place = 0; place < list.candidates.size(); ++place) {
        const RowCandidate& c = list.candidates[place];
        if (list.steps.empty())
          add_candidate(problem, target, c.candidate);
        else if (std::find(list.steps.begin(), list.steps.end(), place) != list.steps.end())
          add_candidate(problem.with_rows(c.listed), target, c.candidate);
      }
    });
  return served;
}

}  // namespace tilewright
