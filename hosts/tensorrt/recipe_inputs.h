// SPDX-License-Identifier: Apache-2.0
// The tensors of a recipe.
#pragma once

#include "hosts/tensorrt/recipe.h"

namespace tilewright::tensorrt {

WeightBytes weight_bytes(const Problem& problem);
// Converts constant weights from the format's order to the problem's. `w` has data, scales and global.
void pack(const Problem& problem, Bytes (&w)[3]);

// Fills in `inputs` and `output`. Throws Error (unsupported) for fields of a problem that no tensor can pass.
void add_tensors(Recipe& recipe);

}  // namespace tilewright::tensorrt
