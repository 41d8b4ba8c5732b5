// SPDX-License-Identifier: Apache-2.0
// Convolutions as gemms of Hopper's warpgroup matrix units (operations/gemm/cuda/wgmma/kernel.cuh), whose rows of x are
// boxes of pixels. Rows of that gemm are those of whole boxes, columns of k those of whole panels.
#pragma once
#include "operations/conv/cuda/product.cuh"
#include "operations/conv/cuda/wgmma/pixels.cuh"
#include "operations/gemm/cuda/wgmma/kernel.cuh"

namespace tw::conv {

template <const WgmmaKnobs& knobs>
struct ProductKnobs {
  static constexpr gemm::WgmmaKnobs kProduct = knobs.product();
};

// X, W: formats of x and w as a launch passes them. To: the elements as which both are written to the workspace, those
// of one that is not, too; void: they are multiplied as they are.
template <class X, class W, class To, class Epi, const WgmmaKnobs& knobs>
struct Wgmma {
  TW_CONSTANTS(bool, kAsTheyAre = same<To, void>());
  template <class F>
  using Multiplied = select<kAsTheyAre, F, Written<F, To>>;
  using Pixels = PixelRows<knobs, X, W, gemm::element_of<Multiplied<X>>, gemm::element_of<Multiplied<W>>>;
  using Product = gemm::WgmmaKernel<Multiplied<select<knobs.swapped, W, X>>, Multiplied<select<knobs.swapped, X, W>>,
                                    Epi, ProductKnobs<knobs>::kProduct, Pixels>;
  TW_CONSTANTS(int, kThreads = Product::kThreads, kSharedBytes = Product::kSharedBytes);

  // Of the maps those that there are: of w where it does not come as tiles, and of what is cached.
  TW_MEMBER static void run(const Args& args, const Shape& problem, const TensorMap* pixels,
                            const TensorMap* second = nullptr, const TensorMap* third = nullptr) {
    if constexpr (knobs.writes_w)
      if (thread_x() == 0) prefetch_weights<W>(args, problem);
    const TensorMap *const filters = knobs.tiles ? nullptr : second, *const cached = knobs.tiles ? second : third;
    if constexpr (knobs.unfolds)
      multiply(args, problem, problem.unfolded(), pixels, filters, cached);
    else
      multiply(args, problem, problem, pixels, filters, cached);
  }

 private:
  // shape: of what is multiplied.
  TW_MEMBER static void multiply(const Args& args, const Shape& problem, const Shape& shape, const TensorMap* pixels,
                                 const TensorMap* filters, const TensorMap* cached) {
    const i64 k = i64{shape.axes[0].kernel} * Pixels::stages_of_frame(shape) * Product::kBlockK;
    const PixelShape of(product_shape(shape, shape.k, k), args, problem, shape, pixels, filters, cached);
    Product::run(product_args(args, Pixels::tiles(shape) * Pixels::kPixels), of, knobs.swapped ? filters : pixels,
                 knobs.swapped ? pixels : filters);
  }
};

}  // namespace tw::conv
