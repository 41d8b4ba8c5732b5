// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernel families of each operation, and what a launch of an operation's kernels takes.
#pragma once

#include <tilewright/family.h>
#include <tilewright/kernel.h>

namespace tilewright {

// The rules for the argument struct of a problem's kernels and the constants that go with it.
Contract contract_for(const Problem& problem);

// Why a candidate's family is unknown, its knobs misnamed or its values illegal; empty if it may be built. Any
// candidate that comes out of a file goes through this.
std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate);

}  // namespace tilewright
