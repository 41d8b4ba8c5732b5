// SPDX-License-Identifier: Apache-2.0
#include "templates/families.h"

#include <tilewright/error.h>

#include <string>

#if __has_include("templates/cast/cast.h")
#include "templates/cast/cast.h"
#define HAVE_CAST 1
#endif
#include "templates/gemm/gemm.h"

namespace tilewright {
namespace {

// Most specialized first, the reference last: it takes whatever the others do not.
const Family* const kGemm[] = {&gemm::mma(), &gemm::gemv(), &gemm::reference()};
#ifdef HAVE_CAST
const Family* const kCast[] = {&cast::blocks(), &cast::rows(), &cast::reference()};
#endif

}  // namespace

std::span<const Family* const> families(std::string_view op) {
  if (op == "gemm") return kGemm;
#ifdef HAVE_CAST
  if (op == "cast") return kCast;
#endif
  throw Error(ErrorCode::invalid_argument, "operation", std::string(op), "gemm or cast");
}

const Family& family(std::string_view op, std::string_view name) {
  std::string names;
  for (const Family* f : families(op)) {
    if (f->name() == name) return *f;
    names += (names.empty() ? "" : " ") + std::string(f->name());
  }
  throw Error(ErrorCode::invalid_argument, "family", std::string(name), "one of " + names + " for " + std::string(op));
}

Contract contract_for(const Problem& problem) {
#ifdef HAVE_CAST
  if (problem.cast()) return cast::contract(*problem.cast());
#endif
  return gemm::contract(*problem.gemm());
}

std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) {
  for (const Family* f : families(problem.op()))
    if (f->name() == candidate.family) return f->illegal(problem, arch, candidate);
  return "no family '" + candidate.family + "' for " + std::string(problem.op());
}

}  // namespace tilewright
