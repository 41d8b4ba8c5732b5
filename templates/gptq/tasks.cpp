// SPDX-License-Identifier: Apache-2.0
// GPTQ's kernels as tasks.
#include <fmt/format.h>
#include <tilewright/error.h>
#include <tilewright/gptq.h>

#include <cstddef>

#include "templates/gptq/params.cuh"
#include "templates/specialize.h"

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
  if (!name.starts_with("int4_") && !name.starts_with("uint4_"))
    throw Error(ErrorCode::invalid_argument, "format", name,
                "int4_row, int4_g128, int4_g64, int4_g32, uint4_g128, uint4_g64 or uint4_g32");
  return {task_of("matrix", {"gptq/matrix.cuh"}, "tw::gptq::Matrix"),
          task_of("columns " + name, {"gptq/columns.cuh", fmt::format("formats/{}.cuh", name)},
                  fmt::format("tw::gptq::Columns<tw::fmt::{}>", name))};
}

}  // namespace tilewright
