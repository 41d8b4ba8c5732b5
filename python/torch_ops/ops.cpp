// SPDX-License-Identifier: Apache-2.0
// torch.ops.tilewright.linear and conv over PyTorch's stable ABI: one binary for PyTorch 2.11 and newer. On CUDA
// devices both, on CPUs linear alone. They do what linear() and conv() of tilewright/torch/_cuda.py and _cpu.py do, for
// what those have prepared and told add(): checks, allocations and one call of the C library. Everything else they
// leave to Python, by the operators *_by_python: the first call of a problem, tensors that have to be converted or
// copied, and whatever is wrong, since Python's errors name it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tilewright/tilewright_c.h"

namespace {

using torch::stable::Tensor;

// ---- what tilewright/torch/_stable.py fills in; its ctypes structures are these

// Of the libraries that the process has open: this one links neither libtilewright_c nor libtorch_cuda.
struct Functions {
  decltype(&tw_layer_launch_gemm) gemm;
  decltype(&tw_layer_launch_conv) conv;
  decltype(&tw_layer_scratch_bytes) scratch;
  AOTITorchError (*current_stream)(int32_t device, void** stream);  // null: without CUDA
};

enum Where : int32_t { kGpu = 0, kCpu = 1 };

enum Dtype : int32_t { kNone = -1, kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr int kMostDims = 5;

// How an operator runs for one problem, device and dtype of x; conv for one shape and layout of x, too.
struct Plan {
  const tw_layer* layer;
  int64_t n, k;                          // outputs and columns; of conv channels, out and in
  int64_t weight_bytes[3];               // of data, scales and global; 0: w has no such stream
  int64_t x[kMostDims], out[kMostDims];  // of conv: shapes of x and y
  int32_t y, bias;                       // Dtype
  int32_t dims;                          // of conv; 0: linear, of x with any rows
  int32_t last;                          // 0 or 1: channels are innermost in memory
  int32_t amax;                          // 0 or 1
};

int32_t torch_dtype(int32_t dtype) {
  switch (dtype) {
    case kF16: return aoti_torch_dtype_float16();
    case kBf16: return aoti_torch_dtype_bfloat16();
    default: return aoti_torch_dtype_float32();
  }
}

struct Prepared {
  int32_t device, dtype;  // PyTorch's
  Plan plan;
};

std::shared_mutex mutex;
Functions functions{};
std::unordered_map<std::string, std::vector<Prepared>> plans[2];  // by Where and problem

// ---- tensors

void check(AOTITorchError error, const char* call) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error(std::string(call) + " failed");
}

struct Place {
  int32_t type, index;
  bool operator==(const Place&) const = default;
};

Place place_of(const Tensor& t) {
  Place place{};
  check(aoti_torch_get_device_type(t.get(), &place.type), "aoti_torch_get_device_type");
  check(aoti_torch_get_device_index(t.get(), &place.index), "aoti_torch_get_device_index");
  return place;
}

int32_t dtype_of(const Tensor& t) {
  int32_t dtype = 0;
  check(aoti_torch_get_dtype(t.get(), &dtype), "aoti_torch_get_dtype");
  return dtype;
}

// Strides of a dense tensor. last: dimension 1 is innermost in memory.
std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes, bool last) {
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t step = 1;
  const auto take = [&](size_t i) { strides[i] = step, step *= sizes[i]; };
  if (last) take(1);
  for (size_t i = sizes.size(); i-- > 0;)
    if (!(last && i == 1)) take(i);
  return strides;
}

bool has_channels_last(const Tensor& x, const std::vector<int64_t>& sizes) {
  if (x.is_contiguous()) return false;  // of what lies in both ways, no
  const std::vector<int64_t> wanted = dense_strides(sizes, true);
  const auto strides = x.strides();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && strides[i] != wanted[i]) return false;
  return true;
}

// The address of what kernels can read as it lies; else null.
void* aligned(const Tensor& t) {
  void* data = t.data_ptr();
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 ? data : nullptr;
}

// That of a dense tensor of `count` elements there.
void* dense(const Tensor& t, int32_t dtype, int64_t count, const Place& place) {
  if (dtype_of(t) != dtype || t.numel() != count || !t.is_contiguous() || !(place_of(t) == place)) return nullptr;
  return aligned(t);
}

// Uninitialized; none if there is no memory.
std::optional<Tensor> empty(const std::vector<int64_t>& sizes, bool last, int32_t dtype, const Place& place) {
  const std::vector<int64_t> strides = dense_strides(sizes, last);
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype, place.type,
                               place.index, &handle) != AOTI_TORCH_SUCCESS) {
    return std::nullopt;
  }
  return Tensor(handle);
}

// ---- one call

// What is found out about a call before its launches. The steps return false where Python has to do it.
class Call {
 public:
  Call(Where where, const Tensor& x, const std::string& problem)
      : where_(where), x_(x), place_(place_of(x)), dtype_(dtype_of(x)), sizes_(x.sizes().begin(), x.sizes().end()) {
    std::shared_lock lock(mutex);
    const auto of_problem = plans[where].find(problem);
    if (of_problem == plans[where].end() || !functions.gemm) return;
    for (const Prepared& p : of_problem->second) {
      if (p.device != place_.index || p.dtype != dtype_ || !fits(p.plan)) continue;
      plan = p.plan;  // a copy: the state may change at any time
      call = functions;
      found = true;
      return;
    }
  }

  // x as it lies, of `width` elements a row.
  bool take_x(int64_t width) {
    rows = x_.numel() / width;
    values = rows == 0 ? nullptr : aligned(x_);
    return values != nullptr;
  }

  bool take_weight(const std::vector<Tensor>& weight) {
    const void* streams[3] = {};
    size_t given = 0;
    for (int i = 0; i < 3; ++i) {
      if (plan.weight_bytes[i] == 0) continue;
      if (given == weight.size()) return false;
      const bool factor = i == 2;
      streams[i] = dense(weight[given++], factor ? aoti_torch_dtype_float32() : aoti_torch_dtype_uint8(),
                         factor ? 1 : plan.weight_bytes[i], place_);
      if (!streams[i]) return false;
    }
    w = {streams[0], streams[1], static_cast<const float*>(streams[2])};
    return given == weight.size();
  }

  // A vector that the problem has, of a dtype, or has not: kNone.
  bool take(const std::optional<Tensor>& given, int32_t dtype, int64_t count, const void** to) const {
    if (given.has_value() != (dtype != kNone)) return false;
    if (given) *to = given->dim() == 1 ? dense(*given, torch_dtype(dtype), count, place_) : nullptr;
    return !given || *to;
  }

  // What a launch on a GPU needs besides: the stream, and memory for x in its format.
  bool take_stream() {
    if (where_ == kCpu) return true;
    if (call.current_stream(place_.index, &stream) != AOTI_TORCH_SUCCESS) return false;
    const size_t bytes = call.scratch(plan.layer, rows);
    if (bytes == 0) return true;
    scratch_ = empty({static_cast<int64_t>(bytes)}, false, aoti_torch_dtype_uint8(), place_);
    if (!scratch_) return false;
    scratch = scratch_->data_ptr();
    return true;
  }

  std::optional<Tensor> result(const std::vector<int64_t>& sizes) const {
    return empty(sizes, plan.last, torch_dtype(plan.y), place_);
  }
  const std::vector<int64_t>& sizes() const { return sizes_; }

  bool found = false;
  Plan plan{};
  Functions call{};
  int64_t rows = 0;
  const void* values = nullptr;
  tw_operand w{};
  tw_stream stream = nullptr;
  void* scratch = nullptr;

 private:
  bool fits(const Plan& p) const {
    if (p.dims == 0) return !sizes_.empty() && sizes_.back() == p.k && x_.is_contiguous();
    return std::equal(sizes_.begin(), sizes_.end(), p.x, p.x + p.dims) &&
           (p.last ? has_channels_last(x_, sizes_) : x_.is_contiguous());
  }

  Where where_;
  const Tensor& x_;
  Place place_;
  int32_t dtype_;
  std::vector<int64_t> sizes_;
  // Freed with the call: PyTorch gives the memory to nothing but what comes later in the stream.
  std::optional<Tensor> scratch_;
};

// Calls an operator of Python's, which returns y; else nothing, and an error's message. (Of several results
// PyTorch 2.13 takes one's type for another's.)
template <size_t N>
Tensor by_python(const char* name, StableIValue (&stack)[N]) {
  check(torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION), name);
  const auto result = torch::stable::detail::to<std::vector<Tensor>>(stack[0]);
  if (result.size() == 1) return result[0];
  const Tensor& message = result.at(1);
  throw std::runtime_error({static_cast<const char*>(message.data_ptr()), static_cast<size_t>(message.numel())});
}

// ---- the operators

std::optional<Tensor> launch_linear(Where where, const Tensor& x, const std::vector<Tensor>& weight,
                                    const std::optional<Tensor>& bias, const std::string& problem) {
  Call c(where, x, problem);
  tw_gemm_args args = TW_GEMM_ARGS_INIT;
  if (!c.found || !c.take_x(c.plan.k) || !c.take_weight(weight) || !c.take(bias, c.plan.bias, c.plan.n, &args.bias) ||
      !c.take_stream()) {
    return std::nullopt;
  }
  std::vector<int64_t> sizes = c.sizes();
  sizes.back() = c.plan.n;
  std::optional<Tensor> y = c.result(sizes);
  if (!y) return std::nullopt;
  args.x.data = c.values;
  args.w = c.w;
  args.m = c.rows;
  args.y = y->data_ptr();
  if (c.call.gemm(c.plan.layer, c.stream, &args, c.scratch) != TW_OK) return std::nullopt;
  return y;
}

template <Where where>
Tensor linear(const Tensor& x, const std::vector<Tensor>& weight, const std::optional<Tensor>& bias,
              const std::string& problem) {
  using torch::stable::detail::from;
  if (std::optional<Tensor> y = launch_linear(where, x, weight, bias, problem)) return *y;
  StableIValue stack[] = {from(x), from(weight), from(bias), from(problem)};
  return by_python(where == kCpu ? "tilewright::cpu_linear_by_python" : "tilewright::linear_by_python", stack);
}

std::optional<Tensor> launch_conv(const Tensor& x, const std::vector<Tensor>& weight, const std::optional<Tensor>& bias,
                                  const std::optional<Tensor>& amax, const std::string& problem) {
  Call c(kGpu, x, problem);
  tw_conv_args args = TW_CONV_ARGS_INIT;
  const void* largest = nullptr;
  if (!c.found || !c.take_x(c.plan.k) || !c.take_weight(weight) || !c.take(bias, c.plan.bias, c.plan.n, &args.bias) ||
      !c.take(amax, c.plan.amax ? kF32 : kNone, 1, &largest) || !c.take_stream()) {
    return std::nullopt;
  }
  std::optional<Tensor> y = c.result({c.plan.out, c.plan.out + c.plan.dims});
  if (!y) return std::nullopt;
  args.x.data = c.values;
  args.w = c.w;
  args.y = y->data_ptr();
  args.amax = static_cast<const float*>(largest);
  if (c.call.conv(c.plan.layer, c.stream, &args, c.scratch) != TW_OK) return std::nullopt;
  return y;
}

Tensor conv(const Tensor& x, const std::vector<Tensor>& weight, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& amax, const std::string& problem) {
  using torch::stable::detail::from;
  if (std::optional<Tensor> y = launch_conv(x, weight, bias, amax, problem)) return *y;
  StableIValue stack[] = {from(x), from(weight), from(bias), from(amax), from(problem)};
  return by_python("tilewright::conv_by_python", stack);
}

STABLE_TORCH_LIBRARY_IMPL(tilewright, CUDA, library) {
  library.impl("linear", TORCH_BOX(&linear<kGpu>));
  library.impl("conv", TORCH_BOX(&conv));
}

STABLE_TORCH_LIBRARY_IMPL(tilewright, CPU, library) { library.impl("linear", TORCH_BOX(&linear<kCpu>)); }

// ---- PyTorch's threads

// The blocks of one launch. Threads take the next one each, since some blocks take longer than others.
struct Blocks {
  void take() {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) block(context, i);
  }
  int64_t count;
  tw_block block;
  void* context;
  std::atomic<int64_t> next{0};
};

const pid_t loaded_by = getpid();

}  // namespace

// ---- for tilewright/torch/_stable.py

#define EXPORT extern "C" __attribute__((visibility("default")))

// Bytes of the structures: what another version of the package does not share.
EXPORT uint32_t tilewright_torch_sizes() { return sizeof(Functions) << 16 | sizeof(Plan); }

EXPORT void tilewright_torch_bind(const Functions* given) {
  std::unique_lock lock(mutex);
  functions = *given;
}

// The layer of a plan must live until no call can have found it: tilewright.torch keeps them for good. device: a GPU's
// index, -1 for the CPU.
EXPORT void tilewright_torch_add(const char* problem, int32_t where, int32_t device, int32_t x, const Plan* plan) {
  std::unique_lock lock(mutex);
  plans[where][problem].push_back({device, torch_dtype(x), *plan});
}

EXPORT void tilewright_torch_forget(int32_t where) {
  std::unique_lock lock(mutex);
  plans[where].clear();
}

// A tw_parallel_for on the threads of PyTorch's operators. They spin for a while after each operator, so that threads
// of our own would wait for a CPU. In a child of fork() the caller computes alone: OpenMP's threads are its parent's.
EXPORT void tilewright_torch_parallel_for(void*, int64_t count, tw_block block, void* context) {
  Blocks blocks{count, block, context};
  uint32_t threads = 1;
  if (getpid() == loaded_by && torch_get_num_threads(&threads) == AOTI_TORCH_SUCCESS && threads > 1) {
    const auto take = [](int64_t, int64_t, void* of) { static_cast<Blocks*>(of)->take(); };
    torch_parallel_for(0, std::min<int64_t>(threads, count), 1, take, &blocks);
  }
  blocks.take();  // whatever is left
}
