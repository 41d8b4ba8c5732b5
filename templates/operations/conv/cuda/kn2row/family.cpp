// SPDX-License-Identifier: Apache-2.0
// conv's kn2row: which convolutions it serves, which tiles are worth a try, and what they cost.
#include <fmt/format.h>

#include <algorithm>

#include "templates/common/checks.h"
#include "templates/common/knobs.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cuda/kn2row/plan.cuh"
#include "templates/operations/conv/cuda/tiled_family.h"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {
namespace {

using Knobs = tw::conv::Kn2rowKnobs;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::tile_h>("tile_h"), knob<&Knobs::tile_w>("tile_w"),
                                  knob<&Knobs::warps>("warps"),   knob<&Knobs::chunk>("chunk"),
                                  knob<&Knobs::stages>("stages"), knob<&Knobs::frames>("frames")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::channels>("channels"),    knob<&Knobs::features>("features"),
                                    knob<&Knobs::kernel_d>("kernel_d"),    knob<&Knobs::kernel_h>("kernel_h"),
                                    knob<&Knobs::kernel_w>("kernel_w"),    knob<&Knobs::dilation_h>("dilation_h"),
                                    knob<&Knobs::dilation_w>("dilation_w")};
const KnobTable<Knobs> kTable{"tw::conv::Kn2rowKnobs", kKnobs, kDerived};

constexpr int kMostFeatures = 4, kMostRows = 128, kMostChannels = 4096, kMostReach = 512;
constexpr int kMostRegisters = 244;

struct Layer {
  using Knobs = conv::Knobs;
  static constexpr const char* kNoTile = "no tile of the kernel's taps fits into registers and shared memory";
  static constexpr bool kPersistent = true;

  Gemm gemm;
  tw::conv::Shape shape;
  const Arch& arch;

  Layer(const Conv& c, const Arch& target) : gemm(as_gemm(c)), shape(shape_of(c)), arch(target) {}

  Knobs complete(Knobs k) const {
    const tw::conv::Axis *axes = shape.axes, &height = axes[1], &width = axes[2];
    k.channels = shape.c, k.features = shape.k;
    k.kernel_d = axes[0].kernel, k.kernel_h = height.kernel, k.kernel_w = width.kernel;
    k.dilation_h = k.kernel_h > 1 ? height.dilation : 1, k.dilation_w = k.kernel_w > 1 ? width.dilation : 1;
    return k;
  }
  // Of a thread, about: the products, fragments of both, the sums, addresses.
  static int registers(const Knobs& k) {
    return 4 * k.row_tiles() * k.pixel_tiles() + 4 * k.pixel_tiles() + 4 + k.own_pixels() * k.features + k.kernel_d +
           40;
  }
  int resident(const Knobs& k) const {
    return std::max(1, std::min({65536 / (k.threads() * ((registers(k) + 15) / 8 * 8)),
                                 arch.shared_per_sm / (k.shared_bytes() + 1024), arch.threads_per_sm / k.threads()}));
  }
  std::int64_t frames(const Knobs& k) const {
    return k.frames ? std::min(k.frames, shape.axes[0].out) : shape.axes[0].out;
  }
  std::int64_t tiles(const Knobs& k) const {
    const auto parts = [](std::int64_t all, std::int64_t each) { return (all + each - 1) / each; };
    const tw::conv::Axis* axes = shape.axes;
    return shape.n * parts(axes[0].out, frames(k)) * parts(axes[1].out, k.tile_h) * parts(axes[2].out, k.tile_w);
  }
  bool legal(const Knobs& k) const {
    return k.seen() <= 64 * 1024 && k.shared_bytes() <= arch.shared_per_block && registers(k) <= kMostRegisters &&
           tiles(k) <= static_cast<std::int64_t>(gemm::kMostBlocks);
  }

  static std::string refusal(const Conv& c, const Arch& arch);
  std::vector<Knobs> knobs() const;
  GridAxis grid(const Knobs& k) const { return {2, static_cast<std::uint32_t>(k.tile_h * k.tile_w), 0}; }
  void costs(const Knobs& k, Traits& t) const;
};

std::vector<Knobs> Layer::knobs() const {
  std::vector<Knobs> out;
  const tw::conv::Axis* axes = shape.axes;
  for (const int warps : {4, 8})
    for (const int tile_h : {1, 2, 4, 8, 16, 32})
      for (const int own : {1, 2}) {
        Knobs k;
        k.warps = warps, k.tile_h = tile_h, k.tile_w = own * k.threads() / tile_h;
        // Rows of few pixels see much beside them, and so do few rows.
        if (k.tile_w < 8 || (tile_h < 4 && axes[1].out >= 4 && axes[2].out >= 16)) continue;
        for (const int chunk : {32, 64}) {
          if (chunk > 32 && chunk >= 2 * shape.c) continue;
          for (const int stages : {2, 3, 4})
            for (const int frames : {0, 1, 4, 16}) {
              if (frames >= axes[0].out) continue;
              k.chunk = chunk, k.stages = stages, k.frames = frames;
              if (legal(complete(k))) out.push_back(k);
            }
        }
      }
  return out;
}

std::string Layer::refusal(const Conv& c, const Arch& arch) {
  if (std::string why = in_panels(c); !why.empty()) return why;
  if (c.packing != Packing::none) return "w is packed as tiles";
  if (c.quant_act.block) return "quant_act is not supported: x is fake quantized before it is multiplied";
  if (c.groups != 1) return fmt::format("groups must be 1 (got {})", c.groups);
  if (c.k > kMostFeatures) return fmt::format("k must be at most {} (got {})", kMostFeatures, c.k);
  const Element x = fast_path(c.x).element;
  if ((x != Element::f16 && x != Element::bf16) || c.x != c.w)
    return fmt::format("x={} w={} is not supported: they must be 16-bit floats of one type", c.x.name(), c.w.name());
  if (c.x_layout != TensorLayout::ndhwc) return "x_layout must be ndhwc";
  if (c.c % 8 != 0 || c.c > kMostChannels)
    return fmt::format("c must be a multiple of 8, at most {} (got {})", kMostChannels, c.c);
  if (not_pointwise(c).empty()) return "a pointwise convolution is served by pointwise_mma";
  const tw::conv::Shape s = shape_of(c);
  if (s.cache > 0 && s.first_axis != 0) return "cache needs frames of three axes";
  if (s.taps() * c.k > kMostRows)
    return fmt::format("taps times output channels must be at most {} (got {} x {})", kMostRows, s.taps(), c.k);
  if (std::int64_t{s.axes[1].in} * s.axes[2].in > kMaxExtent)
    return fmt::format("in must have at most {} pixels in a frame", kMaxExtent);
  for (int i = 0; i < kMostAxes; ++i) {
    const tw::conv::Axis& a = s.axes[i];
    if (a.stride != 1 && a.out > 1) return fmt::format("stride must be 1 (got {})", a.stride);
    if (i == 0 && a.dilation != 1 && a.kernel > 1)
      return fmt::format("dilation from frame to frame must be 1 (got {})", a.dilation);
    if (std::int64_t{a.kernel - 1} * a.dilation > kMostReach)
      return fmt::format("kernel must span at most {} elements (got {})", kMostReach + 1,
                         std::int64_t{a.kernel - 1} * a.dilation + 1);
  }
  if (!arch.cp_async) return fmt::format("{} has no asynchronous copies", arch.name);
  return {};
}

void Layer::costs(const Knobs& k, Traits& t) const {
  const double tiles = static_cast<double>(this->tiles(k)), frames = static_cast<double>(this->frames(k));
  const double products = tiles * (frames + k.kernel_d - 1);  // frames that are multiplied
  const double pixels = k.pixels(), rows = 16.0 * k.row_tiles(), channels = k.chunks() * k.chunk;
  t.tile_rows = static_cast<int>(std::min<std::int64_t>(k.tile_h * k.tile_w * this->frames(k), kMaxExtent));
  t.tile_cols = k.features;
  t.blocks = tiles;
  t.global_bytes = products * k.seen() * shape.c * 2 + tiles * k.kernel_d * k.frame_rows() * shape.c * 2 +
                   static_cast<double>(gemm.m) * static_cast<double>(gemm.n) * fast_path(gemm.y).element_bytes;
  t.bytes_in_flight = (k.stages - 1.0) * k.stage_bytes() / k.threads();
  t.mma_ops = products * 2 * pixels * rows * channels;
  t.mma_in_flight = k.row_tiles() * k.pixel_tiles();
  // Pixels in and out, weights for each warp, the products of a finished frame in and out.
  t.shared_traffic = products * (pixels * channels * 4 + k.warps * rows * channels * 2 +
                                 16.0 * k.frame_tiles() * (pixels + k.tile_h * k.tile_w) * 4);
  t.alu_ops =
      products * k.threads() * (k.own_pixels() * k.frame_rows() * 2.0 + pixels * channels / 8 / k.threads() * 8);
  t.alu_in_flight = 4;
}

}  // namespace

const Family& kn2row() {
  static const TiledFamily<Layer> family(
      "kn2row", "Kn2row",
      "at most 4 output channels: each pixel times all taps through mma.sync, then shifted and added", kTable);
  return family;
}

}  // namespace tilewright::conv
