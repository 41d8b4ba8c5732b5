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

constexpr unsigned kMostRank = 5;

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

// A map's extents, steps in bytes and boxes, of the axes that it has.
struct Extents {
  unsigned rank = 0;
  std::uint64_t size[kMostRank] = {}, stride[kMostRank - 1] = {};
  unsigned box[kMostRank] = {}, step[kMostRank] = {1, 1, 1, 1, 1};

  std::string text() const {
    return fmt::format("extents {}, {} bytes from one to the next, in boxes of {}", fmt::join(size, size + rank, " x "),
                       fmt::join(stride, stride + rank - 1, ", "), fmt::join(box, box + rank, " x "));
  }
};

constexpr std::uint64_t kTooFar = std::uint64_t{1} << 40;  // the driver refuses it; no overflow before that

Extents extents_of_matrix(const Kernel::Impl& kernel, const Loaded& loaded, const TensorMapPlan& map,
                          std::uint64_t inner, const std::byte* args) {
  const auto elements = [&](std::uint32_t at) {
    return std::min(value_of(kernel, args, at, 0), kTooFar) / map.block * map.block_elements;
  };
  constexpr std::uint32_t kNone = TensorMapPlan::kNone;
  const std::uint64_t times = map.rows_at == kNone || map.rows == 0 ? 1 : map.rows;
  const std::uint64_t rows = std::min(value_of(kernel, args, map.rows_at, map.rows), kTooFar) * times;
  const std::uint64_t stride =
      std::min(map.stride_at == kNone ? inner : elements(map.stride_at), kTooFar) * map.element_bytes;
  const std::uint32_t box_rows = map.clipped_rows(rows);
  if (!map.box_panels) return {2, {inner, rows}, {stride}, {map.box_inner, box_rows}};
  if (inner % map.box_inner != 0) [[unlikely]]
    refuse(name_of(kernel, map), fmt::format("rows of {} elements", inner),
           fmt::format("must be multiples of {1}: {0} reads them in panels", loaded.entry, map.box_inner));
  return {3,
          {map.box_inner, rows, inner / map.box_inner},
          {stride, std::uint64_t{map.box_inner} * map.element_bytes},
          {map.box_inner, box_rows, box_rows < map.box_rows ? 1 : map.box_panels}};
}

Extents extents_of_tensor(const Kernel::Impl& kernel, const TensorMapPlan& map, std::uint64_t inner,
                          const std::byte* args) {
  Extents e{1 + map.axes, {inner}, {}, {map.box_inner}};
  for (std::uint32_t a = 0; a < map.axes; ++a) {
    const auto constant = [&](std::uint32_t i) {
      return std::min(value_of(kernel, args, TensorMapPlan::kConstants + map.axes_at + 8 * (2 * a + i), 0), kTooFar);
    };
    e.size[1 + a] = constant(0), e.stride[a] = constant(1) * map.element_bytes;
    e.box[1 + a] = (map.box_axes[a] - 1) * map.steps[a] + 1, e.step[1 + a] = map.steps[a];
  }
  return e;
}

}  // namespace

void check_maps(const Device::Impl& device, const LaunchPlan& plan) {
  constexpr std::uint64_t kMostElements = std::uint64_t{1} << 32, kMostBytes = std::uint64_t{1} << 40;
  constexpr std::uint32_t kMostInBox = 256, kMostInBlock = 65536, kMostTimes = 65536, kMostSteps = 8;
  if (plan.map_count == 0) return;
  if (plan.map_count > kMaxMaps || !device.arch->tma)
    refuse(
        "plan.map_count", fmt::format("{}", plan.map_count),
        device.arch->tma ? fmt::format("must be at most {}", kMaxMaps) : "must be 0: this device has no tensor maps");
  if (!device.driver->tensor_map)
    throw Error(ErrorCode::library_missing, "libcuda", device.driver->path(),
                fmt::format("has no function {}, which {} tensor maps need; install a driver for CUDA 12.0 or newer",
                            device.driver->tensor_map.name, plan.map_count));
  for (std::uint32_t i = 0; i < plan.map_count; ++i) {
    const TensorMapPlan& map = plan.maps[i];
    auto check = [&](bool good, const char* field, std::uint64_t value, const std::string& allowed) {
      if (!good) refuse(fmt::format("plan.maps[{}].{}", i, field), fmt::format("{}", value), allowed);
    };
    const std::uint64_t bytes = map.element_bytes;
    check(bytes == 1 || bytes == 2 || bytes == 4, "element_bytes", bytes, "must be 1, 2 or 4");
    const bool fixed = map.inner_at == TensorMapPlan::kNone;
    check(!fixed || (map.inner >= 1 && map.inner <= kMostElements), "inner", map.inner, "must be 1 to 2^32");
    check(!fixed || map.axes || map.stride_at != TensorMapPlan::kNone || map.inner * bytes % 16 == 0, "inner",
          map.inner, "must make dense rows of multiples of 16 bytes");
    check(map.behind % 16 == 0 && map.behind <= kMostBytes, "behind", map.behind,
          "must be a multiple of 16, at most 2^40");
    check(map.swizzle == 0 || map.swizzle == 32 || map.swizzle == 64 || map.swizzle == 128, "swizzle", map.swizzle,
          "must be 0, 32, 64 or 128");
    check(map.box_inner >= 1 && map.box_inner <= kMostInBox && map.box_inner * bytes % 16 == 0, "box_inner",
          map.box_inner, "must be 1 to 256, and a multiple of 16 bytes");
    check(map.swizzle == 0 || map.box_inner * bytes <= map.swizzle, "box_inner", map.box_inner,
          fmt::format("must be at most the {} bytes of the swizzle", map.swizzle));
    check(map.axes <= map.box_axes.size(), "axes", map.axes, fmt::format("must be at most {}", map.box_axes.size()));
    for (std::uint32_t a = 0; a < map.axes; ++a) {
      const std::uint64_t places = map.box_axes[a], step = map.steps[a];
      check(step >= 1 && step <= kMostSteps, "steps", step, "must be 1 to 8");
      check(places >= 1 && (places - 1) * step < kMostInBox, "box_axes", places,
            fmt::format("must be 1 to 256 places of the axis, of every {}", step));
    }
    if (map.axes) continue;
    const bool counted = map.rows_at != TensorMapPlan::kNone;
    check(map.rows >= (counted ? 0 : 1) && map.rows <= (counted ? kMostTimes : kMostElements), "rows", map.rows,
          counted ? "must be 0 to 65536, a factor of what rows_at finds" : "must be 1 to 2^32");
    check(map.box_rows >= 1 && map.box_rows <= kMostInBox, "box_rows", map.box_rows, "must be 1 to 256");
    check(map.block >= 1 && map.block <= kMostInBlock, "block", map.block, "must be 1 to 65536");
    check(map.block_elements >= 1 && map.block_elements <= kMostInBlock, "block_elements", map.block_elements,
          "must be 1 to 65536");
    check(map.box_panels <= kMostInBox, "box_panels", map.box_panels, "must be 0 to 256");
    check(!fixed || !map.box_panels || map.inner % map.box_inner == 0, "inner", map.inner,
          fmt::format("must be whole panels of {}", map.box_inner));
  }
}

void check_map_fields(const LaunchPlan& plan, std::size_t args, std::size_t constants) {
  for (std::size_t i = 0; i < std::min<std::size_t>(plan.map_count, kMaxMaps); ++i) {
    const TensorMapPlan& map = plan.maps[i];
    auto check = [&](const char* field, std::uint32_t at, bool pointer = false, std::size_t words = 1) {
      if (at == TensorMapPlan::kNone && !pointer) return;
      const bool constant = at >= TensorMapPlan::kConstants && !pointer;
      const std::uint32_t offset = constant ? at - TensorMapPlan::kConstants : at;
      const std::size_t size = constant ? constants : args;
      if (size == Kernel::Impl::kUnknown || offset + words * sizeof(std::int64_t) > size)
        refuse(fmt::format("plan.maps[{}].{}", i, field), fmt::format("{}", offset),
               size == Kernel::Impl::kUnknown
                   ? "cannot be checked: this driver does not tell the size of the argument struct; pass a Contract"
                   : fmt::format("must lie in the {} of {} bytes", constant ? "constants" : "argument struct", size));
    };
    check("pointer", map.pointer, true);
    check("rows_at", map.rows_at);
    check("stride_at", map.stride_at);
    check("inner_at", map.inner_at);
    if (map.axes) check("axes_at", TensorMapPlan::kConstants + map.axes_at, false, 2 * map.axes);
  }
}

void encode_map(const Kernel::Impl& kernel, const Loaded& loaded, const TensorMapPlan& map, const std::byte* args,
                CUtensorMap* out) {
  void* pointer = load<std::byte*>(args, map.pointer) + map.behind;
  const std::uint64_t inner =
      map.inner_at == TensorMapPlan::kNone
          ? map.inner
          : std::min(value_of(kernel, args, map.inner_at, 0), kTooFar) / map.block * map.block_elements;
  const Extents e =
      map.axes ? extents_of_tensor(kernel, map, inner, args) : extents_of_matrix(kernel, loaded, map, inner, args);
  const int type = map.element_bytes == 1 ? kMapBytes1 : map.element_bytes == 2 ? kMapBytes2 : kMapBytes4;
  const int swizzle = map.swizzle == 128  ? kMapSwizzle128
                      : map.swizzle == 64 ? kMapSwizzle64
                      : map.swizzle == 32 ? kMapSwizzle32
                                          : kMapSwizzleNone;
  const auto& encode = kernel.device->driver->tensor_map;
  if (const CUresult result = encode(out, type, e.rank, pointer, e.size, e.stride, e.box, e.step, kMapInterleaveNone,
                                     swizzle, kMapPromote256, kMapFillZero)) [[unlikely]]
    kernel.device->driver->fail(
        encode.name, result,
        fmt::format("describing {} at {} for {}: elements of {} bytes, {}, swizzle {}; the pointer and steps must be "
                    "multiples of 16 bytes",
                    name_of(kernel, map), pointer, loaded.entry, map.element_bytes, e.text(), map.swizzle));
}

}  // namespace tilewright::jit
