// SPDX-License-Identifier: Apache-2.0
// What the backends for CPUs and for GPUs both ask of ggml's tensors and operations.
#pragma once

#include <tilewright/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-impl.h"

namespace tilewright::ggml {

inline std::int64_t matrices(const ggml_tensor* t) { return t->ne[2] * t->ne[3]; }
inline bool dense_elements(const ggml_tensor* t) { return t->nb[0] == ggml_type_size(t->type); }

inline bool is_no_op(const ggml_tensor* op) {
  return op->op == GGML_OP_NONE || op->op == GGML_OP_RESHAPE || op->op == GGML_OP_VIEW || op->op == GGML_OP_PERMUTE ||
         op->op == GGML_OP_TRANSPOSE;
}

// The rows of MUL_MAT_ID that each expert computes: {which of the token's experts it is, token}. `data`: the bytes of
// `ids`, in host memory. Throws Error (invalid_argument) for an expert that does not exist.
using RowsOfExperts = std::vector<std::vector<std::array<std::int32_t, 2>>>;
inline RowsOfExperts rows_of_experts(const ggml_tensor* ids, const void* data, std::int64_t experts) {
  RowsOfExperts rows(static_cast<std::size_t>(experts));
  for (std::int64_t t = 0; t < ids->ne[1]; ++t)
    for (std::int64_t u = 0; u < ids->ne[0]; ++u) {
      std::int32_t expert;
      std::memcpy(&expert,
                  static_cast<const std::byte*>(data) + static_cast<std::size_t>(t) * ids->nb[1] +
                      static_cast<std::size_t>(u) * ids->nb[0],
                  sizeof expert);
      if (expert < 0 || expert >= experts)
        throw Error(ErrorCode::invalid_argument, "ids", std::to_string(expert),
                    "must be one of the " + std::to_string(experts) + " experts, counted from 0");
      rows[static_cast<std::size_t>(expert)].push_back({static_cast<std::int32_t>(u), static_cast<std::int32_t>(t)});
    }
  return rows;
}

}  // namespace tilewright::ggml
