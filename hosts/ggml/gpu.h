// SPDX-License-Identifier: Apache-2.0
// GPUs as devices of ggml, with buffers of their own. They compute products, convolutions and copies alone.
#pragma once

#include <vector>

#include "ggml-backend-impl.h"

namespace tilewright::ggml {

// The devices of this machine's GPUs, if GGML_TILEWRIGHT_GPU=1 asks for them; they belong to `registration`.
const std::vector<ggml_backend_dev_t>& gpu_devices(ggml_backend_reg_t registration);

}  // namespace tilewright::ggml
