// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/gemm/cpu/grouped.h"

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/params.cuh"

#if defined(__x86_64__)
#define TW_INLINE
#include "templates/backends/cpu/native_plain.h"
#undef TW_INLINE
#endif

namespace tilewright::cpu {
namespace {

constexpr int kUnit = CpuLaunch::kUnit;
constexpr int kPartUnits = 1 + (sizeof(GemmArgs) + kUnit - 1) / kUnit;
static_assert(sizeof(CpuPart) == kUnit && sizeof(GemmArgs) % 8 == 0);

// What the text depends on: data alone, so that groups of any number, n and k share it.
struct Groups {
  bool masked = false;
  int x_block = 1, x_bytes = 4;  // of x's data: elements and bytes of a block
  int x_scale = 0;               // bytes for a row
  int y_bytes = 4, bias_bytes = 0;
  bool global = false;
  PartGrid grid;
};
Groups groups_of(const Gemm& g, const PartGrid& grid) {
  const Format from = g.x_stored();
  const FastPath& x = fast_path(from);
  Groups s;
  s.masked = g.group_layout == GroupLayout::masked;
  s.x_block = from.block(), s.x_bytes = x.data_bytes, s.x_scale = x.row_bytes;
  s.y_bytes = fast_path(g.y).element_bytes;
  if (g.bias) s.bias_bytes = fast_path(*g.bias).element_bytes;
  s.global = g.global != Global::none;
  s.grid = grid;
  return s;
}

// Writes a CpuPart and its arguments for each group, one behind the other. Rows are made to fit as on GPUs
// (operations/gemm/cuda/groups.cuh): offsets ascend from 0 to m, counts are 0 to m.
template <class B>
void parts(B& b, const typename B::Arguments& a, const Groups& s) {
  using I64 = typename B::I64;
  using Ptr = typename B::Ptr;
  using tw::gemm::Shape;
  const auto number = [&](std::int64_t v) { return b.constant(v); };
  const auto larger = [&](const I64& v, const I64& w) { return b.sub(b.add(v, w), b.min(v, w)); };
  const auto up = [&](const I64& v, int by) { return b.div(b.add(v, number(by - 1)), number(by)); };
  const I64 n = b.load_i64(b.at(a.constants, offsetof(Shape, n))),
            k = b.load_i64(b.at(a.constants, offsetof(Shape, k))),
            w_step = b.load_i64(b.at(a.constants, offsetof(Shape, w_data_step))),
            m = b.load_i64(b.at(a.args, offsetof(GemmArgs, m))),
            ldx = b.load_i64(b.at(a.args, offsetof(GemmArgs, ldx))),
            ldy = b.load_i64(b.at(a.args, offsetof(GemmArgs, ldy)));
  const Ptr table = b.load_ptr(b.at(a.args, offsetof(GemmArgs, group_rows)));
  const auto rows_at = [&](const I64& i) {
    return larger(number(0), b.min(b.load_i32(b.at(table, b.mul(i, number(4)))), m));
  };
  const I64 x_row = b.mul(b.div(ldx, number(s.x_block)), number(s.x_bytes)), y_row = b.mul(ldy, number(s.y_bytes)),
            across = up(n, s.grid.columns), scratch_of_tile = b.mul(up(k, s.grid.block), number(s.grid.tile_bytes));
  const Ptr next = b.at(a.scratch, offsetof(CpuPart, own));  // the row behind the group before, of contiguous ones
  if (!s.masked) b.store_i64(next, rows_at(number(0)));
  b.loop(number(0), b.load_i32(b.at(a.constants, offsetof(Shape, groups))), 1, {}, [&](const I64& i) {
    const I64 row = s.masked ? b.mul(i, m) : b.load_i64(next);
    const I64 rows = s.masked ? rows_at(i) : b.sub(larger(row, rows_at(b.add(i, number(1)))), row);
    if (!s.masked) b.store_i64(next, b.add(row, rows));
    const Ptr part = b.at(a.scratch, b.mul(i, number(kPartUnits * kUnit)));
    b.store_i64(b.at(part, offsetof(CpuPart, blocks)), b.mul(up(rows, s.grid.tokens), across));
    b.store_i64(b.at(part, offsetof(CpuPart, first_blocks)), rows);
    b.store_i64(b.at(part, offsetof(CpuPart, scratch)), up(b.mul(up(rows, s.grid.tile), scratch_of_tile), kUnit));
    const Ptr args = b.at(part, sizeof(CpuPart));
    for (std::size_t word = 0; word < sizeof(GemmArgs); word += 8)
      b.store_i64(b.at(args, static_cast<std::int64_t>(word)),
                  b.load_i64(b.at(a.args, static_cast<std::int64_t>(word))));
    b.store_i64(b.at(args, offsetof(GemmArgs, m)), rows);
    const auto skip = [&](std::size_t pointer, const I64& bytes) {
      const Ptr at = b.at(args, static_cast<std::int64_t>(pointer));
      b.store_i64(at, b.add(b.load_i64(at), bytes));
    };
    skip(offsetof(GemmArgs, x) + offsetof(Operand, data), b.mul(row, x_row));
    if (s.x_scale) skip(offsetof(GemmArgs, x) + offsetof(Operand, scales), b.mul(row, number(s.x_scale)));
    skip(offsetof(GemmArgs, w) + offsetof(Operand, data), b.mul(i, w_step));
    if (s.global) skip(offsetof(GemmArgs, w) + offsetof(Operand, global), b.mul(i, number(sizeof(float))));
    skip(offsetof(GemmArgs, y), b.mul(row, y_row));
    if (s.bias_bytes) skip(offsetof(GemmArgs, bias), b.mul(i, b.mul(n, number(s.bias_bytes))));
  });
}

}  // namespace

LaunchPlan with_parts(const Gemm& g, LaunchPlan plain) {
  if (!g.groups) return plain;
  const auto groups = static_cast<std::uint32_t>(g.groups);
  plain.cpu->blocks.fixed *= groups;
  plain.cpu->first_blocks = {0};
  plain.cpu->parts = groups;
  plain.cpu->scratch = {groups * kPartUnits, 0, 0};
  plain.most_rows = 0;  // the driver divides a launch of much scratch memory between groups
  return plain;
}

void write_parts(Ir& ir, const std::string& entry, const Gemm& g, const PartGrid& grid) {
  if (!g.groups) return;
  ir.function(entry + "_parts", [&](const Ir::Arguments& a) { parts(ir, a, groups_of(g, grid)); });
}

std::shared_ptr<const CpuKernel> with_parts(const Gemm& g, std::shared_ptr<const CpuKernel> plain,
                                            [[maybe_unused]] const PartGrid& grid) {
  if (!g.groups || !plain) return plain;
#if defined(__x86_64__)
  CpuKernel kernel = *plain;
  kernel.parts = [s = groups_of(g, grid)](const void* args, const void* constants, void* scratch, std::int64_t block) {
    NativePlain b;
    parts(b, NativePlain::arguments(args, constants, scratch, block), s);
  };
  return std::make_shared<const CpuKernel>(std::move(kernel));
#else
  return nullptr;
#endif
}

}  // namespace tilewright::cpu
