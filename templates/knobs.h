// SPDX-License-Identifier: Apache-2.0
// Shared by families whose candidates are enumerated: a stored candidate is legal iff enumeration yields it.
#pragma once

#include <algorithm>

#include <tilewright/family.h>

namespace tilewright {

// A family that lists its legal candidates; the rest follows.
class EnumeratedFamily : public Family {
 public:
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (candidate.family != name()) return "family is '" + candidate.family + "', not '" + std::string(name()) + "'";
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    const std::vector<Candidate> legal = candidates(problem, arch);
    if (std::find(legal.begin(), legal.end(), candidate) != legal.end()) return {};
    return "'" + candidate.text() + "' is not among the " + std::to_string(legal.size()) + " legal candidates";
  }
};

}  // namespace tilewright
