// SPDX-License-Identifier: Apache-2.0
// Numbers and rules: cuTensorMapEncodeTiled in cuda.h.
#include "jit/maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tilewright::jit {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, field, value, allowed);
}

template <class T>
T load(const std::byte* args, std::uint32_t offset) {
  T value;
  std::memcpy(&value, args + offset, sizeof(T));
  return value;
}

// The value of a map's field: `fixed`, or the int64 at an offset of the arguments or the constants.
std::uint64_t value_of(const Kernel::Impl& kernel, const std::byte* args, std::uint32_t at, std::uint64_t fixed) {
  if (at == TensorMapPlan::kNone) return fixed;
  if (at < TensorMapPlan::kConstants) return load<std::uint64_t>(args, at);
  return load<std::uint64_t>(kernel.contract.constants.data(), at - TensorMapPlan::kConstants);
}

std::string name_of(const Kernel::Impl& kernel, const TensorMapPlan& map) {
  for (const PointerRule& rule : kernel.contract.pointers)
    if (rule.offset == map.pointer) return rule.name;
  return fmt::format("the pointer at {}", map.pointer);
}

[[noreturn]] void map_failed(const Kernel::Impl& kernel, const Loaded& loaded, const TensorMapPlan& map,
                             const void* pointer, std::uint64_t inner, std::uint64_t rows, std::uint64_t stride,
                             CUresult result) {
  const std::string panels = map.box_panels ? fmt::format(" x {} panels", map.box_panels) : "";
  kernel.device->driver->fail(
      kernel.device->driver->tensor_map.name, result,
      fmt::format("describing {} = {} for {}: {} rows of {} elements of {} bytes, {} bytes from one to the next, in "
                  "boxes of {} x {}{}, swizzle {}; the pointer and the step must be multiples of 16 bytes",
                  name_of(kernel, map), pointer, loaded.entry, rows, inner, map.element_bytes, stride, map.box_rows,
                  map.box_inner, panels, map.swizzle));
}

}  // namespace

void check_maps(const Device::Impl& device, const LaunchPlan& plan) {
  constexpr std::uint64_t kMostElements = std::uint64_t{1} << 32, kMostBytes = std::uint64_t{1} << 40;
  constexpr std::uint32_t kMostInBox = 256, kMostInBlock = 65536, kMostTimes = 65536;
  if (plan.map_count == 0) return;
  if (plan.map_count > kMaxMaps || !device.arch->tma)
    refuse("plan.map_count", fmt::format("{}", plan.map_count),
           device.arch->tma ? fmt::format("at most {}", kMaxMaps) : "this device cannot use tensor maps");
  if (!device.driver->tensor_map)
    throw Error(ErrorCode::library_missing, "libcuda", device.driver->path(),
                fmt::format("has no function {}, which {} tensor maps need: a driver for CUDA 12.0 or newer is needed",
                            device.driver->tensor_map.name, plan.map_count));
  for (std::uint32_t i = 0; i < plan.map_count; ++i) {
    const TensorMapPlan& map = plan.maps[i];
    auto check = [&](bool good, const char* field, std::uint64_t value, const std::string& allowed) {
      if (!good) refuse(fmt::format("plan.maps[{}].{}", i, field), fmt::format("{}", value), allowed);
    };
    const std::uint64_t bytes = map.element_bytes;
    check(bytes == 1 || bytes == 2 || bytes == 4, "element_bytes", bytes, "1, 2 or 4");
    const bool fixed = map.inner_at == TensorMapPlan::kNone;
    check(!fixed || (map.inner >= 1 && map.inner <= kMostElements), "inner", map.inner, "1 to 2^32");
    check(!fixed || map.stride_at != TensorMapPlan::kNone || map.inner * bytes % 16 == 0, "inner", map.inner,
          "dense rows must be multiples of 16 bytes");
    const bool counted = map.rows_at != TensorMapPlan::kNone;
    check(map.rows >= (counted ? 0 : 1) && map.rows <= (counted ? kMostTimes : kMostElements), "rows", map.rows,
          counted ? "0 to 65536, a factor of what rows_at finds" : "1 to 2^32");
    check(map.behind % 16 == 0 && map.behind <= kMostBytes, "behind", map.behind, "a multiple of 16, at most 2^40");
    check(map.swizzle == 0 || map.swizzle == 32 || map.swizzle == 64 || map.swizzle == 128, "swizzle", map.swizzle,
          "0, 32, 64 or 128");
    check(map.box_inner >= 1 && map.box_inner <= kMostInBox && map.box_inner * bytes % 16 == 0, "box_inner",
          map.box_inner, "1 to 256, a multiple of 16 bytes");
    check(map.swizzle == 0 || map.box_inner * bytes <= map.swizzle, "box_inner", map.box_inner,
          fmt::format("at most the {} bytes of the swizzle", map.swizzle));
    check(map.box_rows >= 1 && map.box_rows <= kMostInBox, "box_rows", map.box_rows, "1 to 256");
    check(map.block >= 1 && map.block <= kMostInBlock, "block", map.block, "1 to 65536");
    check(map.block_elements >= 1 && map.block_elements <= kMostInBlock, "block_elements", map.block_elements,
          "1 to 65536");
    check(map.box_panels <= kMostInBox, "box_panels", map.box_panels, "0 to 256");
    check(!fixed || !map.box_panels || map.inner % map.box_inner == 0, "inner", map.inner,
          fmt::format("whole panels of {}", map.box_inner));
  }
}

void check_map_fields(const LaunchPlan& plan, std::size_t args, std::size_t constants) {
  for (std::size_t i = 0; i < std::min<std::size_t>(plan.map_count, kMaxMaps); ++i) {
    const TensorMapPlan& map = plan.maps[i];
    auto check = [&](const char* field, std::uint32_t at, bool pointer = false) {
      if (at == TensorMapPlan::kNone && !pointer) return;
      const bool constant = at >= TensorMapPlan::kConstants && !pointer;
      const std::uint32_t offset = constant ? at - TensorMapPlan::kConstants : at;
      const std::size_t size = constant ? constants : args;
      if (size == Kernel::Impl::kUnknown || offset + sizeof(std::int64_t) > size)
        refuse(fmt::format("plan.maps[{}].{}", i, field), fmt::format("{}", offset),
               size == Kernel::Impl::kUnknown
                   ? "this driver cannot tell the size of the argument struct; pass a Contract"
                   : fmt::format("must lie in the {} of {} bytes", constant ? "constants" : "argument struct", size));
    };
    check("pointer", map.pointer, true);
    check("rows_at", map.rows_at);
    check("stride_at", map.stride_at);
    check("inner_at", map.inner_at);
  }
}

void encode_map(const Kernel::Impl& kernel, const Loaded& loaded, const TensorMapPlan& map, const std::byte* args,
                CUtensorMap* out) {
  constexpr std::uint64_t kTooFar = std::uint64_t{1} << 40;  // the driver refuses it; no overflow before that
  void* pointer = load<std::byte*>(args, map.pointer) + map.behind;
  const auto elements = [&](std::uint32_t at) {
    return std::min(value_of(kernel, args, at, 0), kTooFar) / map.block * map.block_elements;
  };
  constexpr std::uint32_t kNone = TensorMapPlan::kNone;
  const std::uint64_t inner = map.inner_at == kNone ? map.inner : elements(map.inner_at);
  const std::uint64_t times = map.rows_at == kNone || map.rows == 0 ? 1 : map.rows;
  const std::uint64_t rows = std::min(value_of(kernel, args, map.rows_at, map.rows), kTooFar) * times;
  const std::uint64_t stride =
      std::min(map.stride_at == kNone ? inner : elements(map.stride_at), kTooFar) * map.element_bytes;
  const bool panels = map.box_panels != 0;
  if (panels && inner % map.box_inner != 0) [[unlikely]]
    refuse(name_of(kernel, map), fmt::format("rows of {} elements", inner),
           fmt::format("{} reads them in panels of {}", loaded.entry, map.box_inner));
  const std::uint64_t size[] = {panels ? map.box_inner : inner, rows, inner / map.box_inner};
  const std::uint64_t steps[] = {stride, std::uint64_t{map.box_inner} * map.element_bytes};
  const unsigned box[] = {map.box_inner, map.box_rows, map.box_panels}, ones[] = {1, 1, 1};
  const int type = map.element_bytes == 1 ? kMapBytes1 : map.element_bytes == 2 ? kMapBytes2 : kMapBytes4;
  const int swizzle = map.swizzle == 128  ? kMapSwizzle128
                      : map.swizzle == 64 ? kMapSwizzle64
                      : map.swizzle == 32 ? kMapSwizzle32
                                          : kMapSwizzleNone;
  if (const CUresult result =
          kernel.device->driver->tensor_map(out, type, panels ? 3u : 2u, pointer, size, steps, box, ones,
                                            kMapInterleaveNone, swizzle, kMapPromote256, kMapFillZero)) [[unlikely]]
    map_failed(kernel, loaded, map, pointer, inner, rows, stride, result);
}

}  // namespace tilewright::jit
