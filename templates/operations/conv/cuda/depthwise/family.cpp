// SPDX-License-Identifier: Apache-2.0
// conv's depthwise: which convolutions it serves, which tiles are worth a try, and what they cost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "templates/common/checks.h"
#include "templates/common/knobs.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cuda/depthwise/plan.cuh"
#include "templates/operations/conv/cuda/tiled_family.h"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {
namespace {

using Knobs = tw::conv::DepthwiseKnobs;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::tile_h>("tile_h"), knob<&Knobs::tile_w>("tile_w"),
                                  knob<&Knobs::images>("images"), knob<&Knobs::warps>("warps")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::kernel_h>("kernel_h"), knob<&Knobs::kernel_w>("kernel_w"),
                                    knob<&Knobs::dilation_h>("dilation_h"), knob<&Knobs::dilation_w>("dilation_w")};
const KnobTable<Knobs> kTable{"tw::conv::DepthwiseKnobs", kKnobs, kDerived};

constexpr int kMostKernelRows = 16;  // whose matrices and inputs a thread holds, four registers each
constexpr int kMostRows = 64;        // of output, of a block
constexpr int kMostParts = 8;        // of an axis: smaller tiles see too much beside them

struct Layer {
  using Knobs = conv::Knobs;
  static constexpr const char* kNoTile = "no tile fits into shared memory";
  static constexpr bool kPersistent = true;

  Gemm gemm;
  tw::conv::Shape shape;
  const Arch& arch;

  Layer(const Conv& c, const Arch& target) : gemm(as_gemm(c)), shape(shape_of(c)), arch(target) {}

  std::int64_t images() const { return shape.n * shape.axes[0].out; }
  Knobs complete(Knobs k) const {
    const tw::conv::Axis &height = shape.axes[1], &width = shape.axes[2];
    k.kernel_h = height.kernel, k.kernel_w = width.kernel;
    k.dilation_h = k.kernel_h > 1 ? height.dilation : 1, k.dilation_w = k.kernel_w > 1 ? width.dilation : 1;
    return k;
  }
  static int registers(const Knobs& k) { return 4 * k.kernel_h + 44; }
  int resident(const Knobs& k) const {
    return std::clamp(std::min({65536 / (k.threads() * ((registers(k) + 15) / 8 * 8)),
                                arch.shared_per_sm / (k.shared_bytes() + 1024), arch.threads_per_sm / k.threads()}),
                      1, 16);
  }
  double tiles(const Knobs& k) const {
    const auto parts = [](double all, double each) { return std::ceil(all / each); };
    return parts(static_cast<double>(images()), k.images) * parts(shape.axes[1].out, k.tile_h) *
           parts(shape.axes[2].out, k.tile_w) * parts(shape.c, Knobs::kChannels);
  }
  bool legal(const Knobs& k) const {
    return k.shared_bytes() <= arch.shared_per_block && tiles(k) <= static_cast<double>(gemm::kMostBlocks);
  }

  static std::string refusal(const Conv& c, const Arch& arch);
  std::vector<Knobs> knobs() const;
  GridAxis grid(const Knobs& k) const { return {2, static_cast<std::uint32_t>(k.rows() * k.tile_w), Knobs::kChannels}; }
  void costs(const Knobs& k, Traits& t) const;
};

// Extents of about equal parts of an axis, the largest first, none above `most`.
std::vector<int> parts_of(std::int64_t extent, int multiple, int most) {
  std::vector<int> out;
  for (std::int64_t parts = std::max<std::int64_t>(1, (extent + most - 1) / most), n = 0; n < kMostParts;
       ++parts, ++n) {
    const std::int64_t each = (extent + parts - 1) / parts, part = (each + multiple - 1) / multiple * multiple;
    if (part <= most && (out.empty() || part < out.back())) out.push_back(static_cast<int>(part));
    if (each == 1) break;
  }
  return out;
}

std::vector<Knobs> Layer::knobs() const {
  struct Way {
    Knobs knobs;
    double cost;
  };
  constexpr std::size_t kMost = 64;
  std::vector<Way> ways;
  for (const int tile_h : parts_of(shape.axes[1].out, 1, kMostRows))
    for (const int tile_w : parts_of(shape.axes[2].out, 8, 128))
      for (int images = 1; images * tile_h <= kMostRows && images < 2 * this->images(); images *= 2)
        for (const int warps : {4, 8}) {
          Knobs k;
          k.tile_h = tile_h, k.tile_w = tile_w, k.images = images, k.warps = warps;
          const Knobs c = complete(k);
          if (!legal(c)) continue;
          // Pixels that are read and pixels that are multiplied, the latter by each row of the kernel; blocks that are
          // alone on a multiprocessor wait for what they load.
          const double seen = 8.0 * c.images * c.seen_h() * c.seen_blocks(),
                       multiplied = 16.0 * c.row_tiles() * c.tile_w;
          const double alone = c.threads() * resident(c) < 512 ? 1.3 : 1;
          ways.push_back({k, tiles(c) * (seen + multiplied * (0.3 + 0.05 * c.kernel_h)) * alone});
        }
  std::stable_sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.cost < b.cost; });
  std::vector<Knobs> out;
  for (const Way& w : ways)
    if (out.size() < kMost) out.push_back(w.knobs);
  return out;
}

std::string Layer::refusal(const Conv& c, const Arch& arch) {
  if (std::string why = in_panels(c); !why.empty()) return why;
  if (c.packing != Packing::none) return "w is packed as tiles";
  if (c.quant_act.block) return "quant_act is not supported: x is fake quantized before it is multiplied";
  if (c.groups != c.c || c.k != c.c || c.c % 8 != 0)
    return fmt::format("c={} k={} groups={} must be one and the same multiple of 8", c.c, c.k, c.groups);
  const Element x = fast_path(c.x).element, y = fast_path(c.y).element;
  if ((x != Element::f16 && x != Element::bf16) || c.x != c.w || (y != Element::f16 && y != Element::bf16))
    return fmt::format("x={} w={} y={} must be 16-bit floats, x and w of one type", c.x.name(), c.w.name(), c.y.name());
  if (c.residual) return "residual is not supported";
  if (c.x_layout != TensorLayout::ndhwc || c.y_layout != TensorLayout::ndhwc)
    return "x_layout and y_layout must be ndhwc";
  const tw::conv::Shape s = shape_of(c);
  if (s.cache > 0) return "cache is not supported";
  for (int i = 0; i < kMostAxes; ++i) {
    const tw::conv::Axis& a = s.axes[i];
    if (a.stride != 1 && a.out > 1) return fmt::format("stride must be 1 (got {})", a.stride);
  }
  if (s.axes[0].kernel != 1 || s.axes[0].out != s.axes[0].in)
    return fmt::format("kernel must have one frame, without padding (got {})", s.axes[0].kernel);
  const tw::conv::Axis &height = s.axes[1], &width = s.axes[2];
  if (std::int64_t{width.kernel - 1} * width.dilation > Knobs::kMostReach)
    return fmt::format("kernel must span at most {} columns (got {})", Knobs::kMostReach + 1,
                       std::int64_t{width.kernel - 1} * width.dilation + 1);
  if (std::int64_t{std::max(width.in, width.out)} * (s.c / 8) > kMaxExtent)
    return fmt::format("in must have at most {} channels in a row", 8 * kMaxExtent);
  if (height.kernel > kMostKernelRows)
    return fmt::format("kernel must have at most {} rows (got {})", kMostKernelRows, height.kernel);
  if (!arch.mma_bf16 && x == Element::bf16) return fmt::format("{} has no matrix units of bf16", arch.name);
  return {};
}

void Layer::costs(const Knobs& k, Traits& t) const {
  const double tiles = this->tiles(k), channels = Knobs::kChannels;
  const double seen = 8.0 * k.images * k.seen_h() * k.seen_blocks(), stored = static_cast<double>(k.rows()) * k.tile_w;
  const double products = channels * k.row_tiles() * k.column_tiles();  // of 16 x 8 outputs
  t.tile_rows = k.rows() * k.tile_w, t.tile_cols = Knobs::kChannels;
  t.blocks = tiles;
  t.global_bytes = tiles * seen * channels * 2 + 2.0 * static_cast<double>(gemm.m) * static_cast<double>(gemm.n);
  t.bytes_in_flight = 4 * 16;
  t.mma_ops = tiles * products * k.kernel_h * 4096;
  t.mma_in_flight = 2;
  t.shared_traffic = tiles * (seen * channels * 2 + products * k.kernel_h * 256 + stored * channels * 4);
  // Instructions of lanes: a load and four transposed words of eight pixels, filters, what surrounds products.
  t.alu_ops = tiles * 32 *
              (seen / 8 * 30 + channels * k.kernel_h * 14 + products * (30 + 3.0 * k.kernel_h) + stored / 8 * 20) / 2;
  t.alu_in_flight = 2;
}

}  // namespace

const Family& depthwise() {
  static const TiledFamily<Layer> family(
      "depthwise", "Depthwise",
      "depthwise convolutions through mma.sync: a filter's row as a banded matrix, planes of channels", kTable);
  return family;
}

}  // namespace tilewright::conv
