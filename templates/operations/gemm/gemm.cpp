// SPDX-License-Identifier: Apache-2.0
// What the gemm families share: their launch contract, what they cannot serve, and the parts of a generated source.
#include "templates/operations/gemm/gemm.h"

#include <fmt/format.h>
#include <tilewright/gemm.h>
#include <tilewright/pack.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/params.cuh"

namespace tilewright::gemm {

// The public struct and the device's are one layout.
static_assert(sizeof(GemmArgs) == sizeof(tw::gemm::Args) && offsetof(GemmArgs, x) == offsetof(tw::gemm::Args, x) &&
              offsetof(GemmArgs, w) == offsetof(tw::gemm::Args, w) &&
              offsetof(GemmArgs, y) == offsetof(tw::gemm::Args, y) &&
              offsetof(GemmArgs, bias) == offsetof(tw::gemm::Args, bias) &&
              offsetof(GemmArgs, m) == offsetof(tw::gemm::Args, m) &&
              offsetof(GemmArgs, ldx) == offsetof(tw::gemm::Args, ldx) &&
              offsetof(GemmArgs, ldy) == offsetof(tw::gemm::Args, ldy) &&
              offsetof(GemmArgs, c) == offsetof(tw::gemm::Args, c) &&
              offsetof(GemmArgs, ldc) == offsetof(tw::gemm::Args, ldc) &&
              offsetof(GemmArgs, workspace) == offsetof(tw::gemm::Args, workspace) &&
              offsetof(GemmArgs, alpha) == offsetof(tw::gemm::Args, alpha) &&
              offsetof(GemmArgs, beta) == offsetof(tw::gemm::Args, beta) &&
              offsetof(GemmArgs, group_rows) == offsetof(tw::gemm::Args, group_rows));

void add_operand(Contract& c, const char* const (&names)[3], std::size_t offset, Format f) {
  for (const StreamSpec& s : f.info().streams) {
    constexpr std::size_t kFields[] = {offsetof(Operand, data), offsetof(Operand, scales), offsetof(Operand, global)};
    const auto i = static_cast<std::size_t>(s.stream);
    c.pointers.push_back(
        {names[i], static_cast<std::uint32_t>(offset + kFields[i]), s.scope == Scope::tensor ? 4u : 16u, true});
  }
}

// Tiles have a stream of scales where their format keeps them beside the codes.
void add_weights(Contract& c, const Gemm& g, std::size_t offset) {
  if (g.packing == Packing::none) return add_operand(c, {"w.data", "w.scales", "w.global"}, offset, g.w);
  if (g.packing == Packing::panels) {
    c.pointers.push_back({"w.data (panels)", static_cast<std::uint32_t>(offset + offsetof(Operand, data)), 16, true});
    if (packed_bytes(g, StreamName::global))
      c.pointers.push_back({"w.global", static_cast<std::uint32_t>(offset + offsetof(Operand, global)), 4, true});
    return;
  }
  const auto add = [&](const char* name, std::size_t member, std::uint32_t align) {
    c.pointers.push_back({name, static_cast<std::uint32_t>(offset + member), align, true});
  };
  add("w.data (tiles)", offsetof(Operand, data), 16);
  if (packed_bytes(g, StreamName::scales)) add("w.scales (tiles)", offsetof(Operand, scales), 16);
  if (packed_bytes(g, StreamName::global)) add("w.global", offsetof(Operand, global), 4);
}

std::string not_plain(const Problem& problem) {
  const Gemm* g = problem.as<Gemm>();
  return !g ? "the problem is not a gemm" : g->packing != Packing::none ? "w is packed" : "";
}

std::string has_groups(const Gemm& g) {
  return g.groups ? fmt::format("groups={} is not supported: kernels of this family have one w", g.groups) : "";
}

Gemm one_group(Gemm g) {
  g.groups = 0, g.group_layout = GroupLayout::contiguous;
  return g;
}

std::string no_sums(const Gemm& g) {
  const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
  if (x.zero_point != w.zero_point)
    return fmt::format(
        "{0}={1} has zero points, and {2}={3} no sums of its rows, which these need: {1} on both sides has",
        x.zero_point ? "x" : "w", x.zero_point ? g.x.name() : g.w.name(), x.zero_point ? "w" : "x",
        x.zero_point ? g.w.name() : g.x.name());
  const bool sums =
      (x.element == Element::i8 && (w.element == Element::i8 || g.packing == Packing::tiles)) || unpacks_rows(g);
  const int most = x.zero_point ? kMostCentred : kMostBytes;
  if (!sums || g.k <= most) return {};
  return fmt::format("k={} is too large: 32-bit sums hold {} products of bytes{}", g.k, most,
                     x.zero_point ? " with zero points" : "");
}

std::string no_sums_of_group(const Gemm& g) {
  const FastPath &x = fast_path(g.x), &w = fast_path(g.w);
  if (!x.codes || !w.offset || w.group >= x.group) return {};
  return fmt::format("w={} has minima of {} elements, and x={} sums of {}", g.w.name(), w.group, g.x.name(), x.group);
}

std::string x_comes_as_floats(const Gemm& g) {
  return g.x_from ? fmt::format("x_from={} is not supported: kernels of this family do not quantize", g.x_from->name())
                  : "";
}

bool quantizes_rows(const Gemm& g) { return g.x_from && fast_path(g.x).row_bytes > 0; }
bool unpacks_rows(const Gemm& g) {
  const FastPath& x = fast_path(g.x);
  return g.packing == Packing::tiles && x.codes && x.row_bytes > 0;
}

bool signs(const Gemm& g) {
  return fast_path(g.x).signs && fast_path(g.w).signs && !g.groups && !g.x_from && g.packing == Packing::none;
}

Gemm as_bytes(Gemm g) {
  if (!signs(g)) return g;
  g.k /= g.x.block();
  g.x = g.w = Format::parse("int8_asym_row");
  return g;
}
std::optional<Problem> as_bytes(const Problem& problem) {
  const Gemm* g = problem.as<Gemm>();
  return g && signs(*g) ? std::optional<Problem>(as_bytes(*g)) : std::nullopt;
}

int scaled_unit(const Gemm& g) {
  const FastPath& x = fast_path(g.x);
  return g.packing == Packing::none && scaled(x, fast_path(g.w)) ? 4 * x.block / x.scale_bytes : 0;
}

bool blocks_of_bytes(Format x) {
  const FastPath& f = fast_path(x);
  return f.codes && f.group == kGroup && f.block == kGroup && !f.offset && f.scale_bytes == 0 && !f.row_bytes &&
         f.raw_bytes(kPieceK) % 16 == 0;
}
// In words: a map's elements are no longer than those of a matrix.
TensorMapPlan blocks_map(Format x, int rows, int pieces) {
  const FastPath& f = fast_path(x);
  TensorMapPlan map;
  map.pointer = offsetof(GemmArgs, x), map.rows_at = offsetof(GemmArgs, m), map.stride_at = offsetof(GemmArgs, ldx);
  map.inner_at = TensorMapPlan::kConstants + offsetof(tw::gemm::Shape, k);
  map.block = static_cast<std::uint32_t>(f.block), map.block_elements = static_cast<std::uint32_t>(f.data_bytes / 4);
  map.element_bytes = 4;
  map.box_inner = static_cast<std::uint32_t>(f.raw_bytes(kPieceK) / 4);
  map.box_rows = static_cast<std::uint32_t>(rows);
  map.box_panels = static_cast<std::uint32_t>(pieces);
  return map;
}

Contract contract(const Gemm& g) {
  Contract c;
  c.op = GemmArgs::kOperation;
  c.args_bytes = sizeof(GemmArgs);
  c.rows_at = offsetof(GemmArgs, m);
  c.rows_name = "m";
  if (g.groups && g.group_layout == GroupLayout::contiguous) c.rows_per = g.groups;
  c.cols = g.n;
  add_operand(c, {"x.data", "x.scales", "x.global"}, offsetof(GemmArgs, x), g.x_stored());
  add_weights(c, g, offsetof(GemmArgs, w));
  if (g.bias)
    c.pointers.push_back(
        {"bias", offsetof(GemmArgs, bias), static_cast<std::uint32_t>(fast_path(*g.bias).element_bytes), true});
  if (g.c) c.pointers.push_back({"c", offsetof(GemmArgs, c), 16, true});
  c.pointers.push_back({"y", offsetof(GemmArgs, y), 16, true});
  if (g.groups) c.pointers.push_back({"group_rows", offsetof(GemmArgs, group_rows), 4, true});
  if (g.workspace) c.pointers.push_back({"workspace", offsetof(GemmArgs, workspace), 16, true});
  // Rows of elements, with a scale per row or without, that are whole 16-byte pieces are read as such, so they have to
  // start on one.
  const Format x = as_bytes(g).x_stored();
  const int bytes = x.block() == 1 ? fast_path(x).data_bytes : 0;
  // So do those of a coded x where w is tiles, since the copy engine reads them.
  const std::int64_t row_blocks =
      g.packing == Packing::tiles && g.x.block() > 1 ? 16 / std::gcd(16, fast_path(g.x).data_bytes) : 1;
  // So do words of scales that the matrix units apply.
  const int unit = scaled_unit(g);
  const std::int64_t row = as_bytes(g).k * bytes;
  const std::int64_t multiple = unit && g.k % unit == 0 ? unit
                                : bytes == 0            ? g.x.block() * row_blocks
                                : row % 16 == 0         ? 16 / bytes
                                : row % 8 == 0          ? 8 / bytes
                                : row % 4 == 0          ? 4 / bytes
                                : row % 2 == 0          ? std::max(2 / bytes, 1)
                                                        : 1;
  c.strides.push_back({"ldx", offsetof(GemmArgs, ldx), g.k, signs(g) ? multiple * g.x.block() : multiple,
                       offsetof(GemmArgs, x) + offsetof(Operand, data)});
  c.strides.push_back({"ldy", offsetof(GemmArgs, ldy), g.n, 1, offsetof(GemmArgs, y)});
  if (g.c) {
    c.strides.push_back({"ldc", offsetof(GemmArgs, ldc), g.n, 1, offsetof(GemmArgs, c)});
    const auto matrix = [&](std::size_t pointer, std::size_t stride, Format f) {
      return MatrixRule{static_cast<std::uint32_t>(pointer), static_cast<std::uint32_t>(stride), g.n,
                        fast_path(f).element_bytes};
    };
    c.overlap = OverlapRule{"c", "y", matrix(offsetof(GemmArgs, c), offsetof(GemmArgs, ldc), *g.c),
                            matrix(offsetof(GemmArgs, y), offsetof(GemmArgs, ldy), g.y), *g.c == g.y};
  }
  if ((bytes > 0 || unpacks_rows(g)) && !g.groups && !signs(g)) {
    const auto rows = [&](std::size_t pointer, std::size_t stride, std::int64_t bytes_of, std::int64_t elements = 1) {
      c.row_pointers.push_back(
          {static_cast<std::uint32_t>(pointer), static_cast<std::uint32_t>(stride), bytes_of, elements});
    };
    rows(offsetof(GemmArgs, x) + offsetof(Operand, data), offsetof(GemmArgs, ldx), fast_path(x).data_bytes, x.block());
    rows(offsetof(GemmArgs, x) + offsetof(Operand, scales), RowsRule::kDense, fast_path(x).row_bytes);
    rows(offsetof(GemmArgs, y), offsetof(GemmArgs, ldy), fast_path(g.y).element_bytes);
    if (g.c) rows(offsetof(GemmArgs, c), offsetof(GemmArgs, ldc), fast_path(*g.c).element_bytes);
  }
  const bool exact = fast_path(g.y).element == Element::i32;
  c.factors.push_back({"alpha", offsetof(GemmArgs, alpha), exact ? "y=int32 is exact" : nullptr});
  c.factors.push_back({"beta", offsetof(GemmArgs, beta), g.c ? nullptr : "the problem has no c"});
  const tw::gemm::Shape shape{g.n,
                              g.k,
                              static_cast<float>(g.alpha),
                              g.global == Global::div ? 1 : 0,
                              g.accumulation == Accumulation::fast ? 1 : 0,
                              static_cast<float>(g.beta),
                              static_cast<float>(1.0 / g.y_scale),
                              g.constant_weights ? 1 : 0,
                              g.workspace,
                              g.groups,
                              g.group_layout == GroupLayout::masked ? 1 : 0,
                              g.n * g.groups,
                              g.groups ? packed_bytes(g, StreamName::data) / g.groups : 0,
                              g.groups ? packed_bytes(g, StreamName::scales) / g.groups : 0};
  c.constants.resize(sizeof(shape));
  std::memcpy(c.constants.data(), &shape, sizeof(shape));
  return c;
}

namespace {
std::string bytes_of_signs(Format f) { return fmt::format("tw::fmt::SignBytes<{}>", format_type(f)); }
}  // namespace
std::string multiplied_x(const Gemm& g) {
  if (unpacks_rows(g)) return fmt::format("tw::fmt::UnpackedRow<{}>", format_type(g.x));
  return signs(g) ? bytes_of_signs(g.x) : x_type(g);
}
std::string multiplied_w(const Gemm& g) { return signs(g) ? bytes_of_signs(g.w) : format_type(g.w); }
std::string x_type(const Gemm& g) {
  return g.x_from ? fmt::format("tw::fmt::Quantized<{}, {}>", format_type(g.x), format_type(*g.x_from))
                  : format_type(g.x);
}

std::string epilogue_type(const Gemm& g) {
  const auto element = [](Format f) { return fmt::format("{}::Element", format_type(f)); };
  return fmt::format("tw::gemm::Epilogue<{}, {}, tw::gemm::Act::{}{}>", element(g.y),
                     g.bias ? element(*g.bias) : "tw::gemm::NoBias", kActivations[static_cast<int>(g.act)],
                     g.c ? ", " + element(*g.c) : "");
}

std::vector<std::string> includes_for(const Gemm& g, const char* kernel) {
  std::vector<std::string> names{kernel, format_file(g.x)};
  const auto add = [&](Format f) {
    const std::string file = format_file(f);
    for (const std::string& n : names)
      if (n == file) return;
    names.push_back(file);
  };
  add(g.w);
  add(g.y);
  if (g.x_from) add(*g.x_from);
  if (g.bias) add(*g.bias);
  if (g.c) add(*g.c);
  if (signs(g)) names.push_back("operations/gemm/cuda/signs.cuh");
  return names;
}

}  // namespace tilewright::gemm
