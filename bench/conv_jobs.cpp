// SPDX-License-Identifier: Apache-2.0
#include "bench/conv_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include <tilewright/arch.h>
#include <tilewright/error.h>
#include <tilewright/operation.h>

namespace tilewright::bench {
namespace {

struct Layer {
  const char *name, *title;
  std::int64_t c, k;
  const char* text;  // the problem's, but for formats, layouts, c and k
  enum class Use { judged, unseen, size } use;
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
    // Time against size.
    {"1/2", "layer 1, half as wide", 96, 96, "n=1 in=6x480x416 kernel=3 pad=0x1x1", size},
    {"1/4", "layer 1, a quarter as wide", 96, 96, "n=1 in=6x480x208 kernel=3 pad=0x1x1", size},
    {"2/2", "layer 2, half as wide", 192, 192, "n=1 in=6x240x208 kernel=3 pad=0x1x1", size},
    {"2/4", "layer 2, a quarter as wide", 192, 192, "n=1 in=6x240x104 kernel=3 pad=0x1x1", size},
    {"3/2", "layer 3, half as wide", 384, 384, "n=1 in=4x120x104 kernel=3 pad=0x1x1", size},
    {"3/4", "layer 3, a quarter as wide", 384, 384, "n=1 in=4x120x52 kernel=3 pad=0x1x1", size},
};

enum class Kind { half, channels_first, f32, fp8, int8, own, packed };

struct Row {
  const char *label, *formats;
  Kind kind;
  const char* rival;  // of kCudnnRivals, or the formats of our own problem
};

constexpr Row kRows[] = {
    {"bf16", "x=bf16 w=bf16 y=bf16", Kind::half, "bf16"},
    {"fp8", "x=e4m3 w=e4m3_row y=bf16 accum=fast", Kind::fp8, "fp8"},
    {"int8 to bf16", "x=int8 w=int8_row y=bf16", Kind::int8, "int8"},
    {"bf16, ncdhw", "x=bf16 w=bf16 y=bf16 x_layout=ncdhw y_layout=ncdhw w_layout=kctrs workspace=1073741824",
     Kind::channels_first, "bf16"},
    {"int4-g128 x bf16", "x=bf16 w=int4_g128 y=bf16 workspace=1073741824", Kind::own, "x=bf16 w=bf16 y=bf16"},
    {"nvfp4 x bf16", "x=bf16 w=nvfp4 y=bf16 global=mul workspace=1073741824", Kind::own, "x=bf16 w=bf16 y=bf16"},
    {"int4-g128 tiles x bf16", "x=bf16 w=int4_g128 y=bf16", Kind::packed, "x=bf16 w=bf16 y=bf16"},
    {"nvfp4 tiles x bf16", "x=bf16 w=nvfp4 y=bf16 global=mul", Kind::packed, "x=bf16 w=bf16 y=bf16"},
    {"int4 rows x fp8", "x=e4m3 w=int4_row y=bf16 accum=fast workspace=1073741824", Kind::own,
     "x=e4m3 w=e4m3_row y=bf16 accum=fast"},
    {"fp16", "x=f16 w=f16 y=f16", Kind::half, "fp16"},
    {"f32", "x=f32 w=f32 y=f32 accum=fast workspace=1073741824", Kind::f32, "tf32"},  // rounded to bf16
    {"f32 as tf32", "x=f32 w=f32 y=f32", Kind::f32, "tf32"},
};

std::string text_of(const Layer& layer, const char* formats) {
  return fmt::format("conv {} c={} k={} {}", formats, layer.c, layer.k, layer.text);
}

// False where a row of the weights is no whole number of its format's blocks: there is no such layer.
bool in_blocks(const Layer& layer, const char* formats) {
  try {
    Problem::parse(text_of(layer, formats));
  } catch (const Error& e) {
    return e.field() != "c";
  }
  return true;
}
// The problem with packed weights, where Hopper's kernels want those.
std::optional<Problem> packed(const Layer& layer, const char* formats) {
  const Problem problem = Problem::parse(text_of(layer, formats));
  return problem.operation().packed(problem, arch("sm_90a"));
}
bool applies(const Row& row, const Layer& layer) {
  return in_blocks(layer, row.formats) && (row.kind != Kind::packed || packed(layer, row.formats));
}

ConvGoal goal_of(const Row& row, const Layer& l) {
  using enum ConvMeasure;
  if (l.use == size) return {};
  const std::string label = row.label;
  switch (row.kind) {
    case Kind::half:
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
    case Kind::f32: return {ratio, 1.5, label};
    case Kind::channels_first:
    case Kind::int8: return {mean, 0, label};
    case Kind::own:
    case Kind::packed: return {ratio, 0.95, label};
  }
  return {};
}

std::vector<const Layer*> layers_of(const std::string& text) {
  std::vector<const Layer*> chosen;
  for (const std::string& name : split(text.empty() ? "judged" : text, ',')) {
    const std::size_t before = chosen.size();
    for (const Layer& l : kLayers)
      if (name == l.name || name == "all" || (name == "judged" && l.use == judged)) chosen.push_back(&l);
    if (chosen.size() > before) continue;
    std::string known = "judged, all";
    for (const Layer& l : kLayers) known += fmt::format(", {}", l.name);
    throw Error(ErrorCode::invalid_argument, "layers", name, known);
  }
  return chosen;
}

ConvJob job_of(const Row& row, const Layer& layer) {
  ConvJob job{row.label, layer.name, layer.title, text_of(layer, row.formats), {}, {}, goal_of(row, layer), {}, {}};
  if (row.kind == Kind::packed) job.problem = packed(layer, row.formats)->text();
  if (row.kind == Kind::own || row.kind == Kind::packed)
    job.base = text_of(layer, row.rival);
  else
    job.rivals = {row.rival};
  // Where few channels leave cuDNN's 8-bit plans behind its others, the better of both counts.
  if (row.kind == Kind::fp8 && (layer.c < 384 || layer.k < 384)) job.rivals.push_back("bf16");
  if (layer.use == size) job.whole = std::string(layer.name).substr(0, 1);
  if (layer.use == judged && mean_asked(row.label) > 0) job.mean = row.label;
  return job;
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

std::vector<ConvJob> conv_jobs(const Settings& settings) {
  std::vector<ConvJob> jobs;
  if (!settings.problem.empty()) {
    for (const std::string& text : split(settings.problem, '|')) {
      const auto at = text.find('@');
      ConvJob job{"asked", "", "", text.substr(0, at), {}, {}, {}, {}, {}};
      if (at != text.npos) job.rivals = split(text.substr(at + 1), '+');
      jobs.push_back(std::move(job));
    }
    return jobs;
  }
  const std::vector<const Layer*> layers = layers_of(settings.layers);
  const std::vector<std::string> wanted = split(settings.rows, '|');
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
      if (applies(row, *layer)) jobs.push_back(job_of(row, *layer));
  }
  if (jobs.empty()) {
    std::string known;
    for (const Row& row : kRows) known += fmt::format("{}{}", known.empty() ? "" : " | ", row.label);
    throw Error(ErrorCode::invalid_argument, "rows", settings.rows, known);
  }
  return jobs;
}

}  // namespace tilewright::bench
