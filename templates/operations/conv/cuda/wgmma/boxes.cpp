// SPDX-License-Identifier: Apache-2.0
// Which boxes of pixels conv's wgmma takes for a layer, which are worth a try, and what a tile costs.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "templates/operations/conv/cuda/wgmma/layer.h"
#include "templates/operations/gemm/cuda/wgmma/instruction.h"

namespace tilewright::conv {
namespace {

using Knobs = WgmmaKnobs;
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

constexpr int kMostStages = 8, kMostBox = 256;
// Of a tile whose pixels are the instruction's columns; and where weights are unpacked.
constexpr int kLeastPixels = tw::gemm::kFewTokens + 1, kLeastUnpacked = 16;
// Bytes that reach a multiprocessor's shared memory from L2 in the time of a product of 64 x 8 x 32 bytes of k, four
// cycles: some 40 a cycle.
constexpr double kBytesOfProduct = 160;
// Such products in which a weight is unpacked: three instructions, of 128 a cycle.
constexpr double kUnpackingOfProduct = 3.0 / 128 / 4;

// Collects legal knobs with what they cost, the cheapest boxes of each way to multiply.
class Collector {
 public:
  Collector(const WgmmaLayer& layer, const Arch& arch) : l_(layer), arch_(arch) {}

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
    if (only_ && !wgmma_table().names(*only_, k)) return;
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
    return wgmma_table().names(*only_, k);
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
  // That do not spill (operations/gemm/cuda/wgmma/tiles.cpp).
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

  const WgmmaLayer& l_;
  const Arch& arch_;
  const Candidate* only_ = nullptr;  // of which nothing else is collected
  std::vector<Way> ways_;
};

}  // namespace

const KnobTable<WgmmaKnobs>& wgmma_table() {
  static const KnobTable<Knobs> table{"tw::conv::WgmmaKnobs", kKnobs, kDerived};
  return table;
}

std::vector<WgmmaKnobs> wgmma_boxes(const WgmmaLayer& l, const Arch& arch) { return Collector(l, arch).all(); }

bool wgmma_offers(const WgmmaLayer& l, const Arch& arch, const Candidate& candidate) {
  return Collector(l, arch).offers(candidate);
}

double cost_of_tile(const WgmmaLayer& l, const Knobs& k) {
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

}  // namespace tilewright::conv
