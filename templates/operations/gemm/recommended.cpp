// SPDX-License-Identifier: Apache-2.0
// What a caller may change in a gemm so that a target has faster kernels for it.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "templates/common/families.h"
#include "templates/operations/gemm/gemm.h"

namespace tilewright::gemm {
namespace {

// Whether the target has other kernels for `asked` than for `problem`, or overlaps launches, which constants may widen.
bool changes_kernels(const Problem& problem, const Problem& asked, const Arch& arch) {
  for (const Family* family : operation().families()) {
    const std::vector<Candidate> before = family->candidates(problem, arch), after = family->candidates(asked, arch);
    if (before != after) return true;
    if (before.empty()) continue;
    const Source one = family->source(problem, arch, before.front()),
                 other = family->source(asked, arch, after.front());
    if (one.text != other.text) return true;
    if (one.plan.overlap && contract_for(problem).constants != contract_for(asked).constants) return true;
  }
  return false;
}

bool only_reference(const Problem& problem, const Arch& arch) {
  const std::span<const Family* const> all = operation().families();
  return std::all_of(all.begin(), all.end() - 1, [&](const Family* f) { return f->candidates(problem, arch).empty(); });
}

}  // namespace

std::vector<Recommendation> recommended(const Problem& problem, const Arch& arch) {
  std::vector<Recommendation> list;
  if (arch.cpu) {
    if (const std::optional<Problem> packed = operation().packed(problem, arch))
      list.push_back(
          {"pack=panels", "reorder w once, at load: Engine::pack(), or pack_weights() on the host", *packed});
    return list;
  }
  Problem best = problem;
  const auto take = [&](std::string field, const char* how, const Problem& next) {
    list.push_back({std::move(field), how, next});
    best = next;
  };
  Gemm g = *problem.as<Gemm>();
  const auto take_workspace = [&](const char* what_for) {
    g.workspace = Gemm::kTileWorkspace;
    take(fmt::format("workspace={}", g.workspace), what_for, g);
  };
  // Packed weights may have kernels with a workspace alone, in which x is unpacked.
  Gemm room = g;
  if (room.workspace == 0 && room.groups == 0) room.workspace = Gemm::kTileWorkspace;
  if (!operation().packed(problem, arch) && operation().packed(room, arch))
    take_workspace("33 MiB of device memory, zero when first used: with packed w, x is unpacked there");
  if (const std::optional<Problem> packed = operation().packed(best, arch)) {
    take("pack=tiles", "reorder w once, at load: Engine::pack(), or pack_weights() on the host", *packed);
  } else if (g.packing != Packing::none && !(g.groups && g.x_from) && only_reference(problem, arch)) {
    g.packing = Packing::none;
    if (!only_reference(g, arch)) take("pack=none", "leave w as its format stores it", g);
  }
  if (g = *best.as<Gemm>(); !g.constant_weights && g.groups == 0) {
    g.constant_weights = true;
    if (changes_kernels(best, g, arch))
      take("weights=constant", "w is complete before a launch is enqueued, and stays as it is", g);
  }
  if (g = *best.as<Gemm>(); g.workspace == 0 && g.groups == 0) {
    Gemm with = g;
    with.workspace = Gemm::kTileWorkspace;
    if (changes_kernels(best, with, arch))
      take_workspace("33 MiB of device memory, zero when first used, for launches that follow each other");
  }
  return list;
}

}  // namespace tilewright::gemm
