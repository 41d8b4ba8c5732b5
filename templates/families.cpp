// SPDX-License-Identifier: Apache-2.0
#include "templates/families.h"

#include <tilewright/error.h>

#include <string>

#include "templates/cast/cast.h"
#include "templates/gemm/gemm.h"
#include "templates/pack/pack.h"

namespace tilewright {
namespace {

// Most specialized first, the reference last: it takes whatever the others do not.
const Family* const kGemm[] = {&gemm::wgmma(), &gemm::wgmma_codes(), &gemm::mma(), &gemm::gemv(), &gemm::reference()};
const Family* const kCast[] = {&cast::blocks(), &cast::rows(), &cast::reference()};
const Family* const kPack[] = {&pack::tiles()};

}  // namespace

std::span<const Family* const> families(std::string_view op) {
  if (op == "gemm") return kGemm;
  if (op == "cast") return kCast;
  if (op == "pack") return kPack;
  throw Error(ErrorCode::invalid_argument, "operation", std::string(op), "gemm, cast or pack");
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
  if (const Gemm* g = problem.gemm()) return gemm::contract(*g);
  if (const Pack* p = problem.pack()) return pack::contract(*p);
  return cast::contract(*problem.cast());
}

std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) {
  for (const Family* f : families(problem.op()))
    if (f->name() == candidate.family) return f->illegal(problem, arch, candidate);
  return "no family '" + candidate.family + "' for " + std::string(problem.op());
}

}  // namespace tilewright
