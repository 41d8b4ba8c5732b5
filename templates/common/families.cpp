// SPDX-License-Identifier: Apache-2.0
#include "templates/common/families.h"

#include <tilewright/error.h>

#include <string>
#include <utility>
#include <vector>

#include "templates/common/suggest.h"

namespace tilewright {

const Operation& operation(std::string_view name) {
  for (const Operation* o : operations())
    if (o->name() == name) return *o;
  std::vector<std::string_view> names;
  for (const Operation* o : operations()) names.push_back(o->name());
  throw Error(ErrorCode::invalid_argument, "operation", std::string(name), one_of(names, name));
}

std::span<const Family* const> families(std::string_view op) { return operation(op).families(); }
std::span<const Family* const> families(std::string_view op, const Arch& arch) {
  return arch.cpu ? operation(op).cpu_families() : operation(op).families();
}

const Family& family(std::string_view op, std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& list : {operation(op).families(), operation(op).cpu_families()})
    for (const Family* f : list) {
      if (f->name() == name) return *f;
      names.push_back(f->name());
    }
  throw Error(ErrorCode::invalid_argument, std::string(op) + " family", std::string(name), one_of(names, name));
}

std::optional<Family::Costed> Family::cheapest(const Problem& problem, const Arch& arch,
                                               const std::function<double(const Traits&)>& cost) const {
  std::optional<Costed> best;
  for (Candidate& c : candidates(problem, arch))
    if (const double n = cost(traits(problem, arch, c)); !best || n < best->cost) best = {std::move(c), n};
  return best;
}

std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) {
  for (const Family* f : families(problem.op(), arch))
    if (f->name() == candidate.family) return f->illegal(problem, arch, candidate);
  return "family '" + candidate.family + "' does not exist for " + std::string(problem.op());
}

}  // namespace tilewright
