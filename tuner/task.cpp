// SPDX-License-Identifier: Apache-2.0
#include "tuner/task.h"

#include <algorithm>

#include "templates/common/describe.h"
#include "templates/common/families.h"
#include "templates/common/specialize.h"

namespace tilewright::tuner {

Problem bucketed(const Problem& problem) { return problem.with_rows(kBuckets[bucket_index(problem.rows())]); }

Source source_of(const Problem& problem, const Arch& arch, const Candidate& candidate, const std::string& templates) {
  Source source = family(problem.op(), candidate.family).source(problem, arch, candidate);
  return templates.empty() ? source : with_templates_from(std::move(source), templates);
}

Task make_task(const Problem& problem, const Arch& arch, std::vector<Candidate> candidates,
               const std::string& templates) {
  Task task;
  task.key = problem.text();
  task.rows = problem.rows();
  task.cols = problem.cols();
  task.candidates = std::move(candidates);
  task.contract = contract_for(problem);
  task.min_bytes = problem.min_bytes();
  task.ops = problem.ops();
  const Arch* target = &arch;
  task.source = [problem, target, templates](const Candidate& c) { return source_of(problem, *target, c, templates); };
  if (const auto judge = problem.operation().oracle(problem, arch))
    task.oracle = [problem, target, templates, judge = *judge] {
      return source_of(problem, *target, judge, templates);
    };
  problem.operation().describe(problem, task);
  if (arch.cpu && task.verify_rows > 0 && task.rows > 0) {
    // verify_rows counts on a GPU's oracle, which is a hundred times as fast as a CPU's.
    constexpr double kSlower = 100;
    const double macs = problem.ops() / 2 / static_cast<double>(task.rows);
    if (macs > 0) task.verify_rows = std::min(task.verify_rows, verify_rows_of(task.rows, kSlower * macs));
  }
  return task;
}

}  // namespace tilewright::tuner
