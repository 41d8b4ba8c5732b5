// SPDX-License-Identifier: Apache-2.0
// Compiled kernels that an engine carries, so that it runs without libnvrtc.
#pragma once

#include "hosts/tensorrt/recipe.h"

namespace tilewright::tensorrt {

// Every problem that launches of a recipe need: the layer's, and those that reorder its weights.
std::vector<Problem> problems_of(const Recipe& recipe);
// Transposes of weights [k, n]: their data and scales.
Problem transpose_data(const Gemm& gemm);
Problem transpose_scales(const Gemm& gemm);

// Compiles the kernels for every number of rows. The result is a cache file. Throws Error: library_missing,
// compile_failed, io.
Bytes compiled(const Recipe& recipe);
// Adds them to the engine's cache. Throws Error (io, invalid_argument).
void add_to_cache(const Bytes& binaries);

}  // namespace tilewright::tensorrt
