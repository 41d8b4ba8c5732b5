// SPDX-License-Identifier: Apache-2.0
// What conv's wgmma multiplies of a problem: as which elements, and what a launch writes to the workspace first.
#include "templates/operations/conv/cuda/wgmma/layer.h"

#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {

WgmmaKnobs WgmmaLayer::complete(WgmmaKnobs k) const {
  k.kernel_h = axis(1).kernel, k.dilation_h = axis(1).dilation;
  k.channels_first = shape.y_channels_first, k.w_channels_first = shape.w_channels_first, k.channels = shape.c,
  k.element_bytes = product.element_bytes, k.writes_x = writes_x, k.writes_w = writes_w,
  k.tiles = product.tiles != nullptr, k.quant_block = shape.quant_block, k.unfolds = unfolds;
  const tw::conv::Axis& depth = axis(2);
  k.skips = depth.kernel > 1 && depth.pad == tw::conv::Pad::zero &&
            (depth.lo > 0 || (depth.out - 1) * std::int64_t{depth.stride} - depth.lo +
                                     (depth.kernel - 1) * std::int64_t{depth.dilation} >=
                                 depth.in);
  const gemm::WgmmaKnobs of = product.complete(k.product());
  k.fast_accumulation = of.fast_accumulation, k.async_store = of.async_store && !k.channels_first;
  return k;
}

double WgmmaLayer::tiles(const WgmmaKnobs& k) const {
  return static_cast<double>(gemm::ceil_div(axis(0).out, k.box_w) * gemm::ceil_div(axis(1).out, k.box_h) *
                             gemm::ceil_div(axis(2).out, k.box_d) * gemm::ceil_div(shape.n, k.box_n)) *
         static_cast<double>(gemm::ceil_div(shape.k, k.swapped ? k.features : k.product().block_n()));
}

namespace {

// Floats, which the units read as TF32.
std::optional<gemm::WgmmaProblem> tf32_problem(const Gemm& g) {
  if (!single_precision(g.x, g.w)) return {};
  gemm::WgmmaProblem p{};
  p.kind = tw::WgmmaKind::tf32, p.element_bytes = 4;
  p.operands.panel_k = tw::gemm::kPanelBytes / p.element_bytes, p.operands.x_row_bytes = tw::gemm::kPanelBytes;
  p.operands.y_bytes = fast_path(g.y).element_bytes, p.operands.c_bytes = g.c ? fast_path(*g.c).element_bytes : 0;
  return p;
}

// The plain format of elements.
Format format_of(Element e) {
  switch (e) {
    case Element::f16: return Format::parse("f16");
    case Element::e4m3: return Format::parse("e4m3");
    case Element::i8: return Format::parse("int8");
    default: return Format::parse("bf16");
  }
}

}  // namespace

std::optional<WgmmaLayer> layer_of(const Conv& c) {
  Gemm g = as_gemm(c);
  const tw::conv::Shape source = shape_of(c);
  const bool unfolds = source.quantizes_columns();
  const tw::conv::Shape shape = unfolds ? source.unfolded() : source;
  std::optional<gemm::WgmmaProblem> p = tf32_problem(g);
  std::optional<Format> as;
  if (p && c.accumulation == Accumulation::fast) as = format_of(Element::bf16), p.reset();
  const bool packed = c.packing != Packing::none;
  if (!p && !packed && written_rounding(g.w, g.x)) as = format_of(fast_path(g.x).element);
  if (as) g.x = g.w = *as;
  if (!p && gemm::wgmma_kind(g.x)) p = gemm::wgmma_problem(g, tw::gemm::kFewTokens + 1, false);
  if (!p || p->widens || p->codes || p->block_scales) return {};
  const bool pieces = shape.c * p->element_bytes % 16 == 0, rounds = as && fast_path(c.x).element == Element::f32,
             one_kind = packed || p->kind == tw::WgmmaKind::tf32;
  return WgmmaLayer{g,
                    shape,
                    *p,
                    one_kind ? p->kind : gemm::wgmma_kind(g.w, g.x),
                    one_kind ? p->kind : gemm::wgmma_kind(g.x, g.w),
                    rounds || shape.quant_block > 0 || shape.x_channels_first || !pieces,
                    as || unfolds || shape.w_channels_first || (!pieces && !packed),
                    unfolds,
                    as};
}

double written_bytes(const WgmmaLayer& l) {
  const tw::conv::MapAxis& images = l.shape.written_x_map[3];
  const double x = static_cast<double>(images.extent) * static_cast<double>(images.step) * l.product.element_bytes;
  return static_cast<double>(tw::conv::written_x_at(l.filter_bytes())) + (l.writes_x ? x : 0);
}

}  // namespace tilewright::conv
