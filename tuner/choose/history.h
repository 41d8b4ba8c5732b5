// SPDX-License-Identifier: Apache-2.0
// History: the outcomes of one problem's candidates on this device, with this driver and compiler. Value.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/tuning.h>

namespace tilewright::tuner {

class History {
 public:
  explicit History(std::vector<Outcome> outcomes) : outcomes_(std::move(outcomes)) {}

  bool ruled_out(const Candidate& candidate) const {
    const Outcome* o = of(candidate);
    return o && o->kind != OutcomeKind::measured;
  }
  // The last resort is refused only for a wrong result: a kernel that spills is slow but right, and one that does not
  // compile reports its own error.
  bool wrong(const Candidate& candidate) const {
    const Outcome* o = of(candidate);
    return o && o->kind == OutcomeKind::wrong;
  }

 private:
  const Outcome* of(const Candidate& candidate) const {
    const auto o = std::find_if(outcomes_.begin(), outcomes_.end(),
                                [&](const Outcome& outcome) { return outcome.candidate == candidate; });
    return o == outcomes_.end() ? nullptr : &*o;
  }

  std::vector<Outcome> outcomes_;
};

// "toy v=0: wrong: y[3] = 1, expected 2; ...", of those that were not measured, the first few.
inline std::string reasons(const std::vector<Outcome>& outcomes) {
  constexpr int kShown = 4;
  std::string text;
  int count = 0;
  for (const Outcome& o : outcomes) {
    if (o.kind == OutcomeKind::measured || ++count > kShown) continue;
    text += fmt::format("{}{}: {}: {}", text.empty() ? "" : "; ", o.candidate.text(), to_string(o.kind), o.detail);
  }
  if (count > kShown) text += fmt::format("; and {} more", count - kShown);
  return text;
}

[[noreturn]] inline void throw_none_right(const char* field, const std::string& what,
                                          const std::vector<Outcome>& outcomes) {
  throw Error(ErrorCode::unsupported, field, what, "has no candidate that can be used here: " + reasons(outcomes));
}

}  // namespace tilewright::tuner
