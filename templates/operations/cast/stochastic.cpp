// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/cast/stochastic.h"

#include <string_view>

#include "format_includes.inc"
#include "operations/cast/stochastic.cuh"
#include "templates/common/exact_floats.h"

namespace tilewright::cast {
namespace {

using Round = void (*)(const float* x, std::int64_t first, std::int64_t rows, std::int64_t cols, MutableOperand y,
                       int encoder, std::uint64_t seed);

template <class F>
void round_matrix(const float* x, std::int64_t first, std::int64_t rows, std::int64_t cols, MutableOperand y,
                  int encoder, std::uint64_t seed) {
  const ExactFloats exact;
  for (std::int64_t row = 0; row < rows; ++row) {
    tw::fmt::row_item<F> context{F::kGlobal ? *y.global : 1.0f};
    if constexpr (F::kRowScale) context = tw::fmt::row_item_at<F>(y.scales, row);
    for (std::int64_t at = row * cols; at < (row + 1) * cols; ++at) {
      const std::int64_t block = at / F::kBlock;
      const std::int64_t place = first * cols + at;  // in the whole matrix
      tw::u32 random[4];
      tw::random_words(random, place / 4, seed);
      tw::fmt::round_stochastically<F>(static_cast<tw::u8*>(y.data) + block * F::kDataBytes,
                                       static_cast<const tw::u8*>(y.scales) + block * F::kScaleBytes, context,
                                       static_cast<int>(at % F::kBlock), x[at], random[place % 4], encoder);
    }
  }
}

template <class F>
constexpr Round round_of() {
  if constexpr (tw::fmt::HasSteps<F>::value && F::kScaleRows == 1)
    return &round_matrix<F>;
  else
    return nullptr;
}

Round rounding_of(Format f) {
#define FORMAT(NAME) \
  if (f.name() == #NAME) return round_of<tw::fmt::NAME>();
#include "format_list.inc"
#undef FORMAT
  return nullptr;
}

}  // namespace

bool rounds_stochastically(Format f) { return rounding_of(f) != nullptr; }

void round_stochastically(Format f, const float* x, std::int64_t first, std::int64_t rows, std::int64_t cols,
                          MutableOperand y, int encoder, std::uint64_t seed) {
  rounding_of(f)(x, first, rows, cols, y, encoder, seed);
}

}  // namespace tilewright::cast
