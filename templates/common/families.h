// SPDX-License-Identifier: Apache-2.0
// Look-ups over the list of operations and their families.
#pragma once

#include <tilewright/family.h>
#include <tilewright/operation.h>

namespace tilewright {

// What a launch of the problem's kernels takes.
inline Contract contract_for(const Problem& problem) { return problem.operation().contract(problem); }

// Why a candidate's family is unknown, its knobs misnamed or its values illegal; empty if it may be built. Any
// candidate that comes out of a file goes through this.
std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate);

}  // namespace tilewright
