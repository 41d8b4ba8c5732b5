// SPDX-License-Identifier: Apache-2.0
// conv's wgmma: which convolutions it serves, how it is launched and what it costs.
#include <fmt/format.h>

#include <cstddef>
#include <optional>

#include "templates/common/checks.h"
#include "templates/common/specialize.h"
#include "templates/operations/conv/cuda/wgmma/layer.h"
#include "templates/operations/gemm/cuda/family.h"
#include "templates/operations/gemm/cuda/wgmma/instruction.h"

namespace tilewright::conv {
namespace {

using Knobs = WgmmaKnobs;
using gemm::kTileCost;

constexpr int kMostStep = 8;
// Blocks that are launched for as many pixels as a box has: what boxes have beyond the axes' ends are blocks as well.
constexpr std::uint32_t kBlocksOfBox = 8;
constexpr double kQuantize = 20, kUnfold = 25;  // instructions to fake quantize an element, and to find and turn it

bool lacks_workspace(const WgmmaLayer& l) {
  return (l.writes_x || l.writes_w) && static_cast<double>(l.gemm.workspace) < written_bytes(l);
}

class Wgmma final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return "wgmma"; }
  std::string_view title() const override {
    return "Hopper's warpgroup matrix units: tensor copies of boxes of pixels, persistent blocks";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = in_panels(*c); !why.empty()) return why;
    if (!arch.wgmma) return fmt::format("{} has no warpgroup matrix instructions", arch.name);
    if (c->groups != 1) return fmt::format("groups must be 1 (got {})", c->groups);
    if (pointwise_wgmma().why_not(problem, arch).empty()) return "a pointwise convolution is served by pointwise_wgmma";
    if (std::string why = scaled_pixels(*c); !why.empty()) return why;
    const std::optional<WgmmaLayer> l = layer_of(*c);
    if (!l)
      return fmt::format(
          "w={} with x={} is not supported: x must have elements that wgmma has, and w the same or tiles for them",
          c->w.name(), c->x.name());
    if (l->product.tiles && l->unfolds) return "pack=tiles is not supported with order=ctrs of quant_act";
    if (lacks_workspace(*l))
      return fmt::format("workspace={} is too small: {} written there first, {:.0f} bytes", c->workspace,
                         !l->writes_x   ? "w is"
                         : !l->writes_w ? "x is"
                                        : "x and w are",
                         written_bytes(*l));
    for (int a = 0; a < kMostAxes; ++a) {
      const tw::conv::Axis& axis = l->axis(a);
      if (axis.stride > kMostStep) return fmt::format("stride must be at most {} (got {})", kMostStep, axis.stride);
      if (a < 2 && axis.pad != tw::conv::Pad::zero) return "pad_mode other than zero is for the first of three axes";
    }
    if (c->cache && c->in.rank < kMostAxes && !l->unfolds) return "a cache is for the first of three axes";
    if (l->gemm.m > kMaxExtent) return fmt::format("y must have at most {} pixels (got {})", kMaxExtent, l->gemm.m);
    if (std::string why = gemm::no_sums(l->gemm); !why.empty()) return why;
    const int channels = (l->product.promotes() ? 2 : 1) * l->product.panel_k();
    if (l->product.tiles && l->shape.c % channels != 0)
      return fmt::format("c must be a multiple of {} with pack=tiles (got {})", channels, l->shape.c);
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const WgmmaLayer l = *layer_of(*problem.as<Conv>());
    std::vector<Candidate> out;
    for (const Knobs& k : wgmma_boxes(l, arch)) out.push_back(wgmma_table().candidate(name(), k));
    return out;
  }
  // What candidates() leaves out as slower is legal: it may have been chosen for other sizes.
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (candidate.family != name()) return fmt::format("family is '{}', not '{}'", candidate.family, name());
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    const WgmmaLayer l = *layer_of(*problem.as<Conv>());
    return wgmma_offers(l, arch, candidate) ? std::string()
                                            : fmt::format("'{}' has no box for its pixels", candidate.text());
  }

  Source source(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    const WgmmaLayer l = *layer_of(*problem.as<Conv>());
    const Knobs k = l.complete(wgmma_table().knobs(candidate));
    const Gemm g = as_gemm(*problem.as<Conv>());
    Specialization s;
    s.name = "conv/wgmma";
    s.includes = gemm::includes_for(g, "operations/conv/cuda/wgmma/kernel.cuh");
    s.prelude = wgmma_table().text(k) + gemm::wgmma_text(l.kind(k), k.product().block_m);
    s.plan_type = fmt::format("tw::conv::Wgmma<{}, {}, {}, {}, kKnobs>", format_type(g.x), format_type(g.w),
                              l.as ? format_type(*l.as) + "::Element" : "void", gemm::epilogue_type(g));
    if (l.as) s.includes.push_back(format_file(*l.as));
    s.space = "tw::conv";
    s.plan = launch_plan(l, k);
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    const WgmmaLayer l = *layer_of(*problem.as<Conv>());
    const Knobs k = l.complete(wgmma_table().knobs(candidate));
    const tw::gemm::WgmmaPlan plan = l.plan(k);
    const tw::gemm::WgmmaKnobs p = k.product();
    const double filters = k.swapped ? k.features : p.block_n();
    Traits t;
    t.tile_rows = k.pixels(), t.tile_cols = static_cast<int>(filters), t.threads = plan.threads;
    t.shared_bytes = plan.shared_bytes;
    t.registers = plan.reallocates_registers ? 65536 / plan.threads : plan.accumulators + 56;
    t.blocks = l.tiles(k);
    t.unique_bytes = problem.min_bytes();
    // The time of a tile is what cost_of_tile() says, as products that the matrix units would make meanwhile.
    const double results = cost_of_tile(l, k) - kTileCost;
    t.mma_ops = 2 * t.blocks * results * static_cast<double>(l.gemm.k);
    t.mma_rate = k.element_bytes == 1 ? 2.75 : k.element_bytes == 2 ? 1.5 : 0.75;
    t.mma_in_flight = 32;
    t.global_bytes = t.unique_bytes + (l.writes_x || l.writes_w ? 2 * written_bytes(l) : 0);
    const tw::conv::MapAxis& images = l.shape.written_x_map[3];
    if (k.quant_block)
      t.alu_ops = (kQuantize + (k.unfolds ? kUnfold : 0)) * static_cast<double>(images.extent) *
                  static_cast<double>(images.step);
    t.bytes_in_flight = static_cast<double>(k.stages - 1) * plan.stage_bytes / plan.threads;
    t.later_wave_cost = 0.6;
    return t;
  }

 private:
  static LaunchPlan launch_plan(const WgmmaLayer& l, const Knobs& k) {
    const tw::gemm::WgmmaKnobs product = k.product();
    const tw::gemm::WgmmaPlan plan = l.plan(k);
    LaunchPlan p;
    p.x = {kBlocksOfBox * static_cast<std::uint32_t>(k.cluster), static_cast<std::uint32_t>(k.pixels()),
           static_cast<std::uint32_t>(k.features)};
    p.threads = static_cast<std::uint32_t>(plan.threads);
    p.cluster = static_cast<std::uint32_t>(k.cluster);
    p.shared_bytes = static_cast<std::uint32_t>(plan.shared_bytes);
    p.persistent = 1;
    p.overlap = true;
    const bool has_filters = !k.tiles, has_cached = l.shape.cache && !l.writes_x;
    p.map_count = 1u + has_filters + has_cached;
    TensorMapPlan map;
    // The problem's, where they are whole pieces and need not be written.
    map.inner = static_cast<std::uint64_t>(tw::conv::written_channels(l.shape.c, k.element_bytes));
    map.element_bytes = static_cast<std::uint32_t>(k.element_bytes);
    map.box_inner = static_cast<std::uint32_t>(k.panel_k());
    map.swizzle = tw::gemm::kPanelBytes;
    TensorMapPlan& pixels = p.maps[0] = map;
    pixels.pointer = offsetof(ConvArgs, x), pixels.axes = 4, pixels.axes_at = offsetof(tw::conv::Shape, x_map);
    if (l.writes_x) {
      pixels.pointer = offsetof(ConvArgs, workspace);
      pixels.behind = static_cast<std::uint64_t>(tw::conv::written_x_at(l.filter_bytes()));
      pixels.axes_at = offsetof(tw::conv::Shape, written_x_map);
    }
    for (int a = 0; a < 4; ++a) {
      const auto at = static_cast<std::size_t>(a);
      pixels.box_axes[at] = static_cast<std::uint32_t>(k.part(a));
      pixels.steps[at] = a < kMostAxes ? static_cast<std::uint32_t>(l.axis(a).stride) : 1;
    }
    if (has_filters) {
      TensorMapPlan& filters = p.maps[1] = map;
      filters.axes = 2;
      if (l.writes_w)
        filters.pointer = offsetof(ConvArgs, workspace), filters.behind = tw::gemm::kScheduleBytes,
        filters.axes_at = offsetof(tw::conv::Shape, written_w_map);
      else
        filters.pointer = offsetof(ConvArgs, w), filters.axes_at = offsetof(tw::conv::Shape, w_map);
      filters.box_axes = {static_cast<std::uint32_t>(k.swapped ? k.features / k.cluster : product.block_n()), 1};
      filters.steps = {1, 1};
    }
    if (has_cached) {
      TensorMapPlan& cached = p.maps[1 + has_filters] = pixels;
      cached.pointer = offsetof(ConvArgs, cache), cached.axes_at = offsetof(tw::conv::Shape, cache_map);
    }
    return p;
  }
};

}  // namespace

const Family& wgmma() {
  static const Wgmma family;
  return family;
}

std::int64_t workspace_of_wgmma(const Conv& conv) {
  const std::optional<WgmmaLayer> l = layer_of(conv);
  if (!l || !lacks_workspace(*l) || written_bytes(*l) > static_cast<double>(kMaxBytes)) return 0;
  return static_cast<std::int64_t>(written_bytes(*l));
}

}  // namespace tilewright::conv
