// SPDX-License-Identifier: Apache-2.0
// Advice for a problem: the fields that cost a caller little and allow faster kernels on a target, with the gain that
// the cost model expects. Also the warning that only the reference kernel serves a problem.
#pragma once

#include <tilewright/engine.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace tilewright::cli {

struct AdvisedField {
  std::string field;                  // "pack=tiles"
  std::string how;                    // what the caller has to do for it
  double predicted_microseconds = 0;  // with this field and those before it
};

struct Advice {
  std::string problem;                // with every advised field
  double predicted_microseconds = 0;  // of the problem as it was asked
  std::vector<AdvisedField> fields;   // never empty
};

// What the problem's operation recommends for this target (Operation::recommended()); nothing if that is nothing.
// `predicted`: of its first candidate.
std::optional<Advice> advise(const Engine& engine, const Problem& problem, const Arch& arch, double predicted);
std::string text(const Advice& advice);
Json json(const Advice& advice);

// Why no kernel but `reference` computes the problem on this target, as a clause; empty if one does.
std::string without_kernels(const Problem& problem, const Arch& arch);

}  // namespace tilewright::cli
