// SPDX-License-Identifier: Apache-2.0
#include <tilewright/numerics.h>

#include "operations/gemm/activation.cuh"
#include "operations/gemm/error_bound.cuh"
#include "templates/formats/shared/fast_path.h"

namespace tilewright {
namespace {

using tw::gemm::Act;

tw::gemm::StoreError store_error(Element y) {
  switch (y) {
    case Element::f16: return tw::gemm::store_error<tw::f16>();
    case Element::bf16: return tw::gemm::store_error<tw::bf16>();
    case Element::e4m3: return tw::gemm::store_error<tw::e4m3>();
    case Element::e5m2: return tw::gemm::store_error<tw::e5m2>();
    case Element::i8: return tw::gemm::store_error<tw::i8>();
    case Element::i32: return tw::gemm::store_error<tw::i32>();
    default: return tw::gemm::store_error<float>();
  }
}

// As Reference::kCuts has it from the types.
bool cuts(const Gemm& g) {
  const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
  if (const TileInfo* tiles = g.packing == Packing::tiles ? tile_info(g.w, g.x) : nullptr)
    return is_fp8(tiles->element) || (g.accumulation == Accumulation::fast && may_narrow(*tiles, g.x));
  return (is_fp8(x.element) && (is_fp8(w.element) || (w.codes && w.bits <= 4))) || scaled(x, w);
}

}  // namespace

double activate(Activation act, double v) {
  switch (act) {
    case Activation::none: return v;
    case Activation::relu: return tw::gemm::activate<Act::relu>(v);
    case Activation::gelu: return tw::gemm::activate<Act::gelu>(v);
    case Activation::gelu_tanh: return tw::gemm::activate<Act::gelu_tanh>(v);
    case Activation::silu: return tw::gemm::activate<Act::silu>(v);
  }
  return v;
}

Expected gemm_expected(const Gemm& g, const GemmSums& s) {
  const Element element = fast_path(g.y).element;
  const tw::gemm::ErrorRules rules = {store_error(element),
                                      tw::gemm::additions_of(g.k),
                                      tw::gemm::cut_of(cuts(g), g.accumulation == Accumulation::fast, g.k),
                                      element == Element::i32,
                                      fast_path(g.y).element_bytes == 1,
                                      1 / g.y_scale};
  const double linear = s.scale * s.product;
  double y = (activate(g.act, linear + s.bias) + s.residual) * rules.y_factor;
  double error = arithmetic_error(rules, {s.scale, s.magnitude, s.rounding, linear, s.bias, s.residual, y});
  if (element == Element::i8 && y != y) y = error = 0;  // what a NaN is stored as
  y = saturated(rules.store, y);
  return {y, stored_error(rules, error, y)};
}

}  // namespace tilewright
