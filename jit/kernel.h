// SPDX-License-Identifier: Apache-2.0
// Inside of a Kernel (tilewright/kernel.h): its functions and the table from bucket to function. Immutable after
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
#include "jit/modules.h"

namespace tilewright {
namespace jit {

inline constexpr std::size_t kMaxArgumentBytes = 4096;  // of all parameters of one kernel, as every GPU accepts
inline constexpr std::size_t kMaxMaps = std::tuple_size_v<decltype(LaunchPlan::maps)>;

// A function of a module, with what launching it takes.
struct Loaded {
  Loaded(const std::shared_ptr<Device::Impl>& device, const BinaryPtr& binary);

  std::shared_ptr<const Module> module;
  CUfunction function = nullptr;
  std::string entry;
  LaunchPlan plan;
  Resources resources;
  unsigned most_blocks = 0;  // of a persistent kernel of clusters: what the chip holds at a time; 0: not known
};

// Kernel's public constructor without copies of images. `candidates`: what by_bucket's entries were made from, as many;
// empty: a caller's own binaries.
Kernel make_kernel(const Device& device, std::span<const BinaryPtr> binaries, std::span<const int> by_bucket,
                   Contract contract, std::vector<Candidate> candidates);

// Why the device cannot use the binary, whatever a launch's contract is; empty if it can. Loads it.
std::string load_refusal(const Device& device, const BinaryPtr& binary);

}  // namespace jit

struct Kernel::Impl {
  static constexpr std::size_t kUnknown = ~std::size_t{0};

  std::shared_ptr<Device::Impl> device;
  std::vector<std::unique_ptr<jit::Loaded>> loaded;
  std::array<const jit::Loaded*, kBucketCount> by_bucket{};  // never null
  std::array<Candidate, kBucketCount> candidates;            // without a family where by_bucket's is a caller's own
  Contract contract;
  std::size_t params_bytes = kUnknown;  // of the first parameter
  std::atomic<bool> ask_pointers{false};
};

}  // namespace tilewright
