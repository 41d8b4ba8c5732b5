// SPDX-License-Identifier: Apache-2.0
#include "hosts/onnxruntime/product.h"

#include <tilewright/error.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

namespace tilewright::onnxruntime {
namespace {

Problem problem_of(const Spec& s) {
  return Problem::parse("gemm x=" + s.x + " w=" + s.w + " y=" + s.y + " m=1 n=" + std::to_string(s.n) +
                        " k=" + std::to_string(s.k) + (s.bias.empty() ? "" : " bias=" + s.bias) +
                        (s.c.empty() ? "" : " c=" + s.c) + (s.w == "nvfp4" ? " global=mul" : ""));
}

LayerOptions options_of(const Spec& s) {
  LayerOptions options;
  if (!s.x_from.empty()) options.x_from = Format::parse(s.x_from);
  return options;
}

std::int64_t bytes_of(const std::string& format) {
  return static_cast<std::int64_t>(Format::parse(format).bits_per_element() / 8);
}

template <class Element>
void gather(const std::vector<std::int32_t>& order, const std::byte* from, std::byte* to) {
  const auto* x = reinterpret_cast<const Element*>(from);
  auto* gathered = reinterpret_cast<Element*>(to);
  for (std::size_t i = 0; i < order.size(); ++i)
    gathered[i] = order[i] < 0 ? Element{0} : x[static_cast<std::size_t>(order[i])];
}

// The sums of each block of columns of x, m rows of spec.k, the last of which may be short.
void sum_blocks(const Spec& spec, const std::byte* x, std::int64_t m, std::int64_t block, std::int64_t blocks,
                float* sums) {
  const Format format = Format::parse(spec.x_from.empty() ? spec.x : spec.x_from);
  std::vector<float> row(static_cast<std::size_t>(spec.k));
  for (std::int64_t i = 0; i < m; ++i, x += spec.k * spec.x_bytes()) {
    format.info().decode({.data = x}, 1, spec.k, row.data());
    for (std::int64_t b = 0; b < blocks; ++b)
      *sums++ = std::accumulate(row.begin() + b * block, row.begin() + std::min((b + 1) * block, spec.k), 0.0f);
  }
}

}  // namespace

std::int64_t Spec::x_bytes() const { return bytes_of(x_from.empty() ? x : x_from); }
std::int64_t Spec::y_bytes() const { return bytes_of(y); }

Spec float_spec(const std::string& floats, const std::string& w, bool quantizes, bool bias) {
  return {.x = quantizes ? "q8_1" : floats,
          .w = w,
          .y = floats,
          .x_from = quantizes ? floats : "",
          .bias = bias ? floats : ""};
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Bytes allocate(std::size_t bytes) {
  constexpr std::size_t kHugePage = 2 << 20;
  const std::size_t align = bytes < 2 * kHugePage ? kAlign : kHugePage, rounded = (bytes + align - 1) / align * align;
  Bytes memory(static_cast<std::byte*>(std::aligned_alloc(align, std::max(rounded, align))));
  if (!memory) throw std::bad_alloc();
  // Weights are read from end to end at every token, so that huge pages save most misses of the TLB.
  if (align == kHugePage) ::madvise(memory.get(), rounded, MADV_HUGEPAGE);
  return memory;
}

std::byte* Scratch::of(std::size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();
    bytes_ = 0;
    memory_ = allocate(bytes + bytes / 4);
    bytes_ = bytes + bytes / 4;
  }
  return memory_.get();
}

Product::Product(Engine& engine, const Device& launches, const Device& loads, const Spec& spec)
    : spec_(spec),
      engine_(&engine),
      loads_(loads),
      layer_(engine, problem_of(spec), launches, options_of(spec)),
      scales_at_(aligned(layer_.weight_bytes(StreamName::data))) {
  if (const std::string why = only_reference(layer_.problems().main, launches.arch()); !why.empty())
    throw Error(ErrorCode::unsupported, "w", spec.w, "is not supported: " + why);
}

void Product::pack(Operand w, std::byte* to) const {
  if (layer_.packed()) {
    const Gemm& gemm = *layer_.problems().main.as<Gemm>();
    engine_->pack(gemm, loads_, nullptr, w, {.data = to, .scales = to + scales_at_, .global = nullptr});
    return;
  }
  std::memcpy(to, w.data, layer_.weight_bytes(StreamName::data));
  if (w.scales) std::memcpy(to + scales_at_, w.scales, layer_.weight_bytes(StreamName::scales));
}

void Product::launch(const std::byte* packed, const void* x, std::int64_t m, void* y, const void* bias, float alpha,
                     const void* c) const {
  thread_local Scratch scratch;
  static constexpr float kOne = 1;  // a factor of the whole matrix is in `alpha`
  GemmArgs args;
  args.x.data = x;
  args.w.data = packed;
  args.w.scales = packed + scales_at_;
  if (spec_.w == "nvfp4") args.w.global = &kOne;
  args.y = y;
  args.m = m;
  args.bias = spec_.bias.empty() ? nullptr : bias;
  args.alpha = alpha;
  args.c = c;
  const std::size_t bytes = layer_.scratch_bytes(m);
  layer_.launch(nullptr, args, bytes ? scratch.of(bytes) : nullptr);
}

void Linear::compute(const std::byte* packed, const void* x, std::int64_t m, void* y) const {
  thread_local Scratch inputs, results, sums_of_x, offsets_of_y;
  if (m == 0 || n == 0) return;
  const Spec& spec = product->spec();
  const auto element = static_cast<std::size_t>(spec.x_bytes()), result = static_cast<std::size_t>(spec.y_bytes());
  const std::size_t from_row = static_cast<std::size_t>(k) * element, row = static_cast<std::size_t>(spec.k) * element;
  const auto* from = static_cast<const std::byte*>(x);
  if (row != from_row || !order.empty() || reinterpret_cast<std::uintptr_t>(x) % 16) {
    std::byte* to = inputs.of(row * static_cast<std::size_t>(m));
    for (std::int64_t i = 0; i < m; ++i, from += from_row, to += row)
      if (order.empty()) {
        std::memcpy(to, from, from_row);
        std::memset(to + from_row, 0, row - from_row);
      } else if (element == 4) {
        gather<std::uint32_t>(order, from, to);
      } else {
        gather<std::uint16_t>(order, from, to);
      }
    x = inputs.of(0);
  }
  const bool direct = spec.n == n && reinterpret_cast<std::uintptr_t>(y) % 16 == 0;
  const std::size_t to_row = static_cast<std::size_t>(n) * result, wide = static_cast<std::size_t>(spec.n) * result;
  std::byte* const sums = direct ? static_cast<std::byte*>(y) : results.of(wide * static_cast<std::size_t>(m));
  const void* c = nullptr;
  if (offsets) {
    const std::int64_t blocks = offsets->spec().k;
    auto* const xs = reinterpret_cast<float*>(sums_of_x.of(static_cast<std::size_t>(m * blocks) * sizeof(float)));
    auto* const ys = reinterpret_cast<float*>(offsets_of_y.of(static_cast<std::size_t>(m * spec.n) * sizeof(float)));
    sum_blocks(spec, static_cast<const std::byte*>(x), m, block, blocks, xs);
    offsets->launch(packed + product->packed_bytes(), xs, m, ys, bias.data(), 1);
    c = ys;
  }
  product->launch(packed, x, m, sums, bias.data(), alpha, c);
  if (!direct)
    for (std::int64_t i = 0; i < m; ++i)
      std::memcpy(static_cast<std::byte*>(y) + static_cast<std::size_t>(i) * to_row,
                  sums + static_cast<std::size_t>(i) * wide, to_row);
}

}  // namespace tilewright::onnxruntime
