// SPDX-License-Identifier: Apache-2.0
// The observer's kernel as a task.
#include <fmt/format.h>
#include <tilewright/device_observer.h>
#include <tilewright/error.h>

#include <cstddef>

#include "support/must_be.h"
#include "templates/common/specialize.h"
#include "templates/operations/observe/params.cuh"

namespace tilewright {

static_assert(sizeof(ObserveArgs) == sizeof(tw::observe::Args) && sizeof(ObserveState) == sizeof(tw::observe::Shape) &&
              sizeof(ObserveChannel) == sizeof(tw::observe::Channel));
static_assert(offsetof(ObserveArgs, inner) == offsetof(tw::observe::Args, inner) &&
              offsetof(ObserveState, state) == offsetof(tw::observe::Shape, state) &&
              offsetof(ObserveState, infinite) == offsetof(tw::observe::Shape, infinite) &&
              offsetof(ObserveChannel, exponent) == offsetof(tw::observe::Channel, exponent) &&
              offsetof(ObserveChannel, average) == offsetof(tw::observe::Channel, average));

Task observe_task(Format x) {
  const std::string name(x.name());
  if (name != "f32" && name != "f16" && name != "bf16") throw must_be("format", name, "f32, f16 or bf16");
  Specialization s;
  s.name = "observe " + name;
  s.includes = {"operations/observe/cuda/kernel.cuh", fmt::format("formats/{}.cuh", name)};
  s.plan_type = fmt::format("tw::observe::Observe<tw::fmt::{}>", name);
  s.space = "tw::observe";
  s.plan.x.per_rows = 1;
  s.plan.threads = tw::observe::kThreads;
  s.plan.shared_bytes = tw::observe::kSharedBytes;
  return kernel_task(s, sizeof(ObserveArgs));
}

}  // namespace tilewright
