// SPDX-License-Identifier: Apache-2.0
// Makes a Task from a Problem: buffers with valid content, arguments, the oracle and the judge.
#pragma once

#include <string>
#include <vector>

#include <tilewright/arch.h>
#include <tilewright/problem.h>
#include <tilewright/task.h>

namespace tilewright::tuner {

// The problem at its bucket's rows: the one that is ranked, measured and stored under its text.
Problem bucketed(const Problem& problem);

// candidates: ranked, the fallback last. `templates`: Options::templates.
Task make_task(const Problem& problem, const Arch& arch, std::vector<Candidate> candidates,
               const std::string& templates);

// Source of a candidate that is legal; reads the templates of a checkout if one is given.
Source source_of(const Problem& problem, const Arch& arch, const Candidate& candidate, const std::string& templates);

}  // namespace tilewright::tuner
