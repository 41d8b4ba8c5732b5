// SPDX-License-Identifier: Apache-2.0
// Kernel: loading happens in load.cpp; here is the launch path. It allocates nothing, takes no lock and builds no
// string unless it throws.
#include "jit/kernel.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "jit/context.h"
#include "jit/device.h"
#include "jit/maps.h"

namespace tilewright {
namespace jit {
namespace {

template <class T>
T load(const std::byte* args, std::uint32_t offset) {
  T value;
  std::memcpy(&value, args + offset, sizeof(T));
  return value;
}

[[noreturn]] void refuse(const char* field, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, field, value, allowed);
}

[[noreturn]] void refuse_pointer(const PointerRule& rule, const void* pointer) {
  if (!pointer) refuse(rule.name, "null", "must be a device pointer");
  refuse(rule.name, fmt::format("{}", pointer), fmt::format("must be aligned to {} bytes", rule.align));
}

// Asks the driver where the pointer belongs. Memory it has never heard of is the host's.
void check_pointer(const Device::Impl& device, const PointerRule& rule, const void* pointer) {
  int type = 0, managed = 0, ordinal = -1;
  int attributes[] = {kPointerMemoryType, kPointerManaged, kPointerOrdinal};
  void* values[] = {&type, &managed, &ordinal};
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
  const CUresult result = device.driver->pointer_attributes(3u, attributes, values, address);
  if (result != 0 && result != kInvalidValue) device.driver->fail("cuPointerGetAttributes", result);
  if (managed) return;
  if (result != 0 || type != kMemoryTypeDevice)
    refuse(rule.name, fmt::format("{}", pointer), "is a host pointer; pass device memory");
  if (ordinal != device.ordinal)
    refuse(rule.name, fmt::format("{}", pointer),
           fmt::format("belongs to device {}; the kernel runs on device {}", ordinal, device.ordinal));
}

void check_pointers(const Kernel::Impl& kernel, const std::byte* args, bool ask) {
  for (const PointerRule& rule : kernel.contract.pointers) {
    const void* pointer = load<const void*>(args, rule.offset);
    if (!pointer) {
      if (rule.required) [[unlikely]]
        refuse_pointer(rule, pointer);
      continue;
    }
    if (reinterpret_cast<std::uintptr_t>(pointer) & (rule.align - 1)) [[unlikely]]
      refuse_pointer(rule, pointer);
    if (ask) [[unlikely]]
      check_pointer(*kernel.device, rule, pointer);
  }
}

[[noreturn]] void refuse_stride(const StrideRule& rule, std::int64_t value) {
  refuse(rule.name, fmt::format("{}", value),
         fmt::format("must be 0 (dense), or at least {}{}", rule.least,
                     rule.multiple > 1 ? fmt::format(" and a multiple of {}", rule.multiple) : ""));
}

// The arguments with every stride of 0 replaced by its meaning: `args` itself, or its copy in `room`.
const std::byte* resolve_strides(const Contract& contract, const std::byte* args, std::byte* room) {
  const std::byte* from = args;
  for (const StrideRule& rule : contract.strides) {
    const auto value = load<std::int64_t>(args, rule.offset);
    if (value == 0) {
      if (from != room) std::memcpy(room, args, contract.args_bytes);
      from = room;
      std::memcpy(room + rule.offset, &rule.least, sizeof(rule.least));
    } else if (value < rule.least || value % rule.multiple != 0) [[unlikely]] {
      refuse_stride(rule, value);
    }
  }
  return from;
}

[[noreturn]] void refuse_factor(const FactorRule& rule, float value) {
  refuse(rule.name, fmt::format("{}", value),
         rule.only_one ? fmt::format("must be 1: {}", rule.only_one) : "must be a finite number");
}

void check_factors(const Contract& contract, const std::byte* args) {
  for (const FactorRule& rule : contract.factors) {
    const auto value = load<float>(args, rule.offset);
    if (rule.only_one ? value != 1.0f : !std::isfinite(value)) [[unlikely]]
      refuse_factor(rule, value);
  }
}

[[noreturn]] void refuse_overlap(const OverlapRule& rule, const void* pointer) {
  refuse(rule.name, fmt::format("{}", pointer),
         fmt::format("must not overlap {}{}", rule.written,
                     rule.in_place ? fmt::format(", unless it is {} itself, with its stride", rule.written) : ""));
}

// Precondition: strides are resolved, rows > 0.
void check_overlap(const OverlapRule& rule, const std::byte* args, std::int64_t rows) {
  using Wide = unsigned __int128;
  struct Matrix {
    Wide begin, row, stride, bytes;
  };
  const auto matrix = [&](const MatrixRule& m) {
    const Wide element = static_cast<std::uint64_t>(m.element_bytes),
               row = static_cast<std::uint64_t>(m.cols) * element;
    const Wide stride = static_cast<std::uint64_t>(load<std::int64_t>(args, m.stride)) * element;
    return Matrix{reinterpret_cast<std::uintptr_t>(load<const void*>(args, m.pointer)), row, stride,
                  static_cast<std::uint64_t>(rows - 1) * stride + row};
  };
  const Matrix in = matrix(rule.in), out = matrix(rule.out);
  if (rule.in_place && in.begin == out.begin && in.stride == out.stride) return;
  if (in.begin + in.bytes <= out.begin || out.begin + out.bytes <= in.begin) return;
  if (in.stride == out.stride) {  // side by side in one wider matrix
    const bool first = in.begin < out.begin;
    const Wide by = (first ? out.begin - in.begin : in.begin - out.begin) % in.stride;
    if (by >= (first ? in : out).row && in.stride - by >= (first ? out : in).row) return;
  }
  refuse_overlap(rule, load<const void*>(args, rule.in.pointer));
}

[[noreturn]] void refuse_grid(int axis, std::int64_t rows, std::int64_t cols, std::int64_t limit) {
  throw Error(ErrorCode::too_large, fmt::format("grid.{}", "xyz"[axis]), fmt::format("for {} x {}", rows, cols),
              fmt::format("must have at most {} blocks", limit));
}

// GridAxis::blocks(), but noticing overflow.
unsigned blocks(const Device::Impl& device, const GridAxis& axis, int index, std::int64_t rows, std::int64_t cols) {
  const std::uint64_t limit = device.max_grid[index];
  std::uint64_t count = axis.fixed;
  bool over = false;
  if (axis.per_rows)
    over |=
        __builtin_mul_overflow(count, (static_cast<std::uint64_t>(rows) + axis.per_rows - 1) / axis.per_rows, &count);
  if (axis.per_cols)
    over |=
        __builtin_mul_overflow(count, (static_cast<std::uint64_t>(cols) + axis.per_cols - 1) / axis.per_cols, &count);
  if (over || count > limit) [[unlikely]]
    refuse_grid(index, rows, cols, device.max_grid[index]);
  return static_cast<unsigned>(count);
}

[[noreturn]] void launch_failed(const Kernel::Impl& kernel, const Loaded& loaded, const CUlaunchConfig& c,
                                CUresult result) {
  kernel.device->driver->fail(
      "cuLaunchKernelEx", result,
      fmt::format("launching {} as {} x {} x {} blocks of {} threads, cluster {}, {} bytes shared, on {}", loaded.entry,
                  c.grid_x, c.grid_y, c.grid_z, c.block_x, loaded.plan.cluster, c.shared_bytes, kernel.device->name));
}

// To the driver that is a CPU (jit/cpu/driver.h): x is the blocks, y those of the first phase or the parts, and the
// shared memory the scratch memory, in units.
CUlaunchConfig cpu_config(const Device::Impl& device, const CpuLaunch& launch, std::int64_t rows, std::int64_t cols) {
  CUlaunchConfig config = {};
  config.grid_x = blocks(device, launch.blocks, 0, rows, cols);
  config.grid_y = launch.parts ? launch.parts : blocks(device, launch.first_blocks, 1, rows, cols);
  config.shared_bytes = blocks(device, launch.scratch, 2, rows, cols);
  return config;
}

void launch_on_cpu(const Kernel::Impl& kernel, const Loaded& loaded, Stream stream, const std::byte* args,
                   std::int64_t rows, std::int64_t cols) {
  const Device::Impl& device = *kernel.device;
  CUlaunchConfig config = cpu_config(device, loaded.plan.cpu.value_or(CpuLaunch{loaded.plan.x}), rows, cols);
  if (config.grid_x == 0) return;
  config.stream = static_cast<CUstream>(stream);
  const ContextScope scope(device);
  void* parameters[] = {const_cast<std::byte*>(args), const_cast<std::byte*>(kernel.contract.constants.data())};
  device.driver->must(device.driver->launch, &config, loaded.function, parameters, nullptr);
}

void launch_one(const Kernel::Impl& kernel, const Loaded& loaded, Stream stream, const std::byte* args,
                std::int64_t rows, std::int64_t cols) {
  const Device::Impl& device = *kernel.device;
  if (device.cpu) {
    launch_on_cpu(kernel, loaded, stream, args, rows, cols);
    return;
  }
  const LaunchPlan& plan = loaded.plan;
  CUlaunchConfig config;
  config.grid_x = blocks(device, plan.x, 0, rows, cols);
  config.grid_y = blocks(device, plan.y, 1, rows, cols);
  config.grid_z = blocks(device, plan.z, 2, rows, cols);
  if (config.grid_x == 0 || config.grid_y == 0 || config.grid_z == 0) return;
  config.grid_x = static_cast<unsigned>(plan.resident(config.grid_x, device.sms));
  if (loaded.most_blocks && config.grid_x > loaded.most_blocks) config.grid_x = loaded.most_blocks;
  config.block_x = plan.threads;
  config.block_y = config.block_z = 1;
  config.shared_bytes = plan.shared_bytes;
  config.stream = static_cast<CUstream>(stream);
  CUlaunchAttribute attributes[2];
  config.attributes = attributes;
  config.attribute_count = 0;
  if (plan.cluster > 1) {
    CUlaunchAttribute& attribute = attributes[config.attribute_count++] = {};
    attribute.id = kClusterDimension;
    attribute.value.cluster = {plan.cluster, 1, 1};
  }
  if (plan.overlap) {
    CUlaunchAttribute& attribute = attributes[config.attribute_count++] = {};
    attribute.id = kStreamSerialization;
    attribute.value.overlap = 1;
  }
  const ContextScope scope(device);
  // The driver takes parameters by address and copies them before it returns.
  CUtensorMap maps[kMaxMaps];
  void* parameters[2 + kMaxMaps];
  std::size_t count = 0;
  parameters[count++] = const_cast<std::byte*>(args);
  if (!kernel.contract.constants.empty())
    parameters[count++] = const_cast<std::byte*>(kernel.contract.constants.data());
  for (std::uint32_t i = 0; i < plan.map_count; ++i) {
    encode_map(kernel, loaded, plan.maps[i], args, &maps[i]);
    parameters[count++] = &maps[i];
  }
  if (const CUresult result = device.driver->launch(&config, loaded.function, parameters, nullptr)) [[unlikely]]
    launch_failed(kernel, loaded, config, result);
}

// Precondition: strides are resolved, and check_most_rows().
void launch_parts(const Kernel::Impl& kernel, const Loaded& loaded, Stream stream, const std::byte* args,
                  std::int64_t rows, std::int64_t cols) {
  const Contract& contract = kernel.contract;
  const std::int64_t most = loaded.plan.most_rows, parts = (rows - 1) / most + 1,
                     of_part = ((rows - 1) / parts / kPartRows + 1) * kPartRows;
  alignas(16) std::byte part[kMaxArgumentBytes];
  std::memcpy(part, args, contract.args_bytes);
  for (std::int64_t first = 0; first < rows; first += of_part) {
    const std::int64_t count = std::min(of_part, rows - first);
    std::memcpy(part + contract.rows_at, &count, sizeof count);
    for (const RowsRule& rule : contract.row_pointers) {
      const auto pointer = load<std::byte*>(args, rule.pointer);
      const std::int64_t stride = rule.stride_at == RowsRule::kDense ? 1 : load<std::int64_t>(args, rule.stride_at);
      std::byte* const moved = pointer ? pointer + first * stride / rule.elements * rule.bytes : nullptr;
      std::memcpy(part + rule.pointer, &moved, sizeof moved);
    }
    launch_one(kernel, loaded, stream, part, count, cols);
  }
}

[[noreturn]] void refuse_extent(const char* field, std::int64_t value) {
  refuse(field, fmt::format("{}", value), "must be 0 or more");
}

// Precondition: strides are resolved.
void launch_all(const Kernel::Impl& kernel, const Loaded& loaded, Stream stream, const std::byte* args,
                std::int64_t rows, std::int64_t cols) {
  if (loaded.plan.most_rows && rows > loaded.plan.most_rows) [[unlikely]]
    launch_parts(kernel, loaded, stream, args, rows, cols);
  else
    launch_one(kernel, loaded, stream, args, rows, cols);
}

// The same, timed. A capture is left as it would be.
void launch_timed(const Kernel::Impl& kernel, const Loaded& loaded, Stream stream, const std::byte* args,
                  std::int64_t rows, std::int64_t cols) {
  const Device device(kernel.device);
  double microseconds = 0;
  if (kernel.device->cpu) {
    const auto start = std::chrono::steady_clock::now();
    launch_all(kernel, loaded, stream, args, rows, cols);
    microseconds = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  } else if (capturing(device, nullptr) || capturing(device, stream)) {
    launch_all(kernel, loaded, stream, args, rows, cols);
  } else {
    Event start(device), end(device);
    start.record(stream);
    launch_all(kernel, loaded, stream, args, rows, cols);
    end.record(stream);
    end.synchronize();
    microseconds = end.microseconds_since(start);
  }
  kernel.watch.launched(kernel.candidates[kernel.entry(rows)], rows, microseconds);
}

void launch_watched(const Kernel::Impl& kernel, const Loaded& loaded, Stream stream, const std::byte* args,
                    std::int64_t rows, std::int64_t cols) {
  struct Range {  // ends where a launch throws, too
    explicit Range(const Nvtx& nvtx) : pop(nvtx.pop) {}
    ~Range() {
      if (pop) pop();
    }
    int (*const pop)();
  };
  const Watch& watch = kernel.watch;
  if (watch.nvtx.push) watch.nvtx.push(watch.range_name(kernel.candidates[kernel.entry(rows)], rows).c_str());
  const Range range(watch.nvtx);
  (watch.launched ? launch_timed : launch_all)(kernel, loaded, stream, args, rows, cols);
}

void launch_checked(const Kernel::Impl& kernel, Stream stream, const void* args, std::int64_t rows, std::int64_t cols) {
  if (rows <= 0) {
    if (rows < 0) refuse_extent(kernel.contract.rows_name.empty() ? "rows" : kernel.contract.rows_name.c_str(), rows);
    return;
  }
  if (cols < 0) [[unlikely]]
    refuse_extent("cols", cols);
  const auto* bytes = static_cast<const std::byte*>(args);
  const bool ask = kernel.ask_pointers.load(std::memory_order_relaxed);
  if (ask) {
    const ContextScope scope(*kernel.device);
    check_pointers(kernel, bytes, true);
  } else {
    check_pointers(kernel, bytes, false);
  }
  check_factors(kernel.contract, bytes);
  alignas(16) std::byte room[kMaxArgumentBytes];
  const std::byte* resolved = resolve_strides(kernel.contract, bytes, room);
  if (kernel.contract.overlap) check_overlap(*kernel.contract.overlap, resolved, rows);
  const Loaded& loaded = *kernel.loaded[kernel.entry(rows)];
  if (kernel.watched) [[unlikely]]
    launch_watched(kernel, loaded, stream, resolved, rows, cols);
  else
    launch_all(kernel, loaded, stream, resolved, rows, cols);
}

[[noreturn]] void refuse_operation(const Kernel::Impl& kernel, std::string_view given) {
  const auto& op = kernel.contract.op;
  refuse("args", fmt::format("of {}", given),
         op.empty() ? "must be the caller's own argument struct" : "must be those of " + op);
}

[[noreturn]] void refuse_buffers(const Contract& contract, std::size_t given) {
  if (contract.op.empty())
    refuse("kernel", "of a caller's own task",
           "cannot be launched by buffers; pass its argument struct to Kernel::launch() or tw_launch()");
  std::string names;
  for (const PointerRule& rule : contract.pointers) names += fmt::format("{}{}", names.empty() ? "" : ", ", rule.name);
  refuse("buffers", fmt::format("{}", given), fmt::format("must be {}: {}", contract.pointers.size(), names));
}

[[noreturn]] void refuse_values(const Contract& contract, std::size_t given) {
  std::string names;
  const auto add = [&](const auto& rules) {
    for (const auto& rule : rules) names += fmt::format("{}{}", names.empty() ? "" : ", ", rule.name);
  };
  add(contract.strides), add(contract.factors), add(contract.integers);
  refuse("values", fmt::format("{}", given),
         names.empty() ? "must be 0: a launch has none"
                       : fmt::format("must be 0 or {}: {}", contract.value_count(), names));
}

}  // namespace
}  // namespace jit

void Kernel::launch_operation(Stream stream, std::string_view operation, const void* args, std::size_t bytes) const {
  const Contract& contract = impl_->contract;
  if (contract.op != operation || contract.args_bytes != bytes) [[unlikely]]
    jit::refuse_operation(*impl_, operation);
  std::int64_t rows = contract.rows_at == Contract::kFixedRows
                          ? contract.rows
                          : jit::load<std::int64_t>(static_cast<const std::byte*>(args), contract.rows_at);
  if (contract.rows_per > 1 && rows > 0) rows = (rows - 1) / contract.rows_per + 1;
  jit::launch_checked(*impl_, stream, args, rows, contract.cols);
}

void Kernel::launch_buffers(Stream stream, std::span<void* const> buffers, std::int64_t rows,
                            std::span<const LaunchValue> values) const {
  const Contract& contract = impl_->contract;
  if (contract.op.empty() || buffers.size() != contract.pointers.size()) [[unlikely]]
    jit::refuse_buffers(contract, buffers.size());
  if (!values.empty() && values.size() != contract.value_count()) [[unlikely]]
    jit::refuse_values(contract, values.size());
  if (contract.rows_at == Contract::kFixedRows && rows != contract.rows) [[unlikely]]
    jit::refuse("rows", fmt::format("{}", rows), fmt::format("{}, which the problem fixes", contract.rows));
  alignas(16) std::byte args[jit::kMaxArgumentBytes];
  contract.write(buffers, rows, values, args);
  launch_operation(stream, contract.op, args, contract.args_bytes);
}

void Kernel::launch(Stream stream, std::span<const std::byte> params, std::int64_t rows, std::int64_t cols) const {
  // The driver copies as many bytes as the kernel declares, whatever the span has.
  if (impl_->params_bytes != Impl::kUnknown && params.size() != impl_->params_bytes) [[unlikely]]
    jit::refuse("params", fmt::format("{} bytes", params.size()),
                fmt::format("the kernel's first parameter has {} bytes", impl_->params_bytes));
  jit::launch_checked(*impl_, stream, params.data(), rows, cols);
}

void Kernel::check_pointers(bool on) { impl_->ask_pointers.store(on, std::memory_order_relaxed); }

const Contract& Kernel::contract() const { return impl_->contract; }
const LaunchPlan& Kernel::plan(std::int64_t rows) const { return impl_->loaded[impl_->entry(rows)]->plan; }

const Resources& Kernel::resources(std::int64_t rows) const { return impl_->loaded[impl_->entry(rows)]->resources; }
const Candidate& Kernel::candidate(std::int64_t rows) const { return impl_->candidates[impl_->entry(rows)]; }

}  // namespace tilewright
