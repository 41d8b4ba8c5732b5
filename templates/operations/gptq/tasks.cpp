// SPDX-License-Identifier: Apache-2.0
// GPTQ's kernels as tasks.
#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/gptq.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "templates/common/specialize.h"
#include "templates/common/suggest.h"
#include "templates/operations/gptq/params.cuh"

namespace tilewright {
namespace {

#define TW_SAME(ours, theirs, member) \
  static_assert(offsetof(ours, member) == offsetof(theirs, member) && sizeof(ours::member) == sizeof(theirs::member))
static_assert(sizeof(GptqArgs) == sizeof(tw::gptq::Args) && sizeof(GptqLayer) == sizeof(tw::gptq::Shape));
TW_SAME(GptqArgs, tw::gptq::Args, first);
TW_SAME(GptqArgs, tw::gptq::Args, added);
TW_SAME(GptqLayer, tw::gptq::Shape, least_pivot);
TW_SAME(GptqLayer, tw::gptq::Shape, failed);
TW_SAME(GptqLayer, tw::gptq::Shape, places);
TW_SAME(GptqLayer, tw::gptq::Shape, corrections);
TW_SAME(GptqLayer, tw::gptq::Shape, codes);
TW_SAME(GptqLayer, tw::gptq::Shape, data);
#undef TW_SAME
static_assert(static_cast<int>(GptqArgs::Step::store) == static_cast<int>(tw::gptq::Step::store) &&
              static_cast<int>(GptqArgs::Step::choose) == static_cast<int>(tw::gptq::Step::choose));

Task task_of(std::string name, std::vector<std::string> includes, std::string plan) {
  Specialization s;
  s.name = "gptq/" + name;
  s.includes = std::move(includes);
  s.plan_type = std::move(plan);
  s.space = "tw::gptq";
  s.plan.x.per_rows = 1;
  s.plan.threads = tw::gptq::kThreads;
  s.plan.shared_bytes = tw::gptq::kSharedBytes;
  return kernel_task(s, sizeof(GptqArgs));
}

}  // namespace

std::vector<Task> gptq_tasks(Format format) {
  const std::string name(format.name());
  // Kernels pack codes two to a byte.
  const auto on_devices = [](Format f) { return f.info().integer_grid && f.info().integer_grid->bits == 4; };
  if (!on_devices(format)) {
    std::vector<std::string_view> names;
    for (const Format f : integer_formats())
      if (on_devices(f)) names.push_back(f.name());
    throw Error(ErrorCode::invalid_argument, "format", name, one_of(names, name));
  }
  return {task_of("matrix", {"operations/gptq/cuda/matrix.cuh"}, "tw::gptq::Matrix"),
          task_of("columns " + name, {"operations/gptq/cuda/columns.cuh", fmt::format("formats/{}.cuh", name)},
                  fmt::format("tw::gptq::Columns<tw::fmt::{}>", name))};
}

}  // namespace tilewright
