// SPDX-License-Identifier: Apache-2.0
#include "templates/families.h"

#include <tilewright/error.h>

#include <string>

namespace tilewright {

const Operation& operation(std::string_view name) {
  std::string names;
  for (const Operation* o : operations()) {
    if (o->name() == name) return *o;
    names += (names.empty() ? "" : ", ") + std::string(o->name());
  }
  throw Error(ErrorCode::invalid_argument, "operation", std::string(name), "one of " + names);
}

std::span<const Family* const> families(std::string_view op) { return operation(op).families(); }

const Family& family(std::string_view op, std::string_view name) {
  std::string names;
  for (const Family* f : families(op)) {
    if (f->name() == name) return *f;
    names += (names.empty() ? "" : " ") + std::string(f->name());
  }
  throw Error(ErrorCode::invalid_argument, "family", std::string(name), "one of " + names + " for " + std::string(op));
}

std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) {
  for (const Family* f : problem.operation().families())
    if (f->name() == candidate.family) return f->illegal(problem, arch, candidate);
  return "no family '" + candidate.family + "' for " + std::string(problem.op());
}

}  // namespace tilewright
