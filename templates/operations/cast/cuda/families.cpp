// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/cast/cast.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "templates/common/checks.h"
#include "templates/common/family_of.h"
#include "templates/common/run_grid.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/cast/cuda/lanes.h"

namespace tilewright::cast {
namespace {

int element_bytes(Format plain) { return fast_path(plain).data_bytes; }
// The last argument of an encoding kernel's template.
const char* rounding(const Cast& c) { return c.rounding == Rounding::stochastic ? ", true" : ""; }
// Of an element: its share of a generator's ten rounds, two decodings and a division.
double rounding_ops(const Cast& c) { return c.rounding == Rounding::stochastic ? 60 : 0; }

// Narrowing is the encoder's work, widening the decoder's.
bool encodes(const Cast& c) { return is_float(c.x) && (!is_float(c.y) || element_bytes(c.y) <= element_bytes(c.x)); }

double elements(const Cast& c) { return static_cast<double>(c.rows) * static_cast<double>(c.cols); }

int knob(const Candidate& c, std::string_view name) { return static_cast<int>(c.at(name)); }

class Blocks final : public FamilyOf<Cast> {
 public:
  Blocks() : FamilyOf("cast") {}
  std::string_view name() const override { return "blocks"; }
  std::string_view title() const override { return "runs of blocks, staged through shared memory"; }

 protected:
  Text text(const Cast& c, const Candidate& candidate, const Arch&) const override {
    const Tile tile = tile_of(c, candidate);
    if (encodes(c))
      return {.plan_type = fmt::format("tw::cast::Encode<{}, {}, {}, {}, {}{}>", format_type(c.x), format_type(c.y),
                                       tile.threads, tile.lane, tile.passes, rounding(c)),
              .formats = {c.x, c.y},
              .header = "encode"};
    return {.plan_type = fmt::format("tw::cast::Decode<{}, {}, {}, {}>", format_type(c.x), format_type(c.y),
                                     tile.threads, tile.passes),
            .formats = {c.x, c.y},
            .header = "decode"};
  }
  void costs(const Cast& c, const Candidate& candidate, const Arch&, Traits& t) const override {
    const Tile tile = tile_of(c, candidate);
    // Encoders hold their input in registers; decoders read the narrow side only.
    const bool searches = c.y.name() == "q4_k";
    t.registers = encodes(c) ? 24 + tile.lane * tile.passes * (searches ? 3 : 1) : 32;
    t.bytes_in_flight = encodes(c) ? tile.lane * tile.passes * element_bytes(c.x)
                                   : static_cast<double>(tile.shared_bytes) / tile.threads;
    // Instructions per element, of which the work per block is shared by a lane's elements.
    t.alu_ops = elements(c) * (searches ? 500.0 : encodes(c) ? 10.0 + 64.0 / tile.lane + rounding_ops(c) : 9.0);
  }
  LaunchPlan plan(const Cast& c, const Candidate& candidate, const Arch& arch) const override {
    const Tile tile = tile_of(c, candidate);
    return {.x = run_grid(tile.elements, c.rows, c.cols),
            .y = {},
            .z = {},
            .threads = static_cast<std::uint32_t>(tile.threads),
            .shared_bytes = static_cast<std::uint32_t>(tile.shared_bytes),
            .overlap = arch.clusters};  // targets that have one have the other
  }

 private:
  struct Tile {
    int threads, lane, passes;  // lane: elements of one lane and pass
    std::int64_t elements;
    int shared_bytes;
  };
  // Whole tiles are copied 16 bytes at a time.
  static bool aligned(const FastPath& f, int blocks) {
    return blocks * f.data_bytes % 16 == 0 && blocks * f.scale_bytes % 16 == 0;
  }
  static Tile tile_of(const Cast& c, const Candidate& candidate) {
    Tile p{knob(candidate, "threads"), 0, knob(candidate, "passes"), 0, 0};
    p.lane = encodes(c) ? knob(candidate, "lane") : 16 / element_bytes(c.y);
    p.elements = static_cast<std::int64_t>(p.threads) * p.lane * p.passes;
    const Format coded = encodes(c) ? c.y : c.x;
    const FastPath& f = fast_path(coded);
    p.shared_bytes = static_cast<int>(p.elements / coded.block()) * (f.data_bytes + f.scale_bytes);
    return p;
  }

 protected:
  std::string refusal(const Cast& c) const override {
    if (encodes(c) && fast_path(c.y).row_bytes) return fmt::format("y={} has a scale per row", c.y.name());
    if (encodes(c) && encoder_lanes(c.y) == 0) return fmt::format("y={} has no encoder for lanes", c.y.name());
    if (!encodes(c) && fast_path(c.x).scale_rows > 1)
      return fmt::format("x={} has scales for {} rows", c.x.name(), fast_path(c.x).scale_rows);
    if (!encodes(c) && !is_float(c.y))
      return fmt::format("y={} from x={} is not supported: one side must be a plain float", c.y.name(), c.x.name());
    return "";
  }
  std::vector<Candidate> list(const Cast& c) const override {
    std::vector<Candidate> all;
    const auto add = [&](int threads, int lane, int passes) {
      Candidate k{"blocks", {{"threads", threads}}};
      if (lane) k.knobs.emplace_back("lane", lane);
      k.knobs.emplace_back("passes", passes);
      all.push_back(std::move(k));
    };
    if (!encodes(c)) {
      for (int threads : {256, 128})
        for (int passes : {4, 2, 8, 1})
          if (const FastPath& f = fast_path(c.x);
              aligned(f, threads * (16 / element_bytes(c.y)) * passes / c.x.block()))
            add(threads, 0, passes);
      return all;
    }
    const unsigned lanes = encoder_lanes(c.y);
    const int vector = 16 / element_bytes(c.x);
    const auto add_encoder = [&](int threads, int lane, int passes) {
      const int elements = threads * lane * passes;
      if (elements % c.y.block() == 0 && aligned(fast_path(c.y), elements / c.y.block())) add(threads, lane, passes);
    };
    for (int threads : {256, 128})
      for (int lane : {vector, 2 * vector})
        for (int bytes : {64, 32})
          if (const int passes = bytes / (lane * element_bytes(c.x)); passes > 0 && lanes & static_cast<unsigned>(lane))
            add_encoder(threads, lane, passes);
    if (all.empty())  // only a whole sub-block to a lane
      for (int threads : {128, 64, 256}) add_encoder(threads, 1 << (std::bit_width(lanes) - 1), 1);
    return all;
  }
};

class Rows final : public FamilyOf<Cast> {
 public:
  Rows() : FamilyOf("cast") {}
  std::string_view name() const override { return "rows"; }
  std::string_view title() const override { return "whole rows in registers, for formats with a scale per row"; }

 protected:
  Text text(const Cast& c, const Candidate& candidate, const Arch&) const override {
    const int row_threads = knob(candidate, "row_threads"), block_rows = knob(candidate, "block_rows");
    const int held = knob(candidate, "held");
    return {
        .plan_type = fmt::format("tw::cast::Rows<{}, {}, {}, {}, {}, {}, {}{}>", format_type(c.x), format_type(c.y),
                                 row_threads, block_rows, held, steps(c, row_threads) <= held, aligned(c), rounding(c)),
        .formats = {c.x, c.y}};
  }
  void costs(const Cast& c, const Candidate& candidate, const Arch&, Traits& t) const override {
    const int row_threads = knob(candidate, "row_threads"), held = knob(candidate, "held");
    t.registers = 40 + held * 4 * element_bytes(c.x);
    t.bytes_in_flight = static_cast<double>(held * 16 * element_bytes(c.x)) *
                        std::min(1.0, static_cast<double>(c.cols) / (16.0 * row_threads * held));
    const double again = std::max(0.0, static_cast<double>(c.cols) - 16.0 * row_threads * held);  // read twice
    t.global_bytes += again * static_cast<double>(c.rows) * element_bytes(c.x);
    t.alu_ops = elements(c) * (16 + rounding_ops(c)) + t.blocks * t.threads * 100;
  }
  LaunchPlan plan(const Cast& c, const Candidate& k, const Arch& arch) const override {
    return {.x = {1, static_cast<std::uint32_t>(knob(k, "block_rows")), 0},
            .y = {},
            .z = {},
            .threads = static_cast<std::uint32_t>(knob(k, "row_threads") * knob(k, "block_rows")),
            .shared_bytes = static_cast<std::uint32_t>(shared_bytes(c, k)),
            .overlap = arch.clusters};
  }

 private:
  static bool aligned(const Cast& c) { return c.cols % 16 == 0; }
  // Iterations that a row takes; an unaligned one may start anywhere within 16 elements.
  static std::int64_t steps(const Cast& c, std::int64_t threads) {
    return (c.cols + (aligned(c) ? 0 : 15) + 16 * threads - 1) / (16 * threads);
  }
  // Mirrors Rows::kSharedBytes; the generated source asserts that they agree.
  static int shared_bytes(const Cast& c, const Candidate& k) {
    const int words = fast_path(c.y).zero_point ? 3 : 1;  // two extremes and a sum of codes
    return knob(k, "row_threads") > 32 ? knob(k, "block_rows") * knob(k, "row_threads") / 32 * 4 * words : 0;
  }

 protected:
  std::string refusal(const Cast& c) const override {
    if (!is_float(c.x) || !fast_path(c.y).row_bytes) return fmt::format("y={} has no scale per row", c.y.name());
    const std::string why = no_row_codes(fast_path(c.y), 2);
    return why.empty() ? "" : fmt::format("y: {} {}", c.y.name(), why);
  }
  // Numbers of threads that hold a row in half of their registers and that a row keeps busy; of rows that none holds,
  // those that hold half of it. (What is read again, from L2, costs up to a sixth even beside writes to memory.)
  std::vector<Candidate> list(const Cast& c) const override {
    std::vector<Candidate> all, halves;
    const int largest = aligned(c) ? 1024 : 512;
    for (int threads = 32; threads <= largest; threads *= 2) {
      const int most = threads == 1024 ? 4 / element_bytes(c.x) : aligned(c) ? 4 : 2;
      const auto held =
          static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(steps(c, threads), most))));
      if (threads > 32 && 8 * threads >= c.cols) continue;
      if (threads < largest && steps(c, threads) > 2 * held) continue;
      for (int rows = std::max(1, 128 / threads); rows <= std::max(1, 256 / threads); rows *= 2)
        (steps(c, threads) <= held ? all : halves)
            .push_back({"rows", {{"row_threads", threads}, {"block_rows", rows}, {"held", held}}});
    }
    return all.empty() ? halves : all;
  }
};

class Reference final : public FamilyOf<Cast> {
 public:
  Reference() : FamilyOf("cast") {}
  std::string_view name() const override { return "reference"; }
  std::string_view title() const override { return "any pair of formats by their scalar codecs"; }

 protected:
  Text text(const Cast& c, const Candidate&, const Arch&) const override {
    return {.plan_type = fmt::format("tw::cast::Reference<{}, {}{}>", format_type(c.x), format_type(c.y), rounding(c)),
            .formats = {c.x, c.y}};
  }
  void costs(const Cast& c, const Candidate&, const Arch&, Traits& t) const override {
    t.registers = 64;
    t.bytes_in_flight = 4;
    t.global_bytes *= 4;  // narrow accesses
    t.alu_ops = elements(c) * (c.y.name() == "q4_k" ? 1500 : 60);
  }
  LaunchPlan plan(const Cast& c, const Candidate&, const Arch&) const override {
    constexpr int kThreads = 128;
    const std::int64_t run = std::int64_t{kThreads} * std::max(c.x.block(), c.y.block());
    return {.x = fast_path(c.y).row_bytes ? GridAxis{1, kThreads, 0} : run_grid(run, c.rows, c.cols),
            .y = {},
            .z = {},
            .threads = kThreads};
  }
};

}  // namespace

const Family& blocks() {
  static const Blocks family;
  return family;
}
const Family& rows() {
  static const Rows family;
  return family;
}
const Family& reference() {
  static const Reference family;
  return family;
}

}  // namespace tilewright::cast
