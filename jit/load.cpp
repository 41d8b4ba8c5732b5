// SPDX-License-Identifier: Apache-2.0
// From binaries to a Kernel: everything that can be refused is refused before the driver sees a byte.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "jit/context.h"
#include "jit/cpu/object.h"
#include "jit/elf.h"
#include "jit/kernel.h"
#include "jit/maps.h"

namespace tilewright {
namespace jit {
namespace {

constexpr int kDefaultShared = 48 << 10;  // more dynamic shared memory must be asked for, per function
constexpr unsigned kMaxCluster = 8;       // portable limit
constexpr unsigned kMaxResident = 32;     // blocks that a multiprocessor can hold

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, field, value, allowed);
}

void check_shared(const Device::Impl& device, std::int64_t fixed, std::int64_t dynamic) {
  if (fixed + dynamic > device.shared_optin)
    refuse("plan.shared_bytes", fmt::format("{} dynamic + {} static", dynamic, fixed),
           fmt::format("is too large: {} has {} bytes per block", device.name, device.shared_optin));
}

// Registers are handed out to warps in units of 256.
void check_registers(const Device::Impl& device, int registers, unsigned threads) {
  const std::int64_t per_warp = (registers * 32 + 255) / 256 * 256;
  const std::int64_t needed = per_warp * ((threads + 31) / 32);
  if (device.registers > 0 && needed > device.registers)
    refuse("plan.threads", fmt::format("{}", threads),
           fmt::format("needs too many registers: with {} each they need {}, and {} has {} per block", registers,
                       needed, device.name, device.registers));
}

void check_limits(const Device::Impl& device, const Binary& binary) {
  const LaunchPlan& plan = binary.plan;
  if (plan.cpu) return;  // of what follows a CPU has nothing
  if (plan.threads == 0 || plan.threads > static_cast<unsigned>(device.max_threads))
    refuse("plan.threads", fmt::format("{}", plan.threads), fmt::format("must be 1 to {}", device.max_threads));
  if (plan.cluster == 0 || plan.cluster > kMaxCluster || (plan.cluster > 1 && !device.arch->clusters))
    refuse("plan.cluster", fmt::format("{}", plan.cluster),
           device.arch->clusters ? "must be 1 to 8" : "must be 1: this device has no clusters");
  if (plan.persistent > kMaxResident) refuse("plan.persistent", fmt::format("{}", plan.persistent), "must be 0 to 32");
  if (plan.overlap && !device.arch->clusters)
    refuse("plan.overlap", "1", "is not supported: this device cannot overlap launches");
  check_maps(device, plan);
  check_shared(device, binary.resources.shared_bytes, plan.shared_bytes);
  check_registers(device, binary.resources.registers, plan.threads);
}

void check_object(const Binary& binary) {
  if (binary.host) return;
  if (!cpu::read_object(binary.image).functions.contains(binary.entry))
    refuse("binary.entry", binary.entry, "is not a function of the object");
}

void check_image(const Binary& binary) {
  const std::string defect = elf_defect(binary.image);
  if (!defect.empty())
    refuse("binary.image", fmt::format("{} bytes", binary.image.size()), "is not a cubin: " + defect);
  if (!elf_has_entry(binary.image, binary.entry))
    refuse("binary.entry", binary.entry,
           fmt::format("is not in the image, which has: {}", fmt::join(elf_entries(binary.image), ", ")));
}

int attribute(const Driver& driver, CUfunction function, FunctionAttribute which) {
  int value = 0;
  driver.must(driver.function_attribute, &value, static_cast<int>(which), function);
  return value;
}

// Asks the driver for limits and resources that a caller's own Binary may misstate. Also makes a lazily loading driver
// load now, since the first launch may be under stream capture.
void ask_function(Loaded& loaded) {
  const Device::Impl& device = loaded.module->device();
  const Driver& driver = *device.driver;
  const int shared = attribute(driver, loaded.function, kFuncShared);
  const int registers = attribute(driver, loaded.function, kFuncRegisters);
  const int threads = attribute(driver, loaded.function, kFuncMaxThreads);
  if (loaded.resources == Resources{}) {
    loaded.resources.registers = registers;
    loaded.resources.shared_bytes = shared;
    loaded.resources.stack_bytes = attribute(driver, loaded.function, kFuncLocal);
  }
  check_shared(device, shared, loaded.plan.shared_bytes);
  if (loaded.plan.threads > static_cast<unsigned>(threads))
    refuse(
        "plan.threads", fmt::format("{}", loaded.plan.threads),
        fmt::format("must be at most {1} for {0}, which its launch bounds and registers allow", loaded.entry, threads));
}

// A cluster's blocks must be neighbours, so a chip holds fewer clusters than its number of multiprocessors suggests; a
// larger persistent grid would run in two waves.
void ask_clusters(Loaded& loaded) {
  const Driver& driver = *loaded.module->device().driver;
  const LaunchPlan& plan = loaded.plan;
  if (plan.persistent == 0 || plan.cluster < 2 || !driver.active_clusters) return;
  CUlaunchAttribute attribute = {};
  attribute.id = kClusterDimension;
  attribute.value.cluster = {plan.cluster, 1, 1};
  CUlaunchConfig config = {};
  config.grid_x = plan.cluster;
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.block_x = plan.threads;
  config.shared_bytes = plan.shared_bytes;
  config.attributes = &attribute;
  config.attribute_count = 1;
  int clusters = 0;
  driver.must(driver.active_clusters, &clusters, loaded.function, &config);
  loaded.most_blocks = static_cast<unsigned>(std::max(clusters, 0)) * plan.cluster;
}

void check_rules(const Contract& contract) {
  const std::size_t size = contract.args_bytes;
  if (size + contract.constants.size() > kMaxArgumentBytes)
    refuse("contract.args_bytes", fmt::format("{} + {} constant", size, contract.constants.size()),
           fmt::format("must be at most {}", kMaxArgumentBytes));
  for (const auto& rule : contract.pointers)
    if (rule.offset + sizeof(void*) > size || !std::has_single_bit(rule.align))
      refuse(rule.name, fmt::format("offset {}, alignment {}", rule.offset, rule.align),
             "must lie in the argument struct, aligned to a power of two");
  if (contract.rows_at != Contract::kFixedRows && contract.rows_at + sizeof(std::int64_t) > size)
    refuse("contract.rows_at", fmt::format("{}", contract.rows_at), "must lie in the argument struct");
  for (const auto& rule : contract.strides)
    if (rule.offset + sizeof(std::int64_t) > size || rule.multiple < 1)
      refuse(rule.name, fmt::format("offset {}, multiple {}", rule.offset, rule.multiple),
             "must lie in the argument struct, with a multiple of at least 1");
  for (const auto& rule : contract.row_pointers)
    if (rule.pointer + sizeof(void*) > size ||
        (rule.stride_at != RowsRule::kDense && rule.stride_at + sizeof(std::int64_t) > size))
      refuse("contract.row_pointers", fmt::format("offsets {} and {}", rule.pointer, rule.stride_at),
             "must lie in the argument struct");
  for (const auto& rule : contract.factors)
    if (rule.offset + sizeof(float) > size)
      refuse(rule.name, fmt::format("offset {}", rule.offset), "must lie in the argument struct");
}

// Checks that the kernel declares what a launch passes: the driver reads parameters by address, as many and as long as
// declared. Returns the size of the first one, if the driver reports it.
std::size_t check_parameters(const Loaded& loaded, const Contract& contract) {
  const Driver& driver = *loaded.module->device().driver;
  if (!driver.function_parameter) return Kernel::Impl::kUnknown;
  const ContextScope scope(loaded.module->device());
  std::vector<std::size_t> sizes;
  for (std::size_t offset = 0, size = 0;; sizes.push_back(size)) {
    const CUresult result = driver.function_parameter(loaded.function, sizes.size(), &offset, &size);
    if (result == kInvalidValue) break;
    if (result != 0) driver.fail("cuFuncGetParamInfo", result);
  }
  const std::size_t constants = contract.constants.size(), maps = loaded.plan.map_count;
  std::vector<std::size_t> passed{contract.args_bytes};
  if (constants) passed.push_back(constants);
  passed.resize(passed.size() + maps, sizeof(CUtensorMap));
  if (!contract.args_bytes && !sizes.empty()) passed[0] = sizes[0];  // the caller's own struct, whatever it is
  const bool none = sizes.empty() && passed.size() == 1 && !contract.args_bytes;
  if (sizes != passed && !none)
    refuse("binary.entry", fmt::format("{} with parameters of {} bytes", loaded.entry, fmt::join(sizes, ", ")),
           fmt::format("must take {}{}{}",
                       contract.args_bytes ? fmt::format("{} bytes, as the launch passes", contract.args_bytes)
                       : maps              ? "one parameter (a struct), as the launch passes"
                                           : "one parameter (a struct) or none",
                       constants ? fmt::format(" and {} constant ones", constants) : "",
                       maps ? fmt::format(" and {} tensor maps of {}", maps, sizeof(CUtensorMap)) : ""));
  return sizes.empty() ? 0 : sizes[0];
}

// Parts begin at whole 16-byte pieces, whatever the strides.
void check_most_rows(const LaunchPlan& plan, const Contract& contract) {
  if (!plan.most_rows) return;
  if (plan.most_rows % kPartRows != 0)
    refuse("plan.most_rows", fmt::format("{}", plan.most_rows), fmt::format("must be a multiple of {}", kPartRows));
  if (contract.row_pointers.empty() || contract.rows_at == Contract::kFixedRows || contract.rows_per != 1)
    refuse("plan.most_rows", fmt::format("{}", plan.most_rows),
           "must be 0: the contract does not say how a launch is divided (row_pointers)");
}

std::shared_ptr<Kernel::Impl> load_all(const Device& device, Serving serving, Contract contract) {
  auto impl = std::make_shared<Kernel::Impl>();
  impl->device = device.impl()->shared_from_this();  // not the handle: an engine keeps kernels of closed devices
  check_rules(contract);
  for (const auto& binary : serving.binaries) {
    if (contract.args_bytes) check_map_fields(binary->plan, contract.args_bytes, contract.constants.size());
    check_most_rows(binary->plan, contract);
    impl->loaded.push_back(std::make_unique<Loaded>(impl->device, binary));
  }
  impl->candidates = std::move(serving.candidates);
  impl->candidates.resize(impl->loaded.size());
  impl->steps = serving.steps;
  impl->beyond = std::move(serving.beyond);
  impl->contract = std::move(contract);
  const Contract& rules = impl->contract;
  impl->params_bytes = rules.args_bytes ? rules.args_bytes : Kernel::Impl::kUnknown;
  for (const auto& loaded : impl->loaded) {
    const std::size_t bytes = check_parameters(*loaded, rules);
    if (rules.args_bytes) continue;
    check_map_fields(loaded->plan, bytes, rules.constants.size());
    impl->params_bytes = bytes;
  }
  return impl;
}

// Bucket i is served by its own binary, else by the nearest prepared larger one, else by the nearest smaller.
Serving serving_of(std::vector<BinaryPtr> binaries, std::span<const int> by_bucket) {
  if (by_bucket.size() > kBucketCount)
    refuse("by_bucket", fmt::format("{} entries", by_bucket.size()), fmt::format("must have at most {}", kBucketCount));
  if (binaries.size() > 256) refuse("binaries", fmt::format("{}", binaries.size()), "must be at most 256");
  for (const int index : by_bucket)
    if (index >= static_cast<int>(binaries.size()))
      refuse("by_bucket", fmt::format("{}", index),
             fmt::format("must be less than {}, the number of binaries", binaries.size()));
  if (std::none_of(by_bucket.begin(), by_bucket.end(), [](int i) { return i >= 0; }))
    refuse("by_bucket", "", "must have a binary for at least one bucket");
  Serving serving{std::move(binaries), {}, {}, {}};
  const auto prepared = [&](int i) { return i < static_cast<int>(by_bucket.size()) && by_bucket[i] >= 0; };
  for (int step = 0; step < kRowSteps; ++step) {
    const int bucket = bucket_index(step_rows(step));
    int from = bucket;
    while (from < kBucketCount && !prepared(from)) ++from;
    if (from == kBucketCount)
      for (from = bucket; !prepared(from);) --from;
    serving.steps[static_cast<std::size_t>(step)] = static_cast<std::uint8_t>(by_bucket[from]);
  }
  return serving;
}

}  // namespace

Loaded::Loaded(const std::shared_ptr<Device::Impl>& device, const BinaryPtr& binary)
    : entry(binary->entry), plan(binary->plan), resources(binary->resources) {
  check_limits(*device, *binary);
  if (device->cpu)
    check_object(*binary);
  else
    check_image(*binary);
  const ContextScope scope(*device);
  const Driver& driver = *device->driver;
  module = driver.modules().load(device, binary);
  driver.must(driver.module_function, &function, module->get(), entry.c_str());
  ask_function(*this);
  if (plan.shared_bytes + resources.shared_bytes > static_cast<unsigned>(kDefaultShared))
    module->allow_shared(function, static_cast<int>(plan.shared_bytes));
  ask_clusters(*this);
}

Kernel make_kernel(const Device& device, Serving serving, Contract contract, Watch watch) {
  auto kernel = load_all(device, std::move(serving), std::move(contract));
  kernel->watched = watch.on();
  kernel->watch = std::move(watch);
  return Kernel(std::move(kernel));
}

std::string load_refusal(const Device& device, const BinaryPtr& binary) {
  try {
    (void)Loaded(device.impl()->shared_from_this(), binary);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace jit

namespace {

std::vector<jit::BinaryPtr> copies_of(std::span<const Binary> binaries) {
  std::vector<jit::BinaryPtr> copies;
  for (const Binary& binary : binaries) copies.push_back(std::make_shared<const Binary>(binary));
  return copies;
}

}  // namespace

Kernel::Kernel(const Device& device, const Binary& binary) {
  const int first[] = {0};
  impl_ = jit::load_all(device, jit::serving_of(copies_of({&binary, 1}), first), {});
}

Kernel::Kernel(const Device& device, std::span<const Binary> binaries, std::span<const int> by_bucket,
               Contract contract)
    : impl_(jit::load_all(device, jit::serving_of(copies_of(binaries), by_bucket), std::move(contract))) {}

}  // namespace tilewright
