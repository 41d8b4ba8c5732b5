// SPDX-License-Identifier: Apache-2.0
#include "bench/conv/conv_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/operation.h>

#include "bench/conv/conv_check.h"

namespace tilewright::bench {
namespace {

struct Layer {
  const char *name, *title;
  std::int64_t c, k;
  const char* text;  // the problem's, but for formats, layouts, c and k
  // depthwise, special: of kernel families that the others do not reach; only in bf16.
  enum class Use { judged, unseen, depthwise, special } use;
  std::int64_t stride = 1;
  bool pointwise = false;
};
using enum Layer::Use;

// Depth, height and width include the frames that a decoder's cache holds.
constexpr Layer kLayers[] = {
    {"1", "Wan2.1 up3", 96, 96, "n=1 in=6x480x832 kernel=3 pad=0x1x1", judged},
    {"2", "Wan2.1 up2", 192, 192, "n=1 in=6x240x416 kernel=3 pad=0x1x1", judged},
    {"3", "Wan2.1 up1", 384, 384, "n=1 in=4x120x208 kernel=3 pad=0x1x1", judged},
    {"4", "Wan2.1 mid", 384, 384, "n=1 in=3x60x104 kernel=3 pad=0x1x1", judged},
    {"5", "Wan2.1 upsample", 192, 96, "n=4 in=480x832 kernel=3 pad=1", judged},
    {"6", "Wan2.1 conv_out", 96, 3, "n=1 in=6x480x832 kernel=3 pad=0x1x1", judged},
    {"7", "Wan2.2", 512, 512, "n=1 in=6x176x320 kernel=3 pad=0x1x1", judged},
    {"8", "3x3x3 128 to 512", 128, 512, "n=1 in=21x60x106 kernel=3 pad=1", judged},
    {"9", "Hunyuan up3", 128, 128, "n=1 in=19x258x258 kernel=3", judged},
    {"10", "Wan2.1 encoder", 96, 96, "n=4 in=480x832 kernel=3 stride=2 pad=0:1", judged, 2},
    {"11", "FLUX", 512, 512, "n=1 in=256x256 kernel=3 pad=1", judged},
    {"12", "pointwise", 512, 512, "n=1 in=21x60x106 kernel=1", judged, 1, true},
    // Layers of other models, which no kernel was made for.
    {"u1", "3x3 256", 256, 256, "n=1 in=128x128 kernel=3 pad=1", unseen},
    {"u2", "SD UNet", 160, 320, "n=1 in=64x64 kernel=3 pad=1", unseen},
    {"u3", "1-D", 512, 512, "n=1 in=3000 kernel=3 pad=1", unseen},
    {"u4", "48 channels", 48, 48, "n=1 in=6x240x416 kernel=3 pad=0x1x1", unseen},
    {"u5", "stride 2", 256, 256, "n=1 in=256x256 kernel=3 stride=2 pad=1", unseen, 2},
    {"u6", "SDXL mid", 1280, 1280, "n=2 in=32x32 kernel=3 pad=1", unseen},
    {"u7", "SD mid", 1280, 1280, "n=2 in=8x8 kernel=3 pad=1", unseen},
    {"u8", "SD conv_out", 128, 3, "n=1 in=512x512 kernel=3 pad=1", unseen},
    // The stages of ConvNeXt at 224 x 224.
    {"d1", "depthwise 7x7", 96, 96, "n=64 in=56x56 kernel=7 pad=3 groups=96", depthwise},
    {"d2", "depthwise 7x7", 192, 192, "n=64 in=28x28 kernel=7 pad=3 groups=192", depthwise},
    {"d3", "depthwise 7x7", 384, 384, "n=64 in=14x14 kernel=7 pad=3 groups=384", depthwise},
    {"d4", "depthwise 7x7", 768, 768, "n=64 in=7x7 kernel=7 pad=3 groups=768", depthwise},
    {"s1", "depthwise 3x3", 144, 144, "n=64 in=56x56 kernel=3 pad=1 groups=144", special},
    {"s2", "depthwise 5x5", 240, 240, "n=32 in=28x28 kernel=5 pad=2 groups=240", special},
    {"g1", "groups of 32", 1024, 1024, "n=32 in=14x14 kernel=3 pad=1 groups=32", special},
    {"g2", "groups of 64", 512, 512, "n=32 in=28x28 kernel=3 pad=1 groups=8", special},
    {"o1", "odd channels", 129, 128, "n=1 in=128x128 kernel=3 pad=1", special},
    {"o2", "odd channels, 3-D", 35, 96, "n=1 in=6x240x416 kernel=3 pad=0x1x1", special},
};

// How often a decode of Wan2.1's VAE calls these layers. Blocks of the first four have two convolutions, the second of
// which ends with a residual; causal ones keep two frames.
struct Calls {
  const char* layer;
  int calls, with_residual, cache;
};
constexpr Calls kDecode[] = {{"1", 120, 60, 2},  {"2", 120, 60, 2}, {"3", 100, 50, 2},
                             {"4", 210, 105, 2}, {"5", 20, 0, 0},   {"6", 20, 0, 2}};
constexpr const char *kAlone = "Wan2.1 decode, call-weighted: conv alone",
                     *kInPasses = "Wan2.1 decode, call-weighted: cat, pad, conv, bias, residual";

constexpr double kLargerAtMost = 1.03;
constexpr const char* kSizedLayers = "1,3,4,8,11";

enum class Kind { half, called, channels_first, f32, fp8, int8, own, packed, fake_quant };

struct Row {
  const char *label, *formats;
  Kind kind;
  const char* rival;  // of kCudnnRivals, or the formats of our own problem
  double asked = 0;   // where it is the same for all layers
};

constexpr Row kRows[] = {
    {"bf16", "x=bf16 w=bf16 y=bf16", Kind::half, "bf16"},
    {"bf16, as called", "x=bf16 w=bf16 y=bf16 bias=bf16", Kind::called, "bf16"},
    {"fp8", "x=e4m3 w=e4m3_row y=bf16 accum=fast", Kind::fp8, "fp8"},
    {"int8 to bf16", "x=int8 w=int8_row y=bf16", Kind::int8, "int8"},
    {"bf16, ncdhw", "x=bf16 w=bf16 y=bf16 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs workspace=1073741824",
     Kind::channels_first, "bf16"},
    {"int4-g128 x bf16", "x=bf16 w=int4_g128 y=bf16 workspace=1073741824", Kind::own, "x=bf16 w=bf16 y=bf16", 0.95},
    {"nvfp4 x bf16", "x=bf16 w=nvfp4 y=bf16 global=mul workspace=1073741824", Kind::own, "x=bf16 w=bf16 y=bf16", 0.95},
    {"int4-g128 tiles x bf16", "x=bf16 w=int4_g128 y=bf16", Kind::packed, "x=bf16 w=bf16 y=bf16", 0.95},
    {"nvfp4 tiles x bf16", "x=bf16 w=nvfp4 y=bf16 global=mul", Kind::packed, "x=bf16 w=bf16 y=bf16", 0.95},
    {"int4 rows x fp8", "x=e4m3 w=int4_row y=bf16 accum=fast workspace=1073741824", Kind::own,
     "x=e4m3 w=e4m3_row y=bf16 accum=fast", 0.95},
    // At most 1.2 and 2 times the time without it.
    {"fake quant, trsc", "x=bf16 w=bf16 y=bf16 quant_act=e2m1/16 order=trsc workspace=1073741824", Kind::fake_quant,
     "x=bf16 w=bf16 y=bf16", 1 / 1.2},
    {"fake quant, ctrs", "x=bf16 w=bf16 y=bf16 w_layout=kctrs quant_act=e2m1/16 workspace=2147483647", Kind::fake_quant,
     "x=bf16 w=bf16 y=bf16", 1 / 2.0},
    {"fp16", "x=f16 w=f16 y=f16", Kind::half, "fp16"},
    {"f32", "x=f32 w=f32 y=f32 accum=fast workspace=1073741824", Kind::f32, "tf32", 1.5},  // rounded to bf16
    {"f32 as tf32", "x=f32 w=f32 y=f32", Kind::f32, "tf32", 1.5},
};

std::string text_of(const Layer& layer, const char* formats) {
  return fmt::format("conv {} c={} k={} {}", formats, layer.c, layer.k, layer.text);
}

// Nothing where a row of the weights is no whole number of its format's blocks, or Hopper's kernels do not want it as
// tiles: there is no such layer.
std::optional<Problem> problem_of(const Row& row, const Layer& layer) {
  try {
    const Problem problem = Problem::parse(text_of(layer, row.formats));
    return row.kind == Kind::packed ? problem.operation().packed(problem, arch("sm_90a")) : problem;
  } catch (const Error& e) {
    if (e.field() != "c") throw;
    return {};
  }
}

ConvGoal goal_of(const Row& row, const Layer& l) {
  using enum ConvMeasure;
  const std::string label = row.label;
  switch (row.kind) {
    case Kind::half:
      if (l.use == depthwise) return {fma_rate, 0.7, label + ", depthwise 7x7"};
      if (l.use == special) return {};
      if (l.pointwise) return {copy_rate, 0.75, label + ", 1x1x1"};
      if (l.stride > 1 && l.c <= 96) return {copy_rate, 0.75, label + ", stride 2, C <= 96"};
      if (l.k <= 4) return {copy_rate, 0.55, label + ", K <= 4"};
      if (l.k == 96) return {ratio, 1.3, label + ", K = 96"};
      if (l.k == 192) return {ratio, 1.15, label + ", K = 192"};
      return {ratio, 0.97, label + ", others"};
    case Kind::fp8:
      if (l.c >= 384 && l.k >= 384) return {ratio, 0.95, label + ", C and K >= 384"};
      if (l.c == 96) return {ratio, 1.6, label + ", C = 96"};
      if (l.c == 128) return {ratio, 1.1, label + ", C = 128"};
      if (l.c == 192) return {ratio, 1.3, label + ", C = 192"};
      return {};
    case Kind::called:
    case Kind::channels_first:
    case Kind::int8: return {};
    case Kind::f32:
    case Kind::own:
    case Kind::packed:
    case Kind::fake_quant: return {ratio, row.asked, label};
  }
  return {};
}

std::vector<const Layer*> layers_of(const std::string& text) {
  std::vector<const Layer*> chosen;
  for (const std::string& name : split(text, ',')) {
    const std::size_t before = chosen.size();
    for (const Layer& l : kLayers)
      if (name == l.name || name == "all" || (name == "judged" && l.use == judged)) chosen.push_back(&l);
    if (chosen.size() > before) continue;
    std::string known = "judged, all";
    for (const Layer& l : kLayers) known += fmt::format(", {}", l.name);
    throw Error(ErrorCode::invalid_argument, "layers", name, "must be one of " + known);
  }
  return chosen;
}

const Calls* calls_of(const Layer& layer) {
  const auto found = std::find_if(std::begin(kDecode), std::end(kDecode),
                                  [&](const Calls& c) { return layer.name == std::string(c.layer); });
  return found == std::end(kDecode) ? nullptr : found;
}

ConvJob job_of(const Row& row, const Layer& layer, const Problem& problem) {
  ConvJob job{row.label, layer.name, layer.title, problem.text()};
  job.goal = goal_of(row, layer);
  if (row.kind == Kind::own || row.kind == Kind::packed || row.kind == Kind::fake_quant)
    job.base = text_of(layer, row.rival);
  else
    job.rivals = {row.rival};
  job.four_bits = row.kind == Kind::fake_quant;
  // Where few channels leave cuDNN's 8-bit plans behind its others, the better of both counts.
  if (row.kind == Kind::fp8 && (layer.c < 384 || layer.k < 384)) job.rivals.push_back("bf16");
  if (layer.use == judged && mean_asked(row.label) > 0) job.mean = row.label;
  if (const Calls* c = calls_of(layer); c && row.label == std::string("bf16"))
    job.weighted = kAlone, job.calls = c->calls;
  return job;
}

// A layer of the decode as it is called, and the same with a residual.
std::vector<ConvJob> called_jobs(const Row& row, const Layer& layer, const Problem& problem) {
  std::vector<ConvJob> jobs;
  const Calls* c = calls_of(layer);
  if (!c) return jobs;
  ConvJob job = job_of(row, layer, problem);
  job.weighted = kInPasses, job.in_passes = true;
  if (c->cache) job.problem += fmt::format(" cache={}", c->cache);
  job.calls = c->calls - c->with_residual;
  jobs.push_back(job);
  if (!c->with_residual) return jobs;
  job.layer += "+", job.title += ", residual", job.problem += " residual=bf16";
  job.calls = c->with_residual;
  jobs.push_back(job);
  return jobs;
}

// Parts of a layer's width, without a rival. The largest is asked nothing.
std::vector<ConvJob> sized_jobs(const Row& row, const Layer& layer, const Conv& whole,
                                const std::vector<int>& percents) {
  std::vector<ConvJob> jobs;
  for (const int percent : percents) {
    Conv part = whole;
    std::int64_t& width = part.in.at[static_cast<std::size_t>(part.in.rank - 1)];
    width = std::max<std::int64_t>(1, (width * percent + 50) / 100);
    ConvJob job{fmt::format("{}, by width", row.label), fmt::format("{}@{}", layer.name, percent),
                fmt::format("{}, {} wide", layer.title, width), Problem(part).text()};
    job.whole = layer.name;
    if (percent < *std::max_element(percents.begin(), percents.end()))
      job.goal = {ConvMeasure::larger, kLargerAtMost, job.label};
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::vector<int> percents_of(const std::string& text) {
  std::vector<int> percents;
  for (const std::string& part : split(text, ',')) {
    int percent = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), percent);
    if (error != std::errc() || end != part.data() + part.size() || percent < 1 || percent > 1000)
      throw Error(ErrorCode::invalid_argument, "sizes", part, "must be percentages by commas, 1 to 1000");
    percents.push_back(percent);
  }
  return percents;
}

std::vector<ConvJob> jobs_of(const Row& row, const Layer& layer, const std::vector<int>& percents) {
  const std::optional<Problem> problem = problem_of(row, layer);
  if (!problem) return {};
  if (!percents.empty()) return sized_jobs(row, layer, *problem->as<Conv>(), percents);
  if (row.kind == Kind::called) return called_jobs(row, layer, *problem);
  const bool one_row = layer.use == depthwise || layer.use == special;
  if (one_row && row.label != std::string("bf16")) return {};
  return {job_of(row, layer, *problem)};
}

}  // namespace

double mean_asked(const std::string& group) {
  for (const Row& row : kRows) {
    if (group != row.label) continue;
    if (row.kind == Kind::half) return 1.1;
    if (row.kind == Kind::channels_first) return 1.25;
    if (row.kind == Kind::int8) return 1.8;
  }
  return 0;
}

ConvCalls calls_asked(const std::string& group) {
  ConvCalls all{group == kAlone ? 1.25 : group == kInPasses ? 1.6 : 0, 0};
  for (const Calls& c : kDecode) all.calls += c.calls;
  return all;
}

std::vector<Pass> passes_of(const Conv& conv) {
  std::int64_t in = conv.n * conv.c, padded = in, out = conv.n * conv.k;
  for (const ConvAxis& a : axes_of(conv)) in *= a.in, padded *= a.in + a.before + a.behind, out *= a.out;
  const auto bytes = [](Format f, std::int64_t elements) {
    return static_cast<std::size_t>(elements * f.stream_bytes(0, 1, 1));
  };
  std::vector<Pass> passes;
  if (conv.cache) {
    passes.push_back({"concatenation", bytes(conv.x, in)});
    if (padded > in) passes.push_back({"padding", bytes(conv.x, in + padded) / 2});
  }
  if (conv.bias) passes.push_back({"bias", bytes(conv.y, out)});
  if (conv.residual) passes.push_back({"residual", bytes(conv.y, 2 * out) / 2 + bytes(*conv.residual, out) / 2});
  return passes;
}

std::vector<ConvJob> conv_jobs(const Settings& settings) {
  std::vector<ConvJob> jobs;
  if (!settings.problem.empty()) {
    for (const std::string& text : split(settings.problem, '|')) {
      const auto at = text.find('@');
      ConvJob job{"asked", "", "", text.substr(0, at)};
      if (at != text.npos) job.rivals = split(text.substr(at + 1), '+');
      jobs.push_back(std::move(job));
    }
    return jobs;
  }
  const std::vector<int> percents = percents_of(settings.sizes);
  const std::vector<const Layer*> layers = layers_of(!settings.layers.empty() ? settings.layers
                                                     : percents.empty()       ? "judged"
                                                                              : kSizedLayers);
  const std::vector<std::string> wanted =
      split(settings.rows.empty() && !percents.empty() ? "bf16" : settings.rows, '|');
  for (const Row& row : kRows) {
    // A whole label means this row alone: bf16 is a part of others.
    const auto is_label = [&](const std::string& w) { return w == row.label; };
    const auto is_part = [&](const std::string& w) {
      return std::string_view(row.label).find(w) != std::string_view::npos &&
             std::none_of(std::begin(kRows), std::end(kRows), [&](const Row& r) { return w == r.label; });
    };
    if (!wanted.empty() && std::none_of(wanted.begin(), wanted.end(), is_label) &&
        std::none_of(wanted.begin(), wanted.end(), is_part))
      continue;
    for (const Layer* layer : layers)
      for (ConvJob& job : jobs_of(row, *layer, percents)) jobs.push_back(std::move(job));
  }
  if (jobs.empty()) {
    std::string known;
    for (const Row& row : kRows) known += fmt::format("{}{}", known.empty() ? "" : " | ", row.label);
    throw Error(ErrorCode::invalid_argument, "rows", settings.rows, "must be one of " + known);
  }
  return jobs;
}

}  // namespace tilewright::bench
