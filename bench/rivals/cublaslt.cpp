// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <tilewright/error.h>

namespace tilewright::bench {
namespace {

// ---- cublasLt.h, library_types.h and cublas_api.h, as far as needed. The values are the same in cuBLAS 12.9.1, 13.1.0
// and 13.8.2.

constexpr int kSuccess = 0, kNotSupported = 15;                                    // cublasStatus_t
enum DataType { kF32 = 0, kF16 = 2, kI8 = 3, kI32 = 10, kBF16 = 14, kE4M3 = 28 };  // cudaDataType_t
enum ComputeType { kCompute32F = 68, kCompute32I = 72 };                           // cublasComputeType_t
constexpr std::int32_t kOpT = 1;                                                   // cublasOperation_t
enum DescAttribute {                                                               // cublasLtMatmulDescAttributes_t
  kTransA = 3,                                                                     // int32
  kAScalePointer = 17,                                                             // const void*
  kBScalePointer = 18,
  kFastAccum = 25,   // int8
  kAScaleMode = 31,  // int32, a cublasLtMatmulMatrixScale_t
  kBScaleMode = 32
};
constexpr std::int32_t kScaleOuterVec32F = 3;  // CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, since 12.9
constexpr int kPrefMaxWorkspace = 1;           // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64

struct Algorithm {  // cublasLtMatmulAlgo_t
  std::uint64_t data[8];
};
struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96 && offsetof(HeuristicResult, state) == 72);

using Handle = void*;
using Desc = void*;
using Layout = void*;
using Preference = void*;

// ---- What is compared with what

constexpr std::size_t kWorkspaceBytes = 64u << 20;
constexpr int kAlgorithms = 32;        // asked of the heuristic
constexpr std::size_t kFinalists = 2;  // of each variant, timed in every round
constexpr double kClose = 1.05;        // of the fastest, to be a finalist
// Of |y| + the norm of its products: tells a wrong scale or type, not a rounding. Fast accumulation keeps some 14 bits
// of a sum of thousands.
double tolerance(bool fast) { return fast ? 0.15 : 0.02; }
constexpr int kElements = 16;  // compared with the host

struct Variant {
  const char* name;
  DataType in, out;
  ComputeType compute;
  DataType scale;
  bool fp8, rows, fast;
};

std::vector<Variant> variants(std::string_view what) {
  if (what == "bf16") return {{"bf16", kBF16, kBF16, kCompute32F, kF32, false, false, false}};
  if (what == "fp16") return {{"fp16", kF16, kF16, kCompute32F, kF32, false, false, false}};
  std::vector<Variant> v;
  if (what == "fp8" || what == "fp8+rows") {
    v = {{"fp8", kE4M3, kBF16, kCompute32F, kF32, true, false, false},
         {"fp8 fast", kE4M3, kBF16, kCompute32F, kF32, true, false, true}};
    if (what == "fp8+rows") {
      v.push_back({"fp8 rows", kE4M3, kBF16, kCompute32F, kF32, true, true, false});
      v.push_back({"fp8 rows fast", kE4M3, kBF16, kCompute32F, kF32, true, true, true});
    }
  } else if (what == "int8") {
    v = {{"int8 to int32", kI8, kI32, kCompute32I, kI32, false, false, false}};
  } else if (what == "int8+int8") {
    v = {{"int8 to int8", kI8, kI8, kCompute32I, kF32, false, false, false}};
  } else {
    throw Error(ErrorCode::invalid_argument, "rival", std::string(what),
                "must be one of bf16 fp16 fp8 fp8+rows int8 int8+int8");
  }
  return v;
}

std::size_t size_of(DataType t) { return t == kI8 || t == kE4M3 ? 1 : t == kF16 || t == kBF16 ? 2 : 4; }

void fill_int8(std::span<std::byte> bytes, std::uint64_t seed) {
  // About normal, a deviation of 32: what a row quantized to its largest value looks like.
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (std::byte& b : bytes) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto r = static_cast<std::uint32_t>(state >> 32);
    const int sum = static_cast<int>((r & 255) + (r >> 8 & 255) + (r >> 16 & 255) + (r >> 24)) - 510;  // deviation 148
    b = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(sum * 32 / 148, -127, 127)));
  }
}

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

}  // namespace

// ---- The library

struct CublasLt::Impl : RivalLibrary {
  bool load() {
    return find(create, "cublasLtCreate") && find(destroy, "cublasLtDestroy") && find(version, "cublasLtGetVersion") &&
           find(desc_create, "cublasLtMatmulDescCreate") && find(desc_destroy, "cublasLtMatmulDescDestroy") &&
           find(desc_set, "cublasLtMatmulDescSetAttribute") && find(layout_create, "cublasLtMatrixLayoutCreate") &&
           find(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           find(preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(heuristic, "cublasLtMatmulAlgoGetHeuristic") && find(matmul, "cublasLtMatmul");
  }

  Handle handle = nullptr;
  Memory workspace;

  int (*create)(Handle*);
  int (*destroy)(Handle);
  std::size_t (*version)();
  int (*desc_create)(Desc*, int compute, int scale);
  int (*desc_destroy)(Desc);
  int (*desc_set)(Desc, int attribute, const void*, std::size_t);
  int (*layout_create)(Layout*, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t ld);
  int (*layout_destroy)(Layout);
  int (*preference_create)(Preference*);
  int (*preference_destroy)(Preference);
  int (*preference_set)(Preference, int attribute, const void*, std::size_t);
  int (*heuristic)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference, int, HeuristicResult*, int*);
  int (*matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta,
                const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace, std::size_t, Stream);
};

CublasLt::CublasLt(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CublasLt::~CublasLt() {
  if (impl_ && impl_->handle) impl_->destroy(impl_->handle);
}
const std::string& CublasLt::path() const { return impl_->path(); }
std::string CublasLt::version() const { return version_text(impl_->version()); }

std::unique_ptr<CublasLt> CublasLt::open(const Device& device, const std::string& nvrtc, std::string& why) {
  why = "not found; TILEWRIGHT_CUBLASLT may name it";
  for (const std::string& path : library_places("TILEWRIGHT_CUBLASLT", kNames, "cublas", nvrtc)) {
    auto impl = std::make_unique<Impl>();
    if (!impl->open(path, why)) continue;
    if (!impl->load()) {
      why = fmt::format("{} has no {}", path, impl->missing());
      continue;
    }
    if (const int status = impl->create(&impl->handle)) {
      why = fmt::format("{}: cublasLtCreate returns {}", path, status);
      impl->handle = nullptr;
      continue;
    }
    impl->workspace = Memory(device, kWorkspaceBytes);
    why.clear();
    return std::unique_ptr<CublasLt>(new CublasLt(std::move(impl)));
  }
  return nullptr;
}

// ---- One product. y = x w^T of row-major matrices is, column-major, D[n,m] = A^T B with A = w as k x n, B = x as k x
// m.

struct Rival::Inputs {
  enum { kX, kW, kXScales, kWScales, kXScale, kWScale, kY };

  Inputs(const Cuda& cuda, const Device& device, const Engine& engine, std::string_view what, std::int64_t m,
         std::int64_t n, std::int64_t k, double cold_bytes)
      : m(m), n(n), k(k), pieces(7), rotation(cuda, device, make(device, engine, what), cold_bytes) {}

  std::span<const Piece> make(const Device& device, const Engine& engine, std::string_view what) {
    const auto rows = static_cast<std::size_t>(m), cols = static_cast<std::size_t>(n),
               depth = static_cast<std::size_t>(k);
    const auto constant = [](float value) {
      return [value](std::span<std::byte> bytes) {
        for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) std::memcpy(&bytes[i], &value, 4);
      };
    };
    std::size_t most = 0;
    for (const Variant& v : variants(what)) {
      pieces[kX].bytes = rows * depth * size_of(v.in);
      pieces[kW].bytes = cols * depth * size_of(v.in);
      most = std::max(most, rows * cols * size_of(v.out));
    }
    pieces[kW].weights = true;
    pieces[kY].bytes = most;
    pieces[kXScales] = {rows * 4, constant(1.0f)};
    pieces[kWScales] = {cols * 4, constant(1.0f)};
    // Codes of e4m3 have deviations near 150; the sum of k products is to come out near one.
    pieces[kXScale] = {4, constant(0x1p-7f)};
    pieces[kWScale] = {4, constant(0x1p-7f / std::sqrt(static_cast<float>(k)))};
    if (what.starts_with("int8")) {
      pieces[kX].fill = [](std::span<std::byte> b) { fill_int8(b, 1); };
      pieces[kW].fill = [](std::span<std::byte> b) { fill_int8(b, 2); };
      return pieces;
    }
    const std::string format = what == "bf16" ? "bf16" : what == "fp16" ? "f16" : "e4m3_row";
    const Task task = engine.task(Problem::parse(fmt::format("gemm x={0} w={0} y={1} m={2} n={3} k={4}", format,
                                                             format == "f16" ? "f16" : "bf16", m, n, k)),
                                  device.arch());
    for (const Buffer& b : task.buffers) {
      const int i = b.name == "x.data"     ? kX
                    : b.name == "w.data"   ? kW
                    : b.name == "x.scales" ? kXScales
                    : b.name == "w.scales" ? kWScales
                                           : -1;
      if (i >= 0) pieces[static_cast<std::size_t>(i)].fill = [fill = b.fill](std::span<std::byte> s) { fill(s, 1); };
    }
    return pieces;
  }

  std::int64_t m, n, k;
  std::vector<Piece> pieces;
  Rotation rotation;
};

struct Rival::Plan {
  Plan(const CublasLt::Impl& lib, const Variant& variant, const Inputs& inputs)
      : lib(lib),
        variant(variant),
        inputs(inputs),
        alpha_int8(1.0f / (64.0f * std::sqrt(static_cast<float>(inputs.k)))) {}
  Plan(const CublasLt& library, const Variant& v, const Inputs& in) : Plan(library.impl(), v, in) {
    must(lib.desc_create(&desc, v.compute, v.scale), "cublasLtMatmulDescCreate");
    set(kTransA, kOpT);
    if (v.fp8) {
      set(kFastAccum, static_cast<std::int8_t>(v.fast));
      if (v.rows) {
        set(kAScaleMode, kScaleOuterVec32F);
        set(kBScaleMode, kScaleOuterVec32F);
      }
      point(0);
    }
    const auto k = static_cast<std::uint64_t>(in.k), n = static_cast<std::uint64_t>(in.n),
               m = static_cast<std::uint64_t>(in.m);
    must(lib.layout_create(&a, v.in, k, n, in.k), "cublasLtMatrixLayoutCreate");
    must(lib.layout_create(&b, v.in, k, m, in.k), "cublasLtMatrixLayoutCreate");
    must(lib.layout_create(&d, v.out, n, m, in.n), "cublasLtMatrixLayoutCreate");
    must(lib.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const std::uint64_t bytes = kWorkspaceBytes;
    must(lib.preference_set(preference, kPrefMaxWorkspace, &bytes, sizeof bytes),
         "cublasLtMatmulPreferenceSetAttribute");
    HeuristicResult results[kAlgorithms] = {};
    int count = 0;
    must(lib.heuristic(lib.handle, desc, a, b, d, d, preference, kAlgorithms, results, &count),
         "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i)
      if (results[i].state == kSuccess && results[i].workspace <= kWorkspaceBytes)
        algorithms.push_back(results[i].algorithm);
  }
  ~Plan() {
    if (preference) lib.preference_destroy(preference);
    for (Layout l : {a, b, d})
      if (l) lib.layout_destroy(l);
    if (desc) lib.desc_destroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  static void must(int status, const char* call) {
    if (status == kNotSupported) throw Error(ErrorCode::unsupported, call, "", "is not supported");
    if (status != kSuccess) throw Error(ErrorCode::unsupported, call, fmt::format("status {}", status), "failed");
  }
  template <class T>
  void set(int attribute, T value) {
    must(lib.desc_set(desc, attribute, &value, sizeof value), fmt::format("attribute {}", attribute).c_str());
  }
  void point(int copy) {
    const void* w = inputs.rotation.at(copy, variant.rows ? Inputs::kWScales : Inputs::kWScale);
    const void* x = inputs.rotation.at(copy, variant.rows ? Inputs::kXScales : Inputs::kXScale);
    set(kAScalePointer, w);
    set(kBScalePointer, x);
  }
  int launch(const Algorithm& algorithm, int copy, Stream stream) {
    if (variant.fp8) point(copy);
    const float one = 1, zero = 0;
    const std::int32_t integer_one = 1, integer_zero = 0;
    const bool integer = variant.scale == kI32;
    const float& factor = variant.out == kI8 ? alpha_int8 : one;
    void* y = inputs.rotation.at(copy, Inputs::kY);
    return lib.matmul(lib.handle, desc, integer ? static_cast<const void*>(&integer_one) : &factor,
                      inputs.rotation.at(copy, Inputs::kW), a, inputs.rotation.at(copy, Inputs::kX), b,
                      integer ? static_cast<const void*>(&integer_zero) : &zero, y, d, y, d, &algorithm,
                      lib.workspace.data(), kWorkspaceBytes, stream);
  }

  const CublasLt::Impl& lib;
  Variant variant;
  const Inputs& inputs;
  const float alpha_int8;
  Desc desc = nullptr;
  Layout a = nullptr, b = nullptr, d = nullptr;
  Preference preference = nullptr;
  std::vector<Algorithm> algorithms;
};

namespace {

// `count` numbers of a piece from element `first` on.
std::vector<double> numbers(const Rotation& from, int piece, DataType type, std::size_t first, std::size_t count) {
  std::vector<std::byte> bytes(count * size_of(type));
  from.download(bytes, piece, first * size_of(type));
  std::vector<double> values(count);
  if (type == kI8 || type == kI32 || type == kF32) {
    for (std::size_t i = 0; i < count; ++i) {
      std::int8_t small;
      std::int32_t whole;
      float real;
      if (type == kI8) std::memcpy(&small, &bytes[i], 1), values[i] = small;
      if (type == kI32) std::memcpy(&whole, &bytes[4 * i], 4), values[i] = whole;
      if (type == kF32) std::memcpy(&real, &bytes[4 * i], 4), values[i] = real;
    }
    return values;
  }
  const std::vector<float> ones(1, 1.0f);
  std::vector<float> decoded(count);
  Operand o;
  o.data = bytes.data(), o.scales = ones.data();
  Format::parse(type == kF16    ? "f16"
                : type == kBF16 ? "bf16"
                                : "e4m3_row")
      .info()
      .decode(o, 1, static_cast<std::int64_t>(count), decoded.data());
  std::copy(decoded.begin(), decoded.end(), values.begin());
  return values;
}

}  // namespace

// A few elements of copy 0's y, formed on the host.
struct Rival::Expected {
  std::size_t index;
  double value, norm;  // of its products
};

std::vector<Rival::Expected> Rival::expectations(const Plan& plan) {
  const Inputs& in = plan.inputs;
  const Variant& v = plan.variant;
  const auto depth = static_cast<std::size_t>(in.k);
  std::vector<Expected> expected;
  std::uint64_t state = 12345;
  for (int e = 0; e < kElements; ++e) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::size_t i = (state >> 33) % static_cast<std::size_t>(in.m);
    const std::size_t j = (state >> 13) % static_cast<std::size_t>(in.n);
    const std::vector<double> x = numbers(in.rotation, Inputs::kX, v.in, i * depth, depth);
    const std::vector<double> w = numbers(in.rotation, Inputs::kW, v.in, j * depth, depth);
    double scale = v.out == kI8 ? plan.alpha_int8 : 1.0, sum = 0, squares = 0;
    if (v.fp8)
      scale *= numbers(in.rotation, v.rows ? Inputs::kXScales : Inputs::kXScale, kF32, v.rows ? i : 0, 1)[0] *
               numbers(in.rotation, v.rows ? Inputs::kWScales : Inputs::kWScale, kF32, v.rows ? j : 0, 1)[0];
    for (std::size_t l = 0; l < depth; ++l) {
      const double p = x[l] * w[l] * scale;
      sum += p, squares += p * p;
    }
    if (v.out == kI8) sum = std::clamp(sum, -128.0, 127.0);
    expected.push_back({i * static_cast<std::size_t>(in.n) + j, sum, std::sqrt(squares)});
  }
  return expected;
}

double Rival::worst(const Plan& plan, std::span<const Expected> expected) {
  double worst = 0;
  for (const Expected& e : expected) {
    const double y = numbers(plan.inputs.rotation, Inputs::kY, plan.variant.out, e.index, 1)[0];
    double off = std::fabs(y - e.value);
    if (plan.variant.out == kI8) off = std::max(0.0, off - 0.51);  // rounded to an integer
    const double relative = off / (std::fabs(e.value) + e.norm + 1e-30);
    if (std::isnan(relative)) return INFINITY;
    worst = std::max(worst, relative);
  }
  return worst;
}

Rival::Rival(const CublasLt& library, const Cuda& cuda, const Device& device, const Engine& engine,
             std::string_view what, std::int64_t m, std::int64_t n, std::int64_t k, double cold_bytes)
    : inputs_(std::make_unique<Inputs>(cuda, device, engine, what, m, n, k, cold_bytes)) {
  const Rotation& rotation = inputs_->rotation;
  for (const Variant& v : variants(what)) {
    try {
      auto plan = std::make_unique<Plan>(library, v, *inputs_);
      struct Timed {
        double microseconds;
        Replay replay;
        std::function<void(int)> launch;
        double error;
      };
      std::vector<Timed> timed;
      const std::vector<Expected> expected = expectations(*plan);
      int tried = 0;
      double worst_error = 0;
      for (const Algorithm& algorithm : plan->algorithms) {
        if (plan->launch(algorithm, 0, cuda.stream()) != kSuccess) continue;  // loads its code, too
        const int last = rotation.copies() - 1;
        const double once = cuda.microseconds([&] { plan->launch(algorithm, last, cuda.stream()); });
        // One that is far behind is not worth a graph.
        if (!timed.empty() && once > 2 * timed.front().microseconds + 20) continue;
        const double error = worst(*plan, expected);
        ++tried;
        if (!(error <= tolerance(v.fast))) {
          worst_error = std::max(worst_error, error);
          continue;
        }
        const auto launch = [&cuda, &rotation, &algorithm, from = plan.get()](int i) {
          if (const int status = from->launch(algorithm, i % rotation.copies(), cuda.stream()))
            throw Error(ErrorCode::driver_failed, "cublasLtMatmul", fmt::format("status {}", status), "failed");
        };
        Replay replay(cuda, rotation.launches(once), launch);
        const double us = replay.time();
        timed.push_back({us, std::move(replay), launch, error});
        std::sort(timed.begin(), timed.end(),
                  [](const Timed& p, const Timed& q) { return p.microseconds < q.microseconds; });
        if (timed.size() > kFinalists) timed.pop_back();
      }
      if (timed.empty()) {
        notes_.push_back(worst_error > 0 ? fmt::format("{}: off by {:.3g} from the host's product", v.name, worst_error)
                                         : fmt::format("{}: no algorithm", v.name));
        continue;
      }
      if (worst_error > 0)
        notes_.push_back(fmt::format("{}: an algorithm is off by {:.3g} and was left out", v.name, worst_error));
      for (Timed& t : timed)
        if (t.microseconds <= kClose * timed.front().microseconds)
          times_.push_back({v.name, tried, t.error, {}, 0, std::move(t.replay), std::move(t.launch)});
      plans_.push_back(std::move(plan));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      notes_.push_back(fmt::format("{}: {}", v.name, e.what()));
    }
  }
}

Rival::~Rival() = default;

std::size_t Rival::bytes() const { return inputs_->rotation.bytes(); }

}  // namespace tilewright::bench
