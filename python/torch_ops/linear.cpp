// SPDX-License-Identifier: Apache-2.0
// torch.ops.tilewright.linear on CUDA devices, over PyTorch's stable ABI: one binary for PyTorch 2.11 and newer. It
// does what tilewright/torch/_cuda.py's linear() does, for what that has prepared and told add(): checks, allocations
// and one or two calls of the C library. Everything else it leaves to Python, by the operator linear_by_python: the
// first call of a problem, tensors that have to be converted or copied, and whatever is wrong, since Python's errors
// name it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <map>
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
  decltype(&tw_launch_gemm_args) gemm;
  decltype(&tw_launch_cast) cast;
  AOTITorchError (*current_stream)(int32_t device, void** stream);
};

enum Dtype : int32_t { kNone = -1, kF32 = 0, kF16 = 1, kBf16 = 2 };

// How linear runs for one problem, GPU and dtype of x.
struct Plan {
  const tw_kernel* gemm;
  const tw_kernel* cast;   // x to its format; null: x is in it
  const tw_kernel* fused;  // quantizes x itself, for at most `few` rows; null: there is none
  int64_t few;
  int64_t n, k;
  int64_t row_bytes[2];     // data and scales of a row of x in its format
  int64_t weight_bytes[3];  // of data, scales and global; 0: w has no such stream
  int32_t y, bias;          // Dtype
  int32_t workspace;        // 0 or 1
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
std::unordered_map<std::string, std::vector<Prepared>> plans;  // by problem
std::map<std::pair<int32_t, void*>, void*> workspaces;         // by device and stream

// What a call needs of the above, copied: the state may change at any time.
struct Found {
  Plan plan;
  Functions functions;
};

bool find(const std::string& problem, int32_t device, int32_t dtype, Found* found) {
  std::shared_lock lock(mutex);
  const auto of_problem = plans.find(problem);
  if (of_problem == plans.end() || !functions.current_stream) return false;
  for (const Prepared& p : of_problem->second) {
    if (p.device != device || p.dtype != dtype) continue;
    *found = {p.plan, functions};
    return true;
  }
  return false;
}

void* workspace_of(int32_t device, void* stream) {
  std::shared_lock lock(mutex);
  const auto at = workspaces.find({device, stream});
  return at == workspaces.end() ? nullptr : at->second;
}

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

// A dense tensor of `count` elements there, at an address that kernels can read; else null.
void* dense(const Tensor& t, int32_t dtype, int64_t count, const Place& place) {
  if (dtype_of(t) != dtype || t.numel() != count || !t.is_contiguous() || !(place_of(t) == place)) return nullptr;
  void* data = t.data_ptr();
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 ? data : nullptr;
}

// Uninitialized; none if there is no memory.
std::optional<Tensor> empty(const std::vector<int64_t>& sizes, int32_t dtype, const Place& place) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype, place.type,
                               place.index, &handle) != AOTI_TORCH_SUCCESS) {
    return std::nullopt;
  }
  return Tensor(handle);
}

// ---- the operator

// None where Python has to do it.
std::optional<Tensor> launch(const Tensor& x, const std::vector<Tensor>& weight, const std::optional<Tensor>& bias,
                             const std::string& problem) {
  const Place place = place_of(x);
  Found found;
  if (!find(problem, place.index, dtype_of(x), &found)) return std::nullopt;
  const Plan& plan = found.plan;

  const int64_t dims = x.dim();
  if (dims == 0 || x.size(dims - 1) != plan.k) return std::nullopt;
  const int64_t rows = x.numel() / plan.k;
  const void* values = dense(x, dtype_of(x), rows * plan.k, place);
  if (rows == 0 || !values) return std::nullopt;

  tw_gemm_args args = TW_GEMM_ARGS_INIT;
  args.m = rows;
  const void* streams[3] = {};
  size_t given = 0;
  for (int i = 0; i < 3; ++i) {
    if (plan.weight_bytes[i] == 0) continue;
    if (given == weight.size()) return std::nullopt;
    const bool factor = i == 2;
    streams[i] = dense(weight[given++], factor ? aoti_torch_dtype_float32() : aoti_torch_dtype_uint8(),
                       factor ? 1 : plan.weight_bytes[i], place);
    if (!streams[i]) return std::nullopt;
  }
  if (given != weight.size()) return std::nullopt;
  args.w = {streams[0], streams[1], static_cast<const float*>(streams[2])};

  if (bias.has_value() != (plan.bias != kNone)) return std::nullopt;
  if (bias) {
    args.bias = bias->dim() == 1 ? dense(*bias, torch_dtype(plan.bias), plan.n, place) : nullptr;
    if (!args.bias) return std::nullopt;
  }

  tw_stream stream = nullptr;
  if (found.functions.current_stream(place.index, &stream) != AOTI_TORCH_SUCCESS) return std::nullopt;
  if (plan.workspace) {
    args.workspace = workspace_of(place.index, stream);
    if (!args.workspace) return std::nullopt;
  }

  const auto extents = x.sizes();
  std::vector<int64_t> sizes(extents.begin(), extents.end());
  sizes.back() = plan.n;
  std::optional<Tensor> y = empty(sizes, torch_dtype(plan.y), place);
  if (!y) return std::nullopt;
  args.y = y->data_ptr();

  // Freed when this returns: PyTorch gives the memory to nothing but what comes later in the stream.
  std::optional<Tensor> encoded;
  const tw_kernel* gemm = plan.gemm;
  args.x.data = values;
  if (plan.fused && rows <= plan.few) {
    gemm = plan.fused;
  } else if (plan.cast) {
    const int64_t scales_at = (rows * plan.row_bytes[0] + 255) / 256 * 256;
    encoded = empty({scales_at + rows * plan.row_bytes[1]}, aoti_torch_dtype_uint8(), place);
    if (!encoded) return std::nullopt;
    char* memory = static_cast<char*>(encoded->data_ptr());
    tw_cast_args cast = TW_CAST_ARGS_INIT;
    cast.rows = rows;
    cast.x.data = values;
    cast.y.data = memory;
    if (plan.row_bytes[1]) cast.y.scales = memory + scales_at;
    if (found.functions.cast(plan.cast, stream, &cast) != TW_OK) return std::nullopt;
    args.x = {cast.y.data, cast.y.scales, nullptr};
  }
  if (found.functions.gemm(gemm, stream, &args) != TW_OK) return std::nullopt;
  return y;
}

Tensor by_python(const Tensor& x, const std::vector<Tensor>& weight, const std::optional<Tensor>& bias,
                 const std::string& problem) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  StableIValue stack[] = {from(x), from(weight), from(bias), from(problem)};
  check(torch_call_dispatcher("tilewright::linear_by_python", "", stack, TORCH_ABI_VERSION), "linear_by_python");
  // y; else nothing, and an error's message. (Of several results PyTorch 2.13 takes one's type for another's.)
  const std::vector<Tensor> result = to<std::vector<Tensor>>(stack[0]);
  if (result.size() == 1) return result[0];
  const Tensor& message = result.at(1);
  throw std::runtime_error({static_cast<const char*>(message.data_ptr()), static_cast<size_t>(message.numel())});
}

Tensor linear(const Tensor& x, const std::vector<Tensor>& weight, const std::optional<Tensor>& bias,
              const std::string& problem) {
  std::optional<Tensor> y = launch(x, weight, bias, problem);
  return y ? *y : by_python(x, weight, bias, problem);
}

STABLE_TORCH_LIBRARY_IMPL(tilewright, CUDA, library) { library.impl("linear", TORCH_BOX(&linear)); }

}  // namespace

// ---- for tilewright/torch/_stable.py

#define EXPORT extern "C" __attribute__((visibility("default")))

// Bytes of the structures: what another version of the package does not share.
EXPORT uint32_t tilewright_torch_sizes() { return sizeof(Functions) << 16 | sizeof(Plan); }

EXPORT void tilewright_torch_bind(const Functions* given) {
  std::unique_lock lock(mutex);
  functions = *given;
}

// Kernels of a plan must live until no call can have found it: tilewright.torch keeps them for good.
EXPORT void tilewright_torch_add(const char* problem, int32_t device, int32_t x, const Plan* plan) {
  std::unique_lock lock(mutex);
  plans[problem].push_back({device, torch_dtype(x), *plan});
}

EXPORT void tilewright_torch_add_workspace(int32_t device, void* stream, void* workspace) {
  std::unique_lock lock(mutex);
  workspaces[{device, stream}] = workspace;
}

EXPORT void tilewright_torch_forget(int32_t workspaces_too) {
  std::unique_lock lock(mutex);
  plans.clear();
  if (workspaces_too) workspaces.clear();
}
