// SPDX-License-Identifier: Apache-2.0
// mma: the candidates of gemm's family of that name for the gemm that a convolution is, or each of its groups, and how
// x is gathered for it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "templates/common/checks.h"
#include "templates/common/knobs.h"
#include "templates/common/specialize.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/conv/axes.h"
#include "templates/operations/conv/conv.h"
#include "templates/operations/conv/cuda/gather_knobs.cuh"
#include "templates/operations/gemm/cuda/family.h"

namespace tilewright::conv {
namespace {

using Knobs = tw::conv::GatherKnobs;
using tw::conv::Taps;

constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::unit>("unit"),       knob<&Knobs::taps_innermost>("taps_innermost"),
                                  knob<&Knobs::taps>("taps"),       knob<&Knobs::places>("places"),
                                  knob<&Knobs::cached>("cached"),   knob<&Knobs::y_channels_first>("y_channels_first"),
                                  knob<&Knobs::grouped>("grouped"), knob<&Knobs::quant_block>("quant_block")};
const KnobTable<Knobs> kTable{"tw::conv::GatherKnobs", kKnobs};

constexpr int kMostPlaces = 64;  // of a table: 16 KiB for 64 pixels
constexpr int kMostRegisters = 250;
constexpr int kMostQuantized = 32;  // elements of x that a thread fake quantizes at a time, in registers
constexpr double kQuantize = 20;    // instructions to fake quantize an element

struct Layer {
  Gemm gemm;  // of one group
  tw::conv::Shape shape;
  Knobs gather;
  int element_bytes;
};

// Bytes from the first to the last tap of a pixel, whose offsets have 32 bits.
double reach_of(const tw::conv::Shape& s, int pixel_bytes) {
  double reach = 0, width = pixel_bytes;
  for (int a = 2; a >= 0; --a) {
    reach += width * s.axes[a].dilation * (s.axes[a].kernel - 1.0);
    width *= s.axes[a].in;
  }
  return reach;
}

Knobs gather_of(const Conv& c, const tw::conv::Shape& s, int element_bytes) {
  const std::int64_t channels = c.c / c.groups;
  Knobs k;
  k.y_channels_first = s.y_channels_first, k.grouped = c.groups > 1, k.quant_block = c.quant_act.block;
  k.taps_innermost = s.w_channels_first && s.taps() > 1;
  const bool along_channels = !s.x_channels_first && !k.taps_innermost;
  if (along_channels && channels * element_bytes % 16 == 0) return k;
  for (k.unit = along_channels ? 8 / element_bytes : 1; channels % k.unit != 0;) k.unit /= 2;
  const int places = s.axes[0].kernel + s.axes[1].kernel + s.axes[2].kernel;
  const bool padded = c.pad != Pads{}, zeros = c.pad_mode == PadModes{};
  const double pixel_bytes = element_bytes * (s.x_channels_first ? 1.0 : static_cast<double>(c.c));
  if (s.cache == 0 && zeros && (!padded || places <= tw::conv::kMostBits) &&
      reach_of(s, static_cast<int>(pixel_bytes)) < static_cast<double>(kMaxExtent)) {
    k.taps = padded ? Taps::zeros : Taps::all;
  } else {
    k.taps = Taps::table, k.places = places, k.cached = s.cache > 0;
  }
  return k;
}

const gemm::ReusableFamily& product_family(const Gemm& g) {
  return fast_path(g.x).element == Element::f32 ? gemm::mma_floats() : gemm::mma();
}

Layer layer_of(const Conv& c) {
  Layer l{as_gemm(c), shape_of(c), {}, fast_path(c.x).element_bytes};
  l.gemm.n = c.k / c.groups;
  l.gather = gather_of(c, l.shape, l.element_bytes);
  return l;
}

// What a candidate of gemm's has besides, where x is loaded by elements.
struct Loads {
  double of_thread;  // in a stage
  int rows, registers;
};
Loads loads_of(const Layer& l, const Candidate& c) {
  const double threads = 32.0 * static_cast<double>(c.at("warps_m") * c.at("warps_n"));
  const double elements = static_cast<double>(c.at("block_m") * c.at("block_k")) / threads;
  const int words = std::max(1, l.gather.unit * l.element_bytes / 4);
  Loads loads{elements / l.gather.unit, static_cast<int>(std::max(1.0, elements * l.element_bytes / 16)), 0};
  // As the compiler gave for sm_80 to sm_90a. Of what is loaded by registers gemm counts whole words.
  loads.registers = static_cast<int>(loads.of_thread) * words + loads.rows * (l.gather.cached ? 8 : 5) +
                    (l.gather.taps == Taps::table ? 32 : 16);
  if (c.at("async_copy") == 0 && !fast_path(l.gemm.w).coded()) {
    const double of_w = static_cast<double>(c.at("block_n") * c.at("block_k")) / threads;
    const auto unit = static_cast<double>(c.at("unit_x")), bytes = static_cast<double>(l.element_bytes);
    if (unit * bytes < 4) loads.registers += static_cast<int>(of_w * (1 / unit - bytes / 4));
    loads.registers -= static_cast<int>(elements * bytes / 4);
  }
  return loads;
}

// Candidates of gemm's with as many stages as x needs that is fake quantized: those of a block, the one that is
// multiplied and one or two that are under way.
void add_quantized(std::vector<Candidate>& out, const Layer& l, Candidate c) {
  const auto block_k = static_cast<int>(c.at("block_k"));
  const int stages = l.gather.quant_stages(block_k);
  if (stages * 16 / l.element_bytes > kMostQuantized) return;
  for (const int more : {2, 3}) {
    for (auto& [name, value] : c.knobs)
      if (name == "stages") value = stages + more;
    if (std::find(out.begin(), out.end(), c) == out.end()) out.push_back(c);
  }
}

class Mma final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return Conv::kOperation; }
  std::string_view name() const override { return "mma"; }
  std::string_view title() const override {
    return "matrix units through mma.sync, the input gathered on its way into shared memory";
  }

  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Conv* c = problem.as<Conv>();
    if (!c) return "the problem is not a conv";
    if (std::string why = in_panels(*c); !why.empty()) return why;
    if (not_pointwise(*c).empty()) return "a pointwise convolution is served by pointwise_mma";
    if (std::string why = scaled_pixels(*c); !why.empty()) return why;
    const Layer l = layer_of(*c);
    if (l.gemm.m > kMaxExtent) return fmt::format("y must have at most {} pixels (got {})", kMaxExtent, l.gemm.m);
    if (l.gemm.x.total_bytes(l.gemm.m, l.gemm.k) > kMaxBytes)
      return fmt::format("{} output pixels of {} elements of x each must have at most 2^47 bytes", l.gemm.m, l.gemm.k);
    if (std::string why = product_family(l.gemm).why_not(Problem(l.gemm), arch); !why.empty()) return why;
    if (std::string why = blocks_apart(*c, l.shape); !why.empty()) return why;
    if (l.gather.unit == 0) return no_room(*c, l, arch);
    // What GatheredElements keeps in 32 bits.
    if (Wording<Axes>::product(c->in) >= tw::conv::kInCache)
      return fmt::format("in must have less than {} pixels (got {})", tw::conv::kInCache, Wording<Axes>::text(c->in));
    if (c->c * l.element_bytes > kMaxExtent)
      return fmt::format("c must be at most {} (got {})", kMaxExtent / l.element_bytes, c->c);
    if (l.gather.places > kMostPlaces)
      return fmt::format(
          "kernel must have at most {} places on its axes together where channels are not whole pieces of 16 bytes "
          "(got {})",
          kMostPlaces, Wording<Axes>::text(c->kernel));
    return no_room(*c, l, arch);
  }

  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return fitting(layer_of(*problem.as<Conv>()), arch);
  }
  std::string illegal(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    if (std::string why = why_not(problem, arch); !why.empty()) return why;
    const Layer l = layer_of(*problem.as<Conv>());
    if (l.gather.quant_block) return EnumeratedFamily::illegal(problem, arch, candidate);
    const Problem product(l.gemm);
    if (std::string why = product_family(l.gemm).illegal(product, arch, candidate); !why.empty()) return why;
    return fits(l, product, arch, candidate) ? std::string()
                                             : fmt::format("'{}' leaves no room to gather x", candidate.text());
  }
  Source source(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Layer l = layer_of(*problem.as<Conv>());
    Specialization s = product_family(l.gemm).specialization(Problem(l.gemm), arch, candidate);
    s.name = "conv/mma";
    s.includes.front() = "operations/conv/cuda/mma.cuh";
    s.prelude += kTable.text(l.gather, "kGather");
    s.space = "tw::conv";
    s.plan_type.replace(0, std::string_view("tw::gemm").size(), s.space);
    s.plan_type.insert(s.plan_type.size() - 1, ", kGather");
    const auto block_m = static_cast<int>(candidate.at("block_m"));
    s.plan.shared_bytes += static_cast<std::uint32_t>(l.gather.table_bytes(block_m));
    if (l.gather.grouped) {  // the columns of y are several groups'
      const auto groups = static_cast<std::uint64_t>(l.shape.groups);
      s.plan.x = {static_cast<std::uint32_t>(s.plan.x.blocks(1, l.gemm.n) * groups), s.plan.x.per_rows, 0};
    }
    return specialize(s);
  }
  Traits traits(const Problem& problem, const Arch& arch, const Candidate& candidate) const override {
    const Layer l = layer_of(*problem.as<Conv>());
    Traits t = product_family(l.gemm).traits(Problem(l.gemm), arch, candidate);
    const double groups = l.shape.groups;
    for (double* of_all : {&t.blocks, &t.global_bytes, &t.mma_ops, &t.shared_traffic, &t.alu_ops}) *of_all *= groups;
    t.unique_bytes = problem.min_bytes();
    if (l.gather.quant_block) {
      t.registers += quantizing_registers(l, candidate);
      const double tiles = t.blocks / static_cast<double>(candidate.at("split_k"));
      t.alu_ops += tiles * t.tile_rows * static_cast<double>(l.gemm.k) * kQuantize;
    }
    if (l.gather.unit == 0) return t;
    const Loads loads = loads_of(l, candidate);
    t.registers += loads.registers;
    t.shared_bytes += l.gather.table_bytes(t.tile_rows);
    // One stage of x is under way, in registers.
    const auto stages = static_cast<double>(candidate.at("stages"));
    t.bytes_in_flight -= (stages - 2) * loads.of_thread * l.gather.unit * l.element_bytes;
    // Instructions: of each load, and of each column, which a thread's rows share.
    const bool table = l.gather.taps == Taps::table;
    const double of_load = table ? 12 + 6.0 * l.gather.cached : 6, of_column = 24.0 / loads.rows;
    const double stages_of_all =
        std::ceil(static_cast<double>(l.gemm.k) / static_cast<double>(candidate.at("block_k")));
    const auto splits = static_cast<double>(candidate.at("split_k"));
    t.alu_ops += t.blocks / splits * stages_of_all * t.threads * loads.of_thread * (of_load + of_column);
    if (table) t.shared_traffic += t.blocks / splits * stages_of_all * t.threads * loads.of_thread * 12;
    return t;
  }

 private:
  // Blocks that are not columns of x side by side, from the first on; empty if they are.
  static std::string blocks_apart(const Conv& c, const tw::conv::Shape& s) {
    if (s.quant_block == 0 || s.taps() == 1) return {};
    if (!s.quant_channels)
      return s.w_channels_first ? std::string() : "w_layout must be kctrs with order=ctrs of quant_act (got ktrsc)";
    if (s.w_channels_first) return "w_layout must be ktrsc with order=trsc of quant_act (got kctrs)";
    const std::int64_t channels = c.c / c.groups;
    return channels % s.quant_block == 0
               ? std::string()
               : fmt::format("a group must have whole blocks of {1} channels (got {0})", channels, s.quant_block);
  }
  // Of what is fake quantized, more has to be in shared memory at a time.
  static std::string no_room(const Conv& c, const Layer& l, const Arch& arch) {
    if (l.gather.quant_block == 0 || !fitting(l, arch).empty()) return {};
    return fmt::format("quant_act={} is not supported: no tile of whole blocks fits into shared memory",
                       Wording<QuantAct>::text(c.quant_act));
  }
  static std::vector<Candidate> fitting(const Layer& l, const Arch& arch) {
    const Problem product(l.gemm);
    std::vector<Candidate> out = product_family(l.gemm).candidates(product, arch);
    if (l.gather.quant_block) {
      std::vector<Candidate> quantized;
      for (const Candidate& c : out) add_quantized(quantized, l, c);
      out = std::move(quantized);
    }
    std::erase_if(out, [&](const Candidate& c) { return !fits(l, product, arch, c); });
    return out;
  }
  static int quantizing_registers(const Layer& l, const Candidate& c) {
    return l.gather.quant_stages(static_cast<int>(c.at("block_k"))) * 16 / l.element_bytes + 8;
  }
  static bool fits(const Layer& l, const Problem& product, const Arch& arch, const Candidate& c) {
    const Traits t = product_family(l.gemm).traits(product, arch, c);
    const double blocks = t.blocks * l.shape.groups;
    if (blocks > static_cast<double>(gemm::kMostBlocks)) return false;
    // Splitting k is for grids that leave the chip idle.
    if (c.at("split_k") > 1 && blocks > 8.0 * arch.typical_sms) return false;
    const int more =
        (l.gather.unit ? loads_of(l, c).registers : 0) + (l.gather.quant_block ? quantizing_registers(l, c) : 0);
    return t.registers + more <= kMostRegisters &&
           t.shared_bytes + l.gather.table_bytes(t.tile_rows) <= arch.shared_per_block;
  }
};

}  // namespace

const Family& mma() {
  static const Mma family;
  return family;
}

}  // namespace tilewright::conv
