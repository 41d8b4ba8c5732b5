// SPDX-License-Identifier: Apache-2.0
#include "cli/roofline.h"

#include <tilewright/family.h>

#include <algorithm>

namespace tilewright::cli {

void Roofline::add(const Problem& problem, const Device& device, const Candidate& candidate) {
  const Arch& arch = device.arch();
  const Traits traits = family(problem.op(), candidate.family).traits(problem, arch, candidate);
  tbps = arch.typical_tbps;
  if (traits.mma_ops > 0)  // mma_rate is relative to 16-bit mma.sync
    tflops = std::max(tflops, arch.typical_mma16_tf * device.sms() / arch.typical_sms * traits.mma_rate);
}

}  // namespace tilewright::cli
