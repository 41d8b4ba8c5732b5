// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "bench/suite/pairs.h"

namespace tilewright::bench {
namespace {

constexpr int kQueue = 3;  // of the knob `schedule` (templates/operations/gemm/cuda/wgmma/schedule.cuh)

bool global_of(Format f) {
  return std::any_of(f.info().streams.begin(), f.info().streams.end(),
                     [](const StreamSpec& s) { return s.scope == Scope::tensor; });
}

bool mixed_fp8(Format x, Format w) {
  const auto kind = [](Format f) { return f.name().substr(0, 4); };
  return (kind(x) == "e4m3" && kind(w) == "e5m2") || (kind(x) == "e5m2" && kind(w) == "e4m3");
}

}  // namespace

std::string Pair::text(int which, std::int64_t n, std::int64_t k, bool epilogue) const {
  constexpr const char* kY[] = {"f16", "f32", "bf16"};
  constexpr const char* kBias[] = {"", " bias=f32", "", " bias=f16", " bias=bf16"};
  constexpr const char* kAct[] = {"", " act=silu", " act=relu", " act=gelu", "", " act=gelu_tanh", ""};
  return fmt::format("gemm x={} w={} y={} m=1 n={} k={}{}{}{}{}{}{}{}", x.name(), w.name(), kY[which % 3], n, k,
                     from ? " x_from=" + std::string(from->name()) : "",
                     global_of(w) || global_of(x) ? which % 2 ? " global=div" : " global=mul" : "",
                     tiles ? " pack=tiles" : "", fast ? " accum=fast" : "", epilogue ? kBias[which % 5] : "",
                     epilogue ? kAct[which % 7] : "", epilogue && which % 4 == 3 ? " alpha=0.5" : "") +
         (by_row() ? kWorkspace : "");
}

const char* const Pair::kWorkspace = " workspace=16777216";

std::vector<Pair> wgmma_pairs(Suite& s) {
  const auto served = [&](const Pair& pair) {
    try {
      return !legal(s, Problem::parse(pair.text(0, 64, kWholeK, false)), 1, "wgmma").empty();
    } catch (const Error&) {
      return false;  // no such problem: what is stated of x or w forbids it
    }
  };
  const auto text_of = [&](const Pair& pair) {  // with many tokens
    constexpr std::int64_t kRows = 130;
    const Problem problem = Problem::parse(pair.text(0, 64, kWholeK, false)).with_rows(kRows);
    return family("gemm", "wgmma").source(problem, s.device().arch(), legal(s, problem, kRows, "wgmma").front()).text;
  };
  // Whether x is FP8 and multiplied as something wider, whatever accum is.
  const auto widened = [&](const Pair& pair) {
    if (!pair.tiles || pair.x.name().substr(0, 4) != "e4m3") return false;
    return text_of({pair.x, pair.w, true, false}) == text_of({pair.x, pair.w, true, true});
  };
  std::vector<Pair> pairs;
  std::set<std::string_view> wide;      // kinds of such x but e4m3_row that have met one w: as for the mixed ones
  std::set<std::string_view> unpacked;  // kinds of x but int4_row that have met one w: once unpacked, all are bytes
  std::set<std::string_view>
      mixed;  // x of FP8 that have met the other kind: scales are the epilogue's, as pairs of one kind show
  for (Format x : Format::all())
    for (Format w : Format::all()) {
      if (mixed_fp8(x, w) && !mixed.insert(x.name()).second) continue;
      for (const bool tiles : {false, true})
        for (const bool fast : {false, true})
          if (const Pair pair{x, w, tiles, fast}; served(pair)) {
            if (pair.unpacks() && x.name() != "int4_row" && !unpacked.insert(x.name()).second) continue;
            if (widened(pair) && (fast || (x.name() != "e4m3_row" && !wide.insert(x.name()).second))) continue;
            pairs.push_back(pair);
          }
    }
  // x that the kernel quantizes, as each kind of floats with other weights: how codes meet is what the pairs above
  // show.
  std::vector<Pair> quantized;
  for (const Pair& pair : pairs)
    for (const char* from : {"f32", "f16", "bf16"}) {
      Pair with = pair;
      with.from = Format::parse(from);
      const auto same = [&](const Pair& other) { return other.from == with.from || other.w == with.w; };
      if (!with.by_row() && pair.tiles && std::none_of(quantized.begin(), quantized.end(), same) && served(with))
        quantized.push_back(with);
    }
  pairs.insert(pairs.end(), quantized.begin(), quantized.end());
  // And x whose rows it quantizes: for each way of multiplying x, one w.
  const char* const from[] = {"bf16", "f32", "f16"};
  std::set<std::string> ways;
  for (std::size_t i = 0, all = pairs.size(); i < all; ++i) {
    Pair with = pairs[i];
    if (with.from || !with.x.name().ends_with("_row")) continue;
    with.from = Format::parse(from[ways.size() % std::size(from)]);
    const std::string way =
        fmt::format("{} {} {} {} {}", with.x.name(), with.tiles, with.fast, with.w.block() > 1, widened(pairs[i]));
    if (!ways.count(way) && served(with)) ways.insert(way), pairs.push_back(with);
  }
  return pairs;
}

std::vector<Candidate> legal(Suite& s, const Problem& problem, std::int64_t m, std::string_view family) {
  std::vector<Candidate> all = s.engine().task(problem.with_rows(m), s.device().arch()).candidates;
  std::erase_if(all, [&](const Candidate& c) { return !c.family.starts_with(family); });
  return all;
}

std::int64_t option(const Candidate& c, std::string_view name) {
  for (const auto& [knob, value] : c.knobs)
    if (knob == name) return value;
  return 0;
}

bool queued(const Candidate& c) { return option(c, "schedule") == kQueue; }

}  // namespace tilewright::bench
