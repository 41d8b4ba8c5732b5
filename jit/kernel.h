// SPDX-License-Identifier: Apache-2.0
// Inside of a Kernel (tilewright/kernel.h): loaded modules and the table from bucket to function. Immutable after
// construction except for one flag, so that launching needs no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tilewright/kernel.h>
#include <tilewright/problem.h>

#include "jit/driver.h"

namespace tilewright {
namespace jit {

inline constexpr std::size_t kMaxArgumentBytes = 4096;  // of all parameters of one kernel, as every GPU accepts
inline constexpr std::size_t kMaxMaps = std::tuple_size_v<decltype(LaunchPlan::maps)>;

struct Loaded {
  Loaded(std::shared_ptr<Device::Impl> on, const Binary& binary);
  ~Loaded();
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  std::shared_ptr<Device::Impl> device;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  std::string entry;
  LaunchPlan plan;
  Resources resources;
  unsigned most_blocks = 0;  // of a persistent kernel of clusters: what the chip holds at a time; 0: not known
};

}  // namespace jit

struct Kernel::Impl {
  enum class Operation { own, gemm, cast, pack };
  static constexpr std::size_t kUnknown = ~std::size_t{0};

  std::shared_ptr<Device::Impl> device;
  std::vector<std::unique_ptr<jit::Loaded>> loaded;
  std::array<const jit::Loaded*, kBucketCount> by_bucket{};  // never null
  Contract contract;
  Operation operation = Operation::own;
  std::size_t params_bytes = kUnknown;  // of the first parameter
  std::atomic<bool> ask_pointers{false};
};

}  // namespace tilewright
