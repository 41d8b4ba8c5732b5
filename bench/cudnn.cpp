// SPDX-License-Identifier: Apache-2.0
#include "bench/cudnn.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <tilewright/error.h>

#include "bench/conv_check.h"
#include "bench/cudnn_shapes.h"

namespace tilewright::bench {
namespace {

// ---- cudnn_graph.h, as far as needed. The values are those of cuDNN 9.28.1, and of every cuDNN 9 before it.

// cudnnStatus_t
constexpr int kSuccess = 0;
// cudnnDataType_t
constexpr int kF32 = 0, kF16 = 2, kI8 = 3, kI32 = 4, kBF16 = 9, kE4M3 = 12, kFastFloatForFp8 = 14;
// cudnnPointwiseMode_t
constexpr int kMultiply = 1;
// cudnnConvolutionMode_t
constexpr int kCrossCorrelation = 1;
// cudnnBackendHeurMode_t
constexpr int kModeB = 1, kModeFallback = 2, kModeA = 3;
// cudnnBackendAttributeType_t
constexpr int kTypeHandle = 0, kTypeDataType = 1, kTypeBoolean = 2, kTypeInt64 = 3, kTypeFloat = 4, kTypePointer = 6,
              kTypeConvolutionMode = 7, kTypeHeuristicMode = 8, kTypeKnob = 9, kTypePointwiseMode = 14,
              kTypeDescriptor = 15;
// cudnnBackendDescriptorType_t
constexpr int kPointwise = 0, kConvolution = 1, kEngine = 2, kConfig = 3, kHeuristic = 4, kPlan = 5, kKnobChoice = 7,
              kForward = 10, kPointwiseOperation = 13, kGraph = 15, kPack = 16, kTensor = 17;
// cudnnBackendAttributeName_t
constexpr int kPointwiseModeOf = 0, kPointwiseType = 1;
constexpr int kConvolutionComputeType = 100, kConvolutionModeOf = 101, kConvolutionDilations = 102,
              kConvolutionStrides = 103, kConvolutionBehind = 104, kConvolutionBefore = 105, kConvolutionAxes = 106;
constexpr int kHeuristicModeOf = 200, kHeuristicGraph = 201, kHeuristicResults = 202;
constexpr int kConfigEngine = 300, kConfigKnobChoices = 302;
constexpr int kPlanHandle = 400, kPlanConfig = 401, kPlanWorkspace = 402;
constexpr int kKnobChoiceType = 600, kKnobChoiceValue = 601;
constexpr int kForwardAlpha = 700, kForwardBeta = 701, kForwardConvolution = 702, kForwardW = 703, kForwardX = 704,
              kForwardY = 705;
constexpr int kPointwiseOf = 750, kPointwiseX = 751, kPointwiseB = 752, kPointwiseY = 753;
constexpr int kGraphHandle = 800, kGraphOperations = 801;
constexpr int kTensorAlignment = 900, kTensorType = 901, kTensorDimensions = 902, kTensorStrides = 903, kTensorId = 906,
              kTensorVirtual = 907;
constexpr int kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003;
constexpr int kEngineIndex = 1301;

using Handle = void*;
using Raw = void*;  // cudnnBackendDescriptor_t

// ---- What is compared with what

constexpr std::size_t kWorkspaceBytes = 2ull << 30;
constexpr std::size_t kFinalists = 2;  // of each variant, timed in every round
constexpr double kClose = 1.05;        // of the fastest, to be a finalist
constexpr int kMostKnobs = 64;         // of an engine
constexpr int kElements = 16;          // compared with the host
constexpr int kPoison = 0xff;          // of y before a checked launch: no number, in any float format

struct Type {
  int code;            // cudnnDataType_t
  const char* format;  // the library's name of it
};
constexpr Type kTypeF32{kF32, "f32"}, kTypeF16{kF16, "f16"}, kTypeBF16{kBF16, "bf16"}, kTypeE4M3{kE4M3, "e4m3"},
    kTypeI8{kI8, "int8"}, kTypeI32{kI32, "int32"};

std::size_t size_of(const Type& t) { return static_cast<std::size_t>(Format::parse(t.format).stream_bytes(0, 1, 1)); }

struct Variant {
  std::string name;
  Type in, out;
  int compute;  // cudnnDataType_t
  // Of |y| + the norm of its products: shows a wrong type, layout or tap, not a rounding. Fast accumulation keeps some
  // 14 bits of a sum of thousands, and e4m3 has four bits.
  double tolerance = 0.02;
  // The sums are multiplied by a factor of the tensor on their way out, as a program with 8-bit operands does. Some of
  // cuDNN's engines take such a graph and no bare convolution.
  bool scaled = false;
};

// Each list is of equals, of which the first counts that cuDNN has plans for.
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
  throw Error(ErrorCode::invalid_argument, "rival", std::string(what), "bf16 fp16 tf32 fp8 int8");
}

}  // namespace

// ---- The library

struct Cudnn::Impl {
  template <class F>
  bool find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (!function) missing = name;
    return function != nullptr;
  }
  bool load() {
    last_error = reinterpret_cast<void (*)(char*, std::size_t)>(dlsym(library, "cudnnGetLastErrorString"));
    return find(version, "cudnnGetVersion") && find(error_string, "cudnnGetErrorString") &&
           find(create, "cudnnCreate") && find(destroy, "cudnnDestroy") && find(set_stream, "cudnnSetStream") &&
           find(desc_create, "cudnnBackendCreateDescriptor") && find(desc_destroy, "cudnnBackendDestroyDescriptor") &&
           find(desc_set, "cudnnBackendSetAttribute") && find(desc_get, "cudnnBackendGetAttribute") &&
           find(desc_finalize, "cudnnBackendFinalize") && find(execute, "cudnnBackendExecute");
  }

  std::string reason(int status) const {
    std::string text = fmt::format("{} ({})", error_string(status), status);
    char last[1024] = "";
    if (last_error) last_error(last, sizeof last);
    last[sizeof last - 1] = 0;
    if (*last) text += std::string(": ") + last;
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }
  void must(int status, const char* call) const {
    if (status != kSuccess) throw Error(ErrorCode::unsupported, call, reason(status), "success");
  }

  void* library = nullptr;
  const char* missing = "";
  std::string path;
  Handle handle = nullptr;
  Memory workspace;

  std::size_t (*version)();
  const char* (*error_string)(int);
  void (*last_error)(char*, std::size_t);  // may be null
  int (*create)(Handle*);
  int (*destroy)(Handle);
  int (*set_stream)(Handle, Stream);
  int (*desc_create)(int type, Raw*);
  int (*desc_destroy)(Raw);
  int (*desc_set)(Raw, int attribute, int type, std::int64_t count, const void* values);
  int (*desc_get)(Raw, int attribute, int type, std::int64_t most, std::int64_t* count, void* values);
  int (*desc_finalize)(Raw);
  int (*execute)(Handle, Raw plan, Raw pack);
};

Cudnn::Cudnn(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cudnn::~Cudnn() {
  if (impl_ && impl_->handle) impl_->destroy(impl_->handle);
}
const std::string& Cudnn::path() const { return impl_->path; }
std::string Cudnn::version() const {
  const std::size_t v = impl_->version();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::unique_ptr<Cudnn> Cudnn::open(const Device& device, const std::string& nvrtc, std::string& why) {
  static constexpr const char* kNames[] = {"libcudnn.so.9"};
  why = "not found; TILEWRIGHT_CUDNN may name it";
  for (const std::string& path : library_places("TILEWRIGHT_CUDNN", kNames, "cudnn", nvrtc)) {
    auto impl = std::make_unique<Impl>();
    impl->library = open_library(path, why);
    if (!impl->library) continue;
    if (!impl->load()) {
      why = fmt::format("{} has no {}", path, impl->missing);
      continue;
    }
    impl->path = library_path(reinterpret_cast<void*>(impl->create), path);
    if (const int status = impl->create(&impl->handle)) {
      why = fmt::format("{}: cudnnCreate: {}", path, impl->reason(status));
      impl->handle = nullptr;
      continue;
    }
    impl->workspace = Memory(device, kWorkspaceBytes);
    why.clear();
    return std::unique_ptr<Cudnn>(new Cudnn(std::move(impl)));
  }
  return nullptr;
}

namespace {

// A backend descriptor. Setters and finalize() throw Error (unsupported) with cuDNN's own reason.
class Descriptor {
 public:
  Descriptor(const Cudnn::Impl& lib, int type) : lib_(&lib) {
    lib.must(lib.desc_create(type, &raw_), fmt::format("cudnnBackendCreateDescriptor of type {}", type).c_str());
  }
  Descriptor(Descriptor&& other) noexcept : lib_(other.lib_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(lib_, other.lib_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor() {
    if (raw_) lib_->desc_destroy(raw_);
  }

  Raw raw() const { return raw_; }
  void set(int attribute, int type, std::int64_t count, const void* values) {
    lib_->must(lib_->desc_set(raw_, attribute, type, count, values), fmt::format("attribute {}", attribute).c_str());
  }
  void set(int attribute, std::int64_t value) { set(attribute, kTypeInt64, 1, &value); }
  void set(int attribute, const std::vector<std::int64_t>& values) {
    set(attribute, kTypeInt64, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(int attribute, const Descriptor& other) { set(attribute, kTypeDescriptor, 1, &other.raw_); }
  void set_enum(int attribute, int type, int value) { set(attribute, type, 1, &value); }
  void finalize(const char* what) { lib_->must(lib_->desc_finalize(raw_), what); }

  std::int64_t number(int attribute) const {
    std::int64_t value = 0, count = 0;
    lib_->must(lib_->desc_get(raw_, attribute, kTypeInt64, 1, &count, &value),
               fmt::format("attribute {}", attribute).c_str());
    return value;
  }
  int enumerator(int attribute, int type) const {
    int value = 0;
    std::int64_t count = 0;
    lib_->must(lib_->desc_get(raw_, attribute, type, 1, &count, &value),
               fmt::format("attribute {}", attribute).c_str());
    return value;
  }
  // At most `most` descriptors that this one has. cuDNN fills in ones that its caller has made.
  std::vector<Descriptor> children(int attribute, int type, std::int64_t most) const {
    std::vector<Descriptor> made;
    std::vector<Raw> raws;
    for (std::int64_t i = 0; i < most; ++i) raws.push_back(made.emplace_back(*lib_, type).raw());
    std::int64_t count = 0;
    lib_->must(lib_->desc_get(raw_, attribute, kTypeDescriptor, most, &count, raws.data()),
               fmt::format("attribute {}", attribute).c_str());
    made.erase(made.begin() + std::min(count, most), made.end());
    return made;
  }
  std::int64_t count(int attribute) const {
    std::int64_t n = 0;
    lib_->must(lib_->desc_get(raw_, attribute, kTypeDescriptor, 0, &n, nullptr),
               fmt::format("attribute {}", attribute).c_str());
    return n;
  }

 private:
  const Cudnn::Impl* lib_;
  Raw raw_ = nullptr;
};

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

// "engine 12 k2=5 k3=1"
std::string name_of(const Descriptor& config) {
  const std::vector<Descriptor> engine = config.children(kConfigEngine, kEngine, 1);
  std::string name = fmt::format("engine {}", engine.empty() ? -1 : engine.front().number(kEngineIndex));
  for (const Descriptor& choice : config.children(kConfigKnobChoices, kKnobChoice, kMostKnobs))
    name += fmt::format(" k{}={}", choice.enumerator(kKnobChoiceType, kTypeKnob), choice.number(kKnobChoiceValue));
  return name;
}

constexpr std::int64_t kIdX = 1, kIdW = 2, kIdY = 3, kIdFactor = 4, kIdSums = 5;

}  // namespace

// ---- One convolution

// Operands that all variants of a rival share, but for y, which has room for each.
struct CudnnRival::Inputs {
  enum { kX, kW, kY, kFactor };

  Inputs(const Cuda& cuda, const Device& device, const Engine& engine, std::string_view what, const Conv& conv,
         double cold_bytes)
      : plain(plain_of(conv, variants(what).front().front().in)),
        task(engine.task(Problem(plain), device.arch())),
        expected(expected_outputs(plain, task, kElements)),
        rotation(cuda, device, pieces(what), cold_bytes) {}

  // The same convolution with operands of this type.
  static Conv plain_of(const Conv& conv, const Type& in) {
    const Format format = Format::parse(in.format);
    Conv plain{.x = format, .w = format, .y = Format::parse("f32")};
    plain.n = conv.n, plain.c = conv.c, plain.in = conv.in, plain.k = conv.k, plain.kernel = conv.kernel;
    plain.stride = conv.stride, plain.pad = conv.pad, plain.pad_mode = conv.pad_mode, plain.dilation = conv.dilation;
    plain.groups = conv.groups, plain.x_layout = conv.x_layout, plain.y_layout = conv.y_layout;
    // A program that keeps channels in front keeps them so in its weights.
    plain.w_layout = conv.x_layout == TensorLayout::ncdhw ? FilterLayout::kctrs : FilterLayout::ktrsc;
    return plain;
  }
  std::vector<Piece> pieces(std::string_view what) const {
    const std::vector<Piece> own = pieces_of(task);
    std::vector<Piece> p(4);
    std::size_t outputs = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (task.buffers[i].name == "x.data") p[kX] = own[i];
      if (task.buffers[i].name == "w.data") p[kW] = own[i];
      if (task.buffers[i].output) outputs = own[i].bytes / 4;
    }
    for (const std::vector<Variant>& equals : variants(what))
      for (const Variant& v : equals) p[kY].bytes = std::max(p[kY].bytes, outputs * size_of(v.out));
    p[kFactor].bytes = sizeof(float);
    p[kFactor].fill = [](std::span<std::byte> bytes) {
      const float one = 1;
      std::memcpy(bytes.data(), &one, sizeof one);
    };
    for (Piece& piece : p) piece.weights = true;  // all of it is to be cold
    return p;
  }

  const Conv plain;
  const Task task;
  const std::vector<ExpectedOutput> expected;
  const Rotation rotation;
};

// A variant's operation graph, its pointers for each copy of the operands, and the plans that were kept.
struct CudnnRival::Graph {
  Graph(const Cudnn::Impl& lib, const Cuda& cuda, const Variant& variant, const Inputs& inputs)
      : lib(lib), cuda(cuda), variant(variant), inputs(inputs), graph(lib, kGraph) {
    const CudnnShapes shapes = cudnn_shapes(inputs.plain);
    const Descriptor x = tensor(lib, kIdX, variant.in, shapes.x), w = tensor(lib, kIdW, variant.in, shapes.w),
                     y = tensor(lib, kIdY, variant.out, shapes.y),
                     sums = tensor(lib, kIdSums, kTypeF32, shapes.y, true);
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

  Descriptor pack(int copy) const {
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

  // Of all modes, each once, best guess first.
  std::vector<Descriptor> configs() const {
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

  Descriptor plan_of(const Descriptor& config) const {
    Descriptor plan(lib, kPlan);
    plan.set(kPlanHandle, kTypeHandle, 1, &lib.handle);
    plan.set(kPlanConfig, config);
    plan.finalize("the plan");
    if (const std::int64_t bytes = plan.number(kPlanWorkspace); bytes > static_cast<std::int64_t>(kWorkspaceBytes))
      throw Error(ErrorCode::unsupported, "workspace", fmt::format("{} bytes", bytes),
                  fmt::format("at most {}", kWorkspaceBytes));
    return plan;
  }

  void launch(const Descriptor& plan, int i) const {
    const int copy = i % inputs.rotation.copies();
    lib.must(lib.execute(lib.handle, plan.raw(), packs[static_cast<std::size_t>(copy)].raw()), "cudnnBackendExecute");
  }

  double error_now() const {
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

  const Cudnn::Impl& lib;
  const Cuda& cuda;
  const Variant variant;
  const Inputs& inputs;
  Descriptor graph;
  std::vector<Descriptor> packs;
  std::vector<std::shared_ptr<const Descriptor>> plans;
};

// Tries a graph's plans and keeps the fastest.
struct CudnnRival::Trials {
  struct Timed {
    double microseconds;
    std::string name;
    double error;
    Replay replay;
    std::shared_ptr<const Descriptor> plan;
  };

  bool out_of_time() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() > seconds;
  }

  void try_plan(const Descriptor& config, const std::string& name) {
    const Rotation& rotation = graph.inputs.rotation;
    const auto plan = std::make_shared<const Descriptor>(graph.plan_of(config));
    graph.cuda.set(rotation.at(0, Inputs::kY), kPoison, output_bytes());
    graph.launch(*plan, 0);  // loads its code, too
    graph.cuda.synchronize();
    const double error = graph.error_now();
    if (!(error <= graph.variant.tolerance)) {
      wrong.push_back(fmt::format("{} is off by {:.3g}", name, error));
      return;
    }
    const double once = graph.cuda.microseconds([&] { graph.launch(*plan, rotation.copies() - 1); });
    ++tried;
    // One that is far behind is not worth a graph.
    if (!timed.empty() && once > 2 * timed.front().microseconds + 20) return;
    Replay replay(graph.cuda, rotation.launches(once), [&](int i) { graph.launch(*plan, i); });
    const double us = replay.time();
    timed.push_back({us, name, error, std::move(replay), plan});
    std::sort(timed.begin(), timed.end(),
              [](const Timed& p, const Timed& q) { return p.microseconds < q.microseconds; });
    if (timed.size() > kFinalists) timed.pop_back();
  }

  std::size_t output_bytes() const {
    const std::vector<std::int64_t> dims = cudnn_shapes(graph.inputs.plain).y.dims;
    return size_of(graph.variant.out) *
           static_cast<std::size_t>(std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>()));
  }

  void run(const std::vector<std::string>& only) {
    const std::vector<Descriptor> configs = graph.configs();
    offered = static_cast<int>(configs.size());
    for (const Descriptor& config : configs) {
      if (out_of_time() && !timed.empty()) {
        late = true;
        return;
      }
      const std::string name = fmt::format("{}, {}", graph.variant.name, name_of(config));
      if (!only.empty() && std::find(only.begin(), only.end(), name) == only.end()) continue;
      try {
        try_plan(config, name);
      } catch (const Error& e) {
        if (e.code() != ErrorCode::unsupported) graph.cuda.synchronize();  // throws if the device is lost
        refused.push_back(fmt::format("{}: {}", name, e.what()));
      }
    }
  }

  Graph& graph;
  const double seconds;
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  int offered = 0, tried = 0;
  bool late = false;
  std::vector<std::string> wrong = {}, refused = {};
  std::vector<Timed> timed = {};  // fastest first
};

CudnnRival::CudnnRival(const Cudnn& library, const Cuda& cuda, const Device& device, const Engine& engine,
                       std::string_view what, const Conv& conv, double cold_bytes, double seconds,
                       const std::vector<std::string>& only) {
  const Cudnn::Impl& lib = library.impl();
  lib.must(lib.set_stream(lib.handle, cuda.stream()), "cudnnSetStream");
  std::vector<Conv> forms{conv};
  // Plans for padding that differs before and behind are rare; a program pads with a pass of its own then.
  if (!(conv.pad.lo == conv.pad.hi)) {
    Conv padded = conv;
    const std::vector<ConvAxis> axes = axes_of(conv);
    for (std::size_t i = 0; i < axes.size(); ++i) padded.in.at[i] += axes[i].before + axes[i].behind;
    padded.pad = {};
    forms.push_back(padded);
  }
  // False if it has no plan; notes_ then says why.
  const auto add = [&](const Variant& variant, const Inputs& inputs) {
    try {
      auto graph = std::make_unique<Graph>(lib, cuda, variant, inputs);
      Trials trials{.graph = *graph, .seconds = seconds};
      trials.run(only);
      for (const std::string& note : trials.wrong) notes_.push_back(note + " and was left out");
      if (trials.late)
        notes_.push_back(fmt::format("{}: out of time after {} of {} plans", variant.name,
                                     trials.tried + static_cast<int>(trials.wrong.size() + trials.refused.size()),
                                     trials.offered));
      if (trials.timed.empty()) notes_.push_back(fmt::format("{}: none of {} plans", variant.name, trials.offered));
      if (!trials.refused.empty())
        notes_.push_back(fmt::format("{}: {} of {} plans do not run; the last, {}", variant.name, trials.refused.size(),
                                     trials.offered, trials.refused.back()));
      for (Trials::Timed& t : trials.timed) {
        if (t.microseconds > kClose * trials.timed.front().microseconds) continue;
        const auto launch = [from = graph.get(), plan = t.plan](int i) { from->launch(*plan, i); };
        graph->plans.push_back(t.plan);
        times_.push_back({t.name, trials.tried, t.error, {}, 0, std::move(t.replay), launch});
      }
      if (!trials.timed.empty()) graphs_.push_back(std::move(graph));
      return !trials.timed.empty();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      notes_.push_back(fmt::format("{}: {}", variant.name, e.what()));
      return false;
    }
  };
  std::vector<std::vector<Variant>> left = variants(what);
  for (std::size_t form = 0; form < forms.size() && !left.empty(); ++form) {
    inputs_.push_back(std::make_unique<Inputs>(cuda, device, engine, what, forms[form], cold_bytes));
    std::erase_if(left, [&](const std::vector<Variant>& equals) {
      return std::any_of(equals.begin(), equals.end(), [&](Variant variant) {
        if (form > 0) variant.name += ", input padded before";
        return add(variant, *inputs_.back());
      });
    });
    if (graphs_.empty()) inputs_.clear();  // nothing refers to them
  }
}

CudnnRival::~CudnnRival() = default;

}  // namespace tilewright::bench
