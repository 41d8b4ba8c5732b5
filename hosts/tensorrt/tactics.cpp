// SPDX-License-Identifier: Apache-2.0
#include "hosts/tensorrt/tactics.h"

#include <tilewright/error.h>

#include <algorithm>
#include <string_view>

#include "hosts/tensorrt/runtime.h"

namespace tilewright::tensorrt {
namespace {

constexpr std::size_t kMost = 3;  // candidates: each is compiled, and timed for each profile
constexpr const char* kCandidates = "tactics";
constexpr const char* kRows = "tactic_rows";
const std::string kNone;

}  // namespace

const std::string& Tactics::candidate(std::int32_t tactic) const {
  if (tactic == 0 || tactic == kTable) return kNone;
  if (tactic < 0 || tactic > count())
    throw Error(ErrorCode::invalid_argument, "tactic", std::to_string(tactic),
                "must be one of 0 to " + std::to_string(count()));
  return candidates[static_cast<std::size_t>(tactic - 2)];
}

std::shared_ptr<const Tactics> tactics_for(const Recipe& recipe, const Dims& x) {
  const std::int64_t rows = recipe.gemm() ? rows_of(x) : 0;
  if (rows < 1 || !recipe.binaries.empty()) return nullptr;
  const std::optional<Device> device = current_device();
  if (!device || std::string_view(device->arch().name) != recipe.arch->name) return nullptr;
  auto tactics = std::make_shared<Tactics>();
  tactics->rows = rows;
  for (const Planned& each : engine().plan(recipe.problem.with_rows(rows), *recipe.arch)) {
    if (tactics->candidates.size() == kMost || each.candidate.family == "reference") break;
    tactics->candidates.push_back(each.candidate.text());
  }
  return tactics;
}

void save(const Tactics& tactics, SavedFields& to) {
  std::string all;
  for (const std::string& candidate : tactics.candidates) all += candidate + "\n";
  to.add(kCandidates, all);
  to.add(kRows, static_cast<std::int32_t>(std::min<std::int64_t>(tactics.rows, kMostStepRows)));
}

std::shared_ptr<const Tactics> restored_tactics(const Fields& fields) {
  const std::optional<std::string> all = fields.text(kCandidates);
  if (!all) return nullptr;
  auto tactics = std::make_shared<Tactics>();
  tactics->rows = fields.integer(kRows).value_or(1);
  std::string_view rest = *all;
  for (std::size_t end; (end = rest.find('\n')) != rest.npos; rest.remove_prefix(end + 1))
    tactics->candidates.emplace_back(rest.substr(0, end));
  return tactics;
}

}  // namespace tilewright::tensorrt
