// SPDX-License-Identifier: Apache-2.0
// The operation pack. Reordering is exact, and the host's copy is the judge: it needs no second kernel, which could be
// wrong in the same way.
#include <fmt/format.h>
#include <tilewright/pack.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "support/must_be.h"
#include "templates/backends/cpu/panels.h"
#include "templates/common/checks.h"
#include "templates/common/describe.h"
#include "templates/common/operation_of.h"
#include "templates/formats/shared/fast_path.h"
#include "templates/operations/gemm/gemm.h"
#include "templates/operations/gemm/matrix.h"
#include "templates/operations/pack/cpu/pack.h"
#include "templates/operations/pack/pack.h"
#include "templates/operations/pack/params.cuh"

namespace tilewright::pack {
namespace {

static_assert(sizeof(PackArgs) == sizeof(tw::pack::Args) && offsetof(PackArgs, w) == offsetof(tw::pack::Args, w) &&
              offsetof(PackArgs, tiles) == offsetof(tw::pack::Args, tiles));

constexpr const char* kInverse[] = {"0", "1"};
constexpr const char* kOrders[] = {"none", "tiles", "panels"};

struct Fields {
  static Pack blank(Format any) { return {.w = any, .x = any}; }
  template <class P, class V>
  static void visit(P& pack, V&& visit) {
    auto& [w, x, n, k, inverse, order] = pack;
    visit(required("w", "weights, [n, k]"), w);
    visit(required("x", "activations of the gemms that will take them"), x);
    visit(required("n", "output features"), n);
    visit(required("k", "reduction"), k);
    visit(optional("inverse", "1: from tiles back to w"), inverse, kInverse);
    visit(optional("order", "tiles, for GPUs, or panels, for CPUs"), order, kOrders);
  }
};

Gemm packed_gemm(const Pack& p) { return gemm::packed_gemm(p.w, p.x, p.n, p.k, p.order); }

class PackOperation final : public OperationOf<Pack, Fields> {
 public:
  std::string_view title() const override { return "weights reordered for kernels that want packed ones, and back"; }
  std::span<const Family* const> families() const override {
    static const Family* const list[] = {&tiles()};
    return list;
  }
  std::span<const Family* const> cpu_families() const override { return cpu::pack_families(); }
  std::optional<Candidate> oracle(const Problem&, const Arch&) const override { return {}; }

 protected:
  void check(const Pack& p) const override {
    check_some("n", p.n);
    check_some("k", p.k);
    check_matrix("w", p.w, p.n, p.k, "k");
    if (p.order == Packing::none) throw must_be("order", "none", "tiles or panels");
    if (p.order == Packing::panels) return cpu::check_panels("w", std::string(p.w.name()), p.w, p.x, p.n, p.k);
    gemm::check_tiles("w", std::string(p.w.name()), p.w, p.x, p.n, p.k);
    if (p.n / kTileRows * (p.k / tile_info(p.w, p.x)->panel_k) > kMaxExtent)
      throw Error(ErrorCode::too_large, "n", std::to_string(p.n), "must have at most 2147483647 tiles");
  }
  Extents extents_of(const Pack& p) const override { return {p.n, p.k, true}; }
  void set_rows(Pack&, std::int64_t) const override {}
  double bytes_of(const Pack& p) const override {
    return static_cast<double>(p.w.total_bytes(p.n, p.k)) + gemm::w_bytes(packed_gemm(p));
  }
  double ops_of(const Pack&) const override { return 0; }

  Contract contract_of(const Pack& p) const override {
    Contract c;
    c.op = name();
    c.args_bytes = sizeof(PackArgs);
    c.rows_name = std::string("n");  // GCC 12 warns of a character array here
    c.rows = p.n, c.cols = p.k;
    const auto rule = [&](const char* name, std::size_t at, std::size_t member, std::uint32_t align, bool required) {
      c.pointers.push_back({name, static_cast<std::uint32_t>(at + member), align, required});
    };
    bool scales = false, row_scale = false, global = false;
    for (const StreamSpec& s : p.w.info().streams) {
      scales |= s.stream == StreamName::scales;
      row_scale |= s.scope == Scope::row;
      global |= s.scope == Scope::tensor;
    }
    rule("w.data", offsetof(PackArgs, w), offsetof(Operand, data), 16, true);
    if (scales) rule("w.scales", offsetof(PackArgs, w), offsetof(Operand, scales), 16, true);
    if (global) rule("w.global", offsetof(PackArgs, w), offsetof(Operand, global), 4, false);
    rule("tiles.data", offsetof(PackArgs, tiles), offsetof(Operand, data), 16, true);
    if (p.order == Packing::tiles && (row_scale || tile_info(p.w, p.x)->scale_bytes))
      rule("tiles.scales", offsetof(PackArgs, tiles), offsetof(Operand, scales), 16, true);
    if (global) rule("tiles.global", offsetof(PackArgs, tiles), offsetof(Operand, global), 4, false);
    const tw::pack::Shape shape{p.n, p.k};
    c.constants.resize(sizeof(shape));
    std::memcpy(c.constants.data(), &shape, sizeof(shape));
    return c;
  }

  void describe_task(const Pack& p, Task& task) const override {
    const float deviation = 1.0f / std::sqrt(static_cast<float>(p.k));
    task.weights = 0;
    const Matrix w = add_matrix(task, "w", {p.w, p.n, p.k, deviation, false}, false, p.inverse);
    const Matrix tiles = gemm::add_packed(task, "tiles", packed_gemm(p), deviation, !p.inverse);
    for (const int slot : {w.global, tiles.global})
      if (slot >= 0) task.buffers[static_cast<std::size_t>(slot)].output = (slot == w.global) == p.inverse;
    task.verify_rows = p.n;
    std::vector<bool> is_output;
    for (const Buffer& b : task.buffers) is_output.push_back(b.output);
    task.compare = [=, outputs = row_outputs(task)](std::span<const std::byte> got, std::span<const std::byte>,
                                                    std::span<const std::vector<std::byte>> inputs, std::int64_t) {
      std::vector<std::byte> expected(got.size());
      std::vector<void*> pointers;
      std::size_t at_output = 0, input = 0, output = 0;
      for (const bool out : is_output) {
        pointers.push_back(out ? expected.data() + at_output : const_cast<std::byte*>(inputs[input++].data()));
        if (out) at_output += outputs[output++].second;
      }
      reorder(p, operand(w, pointers), operand(tiles, pointers));
      return compare_bytes(outputs, got, expected, 1);
    };
  }

  void compute(const Pack& p, const Task& task, HostBuffers buffers) const override {
    reorder(p, operand(matrix(task, "w"), buffers), operand(matrix(task, "tiles"), buffers));
  }

  HostCheck judge(const Pack& p, const Task& task, HostBuffers buffers) const override {
    HostCheck check = check_bytes(task, buffers, 1, [&](HostBuffers again) { compute(p, task, again); });
    check.checked = check.outputs = p.n * p.k;
    return check;
  }

 private:
  static void reorder(const Pack& p, MutableOperand w, MutableOperand tiles) {
    if (p.inverse)
      unpack_weights(packed_gemm(p), tiles, w);
    else
      pack_weights(packed_gemm(p), w, tiles);
  }
};

}  // namespace

const Operation& operation() {
  static const PackOperation operation;
  return operation;
}

}  // namespace tilewright::pack
