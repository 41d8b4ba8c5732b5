// SPDX-License-Identifier: Apache-2.0
// What the kernels (kernels.h) and their backends share with other files. Whoever compiles them for more than the
// build's own target includes it before the pragma that says so: its functions are for any CPU.
#pragma once

#include <tilewright/gemm.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "templates/backends/cpu/panels.h"
#include "templates/operations/gemm/cpu/options.h"
#include "templates/operations/gemm/params.cuh"
