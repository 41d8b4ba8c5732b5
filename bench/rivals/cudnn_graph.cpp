// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/cudnn_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include <tilewright/error.h>

#include "bench/rivals/cudnn_shapes.h"

namespace tilewright::bench::cudnn {
namespace {

constexpr int kMostKnobs = 64;  // of an engine
constexpr int kElements = 16;   // compared with the host
constexpr int kPoison = 0xff;   // of y before a checked launch: no number, in any float format

constexpr Type kTypeF32{kF32, "f32"}, kTypeF16{kF16, "f16"}, kTypeBF16{kBF16, "bf16"}, kTypeE4M3{kE4M3, "e4m3"},
    kTypeI8{kI8, "int8"}, kTypeI32{kI32, "int32"};
constexpr std::int64_t kIdX = 1, kIdW = 2, kIdY = 3, kIdFactor = 4, kIdSums = 5;

Conv plain_of(const Conv& conv, const Type& in) {
  const Format format = Format::parse(in.format);
  Conv plain{.x = format, .w = format, .y = Format::parse("f32")};
  plain.n = conv.n, plain.c = conv.c, plain.in = conv.in, plain.k = conv.k, plain.kernel = conv.kernel;
  plain.stride = conv.stride, plain.pad = conv.pad, plain.pad_mode = conv.pad_mode, plain.dilation = conv.dilation;
  plain.groups = conv.groups, plain.x_layout = conv.x_layout, plain.y_layout = conv.y_layout;
  // A program that keeps channels in front keeps them so in its weights.
  plain.w_layout = conv.x_layout == TensorLayout::ncdhw ? FilterLayout::kctrs : FilterLayout::ktrsc;
  return plain;
}

std::vector<Piece> pieces(const Task& task, std::string_view what) {
  const std::vector<Piece> own = pieces_of(task);
  std::vector<Piece> p(4);
  std::size_t outputs = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (task.buffers[i].name == "x.data") p[Inputs::kX] = own[i];
    if (task.buffers[i].name == "w.data") p[Inputs::kW] = own[i];
    if (task.buffers[i].output) outputs = own[i].bytes / 4;
  }
  for (const std::vector<Variant>& equals : variants(what))
    for (const Variant& v : equals) p[Inputs::kY].bytes = std::max(p[Inputs::kY].bytes, outputs * size_of(v.out));
  p[Inputs::kFactor].bytes = sizeof(float);
  p[Inputs::kFactor].fill = [](std::span<std::byte> bytes) {
    const float one = 1;
    std::memcpy(bytes.data(), &one, sizeof one);
  };
  for (Piece& piece : p) piece.weights = true;  // all of it is to be cold
  return p;
}

// Virtual: a value between two operations, which is not in memory.
Descriptor tensor(const Cudnn::Impl& lib, std::int64_t id, const Type& type, const CudnnTensor& shape,
                  bool is_virtual = false) {
  Descriptor d(lib, kTensor);
  d.set(kTensorId, id);
  d.set_enum(kTensorType, kTypeDataType, type.code);
  d.set(kTensorAlignment, 16);
  d.set(kTensorDimensions, shape.dims);
  d.set(kTensorStrides, shape.strides);
  if (is_virtual) d.set(kTensorVirtual, kTypeBoolean, 1, &is_virtual);
  d.finalize("a tensor");
  return d;
}

}  // namespace

std::size_t size_of(const Type& t) { return static_cast<std::size_t>(Format::parse(t.format).stream_bytes(0, 1, 1)); }

std::vector<std::vector<Variant>> variants(std::string_view what) {
  if (what == "bf16") return {{{"bf16", kTypeBF16, kTypeBF16, kF32}}};
  if (what == "fp16") return {{{"fp16", kTypeF16, kTypeF16, kF32}}};
  if (what == "tf32") return {{{"tf32", kTypeF32, kTypeF32, kF32}}};
  if (what == "fp8")
    return {{{"fp8 fast to bf16", kTypeE4M3, kTypeBF16, kFastFloatForFp8, 0.15},
             {"fp8 fast, scaled to bf16", kTypeE4M3, kTypeBF16, kFastFloatForFp8, 0.15, true},
             {"fp8 fast to e4m3", kTypeE4M3, kTypeE4M3, kFastFloatForFp8, 0.2},
             {"fp8 fast, scaled to e4m3", kTypeE4M3, kTypeE4M3, kFastFloatForFp8, 0.2, true},
             {"fp8 fast to f32", kTypeE4M3, kTypeF32, kFastFloatForFp8, 0.15}}};
  if (what == "int8") return {{{"int8 to int32", kTypeI8, kTypeI32, kI32}}, {{"int8 to int8", kTypeI8, kTypeI8, kI32}}};
  throw Error(ErrorCode::invalid_argument, "rival", std::string(what), "must be one of bf16 fp16 tf32 fp8 int8");
}

std::string name_of(const Descriptor& config) {
  const std::vector<Descriptor> engine = config.children(kConfigEngine, kEngine, 1);
  std::string name = fmt::format("engine {}", engine.empty() ? -1 : engine.front().number(kEngineIndex));
  for (const Descriptor& choice : config.children(kConfigKnobChoices, kKnobChoice, kMostKnobs))
    name += fmt::format(" k{}={}", choice.enumerator(kKnobChoiceType, kTypeKnob), choice.number(kKnobChoiceValue));
  return name;
}

// ---- Operands

Inputs::Inputs(const Cuda& cuda, const Device& device, const Engine& engine, std::string_view what, const Conv& conv,
               double cold_bytes)
    : plain(plain_of(conv, variants(what).front().front().in)),
      task(engine.task(Problem(plain), device.arch())),
      expected(expected_outputs(plain, task, kElements)),
      rotation(cuda, device, pieces(task, what), cold_bytes) {}

// ---- The graph

Graph::Graph(const Cudnn::Impl& lib, const Cuda& cuda, const Variant& variant, const Inputs& inputs)
    : lib(lib), cuda(cuda), variant(variant), inputs(inputs), graph(lib, kGraph) {
  const CudnnShapes shapes = cudnn_shapes(inputs.plain);
  const Descriptor x = tensor(lib, kIdX, variant.in, shapes.x), w = tensor(lib, kIdW, variant.in, shapes.w),
                   y = tensor(lib, kIdY, variant.out, shapes.y), sums = tensor(lib, kIdSums, kTypeF32, shapes.y, true);
  Descriptor convolution(lib, kConvolution);
  convolution.set_enum(kConvolutionComputeType, kTypeDataType, variant.compute);
  convolution.set_enum(kConvolutionModeOf, kTypeConvolutionMode, kCrossCorrelation);
  convolution.set(kConvolutionAxes, static_cast<std::int64_t>(shapes.strides.size()));
  convolution.set(kConvolutionDilations, shapes.dilations);
  convolution.set(kConvolutionStrides, shapes.strides);
  convolution.set(kConvolutionBefore, shapes.before);
  convolution.set(kConvolutionBehind, shapes.behind);
  convolution.finalize("the convolution");
  Descriptor forward(lib, kForward);
  const float one = 1, zero = 0;
  forward.set(kForwardAlpha, kTypeFloat, 1, &one);
  forward.set(kForwardBeta, kTypeFloat, 1, &zero);
  forward.set(kForwardConvolution, convolution);
  forward.set(kForwardX, x);
  forward.set(kForwardW, w);
  forward.set(kForwardY, variant.scaled ? sums : y);
  forward.finalize("the operation");
  graph.set(kGraphHandle, kTypeHandle, 1, &lib.handle);
  if (variant.scaled) {
    const std::vector<std::int64_t> ones(shapes.y.dims.size(), 1);
    const Descriptor factor = tensor(lib, kIdFactor, kTypeF32, {ones, ones});
    Descriptor multiply(lib, kPointwise);
    multiply.set_enum(kPointwiseModeOf, kTypePointwiseMode, kMultiply);
    multiply.set_enum(kPointwiseType, kTypeDataType, kF32);
    multiply.finalize("the scaling");
    Descriptor scaling(lib, kPointwiseOperation);
    scaling.set(kPointwiseOf, multiply);
    scaling.set(kPointwiseX, sums);
    scaling.set(kPointwiseB, factor);
    scaling.set(kPointwiseY, y);
    scaling.finalize("the scaling's operation");
    const Raw both[] = {forward.raw(), scaling.raw()};
    graph.set(kGraphOperations, kTypeDescriptor, 2, both);
  } else {
    graph.set(kGraphOperations, forward);
  }
  graph.finalize("the operation graph");
  for (int copy = 0; copy < inputs.rotation.copies(); ++copy) packs.push_back(pack(copy));
}

Descriptor Graph::pack(int copy) const {
  std::vector<std::int64_t> ids{kIdX, kIdW, kIdY};
  if (variant.scaled) ids.push_back(kIdFactor);
  const void* pointers[] = {inputs.rotation.at(copy, Inputs::kX), inputs.rotation.at(copy, Inputs::kW),
                            inputs.rotation.at(copy, Inputs::kY), inputs.rotation.at(copy, Inputs::kFactor)};
  const void* workspace = lib.workspace.data();
  Descriptor d(lib, kPack);
  d.set(kPackIds, ids);
  d.set(kPackPointers, kTypePointer, static_cast<std::int64_t>(ids.size()), pointers);
  d.set(kPackWorkspace, kTypePointer, 1, &workspace);
  d.finalize("the pointers");
  return d;
}

std::vector<Descriptor> Graph::configs() const {
  std::vector<Descriptor> all;
  std::set<std::string> seen;
  for (const int mode : {kModeA, kModeB, kModeFallback}) {
    try {
      Descriptor heuristic(lib, kHeuristic);
      heuristic.set(kHeuristicGraph, graph);
      heuristic.set_enum(kHeuristicModeOf, kTypeHeuristicMode, mode);
      heuristic.finalize("the heuristic");
      const std::int64_t count = heuristic.count(kHeuristicResults);
      for (Descriptor& config : heuristic.children(kHeuristicResults, kConfig, count))
        if (seen.insert(name_of(config)).second) all.push_back(std::move(config));
    } catch (const Error& e) {  // mode B has nothing for three axes
      if (e.code() != ErrorCode::unsupported) throw;
    }
  }
  return all;
}

Descriptor Graph::plan_of(const Descriptor& config) const {
  Descriptor plan(lib, kPlan);
  plan.set(kPlanHandle, kTypeHandle, 1, &lib.handle);
  plan.set(kPlanConfig, config);
  plan.finalize("the plan");
  if (const std::int64_t bytes = plan.number(kPlanWorkspace); bytes > static_cast<std::int64_t>(kWorkspaceBytes))
    throw Error(ErrorCode::unsupported, "workspace", fmt::format("{} bytes", bytes),
                fmt::format("must be at most {}", kWorkspaceBytes));
  return plan;
}

void Graph::launch(const Descriptor& plan, int i) const {
  const int copy = i % inputs.rotation.copies();
  lib.must(lib.execute(lib.handle, plan.raw(), packs[static_cast<std::size_t>(copy)].raw()), "cudnnBackendExecute");
}

void Graph::poison() const {
  const std::vector<std::int64_t> dims = cudnn_shapes(inputs.plain).y.dims;
  const auto elements =
      static_cast<std::size_t>(std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>()));
  cuda.set(inputs.rotation.at(0, Inputs::kY), kPoison, size_of(variant.out) * elements);
}

double Graph::error_now() const {
  const auto bytes = size_of(variant.out);
  const Format format = Format::parse(variant.out.format);
  std::vector<ExpectedOutput> expected = inputs.expected;
  if (variant.out.code == kI8)  // it saturates
    for (ExpectedOutput& e : expected) e.value = std::clamp(e.value, -128.0, 127.0);
  return worst_error(expected, [&](std::size_t i) {
    std::byte element[4];
    inputs.rotation.download(std::span(element).first(bytes), Inputs::kY, i * bytes);
    float value = 0;
    format.info().decode({element, nullptr, nullptr}, 1, 1, &value);
    return static_cast<double>(value);
  });
}

}  // namespace tilewright::bench::cudnn
