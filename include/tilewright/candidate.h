// SPDX-License-Identifier: Apache-2.0
// Candidate: one way to compute a problem, as a kernel family and named knobs. Stored in the cache by name, never by
// position, and checked against today's rules before use. A value, usable from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tilewright/export.h>

namespace tilewright {

struct TILEWRIGHT_EXPORT Candidate {
  std::string family = {};                                       // "mma"
  std::vector<std::pair<std::string, std::int64_t>> knobs = {};  // in the family's own order

  std::int64_t at(std::string_view knob) const;   // throws Error (invalid_argument) if absent
  std::string text() const;                       // "mma block_m=128 block_n=128 stages=3"
  static Candidate parse(std::string_view text);  // throws Error (invalid_argument)
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

}  // namespace tilewright
