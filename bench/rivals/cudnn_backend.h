// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend API as its rival uses it: own declarations of its constants and functions, and a descriptor.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tilewright/error.h>
#include <tilewright/memory.h>

#include "bench/rivals/cudnn.h"

namespace tilewright::bench {
namespace cudnn {

// ---- cudnn_graph.h, as far as needed. The values are those of cuDNN 9.28.1, and of every cuDNN 9 before it.

// cudnnStatus_t
inline constexpr int kSuccess = 0;
// cudnnDataType_t
inline constexpr int kF32 = 0, kF16 = 2, kI8 = 3, kI32 = 4, kBF16 = 9, kE4M3 = 12, kFastFloatForFp8 = 14;
// cudnnPointwiseMode_t
inline constexpr int kMultiply = 1;
// cudnnConvolutionMode_t
inline constexpr int kCrossCorrelation = 1;
// cudnnBackendHeurMode_t
inline constexpr int kModeB = 1, kModeFallback = 2, kModeA = 3;
// cudnnBackendAttributeType_t
inline constexpr int kTypeHandle = 0, kTypeDataType = 1, kTypeBoolean = 2, kTypeInt64 = 3, kTypeFloat = 4,
                     kTypePointer = 6, kTypeConvolutionMode = 7, kTypeHeuristicMode = 8, kTypeKnob = 9,
                     kTypePointwiseMode = 14, kTypeDescriptor = 15;
// cudnnBackendDescriptorType_t
inline constexpr int kPointwise = 0, kConvolution = 1, kEngine = 2, kConfig = 3, kHeuristic = 4, kPlan = 5,
                     kKnobChoice = 7, kForward = 10, kPointwiseOperation = 13, kGraph = 15, kPack = 16, kTensor = 17;
// cudnnBackendAttributeName_t
inline constexpr int kPointwiseModeOf = 0, kPointwiseType = 1;
inline constexpr int kConvolutionComputeType = 100, kConvolutionModeOf = 101, kConvolutionDilations = 102,
                     kConvolutionStrides = 103, kConvolutionBehind = 104, kConvolutionBefore = 105,
                     kConvolutionAxes = 106;
inline constexpr int kHeuristicModeOf = 200, kHeuristicGraph = 201, kHeuristicResults = 202;
inline constexpr int kConfigEngine = 300, kConfigKnobChoices = 302;
inline constexpr int kPlanHandle = 400, kPlanConfig = 401, kPlanWorkspace = 402;
inline constexpr int kKnobChoiceType = 600, kKnobChoiceValue = 601;
inline constexpr int kForwardAlpha = 700, kForwardBeta = 701, kForwardConvolution = 702, kForwardW = 703,
                     kForwardX = 704, kForwardY = 705;
inline constexpr int kPointwiseOf = 750, kPointwiseX = 751, kPointwiseB = 752, kPointwiseY = 753;
inline constexpr int kGraphHandle = 800, kGraphOperations = 801;
inline constexpr int kTensorAlignment = 900, kTensorType = 901, kTensorDimensions = 902, kTensorStrides = 903,
                     kTensorId = 906, kTensorVirtual = 907;
inline constexpr int kPackIds = 1000, kPackPointers = 1001, kPackWorkspace = 1003;
inline constexpr int kEngineIndex = 1301;

using Handle = void*;
using Raw = void*;  // cudnnBackendDescriptor_t

inline constexpr std::size_t kWorkspaceBytes = 2ull << 30;

}  // namespace cudnn

// ---- The library

struct Cudnn::Impl : RivalLibrary {
  bool load() {
    find(last_error, "cudnnGetLastErrorString");
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
    if (status != cudnn::kSuccess) throw Error(ErrorCode::unsupported, call, reason(status), "failed");
  }

  cudnn::Handle handle = nullptr;
  Memory workspace;

  std::size_t (*version)();
  const char* (*error_string)(int);
  void (*last_error)(char*, std::size_t);  // may be null
  int (*create)(cudnn::Handle*);
  int (*destroy)(cudnn::Handle);
  int (*set_stream)(cudnn::Handle, Stream);
  int (*desc_create)(int type, cudnn::Raw*);
  int (*desc_destroy)(cudnn::Raw);
  int (*desc_set)(cudnn::Raw, int attribute, int type, std::int64_t count, const void* values);
  int (*desc_get)(cudnn::Raw, int attribute, int type, std::int64_t most, std::int64_t* count, void* values);
  int (*desc_finalize)(cudnn::Raw);
  int (*execute)(cudnn::Handle, cudnn::Raw plan, cudnn::Raw pack);
};

namespace cudnn {

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

}  // namespace cudnn
}  // namespace tilewright::bench
