// SPDX-License-Identifier: Apache-2.0
// conv's direct: which convolutions it serves, which tiles are worth a try, and what they cost.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "templates/common/knobs.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cuda/direct/plan.cuh"
#include "templates/operations/conv/cuda/tiled_family.h"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {
namespace {

using Knobs = tw::conv::DirectKnobs;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::groups>("groups"),       knob<&Knobs::features>("features"),
                                  knob<&Knobs::tile_w>("tile_w"),       knob<&Knobs::tile_h>("tile_h"),
                                  knob<&Knobs::threads_c>("threads_c"), knob<&Knobs::threads_w>("threads_w"),
                                  knob<&Knobs::threads_h>("threads_h"), option<&Knobs::whole>("whole")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::group_in>("group_in"),
                                    knob<&Knobs::group_out>("group_out"),
                                    knob<&Knobs::kernel_d>("kernel_d"),
                                    knob<&Knobs::kernel_h>("kernel_h"),
                                    knob<&Knobs::kernel_w>("kernel_w"),
                                    knob<&Knobs::stride_h>("stride_h"),
                                    knob<&Knobs::stride_w>("stride_w"),
                                    knob<&Knobs::dilation_h>("dilation_h"),
                                    knob<&Knobs::dilation_w>("dilation_w"),
                                    knob<&Knobs::element_bytes>("element_bytes"),
                                    knob<&Knobs::channels_first>("channels_first"),
                                    knob<&Knobs::mirrors>("mirrors"),
                                    knob<&Knobs::cached>("cached"),
                                    knob<&Knobs::rows>("rows"),
                                    knob<&Knobs::piece>("piece"),
                                    knob<&Knobs::first>("first"),
                                    knob<&Knobs::run>("run"),
                                    knob<&Knobs::async_copy>("async_copy"),
                                    knob<&Knobs::tiles_c>("tiles_c"),
                                    knob<&Knobs::tiles_w>("tiles_w"),
                                    knob<&Knobs::tiles_h>("tiles_h"),
                                    knob<&Knobs::frames>("frames")};
const KnobTable<Knobs> kTable{"tw::conv::DirectKnobs", kKnobs, kDerived};

constexpr int kMostGroupInputs = 16;    // channels: from there on matrix units have enough to do
constexpr int kMostReach = 512;         // of an axis, from a tap to the next output's or to the last tap
constexpr int kMostProducts = 4096;     // of a thread in straight code, 16 bytes each
constexpr int kMostPlace = 1 << 30;     // of an axis: ragged tiles reach a little further
constexpr int kStageBytes = 64 * 1024;  // what kernel rows are divided for
constexpr int kMostRows = 64;           // of a kernel in a stage
constexpr int kMostThreads = 256, kLeastThreads = 64, kMostRegisters = 232, kSpareRegisters = 8;

int ceil_div(int a, int b) { return (a + b - 1) / b; }
std::int64_t ceil_div64(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The largest power of two, at most `most`, that divides both.
int common(std::int64_t a, std::int64_t b, int most) {
  int n = 1;
  while (2 * n <= most && a % (2 * n) == 0 && b % (2 * n) == 0) n *= 2;
  return n;
}

// What a block's threads execute, in instructions of a thread, and the bytes that it moves.
struct Work {
  double products = 0, others = 0;
  double shared_bytes = 0;  // read, bank by bank
  double copied_bytes = 0;  // of x, in whole sectors
};

struct Layer {
  using Knobs = conv::Knobs;
  static constexpr const char* kNoTile = "no tile of the kernel's taps fits into registers and shared memory";
  static constexpr bool kPersistent = false;

  Gemm gemm;
  tw::conv::Shape shape;
  bool channels_first;
  int x_bytes, y_bytes;
  const Arch& arch;

  Layer(const Conv& c, const Arch& target)
      : gemm(as_gemm(c)),
        shape(shape_of(c)),
        channels_first(c.x_layout == TensorLayout::ncdhw),
        x_bytes(fast_path(c.x).element_bytes),
        y_bytes(fast_path(c.y).element_bytes),
        arch(target) {}

  const tw::conv::Axis& axis(int i) const { return shape.axes[2 - i]; }  // width, height, depth

  // What is needed for the sizes of a plan to be counted at all. False: the knobs are not legal.
  bool may_fit(const Knobs& k) const {
    const tw::conv::Axis &width = axis(0), &height = axis(1);
    const std::int64_t group_in = shape.c / shape.groups;
    const std::int64_t held = width.kernel * group_in * k.outputs();  // weights of a kernel row
    if (held > kMostRegisters || (k.whole && (height.kernel == 1 || held * height.kernel > kMostRegisters)))
      return false;
    const std::int64_t columns = std::int64_t{k.block_w() - 1} * (width.out > 1 ? width.stride : 1) + 1,
                       rows = std::int64_t{k.block_h() - 1} * (height.out > 1 ? height.stride : 1) + 1;
    return columns * rows * k.block_groups() * group_in * x_bytes <= arch.shared_per_block;
  }
  // Precondition: may_fit().
  Knobs complete(Knobs k) const {
    const tw::conv::Axis &width = axis(0), &height = axis(1);
    k.group_in = shape.c / shape.groups, k.group_out = shape.k / shape.groups;
    k.kernel_d = axis(2).kernel, k.kernel_h = height.kernel, k.kernel_w = width.kernel;
    // A step that nothing takes does not make another kernel.
    k.stride_h = height.out > 1 ? height.stride : 1, k.stride_w = width.out > 1 ? width.stride : 1;
    k.dilation_h = k.kernel_h > 1 ? height.dilation : 1, k.dilation_w = k.kernel_w > 1 ? width.dilation : 1;
    k.element_bytes = x_bytes, k.channels_first = channels_first, k.cached = shape.cache > 0;
    k.mirrors = width.pad != tw::conv::Pad::zero || height.pad != tw::conv::Pad::zero;
    const int most = 16 / x_bytes;
    if (channels_first) {
      // A cache of a sole axis parts its rows.
      const bool parted = shape.cache > 0 && shape.first_axis == kMostAxes - 1;
      k.piece = parted ? 1 : common(width.in, std::int64_t{k.block_w()} * k.stride_w, most);
      k.first = (k.piece - width.lo % k.piece) % k.piece;
      k.run = common(width.out, k.tile_w, 16 / y_bytes);
    } else {
      k.piece = common(shape.c, k.block_inputs(), most);
      k.first = 0;
      k.run = common(k.parts() == 1 ? shape.k : k.group_out, k.outputs(), 16 / y_bytes);
    }
    k.async_copy = arch.cp_async && k.piece * x_bytes >= 4;
    k.tiles_c = ceil_div(shape.groups, k.block_groups()), k.tiles_w = ceil_div(width.out, k.block_w());
    k.tiles_h = ceil_div(height.out, k.block_h()), k.frames = axis(2).out;
    for (k.rows = k.whole ? k.kernel_h : std::min(k.kernel_h, kMostRows);
         !k.whole && k.rows > 1 && k.shared_bytes() > kStageBytes;)
      k.rows = ceil_div(k.rows, 2);
    return k;
  }

  // Registers of a thread, about: sums, weights, two input rows of which one is on its way, addresses.
  int registers(const Knobs& c) const {
    const int open_rows = c.whole && c.stages() == 1
                              ? std::min(c.tile_h, ceil_div((c.rows - 1) * c.dilation_h + 1, c.stride_h))
                              : c.tile_h;
    const int held = (c.whole ? c.rows : 1) * c.kernel_w * c.group_in * c.outputs();
    return open_rows * c.tile_w * c.outputs() + held + columns_read(c) * c.inputs() + 32;
  }
  // Blocks of a multiprocessor that these registers allow: more than a thread needs are not to keep others out.
  int resident(const Knobs& c) const {
    const int threads = 32 * ceil_div(c.threads(), 32), each = ceil_div(registers(c) + kSpareRegisters, 8) * 8;
    return std::clamp(65536 / (threads * each), 1, std::min(16, arch.threads_per_sm / threads));
  }
  static int columns_read(const Knobs& c) {
    int n = 0;
    for (int i = 0; i < c.span(); ++i) n += c.needs_column(i);
    return n;
  }
  static int rows_read(const Knobs& c) {
    if (!c.whole) return c.tile_h * c.rows;
    int n = 0;
    for (int i = 0; i < c.tile_rows(); ++i) n += c.needs_row(i);
    return n;
  }

  // Or any number that no launch has.
  std::int64_t blocks(const Knobs& c) const {
    std::int64_t n = shape.n;
    for (const int factor : {c.frames, c.tiles_h, c.tiles_w, c.tiles_c, c.parts()})
      if ((n *= factor) > static_cast<std::int64_t>(gemm::kMostBlocks)) break;
    return n;
  }

  Work work(const Knobs& c) const {
    Work w;
    const double stages = c.stages(), threads = c.threads();
    const double outputs = static_cast<double>(c.tile_w) * c.tile_h * c.outputs();
    w.products = outputs * c.group_in * c.stage_taps() * stages;
    // Reads of shared memory and what widens them.
    const double columns = columns_read(c), rows = rows_read(c) * stages;
    const int align = tw::fmt::run_alignment((channels_first ? c.step() : c.inputs()) * x_bytes);
    const double reads = channels_first
                             ? c.inputs() * std::ceil((c.first + c.span()) * x_bytes / static_cast<double>(align))
                             : columns * c.inputs() * x_bytes / align;
    const double weights = static_cast<double>(c.stage_taps()) * c.group_in * stages;
    const double weight_reads = weights * c.outputs() / (tw::fmt::run_alignment(c.outputs() * 4) / 4.0);
    const double widened = x_bytes < 4 ? columns * c.inputs() * (x_bytes == 1 ? 2 : 1) : 0;
    w.others = rows * (reads + widened) + weight_reads;
    // Lanes that share a channel share its weights.
    const double weight_lanes = channels_first ? 1.0 / std::min(32, c.threads_w * c.threads_h) : 1;
    w.shared_bytes = threads * (rows * reads * std::max(4, align) + weights * c.outputs() * 4 * weight_lanes);
    // Copies.
    const double items = c.items(), input_rows = c.input_rows();
    const double parallel = std::max(1.0, std::min(items, std::floor(threads / items) * items));
    const double turns =
        items > threads ? std::ceil(items / threads) * input_rows : std::ceil(input_rows * items / parallel);
    w.others += stages * (turns * (c.async_copy ? 7 : 9) + 40);
    w.others += std::ceil(weights * c.block_outputs() / threads) * 25 + 60;
    w.others += outputs * (2.0 + 6.0 / c.run);
    const double row = (channels_first ? c.copied_columns() : c.block_inputs()) * x_bytes;
    w.copied_bytes = stages * input_rows * std::ceil(row / 32) * 32 * (channels_first ? c.block_inputs() : c.columns());
    return w;
  }

  // Precondition: may_fit(), and the knobs are complete.
  bool legal(const Knobs& k) const {
    const std::int64_t rows = k.whole ? k.rows : 1;
    return k.threads() <= kMostThreads && k.shared_bytes() <= arch.shared_per_block && registers(k) <= kMostRegisters &&
           rows * k.tile_w * k.tile_h * k.outputs() * k.group_in * k.kernel_w <= kMostProducts &&
           blocks(k) <= static_cast<std::int64_t>(gemm::kMostBlocks);
  }

  static std::string refusal(const Conv& c, const Arch&);
  std::vector<Knobs> knobs() const;
  GridAxis grid(const Knobs& k) const { return {static_cast<std::uint32_t>(blocks(k)), 0, 0}; }
  void costs(const Knobs& k, Traits& t) const;
};

// Time of a launch, in clocks of a multiprocessor, roughly: what tiles are compared by.
double cost_of(const Layer& l, const Knobs& c) {
  constexpr double kStart = 1500, kBytesEachClock = 20, kSharedEachClock = 128;
  const Work w = l.work(c);
  const double warps = ceil_div(c.threads(), 32), blocks = static_cast<double>(l.blocks(c));
  const double issue = warps * (w.products + w.others) / 4;
  const double block = std::max({issue, w.shared_bytes / kSharedEachClock, w.copied_bytes / kBytesEachClock});
  const double resident =
      std::max(1.0, std::min({std::floor(65536.0 / (l.registers(c) * 32.0 * warps)),
                              std::floor(l.arch.shared_per_sm / (c.shared_bytes() + 1024.0)), 32.0}));
  const double each = std::ceil(blocks / l.arch.typical_sms);  // of a multiprocessor
  // Few warps wait for their reads; one block's start is hidden by the others.
  const double idle = 1 + 1.5 / (warps * std::min(resident, each));
  return each * block * idle + kStart * std::ceil(each / resident);
}

std::vector<Knobs> Layer::knobs() const {
  struct Way {
    Knobs knobs;
    double cost;
  };
  constexpr std::size_t kOfEach = 3, kMost = 48;
  std::vector<Way> ways;
  const tw::conv::Axis &width = axis(0), &height = axis(1);
  const int group_out = shape.k / shape.groups;
  const auto add = [&](const Knobs& k) {
    if (!may_fit(k)) return;
    const Knobs c = complete(k);
    if (legal(c)) ways.push_back({k, cost_of(*this, c)});
  };
  const auto add_blocks = [&](Knobs k) {
    const int across = static_cast<int>(std::min<std::int64_t>(ceil_div64(width.out, k.tile_w), kMostThreads));
    const int down = static_cast<int>(std::min<std::int64_t>(ceil_div64(height.out, k.tile_h), kMostThreads));
    const std::int64_t units = ceil_div64(shape.groups, k.groups);
    for (k.threads_c = 1; k.threads_c <= 64; k.threads_c *= 2) {
      if (k.threads_c >= 2 * units) break;
      if (!channels_first && k.threads_c < 8 && k.threads_c < units) continue;  // too short runs of memory
      for (int w = 1, last = 0; w <= across && w <= 64; ++w) {
        k.threads_w = ceil_div(across, w);
        if (k.threads_w == last || k.threads_c * k.threads_w > kMostThreads) continue;
        last = k.threads_w;
        int least = 0;
        for (const int most : {kLeastThreads, 128, kMostThreads}) {
          const int rows = std::min(down, std::max(1, most / (k.threads_c * k.threads_w)));
          k.threads_h = ceil_div(down, ceil_div(down, rows));
          if (k.threads_h == least) continue;
          least = k.threads_h;
          add(k);
        }
        if (k.threads_w == 1) break;
      }
    }
  };
  for (const int groups : {1, 2, 4, 8}) {
    if (groups > 1 && (channels_first || groups > shape.groups || groups * group_out > 8)) continue;
    for (int features = std::min(group_out, 8); features > 0; features = groups > 1 ? 0 : features / 2) {
      for (const int tile_w : {1, 2, 4, 7, 8, 16}) {
        if (tile_w > 1 && tile_w >= 2 * width.out) continue;
        for (const int tile_h : {1, 2, 4, 7, 8, 14, 16}) {
          if (tile_h > 1 && tile_h >= 2 * height.out) continue;
          for (const bool whole : {false, true}) {
            Knobs k;
            k.groups = groups, k.features = features, k.tile_w = tile_w, k.tile_h = tile_h, k.whole = whole;
            add_blocks(k);
          }
        }
      }
    }
  }
  std::stable_sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.cost < b.cost; });
  // The costs tell least about a thread's tile: some blocks of each.
  std::map<std::tuple<int, int, int, int, bool>, std::size_t> of;
  std::vector<Knobs> out;
  for (const Way& w : ways) {
    const Knobs& k = w.knobs;
    if (of[{k.groups, k.features, k.tile_w, k.tile_h, k.whole}]++ < kOfEach) out.push_back(k);
    if (out.size() == kMost) break;
  }
  return out;
}

std::string Layer::refusal(const Conv& c, const Arch&) {
  if (std::string why = scaled_pixels(c); !why.empty()) return why;
  if (std::string why = in_panels(c); !why.empty()) return why;
  if (c.packing != Packing::none) return "w is packed as tiles";
  if (c.quant_act.block) return "quant_act is not supported: x is fake quantized before it is multiplied";
  if (c.c / c.groups > kMostGroupInputs)
    return fmt::format("a group must have at most {} input channels (got {})", kMostGroupInputs, c.c / c.groups);
  if (c.x_layout != c.y_layout) return "x_layout and y_layout must be the same";
  if (std::max(c.c, c.k) > kMostPlace) return fmt::format("c and k must be at most {}", kMostPlace);
  const tw::conv::Shape s = shape_of(c);
  for (int i = s.first_axis; i < kMostAxes; ++i) {
    const tw::conv::Axis& a = s.axes[i];
    if (a.in > kMostPlace - 2 * kMostReach || a.lo > kMostPlace - 2 * kMostReach - a.in ||
        std::int64_t{a.out} * a.stride > kMostPlace)
      return fmt::format("in must have at most {} elements on an axis with its padding", kMostPlace);
    if (i == 0) continue;
    if (a.out > 1 && a.stride > kMostReach)
      return fmt::format("stride must be at most {} (got {})", kMostReach, a.stride);
    if (std::int64_t{a.kernel - 1} * a.dilation > kMostReach)
      return fmt::format("kernel must span at most {} elements (got {})", kMostReach + 1,
                         std::int64_t{a.kernel - 1} * a.dilation + 1);
  }
  return {};
}

void Layer::costs(const Knobs& k, Traits& t) const {
  const Work w = work(k);
  const double blocks = static_cast<double>(this->blocks(k)), threads = 32.0 * ceil_div(k.threads(), 32);
  t.tile_rows = k.block_w() * k.block_h(), t.tile_cols = k.block_outputs();
  t.blocks = blocks;
  t.global_bytes = blocks * w.copied_bytes + static_cast<double>(gemm.m) * static_cast<double>(gemm.n) * y_bytes;
  t.bytes_in_flight = w.copied_bytes / k.stages() / k.threads();
  t.shared_traffic = blocks * w.shared_bytes;
  t.alu_ops = blocks * threads * (w.products + w.others) / 2;  // at twice the rate of integers
  t.alu_in_flight = 4;
}

}  // namespace

const Family& direct() {
  static const TiledFamily<Layer> family(
      "direct", "Direct",
      "depthwise and other convolutions of few channels a group: tiles of pixels in registers, no matrix units",
      kTable);
  return family;
}

}  // namespace tilewright::conv
