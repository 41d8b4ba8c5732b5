// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "templates/common/checks.h"
#include "templates/common/family_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/cast/cuda/lanes.h"
#include "templates/operations/fused_cast/cuda/plan.cuh"
#include "templates/operations/fused_cast/fused_cast.h"

namespace tilewright::fused_cast {
namespace {

using Knobs = tw::fused_cast::Knobs;
constexpr Knob<Knobs> kKnobs[] = {knob<&Knobs::row_threads>("row_threads"), knob<&Knobs::block_rows>("block_rows"),
                                  knob<&Knobs::held>("held"), option<&Knobs::ahead>("ahead"),
                                  option<&Knobs::wide>("wide")};
constexpr Knob<Knobs> kDerived[] = {knob<&Knobs::piece>("piece"),       knob<&Knobs::whole>("whole"),
                                    knob<&Knobs::residual>("residual"), knob<&Knobs::norm>("norm"),
                                    knob<&Knobs::gated>("gated"),       knob<&Knobs::act>("act")};
const KnobTable<Knobs> kTable{"tw::fused_cast::Knobs", kKnobs, kDerived};

constexpr int kHeldElements = 32;  // of a thread
constexpr double kScaleOps = 90;   // instructions of a block's scale, in every lane that has some of the block
constexpr int kReferenceThreads = 128;
constexpr int kRegisters = 65536;  // of a multiprocessor

std::string type(const std::optional<Format>& f) { return f ? format_type(*f) : "void"; }
double elements(const FusedCast& c) { return static_cast<double>(c.rows) * static_cast<double>(c.cols); }
int input_bytes(const FusedCast& c) {  // of x and the residual, for an element of y
  return fast_path(c.x).element_bytes * (c.residual != Residual::none || c.gate != Gate::none ? 2 : 1);
}
bool has_blocks(const FusedCast& c) { return !fast_path(c.y).row_bytes && c.y.block() > 1; }
bool needs_row(const FusedCast& c) { return c.norm != Norm::none || fast_path(c.y).row_bytes; }

// Of a thread: what is held, and what was read of it, or is being read for the next rows. More for blocks' encoders.
int registers(const FusedCast& c, const Knobs& k) {
  const int held = k.held * k.piece, blocks = has_blocks(c) ? 16 : 0;
  return 32 + blocks + held + held * input_bytes(c) / (k.ahead ? 4 : 8);
}

// What follows from the problem and the knobs chosen.
Knobs derived(const FusedCast& c, Knobs k) {
  k.piece = c.cols % 8 != 0 ? 1 : k.wide ? 16 : 8;
  k.residual = c.residual != Residual::none, k.norm = c.norm != Norm::none, k.gated = c.gate != Gate::none;
  k.act = static_cast<tw::gemm::Act>(c.act);
  k.whole = !needs_row(c) || k.span() >= c.cols;
  return k;
}

class FusedCastFamily : public FamilyOf<FusedCast> {
 public:
  FusedCastFamily() : FamilyOf("fused_cast") {}

 protected:
  Text text(const FusedCast& c, const Candidate& candidate, const Arch&) const override {
    std::vector<Format> formats = {c.x, c.y};
    if (c.bias) formats.push_back(*c.bias);
    if (c.weight) formats.push_back(*c.weight);
    return {.plan_type = fmt::format("tw::fused_cast::{}<{}, {}, {}, {}, kKnobs>", struct_name(), type(c.x), type(c.y),
                                     type(c.bias), type(c.weight)),
            .formats = formats,
            .prelude = kTable.text(knobs(c, candidate)),
            .bound_registers = true};
  }
  virtual const char* struct_name() const = 0;
  virtual Knobs knobs(const FusedCast& c, const Candidate& candidate) const = 0;
};

class Rows final : public FusedCastFamily {
 public:
  std::string_view name() const override { return "rows"; }
  std::string_view title() const override { return "rows in registers, read once by 16-byte accesses"; }

 protected:
  void costs(const FusedCast& c, const Candidate& candidate, const Arch&, Traits& t) const override {
    const Knobs k = knobs(c, candidate);
    const int held = k.held * k.piece, bytes = input_bytes(c);
    t.registers = registers(c, k);
    if (k.ahead) t.later_wave_cost = 0.1;  // a loop's turn
    const double used = std::min(1.0, static_cast<double>(c.cols) / k.span());
    t.bytes_in_flight = held * bytes * used;
    // What is behind the held pieces is read again: once for each thing that all of a row has to be known for.
    const double again = std::max(0.0, static_cast<double>(c.cols - k.span())) * static_cast<double>(c.rows);
    const int passes = (k.norm ? 1 : 0) + (fast_path(c.y).row_bytes ? 1 : 0);
    if (!k.whole) t.global_bytes += again * passes * bytes;
    const double act = c.act == Activation::none || c.act == Activation::relu ? 1 : c.act == Activation::silu ? 20 : 35;
    t.alu_ops =
        (elements(c) + (k.whole ? 0 : again * passes)) *
            (14 + act + (k.norm ? 4 : 0) + (k.piece == 1 ? 12 : 0) + (has_blocks(c) ? kScaleOps / k.piece : 0)) +
        t.blocks * t.threads * (needs_row(c) ? 120 : 40);
  }
  std::string refusal(const FusedCast& c) const override {
    const FastPath& y = fast_path(c.y);
    if (y.row_bytes)
      if (const std::string why = cast::no_row_codes(y, 8); !why.empty())
        return fmt::format("y={} {}", c.y.name(), why);
    if (y.row_bytes && c.y.block() > 1 && c.cols % 8 != 0)
      return fmt::format("cols must be a multiple of 8 for y={1}, which packs several codes a byte (got {0})", c.cols,
                         c.y.name());
    if (has_blocks(c) && !(cast::encoder_lanes(c.y) & 8u))
      return fmt::format("y={} has no encoder for lanes of 8", c.y.name());
    return "";
  }
  const char* struct_name() const override { return "Rows"; }
  Knobs knobs(const FusedCast& c, const Candidate& candidate) const override {
    return derived(c, kTable.knobs(candidate));
  }
  LaunchPlan plan(const FusedCast& c, const Candidate& candidate, const Arch& arch) const override {
    const Knobs k = knobs(c, candidate);
    const FastPath& y = fast_path(c.y);
    const int words = tw::fused_cast::exchanged_words(k, y.row_bytes != 0, y.zero_point);
    const int exchanged = k.row_threads > 32 ? k.threads() / 32 * 4 * words : 0;
    LaunchPlan p;
    p.x = {1, static_cast<std::uint32_t>(k.block_rows), needs_row(c) ? 0 : static_cast<std::uint32_t>(k.span())};
    p.threads = static_cast<std::uint32_t>(k.threads());
    p.shared_bytes = static_cast<std::uint32_t>(
        tw::fused_cast::whole_vectors(exchanged) +
        (has_blocks(c) && tw::fused_cast::shares_blocks(k, c.y.block())
             ? k.threads() / 32 * tw::fused_cast::staging_bytes(k, c.y.block(), y.data_bytes, y.scale_bytes)
             : 0));
    if (k.ahead)
      p.persistent = static_cast<std::uint32_t>(
          std::clamp(std::min(arch.threads_per_sm, kRegisters / registers(c, k)) / k.threads(), 1, 16));
    p.overlap = arch.clusters;  // targets that have one have the other
    return p;
  }
  // Numbers of threads that a row keeps busy, and that hold it, or half of it. In pieces of 16 elements too where fewer
  // lanes then compute the scale of one block.
  std::vector<Candidate> list(const FusedCast& c) const override {
    std::vector<Candidate> all;
    add(all, c, false);
    if (has_blocks(c) && c.cols % 16 == 0 && cast::encoder_lanes(c.y) & 16u) add(all, c, true);
    return all;
  }

 private:
  void add(std::vector<Candidate>& all, const FusedCast& c, bool wide) const {
    constexpr int kLargest = 1024;
    for (int threads = 32; threads <= kLargest; threads *= 2) {
      Knobs k = derived(c, {.row_threads = threads, .wide = wide});
      const int most = kHeldElements / k.piece / (threads == kLargest ? 2 : 1);  // of 64 registers there
      const std::int64_t steps = (c.cols + k.step() - 1) / k.step();
      k.held = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(steps, 1, most))));
      if (threads > 32 && k.step() >= 2 * c.cols) break;  // half of the threads would have nothing
      if (needs_row(c) && steps > 2 * k.held && threads < kLargest) continue;
      if (!needs_row(c) && threads > 256) break;
      // A row that may be divided among blocks is, into more parts for few rows.
      const int least = needs_row(c) ? k.held : std::max(1, k.held / 4);
      for (; k.held >= least; k.held /= 2)
        for (int rows = std::max(1, 128 / threads); rows <= std::max(1, 256 / threads); rows *= 2) {
          k.block_rows = rows;
          all.push_back(kTable.candidate(name(), k));
          if (!needs_row(c) || k.span() < c.cols) continue;
          Knobs loop = k;
          loop.ahead = true;
          all.push_back(kTable.candidate(name(), loop));
        }
    }
  }
};

class Reference final : public FusedCastFamily {
 public:
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "one thread for each row, in double precision"; }

 protected:
  void costs(const FusedCast& c, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 64;
    t.bytes_in_flight = 4;
    t.global_bytes *= 16;  // narrow accesses, a row apart
    t.alu_ops = elements(c) * 600;
  }
  const char* struct_name() const override { return "Reference"; }
  Knobs knobs(const FusedCast& c, const Candidate&) const override { return derived(c, {}); }
  LaunchPlan plan(const FusedCast&, const Candidate&, const Arch&) const override {
    LaunchPlan p;
    p.x = {1, kReferenceThreads, 0};
    p.threads = kReferenceThreads;
    return p;
  }
};

}  // namespace

const Family& rows() {
  static const Rows family;
  return family;
}
const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::fused_cast
