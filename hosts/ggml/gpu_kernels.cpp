// SPDX-License-Identifier: Apache-2.0
#include "hosts/ggml/gpu_kernels.h"

#include <tilewright/error.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <span>
#include <vector>

#include "hosts/ggml/convolution.h"
#include "hosts/ggml/product.h"

namespace tilewright::ggml {
namespace {

struct Text {
  std::string problem;
  LayerOptions options;
  std::string key() const {
    return problem + (options.pack ? " packed " : " ") +
           (options.x_from ? std::string(options.x_from->name()) : std::string());
  }
};

Text product_text(const std::string& x, ggml_type w, ggml_type x_from, std::int64_t n, std::int64_t k, bool constant) {
  Text text;
  text.problem = "gemm x=" + x + " w=" + format_of(w) + " y=f32 m=1 n=" + std::to_string(n) +
                 " k=" + std::to_string(k) + (constant ? " weights=constant" : "");
  text.options.pack = constant;
  if (format_of(x_from) != x) text.options.x_from = Format::parse(format_of(x_from));
  return text;
}
// Quantized weights use bf16 x: Hopper's tensor cores multiply it faster than int8 with scales.
Text main_product(ggml_type w, ggml_type x, std::int64_t n, std::int64_t k, bool constant) {
  return product_text(is_float(w) ? format_of(w) : "bf16", w, x, n, k, constant);
}

// x is cast to w's type, as ggml's own kernels do.
Text convolution_problem(const ggml_tensor* op) {
  const ggml_type w = op->src[0]->type, x = op->src[1]->type;
  Text text{convolution_text(op, w), {.x_from = {}, .pack = false}};
  if (is_float(x) && w != x) text.options.x_from = Format::parse(format_of(x));
  return text;
}

// The copy kernel's arguments; see StridedCopy.
struct CopyArgs {
  const void* from;
  void* to;
  const std::int32_t *from_at, *to_at;
  std::int64_t from_steps[4], to_steps[4], shape[3], units, count;
};

constexpr const char* kCopy = R"(
struct Args {
  const char* from; char* to; const int *from_at, *to_at;
  long long from_steps[4], to_steps[4], shape[3], units, count;
};
__device__ long long place(const Args& a, const long long (&steps)[4], const int* at, long long piece) {
  if (at) return at[2 * piece] * steps[0] + at[2 * piece + 1] * steps[1];
  long long sum = 0;
  for (int axis = 0; axis < 3; ++axis) sum += piece % a.shape[axis] * steps[axis], piece /= a.shape[axis];
  return sum + piece * steps[3];
}
extern "C" __global__ void __launch_bounds__(256) copy_strided(const Args a) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < a.count * a.units; i += gridDim.x * 256ll) {
    const long long piece = i / a.units, unit = i % a.units;
    const UNIT* from = reinterpret_cast<const UNIT*>(a.from + place(a, a.from_steps, a.from_at, piece));
    reinterpret_cast<UNIT*>(a.to + place(a, a.to_steps, a.to_at, piece))[unit] = from[unit];
  }
}
)";

Task copy_task(int unit) {
  const char* const name = unit == 16  ? "uint4"
                           : unit == 8 ? "uint2"
                           : unit == 4 ? "unsigned"
                           : unit == 2 ? "unsigned short"
                                       : "char";
  Task task;
  task.key = "ggml copy_strided unit=" + std::to_string(unit);
  task.rows = task.cols = 1;
  task.candidates = {{"copy_strided", {{"unit", unit}}}};
  task.source = [name](const Candidate&) {
    Source source;
    source.name = "ggml/copy_strided";
    source.text = std::string("#define UNIT ") + name + kCopy;
    source.entry = "copy_strided";
    source.plan.threads = 256;
    source.plan.x.per_rows = 256;
    return source;
  };
  task.arguments = [](std::span<void* const>, std::int64_t) { return std::vector<std::byte>(sizeof(CopyArgs)); };
  return task;
}

// Whether both GEMMs pack w identically. Packs bytes and compares, because no field says so.
bool same_packing(const Problem& a, const Problem& b) {
  Gemm one = *a.as<Gemm>(), other = *b.as<Gemm>();
  if (one.packing != other.packing) return false;
  if (one.packing == Packing::none) return true;
  one.n = other.n = 64;  // a tile's rows
  std::vector<std::byte> w(static_cast<std::size_t>(one.w.stream_bytes(0, one.n, one.k)));
  std::uint32_t seed = 1;
  for (std::byte& byte : w) byte = static_cast<std::byte>((seed = seed * 1664525u + 1013904223u) >> 24);
  const auto packed = [&](const Gemm& gemm) {
    std::array<std::vector<std::byte>, 2> streams;
    streams[0].resize(static_cast<std::size_t>(packed_bytes(gemm, StreamName::data)));
    streams[1].resize(static_cast<std::size_t>(packed_bytes(gemm, StreamName::scales)));
    pack_weights(gemm, {.data = w.data()}, {.data = streams[0].data(), .scales = streams[1].data()});
    return streams;
  };
  return packed(one) == packed(other);
}

// The largest unit, up to 16 bytes, that divides all of these.
int copy_width(std::span<const std::int64_t> numbers) {
  std::int64_t all = 16;
  for (const std::int64_t n : numbers) all |= n;
  return static_cast<int>(all & -all);
}

std::int64_t address(const void* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); }

}  // namespace

bool GpuKernels::supports(const ggml_tensor* op) {
  const ggml_tensor *w = op->src[0], *x = op->src[1];
  Text text;
  if (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) {
    if (!format_of(w->type) || !is_float(x->type) || w->ne[1] < 1 || w->ne[0] < 1) return false;
    text = main_product(w->type, x->type, w->ne[1], w->ne[0], false);
  } else {
    text = convolution_problem(op);
  }
  if (text.problem.empty()) return false;
  const std::lock_guard lock(mutex_);
  const auto [at, added] = supported_.try_emplace(text.key(), false);
  if (added) {
    try {
      const LayerProblems problems = layer_problems(Problem::parse(text.problem), device_.arch(), text.options);
      at->second = only_reference(problems.main, device_.arch()).empty();
    } catch (const std::exception&) {  // no problem describes it
    }
  }
  return at->second;
}

const GpuProduct& GpuKernels::product(ggml_type w, ggml_type x, std::int64_t n, std::int64_t k, bool constant) {
  const std::tuple key(w, x, n, k, constant);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = products_.find(key); found != products_.end()) return found->second;
  }
  GpuProduct made;
  const Text many = main_product(w, x, n, k, constant);
  made.main = &layer(many.key(), many.problem, many.options);
  if (!is_float(w)) {  // quantized to bytes in the launch itself
    const Text few = product_text("q8_1", w, x, n, k, constant);
    const LayerProblems problems = layer_problems(Problem::parse(few.problem), device_.arch(), few.options);
    if (problems.few && same_packing(problems.main, made.main->problems().main))
      made.small_m = &layer(few.key(), few.problem, few.options);
  }
  const std::lock_guard lock(mutex_);
  return products_.emplace(key, made).first->second;
}

const Layer& GpuKernels::convolution(const ggml_tensor* op) {
  const Text text = convolution_problem(op);
  return layer(text.key(), text.problem, text.options);
}

const Layer& GpuKernels::layer(const std::string& key, const std::string& problem, const LayerOptions& options) {
  Slot* slot;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Slot>& at = slots_[key];
    if (!at) at = std::make_unique<Slot>();
    slot = at.get();
  }
  const std::lock_guard lock(slot->mutex);  // others compile meanwhile
  if (!slot->layer) slot->layer.emplace(engine_, Problem::parse(problem), device_, options);
  return *slot->layer;
}

void GpuKernels::copy(Stream stream, const StridedCopy& copy) {
  const StridedCopy::Place &from = copy.from, &to = copy.to;
  std::vector<std::int64_t> numbers = {copy.bytes, address(from.data), address(to.data)};
  numbers.insert(numbers.end(), from.steps.begin(), from.steps.end());
  numbers.insert(numbers.end(), to.steps.begin(), to.steps.end());
  const int unit = copy_width(numbers);
  const Kernel* kernel;
  {
    const std::lock_guard lock(mutex_);
    auto at = copies_.find(unit);
    if (at == copies_.end()) at = copies_.emplace(unit, engine_.prepare(copy_task(unit), device_)).first;
    kernel = &at->second;
  }
  CopyArgs args = {};
  args.from = from.data, args.to = const_cast<void*>(to.data);
  args.from_at = from.at, args.to_at = to.at;
  std::copy(from.steps.begin(), from.steps.end(), args.from_steps);
  std::copy(to.steps.begin(), to.steps.end(), args.to_steps);
  std::copy(copy.shape.begin(), copy.shape.end(), args.shape);
  args.units = copy.bytes / unit, args.count = copy.count;
  kernel->launch(stream, std::as_bytes(std::span(&args, 1)), args.units * args.count, 1);
}

}  // namespace tilewright::ggml
