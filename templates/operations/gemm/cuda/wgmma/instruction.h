// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "templates/backends/cuda/sm90.cuh"

namespace tilewright::gemm {

// Device text of tw::Wgmma<kind, n> (templates/backends/cuda/sm90.cuh): an instruction with n / 2 accumulators cannot
// be a template. n: 8 to 256 in steps of 8; for s8 and b1 8, 16, 24, 32 and then in steps of 16.
std::string wgmma_text(tw::WgmmaKind kind, int n);
bool wgmma_legal(tw::WgmmaKind kind, int n);

}  // namespace tilewright::gemm
