// SPDX-License-Identifier: Apache-2.0
// conv's wgmma: which convolutions it serves, which boxes of pixels are worth a try, and what they cost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <tuple>

#include "templates/checks.h"
#include "templates/conv/conv.h"
#include "templates/conv/wgmma/plan.cuh"
#include "templates/conv/wgmma/prologue.cuh"
#include "templates/fast_path.h"
#include "templates/gemm/family.h"
#include "templates/gemm/wgmma/instruction.h"
#include "templates/gemm/wgmma/operands.h"
#include "templates/knobs.h"
#include "templates/specialize.h"

namespace tilewright::conv {
namespace {

using Knobs = tw::conv::WgmmaKnobs;
using gemm::ceil_div;
using gemm::kTileCost;
using tw::conv::kHaloWidth;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::box_w>("box_w"),
                                  knob<&Knobs::box_h>("box_h"),
                                  knob<&Knobs::box_d>("box_d"),
                                  knob<&Knobs::box_n>("box_n"),
                                  knob<&Knobs::features>("features"),
                                  knob<&Knobs::strips>("strips"),
                                  knob<&Knobs::warpgroups_n>("warpgroups_n"),
                                  knob<&Knobs::stages>("stages"),
                                  knob<&Knobs::cluster>("cluster"),
                                  option<&Knobs::swapped>("swapped"),
                                  option<&Knobs::halo>("halo"),
                                  option<&Knobs::two_panels>("two_panels"),
                                  option<&Knobs::resident>("resident")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::kernel_h>("kernel_h"),
                                    knob<&Knobs::dilation_h>("dilation_h"),
                                    knob<&Knobs::channels>("channels"),
                                    knob<&Knobs::element_bytes>("element_bytes"),
                                    knob<&Knobs::channels_first>("channels_first"),
                                    knob<&Knobs::w_channels_first>("w_channels_first"),
                                    knob<&Knobs::tiles>("tiles"),
                                    knob<&Knobs::writes_x>("writes_x"),
                                    knob<&Knobs::writes_w>("writes_w"),
                                    knob<&Knobs::quant_block>("quant_block"),
                                    knob<&Knobs::unfolds>("unfolds"),
                                    knob<&Knobs::skips>("skips"),
                                    knob<&Knobs::fast_accumulation>("fast_accumulation"),
                                    knob<&Knobs::async_store>("async_store")};
const KnobTable<Knobs> kTable{"tw::conv::WgmmaKnobs", kKnobs, kDerived};

constexpr int kMostStages = 8, kMostBox = 256, kMostStep = 8;
// Of a tile whose pixels are the instruction's columns; and where weights are unpacked.
constexpr int kLeastPixels = tw::gemm::kFewTokens + 1, kLeastUnpacked = 16;
// Blocks that are launched for as many pixels as a box has: what boxes have beyond the axes' ends are blocks as well.
constexpr std::uint32_t kBlocksOfBox = 8;
constexpr double kQuantize = 20, kUnfold = 25;  // instructions to fake quantize an element, and to find and turn it
// Bytes that reach a multiprocessor's shared memory from L2 in the time of a product of 64 x 8 x 32 bytes of k, four
// cycles: some 40 a cycle.
constexpr double kBytesOfProduct = 160;
// Such products in which a weight is unpacked: three instructions, of 128 a cycle.
constexpr double kUnpackingOfProduct = 3.0 / 128 / 4;

int rounded_up(std::int64_t v, int step) { return static_cast<int>(ceil_div(v, step) * step); }

// What the candidates depend on.
struct Layer {
  Gemm gemm;
  tw::conv::Shape shape;  // of what is multiplied
  gemm::WgmmaProblem product;
  tw::WgmmaKind filters_first, pixels_first;  // the instruction, by its 64-row side
  bool writes_x, writes_w;                    // to the workspace first
  bool unfolds;                               // x is written unfolded
  std::optional<Format> as;                   // the elements as which both are multiplied; nothing: as they are

  const tw::conv::Axis& axis(int i) const { return shape.axes[2 - i]; }  // width, height, depth
  // Frames are read one by one where they come from two tensors or are padded by others than zeros.
  bool one_frame() const { return (shape.cache > 0 && !writes_x) || axis(2).pad != tw::conv::Pad::zero; }
  tw::WgmmaKind kind(const Knobs& k) const { return k.swapped ? pixels_first : filters_first; }

  Knobs complete(Knobs k) const {
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
  tw::gemm::WgmmaPlan plan(const Knobs& k) const { return wgmma_plan(complete(k).product(), product.operands); }
  // Shared memory in front of the barriers that writing takes.
  int room_to_write(const Knobs& k) const { return writing_room(complete(k), plan(k).threads); }
  std::int64_t filter_bytes() const {  // of w as it is written
    return writes_w ? tw::conv::written_filter_bytes(shape.k, shape.taps(), shape.c, product.element_bytes) : 0;
  }
  double tiles(const Knobs& k) const {
    return static_cast<double>(ceil_div(axis(0).out, k.box_w) * ceil_div(axis(1).out, k.box_h) *
                               ceil_div(axis(2).out, k.box_d) * ceil_div(shape.n, k.box_n)) *
           static_cast<double>(ceil_div(shape.k, k.swapped ? k.features : k.product().block_n()));
  }
};

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

std::optional<Layer> layer_of(const Conv& c) {
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
  return Layer{g,
               shape,
               *p,
               one_kind ? p->kind : gemm::wgmma_kind(g.w, g.x),
               one_kind ? p->kind : gemm::wgmma_kind(g.x, g.w),
               rounds || shape.quant_block > 0 || shape.x_channels_first || !pieces,
               as || unfolds || shape.w_channels_first || (!pieces && !packed),
               unfolds,
               as};
}

// Bytes of the workspace that x and w take where they are written there.
double written_bytes(const Layer& l) {
  const tw::conv::MapAxis& images = l.shape.written_x_map[3];
  const double x = static_cast<double>(images.extent) * static_cast<double>(images.step) * l.product.element_bytes;
  return static_cast<double>(tw::conv::written_x_at(l.filter_bytes())) + (l.writes_x ? x : 0);
}

// Time of a tile's products and copies, in results of a multiply with all of k: what boxes are compared by.
double cost_of_tile(const Layer& l, const Knobs& k) {
  const Knobs c = l.complete(k);
  const double filters = k.swapped ? k.features : c.product().block_n(), pixels = k.pixels(), taps = c.taps();
  const double padded = c.panels() * c.panel_k(), used = rounded_up(c.channels, 32 / c.element_bytes);
  const double products = pixels * filters * taps * used / padded * c.panel_k() * c.element_bytes / (64.0 * 8 * 32);
  const double shared = k.cluster;  // blocks among which one operand is divided
  // Of a panel of w: its rows; or of a tile, the codes.
  const double w_row = c.tiles ? 8.0 * l.product.operands.code_words : 128.0;
  const double bytes = 128 * (pixels + 8.0 * c.halo_rows()) / (k.swapped ? 1 : shared) +
                       (k.resident ? 0 : w_row * taps * filters / (k.swapped ? shared : 1));
  // A narrow instruction reads more of its operands than the units multiply meanwhile.
  const double narrow = std::max(1.0, 0.75 + 24.0 / (k.swapped ? k.features : pixels));
  const double unpacking = c.tiles ? filters * c.panel_k() * kUnpackingOfProduct : 0;
  const double stage = std::max({products * narrow, bytes / kBytesOfProduct, unpacking});
  return stage / (products / used * padded) * pixels * filters + kTileCost;
}

// Collects legal knobs with what they cost, the cheapest boxes of each way to multiply.
class Collector {
 public:
  Collector(const Layer& layer, const Arch& arch) : l_(layer), arch_(arch) {}

  std::vector<Knobs> all() {
    if (l_.product.tiles) return with_tiles();
    // Pixels as the 64-row side: output channels in tiles of about equal width.
    const int step = std::max(8, 32 / static_cast<int>(l_.product.operands.y_bytes));
    for (const auto& [strips, warpgroups] : {std::pair{2, 2}, {1, 2}, {1, 3}, {1, 1}})
      for (int tiles = 1, last = 0, tried = 0; tried < 2 && tiles <= l_.shape.k; ++tiles) {
        Knobs k;
        k.swapped = true, k.strips = strips, k.warpgroups_n = warpgroups;
        k.features = rounded_up(ceil_div(l_.shape.k, tiles), step);
        while (k.features < 256 && !gemm::wgmma_legal(l_.kind(k), k.features)) k.features += step;
        if (k.features > 256 || k.features == last) continue;
        last = k.features, ++tried;
        add_boxes(k, 64 * strips * warpgroups);
      }
    // Output channels as the 64-row side.
    for (const auto& [strips, warpgroups] : {std::pair{2, 2}, {1, 2}, {1, 3}, {1, 1}}) {
      Knobs k;
      k.strips = strips, k.warpgroups_n = warpgroups, k.features = 64 * strips * warpgroups;
      if (k.features >= 2 * rounded_up(l_.shape.k, 64)) continue;
      for (int pixels = 256; pixels >= kLeastPixels; pixels -= 8) add_boxes(k, pixels);
    }
    return best();
  }

  // Whether these are legal knobs, among the cheapest or not.
  bool offers(const Candidate& candidate) {
    only_ = &candidate;
    return !all().empty();
  }

 private:
  // Weights that are unpacked are the 64-row side.
  std::vector<Knobs> with_tiles() {
    for (const bool two_panels : {false, true})
      for (const auto& [strips, warpgroups] : {std::pair{1, 2}, {2, 2}, {1, 1}, {2, 1}, {1, 3}}) {
        Knobs k;
        k.two_panels = two_panels, k.strips = strips, k.warpgroups_n = warpgroups,
        k.features = 64 * strips * warpgroups;
        if (k.features >= 2 * rounded_up(l_.shape.k, 64)) continue;
        for (int pixels = 256; pixels >= kLeastUnpacked; pixels -= 8) add_boxes(k, pixels);
      }
    return best();
  }

  struct Way {
    Knobs knobs;
    double cost;
  };

  void add_boxes(Knobs k, int pixels) {
    if (!l_.product.tiles && l_.axis(1).kernel > 1 && l_.axis(1).stride == 1 && pixels % kHaloWidth == 0 &&
        !l_.product.promotes()) {
      Knobs h = k;
      h.halo = true, h.box_w = kHaloWidth, h.box_h = pixels / kHaloWidth;
      add_clusters(h);
    }
    // Wide boxes first: of equal ones they read and write longer runs.
    for (k.box_w = std::min(pixels, kMostBox); k.box_w > 0; --k.box_w) {
      if (pixels % k.box_w || too_long(0, k.box_w)) continue;
      for (k.box_h = pixels / k.box_w; k.box_h > 0; --k.box_h) {
        const int rest = pixels / k.box_w / k.box_h;
        if (pixels / k.box_w % k.box_h || too_long(1, k.box_h)) continue;
        for (k.box_d = 1; k.box_d <= (l_.one_frame() ? 1 : rest); ++k.box_d) {
          if (rest % k.box_d || too_long(2, k.box_d)) continue;
          k.box_n = rest / k.box_d;
          if (k.box_n > 1 && k.box_n >= 2 * l_.shape.n) continue;
          add_clusters(k);
        }
      }
    }
  }
  // Boxes of twice an axis' extent are another's.
  bool too_long(int axis, int box) const { return box > 1 && box >= 2 * l_.axis(axis).out; }

  void add_clusters(Knobs k) {
    for (k.cluster = 1; k.cluster <= 2; ++k.cluster) {
      if (!wanted(k) || !legal(k)) continue;
      Knobs deep = k;
      for (deep.stages = kMostStages; deep.stages > 1; --deep.stages)
        if (l_.plan(deep).shared_bytes <= arch_.shared_per_block) break;
      add(deep);
      if (!k.halo || !k.swapped || k.cluster > 1 || k.features < l_.shape.k) continue;
      deep.resident = true, deep.stages = static_cast<int>(l_.shape.taps()) * l_.complete(k).panels();
      if (l_.plan(deep).shared_bytes <= arch_.shared_per_block) add(deep);
    }
  }
  void add(const Knobs& k) {
    if (k.stages < 2 || l_.plan(k).barriers_at < l_.room_to_write(k)) return;
    if (only_ && !kTable.names(*only_, k)) return;
    const double tiles = l_.tiles(k), waves = std::ceil(tiles / arch_.typical_sms);
    ways_.push_back({k, waves * cost_of_tile(l_, k)});
  }
  // Cheap, and exact but for the stages and whether they are resident, which follow from the others.
  bool wanted(Knobs k) const {
    if (!only_) return true;
    for (const auto& [knob, value] : only_->knobs) {
      if (knob == "stages") k.stages = static_cast<int>(value);
      if (knob == "resident") k.resident = value != 0;
    }
    return kTable.names(*only_, k);
  }
  bool legal(const Knobs& k) const {
    const Knobs c = l_.complete(k);
    const tw::gemm::WgmmaKnobs p = c.product();
    // Sixteen bytes of y lie along a feature.
    if (c.channels_first && !k.swapped &&
        (l_.product.promotes() || p.block_m % (32 / l_.product.operands.y_bytes) != 0))
      return false;
    if (!gemm::wgmma_legal(l_.kind(k), p.block_m) || l_.plan(k).accumulators > most_accumulators(k)) return false;
    if (c.tiles && !tiles_fit(c)) return false;
    const int steps[] = {l_.axis(0).stride, l_.axis(1).stride, l_.axis(2).stride, 1};
    for (int a = 0; a < 4; ++a)
      if ((c.box(a) - 1) * steps[a] >= kMostBox) return false;
    if (k.cluster == 1) return true;
    if (p.block_m % (8 * k.cluster) != 0) return false;
    if (k.swapped) return l_.tiles(k) >= k.cluster;
    if (l_.shape.k <= p.block_n() || c.box(c.split_axis()) % k.cluster != 0) return false;
    return c.part(0) * c.part(1) * c.part(2) * c.part(3) % 8 == 0;
  }
  // Whether a stage is panels of one tap, whole chunks of scales or a part of one, and as the kernel unpacks it.
  bool tiles_fit(const Knobs& k) const {
    const TileInfo& tiles = *l_.product.tiles;
    const int block_k = k.stage_panels() * l_.product.panel_k();
    if (k.panels() % k.stage_panels() != 0 || (l_.product.promotes() && (!k.two_panels || k.strips > 1))) return false;
    return !tiles.scale_bytes || block_k % tiles.scale_k == 0 || tiles.scale_k % block_k == 0;
  }
  // That do not spill (gemm/wgmma/tiles.cpp).
  int most_accumulators(const Knobs& k) const {
    if (l_.product.tiles)
      return k.warpgroups_n == 3 ? 64 : !l_.product.promotes() ? 128 : l_.product.kind == tw::WgmmaKind::s8 ? 160 : 176;
    return k.warpgroups_n == 3 ? 88 : l_.product.promotes() || k.swapped ? 192 : 176;
  }

  // Which sides the operands take, and whether boxes have halos, the costs tell least about: the cheapest of each.
  std::vector<Knobs> best() {
    const std::size_t of_each = l_.product.tiles ? 24 : 8;
    std::stable_sort(ways_.begin(), ways_.end(), [](const Way& a, const Way& b) { return a.cost < b.cost; });
    std::vector<Knobs> out;
    std::size_t of[4] = {};
    std::vector<std::tuple<int, int, int, int, bool, bool, bool, bool>> seen;  // of two boxes of one way, the cheaper
    for (const Way& w : ways_) {
      const Knobs& k = w.knobs;
      const std::tuple<int, int, int, int, bool, bool, bool, bool> key{
          k.product().block_m, k.strips, k.warpgroups_n, k.cluster, k.swapped, k.halo, k.two_panels, k.resident};
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      if (of[2 * k.swapped + k.halo]++ < of_each) out.push_back(k);
    }
    return out;
  }

  const Layer& l_;
  const Arch& arch_;
  const Candidate* only_ = nullptr;  // of which nothing else is collected
  std::vector<Way> ways_;
};

bool lacks_workspace(const Layer& l) {
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
    if (!c) return "not a conv";
    if (!arch.wgmma) return fmt::format("{} has no warpgroup matrix instructions", arch.name);
    if (c->groups != 1) return fmt::format("groups = {}: channels of one group are needed", c->groups);
    if (pointwise_wgmma().why_not(problem, arch).empty())
      return "a pointwise convolution, which pointwise_wgmma serves";
    const std::optional<Layer> l = layer_of(*c);
    if (!l)
      return fmt::format("w={} with x={}: elements that wgmma has are needed, and w of them or with tiles for them",
                         c->w.name(), c->x.name());
    if (l->product.tiles && l->unfolds) return "pack = tiles: order=ctrs of quant_act takes w that is not packed";
    if (lacks_workspace(*l))
      return fmt::format("workspace = {}: {} written there first, {:.0f} bytes", c->workspace,
                         !l->writes_x   ? "w is"
                         : !l->writes_w ? "x is"
                                        : "x and w are",
                         written_bytes(*l));
    for (int a = 0; a < kMostAxes; ++a) {
      const tw::conv::Axis& axis = l->axis(a);
      if (axis.stride > kMostStep) return fmt::format("a stride of {}: at most {}", axis.stride, kMostStep);
      if (a < 2 && axis.pad != tw::conv::Pad::zero) return "pad_mode other than zero is for the first of three axes";
    }
    if (c->cache && c->in.rank < kMostAxes && !l->unfolds) return "a cache is for the first of three axes";
    if (l->gemm.m > kMaxExtent) return fmt::format("{} output pixels: at most {}", l->gemm.m, kMaxExtent);
    if (std::string why = gemm::no_sums(l->gemm); !why.empty()) return why;
    const int channels = (l->product.promotes() ? 2 : 1) * l->product.panel_k();
    if (l->product.tiles && l->shape.c % channels != 0)
      return fmt::format("c = {}: a multiple of {} is needed, where w comes as tiles", l->shape.c, channels);
    return {};
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    const Layer l = *layer_of(*problem.as<Conv>());
    std::vector<Candidate> out;
    for (const Knobs& k : Collector(l, arch).all()) out.push_back(kTable.candidate(name(), k));
    return out;
  }
  // What candidates() leaves out as slower is legal: it may have been chosen for other sizes.
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (candidate.family != name()) return fmt::format("family is '{}', not '{}'", candidate.family, name());
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    const Layer l = *layer_of(*problem.as<Conv>());
    return Collector(l, arch).offers(candidate) ? std::string()
                                                : fmt::format("'{}' has no box for its pixels", candidate.text());
  }

  Source source(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    const Layer l = *layer_of(*problem.as<Conv>());
    const Knobs k = l.complete(kTable.knobs(candidate));
    const Gemm g = as_gemm(*problem.as<Conv>());
    Specialization s;
    s.name = "conv/wgmma";
    s.includes = gemm::includes_for(g, "conv/wgmma/kernel.cuh");
    s.prelude = kTable.text(k) + gemm::wgmma_text(l.kind(k), k.product().block_m);
    s.plan_type = fmt::format("tw::conv::Wgmma<{}, {}, {}, {}, kKnobs>", gemm::format_type(g.x), gemm::format_type(g.w),
                              l.as ? gemm::format_type(*l.as) + "::Element" : "void", gemm::epilogue_type(g));
    if (l.as) s.includes.push_back(gemm::format_file(*l.as));
    s.space = "tw::conv";
    s.plan = launch_plan(l, k);
    return specialize(s);
  }

  Traits traits(const Problem& problem, const Arch&, const Candidate& candidate) const override {
    const Layer l = *layer_of(*problem.as<Conv>());
    const Knobs k = l.complete(kTable.knobs(candidate));
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
  static LaunchPlan launch_plan(const Layer& l, const Knobs& k) {
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
  const std::optional<Layer> l = layer_of(conv);
  if (!l || !lacks_workspace(*l) || written_bytes(*l) > static_cast<double>(kMaxBytes)) return 0;
  return static_cast<std::int64_t>(written_bytes(*l));
}

}  // namespace tilewright::conv
