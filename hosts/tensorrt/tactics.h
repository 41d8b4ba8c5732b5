// SPDX-License-Identifier: Apache-2.0
// Tactics: kernels that TensorRT's builder times on a GPU, for the number of rows that it builds for. The first one is
// Tilewright's own choice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hosts/tensorrt/recipe.h"

namespace tilewright::tensorrt {

// Tactic 1 is the table of kernels for every number of rows, as tactic 0, which TensorRT uses if there are none. Tactic
// 2 + i is the table, but for the bucket of `rows` it is candidate i. Immutable.
struct Tactics {
  static constexpr std::int32_t kTable = 1;

  std::int64_t rows = 0;
  std::vector<std::string> candidates = {};

  std::int32_t count() const { return static_cast<std::int32_t>(candidates.size()) + 1; }
  // Empty: the table. Throws Error (invalid_argument) if there is no such tactic.
  const std::string& candidate(std::int32_t tactic) const;
};

// For a profile whose usual x has this shape. Null: there are none, because no GPU of the target can time them, because
// the engine contains its kernels, or because it is a convolution, whose extents may vary.
std::shared_ptr<const Tactics> tactics_for(const Recipe& recipe, const Dims& x);

void save(const Tactics& tactics, SavedFields& to);
std::shared_ptr<const Tactics> restored_tactics(const Fields& fields);

}  // namespace tilewright::tensorrt
