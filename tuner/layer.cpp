// SPDX-License-Identifier: Apache-2.0
// The decisions of a layer, and its launches.
#include <tilewright/layer.h>

#include <span>
#include <utility>

#include <fmt/format.h>

#include <tilewright/cast.h>
#include <tilewright/error.h>
#include <tilewright/operation.h>
#include <tilewright/pack.h>

#include "support/must_be.h"
#include "tuner/engine_impl.h"
#include "tuner/workspaces.h"

namespace tilewright {
namespace {

// Rows up to which a kernel that quantizes x itself beats a cast and a gemm (bench/LOG.md): of w as stored, and of
// tiles, which it computes one after the other.
constexpr std::int64_t kFew = 4, kFewOfTiles = 1;
constexpr std::int64_t kScalesAlign = 256;  // of x's scales within the scratch

// Only warpgroup kernels share tiles through memory.
std::int64_t workspace_of(const Arch& arch) { return arch.wgmma ? Gemm::kTileWorkspace : 0; }

Problem packed(const Problem& problem, const Arch& arch) {
  return problem.operation().packed(problem, arch).value_or(problem);
}

[[noreturn]] void refuse_x_from(const Format& from, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, "x_from", std::string(from.name()), allowed);
}

std::int64_t stream_bytes(const Format& format, StreamName stream, std::int64_t rows, std::int64_t cols) {
  const std::span<const StreamSpec> all = format.info().streams;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].stream == stream) return format.stream_bytes(static_cast<int>(i), rows, cols);
  return 0;
}

bool has_global(const Format& format) { return stream_bytes(format, StreamName::global, 1, format.block()) != 0; }

// x in its format by a launch of its own, each of whose rows has `cols` elements.
Problem cast_of(const Format& from, const Format& to, Global global, std::int64_t cols) {
  if (has_global(to) && global == Global::div)
    throw Error(
        ErrorCode::unsupported, "x_from", std::string(from.name()),
        "is not supported with global=div, since a cast multiplies by the tensor's factor; pass x in its format");
  Cast cast{from, to, 1, cols};
  return cast;
}

LayerProblems problems_of(Gemm g, const Arch& arch, const LayerOptions& options) {
  if (!g.groups) g.m = 1;
  const bool casts = options.x_from && !(*options.x_from == g.x);
  if (casts && g.x_from && !(*g.x_from == *options.x_from))
    refuse_x_from(*options.x_from, fmt::format("must be {}, as in the problem, or none", g.x_from->name()));
  if (g.x_from || (casts && arch.cpu)) {                // quantized within every launch
    if (options.pack) g = *packed(g, arch).as<Gemm>();  // first: with groups x_from needs panels
    if (casts) g.x_from = options.x_from;
    return {Problem(g)};
  }
  if (!arch.cpu && g.workspace == 0 && g.groups == 0) g.workspace = workspace_of(arch);
  LayerProblems out{options.pack ? packed(g, arch) : Problem(g)};
  if (!casts) return out;
  out.cast = cast_of(*options.x_from, g.x, g.global, g.k);
  g = *out.main.as<Gemm>();
  if (g.x.block() == 1) return out;  // scales of whole rows: only the cast finds them before the product
  g.x_from = options.x_from;
  try {
    const Problem fused(g);
    if (!tuner::has_kernels(fused, arch)) return out;  // tiles of some k have none
    out.fused = fused;
    out.few = g.packing == Packing::none ? kFew : kFewOfTiles;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;  // this x has no such kernel
  }
  return out;
}

LayerProblems problems_of(Conv c, const Arch& arch, const LayerOptions& options) {
  if (!arch.cpu && c.workspace == 0) c.workspace = workspace_of(arch);
  LayerProblems out{options.pack ? packed(c, arch) : Problem(c)};
  // Formats of x are elements, in whatever order they lie.
  if (options.x_from && !(*options.x_from == c.x)) out.cast = cast_of(*options.x_from, c.x, c.global, c.c);
  return out;
}

}  // namespace

LayerProblems layer_problems(const Problem& problem, const Arch& arch, const LayerOptions& options) {
  if (options.x_from) {
    const std::string_view name = options.x_from->name();
    if (name != "f32" && name != "f16" && name != "bf16") refuse_x_from(*options.x_from, "must be f32, f16 or bf16");
  }
  LayerProblems out = [&] {
    if (const Gemm* g = problem.as<Gemm>()) return problems_of(*g, arch, options);
    if (const Conv* c = problem.as<Conv>()) return problems_of(*c, arch, options);
    throw must_be("problem", problem.text(), "a gemm or a conv");
  }();
  if (const std::optional<Repack> repack = out.main.operation().repack(out.main)) out.repack = repack->problem;
  return out;
}

struct Layer::Impl {
  Impl(Engine& engine, const Problem& problem, const Device& device, const LayerOptions& options)
      : engine(engine),
        device(device),
        problems(layer_problems(problem, device.arch(), options)),
        main(engine.prepare(problems.main, device)),
        workspaces(engine.impl_->workspaces) {
    if (problems.cast) cast.emplace(engine.prepare(*problems.cast, device));
    if (problems.fused) fused.emplace(engine.prepare(*problems.fused, device));
    if (const Gemm* g = problems.main.as<Gemm>()) {
      workspace = static_cast<std::size_t>(g->workspace);
      cols = g->k;
    } else {
      const Conv& c = *problems.main.as<Conv>();
      workspace = static_cast<std::size_t>(c.workspace);
      cols = c.c;
      conv_rows = c.n;
      for (int i = 0; i < c.in.rank; ++i) conv_rows *= c.in.at[static_cast<std::size_t>(i)];
    }
    Task task;
    problems.main.operation().describe(problems.main, task);
    for (const Matrix& m : task.matrices)
      if (m.name == "w")
        for (StreamName s : kStreams)
          if (m.slot(s) >= 0)
            weight_bytes[static_cast<int>(s)] = task.buffers[static_cast<std::size_t>(m.slot(s))].bytes;
    if (workspace) workspaces->prepare(device, workspace);
  }

  // Where a launch finds x in its format, after the cast of `rows` rows of floats.
  Operand quantize(Stream stream, const Operand& given, std::int64_t rows, void* scratch) const {
    if (!scratch)
      throw must_be("scratch", "null",
                    fmt::format("memory of at least {1} bytes, as scratch_bytes({0}) says", rows, scratch_bytes(rows)));
    CastArgs args;
    args.x.data = given.data;
    args.y.data = scratch;
    if (stream_bytes(x, StreamName::scales, rows, cols))
      args.y.scales = static_cast<std::byte*>(scratch) + scales_at(rows);
    args.y.global = const_cast<float*>(given.global);  // which a cast reads
    args.rows = rows;
    cast->launch(stream, args);
    return args.y;
  }
  std::int64_t scales_at(std::int64_t rows) const {
    return (stream_bytes(x, StreamName::data, rows, cols) + kScalesAlign - 1) / kScalesAlign * kScalesAlign;
  }
  std::size_t scratch_bytes(std::int64_t rows) const {
    if (!cast || rows <= problems.few) return 0;
    return static_cast<std::size_t>(scales_at(rows) + stream_bytes(x, StreamName::scales, rows, cols));
  }

  template <class Args>
  void fill_in(Stream stream, Args& args) const {
    if (!args.w.data) {
      if (!loaded.data) throw must_be("w.data", "null", "the weights, unless load() was called before");
      args.w = loaded;
    }
    if (workspace && !args.workspace) args.workspace = workspaces->of(device, stream, workspace);
  }

  Engine& engine;
  const Device device;
  const LayerProblems problems;
  const Kernel main;
  std::optional<Kernel> cast, fused;
  const std::shared_ptr<tuner::Workspaces> workspaces;
  std::size_t workspace = 0;  // bytes
  const Format x = problems.main.as<Gemm>() ? problems.main.as<Gemm>()->x : problems.main.as<Conv>()->x;
  std::int64_t cols = 0;       // of the cast
  std::int64_t conv_rows = 0;  // of a conv's cast
  std::size_t weight_bytes[3] = {};
  Memory data, scales;  // of w in another order
  Operand loaded;
};

Layer::Layer(Engine& engine, const Problem& problem, const Device& device, const LayerOptions& options)
    : impl_(std::make_unique<Impl>(engine, problem, device, options)) {}
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;
Layer::~Layer() = default;

const LayerProblems& Layer::problems() const { return impl_->problems; }
const Kernel& Layer::kernel() const { return impl_->main; }
bool Layer::packed() const { return impl_->problems.repack.has_value(); }

std::size_t Layer::weight_bytes(StreamName stream) const { return impl_->weight_bytes[static_cast<int>(stream)]; }

void Layer::pack(Stream stream, Operand from, MutableOperand to) const {
  impl_->engine.pack(impl_->problems.main, impl_->device, stream, from, to);
}

void Layer::load(Stream stream, Operand w) {
  if (!w.data) throw must_be("w.data", "null", "the weights' device memory");
  Operand loaded = w;
  if (packed()) {
    Memory data(impl_->device, weight_bytes(StreamName::data));
    Memory scales;
    if (const std::size_t bytes = weight_bytes(StreamName::scales)) scales = Memory(impl_->device, bytes);
    const MutableOperand to{data.data(), scales.data(), nullptr};
    pack(stream, w, to);
    loaded = {to.data, to.scales, w.global};
    impl_->data = std::move(data);
    impl_->scales = std::move(scales);
  }
  impl_->loaded = loaded;
}

std::size_t Layer::scratch_bytes(std::int64_t rows) const { return impl_->scratch_bytes(rows); }

void Layer::launch(Stream stream, const GemmArgs& given, void* scratch) const {
  const Impl& layer = *impl_;
  GemmArgs args = given;
  if (args.m == 0) return;
  if (args.m < 0) throw must_be("m", fmt::format("{}", args.m), "0 or more");
  layer.fill_in(stream, args);
  if (args.m <= layer.problems.few) {
    layer.fused->launch(stream, args);
    return;
  }
  if (layer.cast) {
    if (args.ldx != 0 && args.ldx != layer.cols)
      throw must_be("ldx", fmt::format("{}", args.ldx),
                    fmt::format("0 or k={}: rows of floats that are quantized lie side by side", layer.cols));
    args.x = layer.quantize(stream, given.x, args.m, scratch);
    args.ldx = 0;
  }
  layer.main.launch(stream, args);
}

void Layer::launch(Stream stream, const ConvArgs& given, void* scratch) const {
  const Impl& layer = *impl_;
  ConvArgs args = given;
  layer.fill_in(stream, args);
  if (layer.cast) args.x = layer.quantize(stream, given.x, layer.conv_rows, scratch);
  layer.main.launch(stream, args);
}

}  // namespace tilewright
