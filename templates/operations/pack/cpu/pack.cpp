// SPDX-License-Identifier: Apache-2.0
#include "templates/operations/pack/cpu/pack.h"

#include <tilewright/pack.h>
#include <tilewright/source.h>

#include <memory>

#include "templates/backends/cpu/panels.h"
#include "templates/common/knobs.h"

namespace tilewright::cpu {
namespace {

class Panels final : public EnumeratedFamily {
 public:
  std::string_view op() const override { return "pack"; }
  std::string_view name() const override { return "cpu_panels"; }
  std::string_view title() const override {
    return "CPU: weights to panels of 16 rows and back; once per weight, at load";
  }
  std::string why_not(const Problem& problem, const Arch& arch) const override {
    const Pack* p = problem.as<Pack>();
    return !p                            ? "the problem is not a pack"
           : !arch.cpu                   ? "panels are for CPUs"
           : p->order == Packing::panels ? ""
                                         : "tiles are for GPUs";
  }
  std::vector<Candidate> candidates(const Problem& problem, const Arch& arch) const override {
    if (!why_not(problem, arch).empty()) return {};
    return {{std::string(name()), {}}};
  }
  Source source(const Problem& problem, const Arch&, const Candidate&) const override {
    const Pack p = *problem.as<Pack>();
    Source s;
    s.name = "pack/cpu_panels";
    s.entry = "tilewright_pack";
    s.plan.cpu = {{1, kPanel, 0}};
    const auto move = [p](const void* args, const void*, void*, std::int64_t panel) {
      const PackArgs& a = *static_cast<const PackArgs*>(args);
      if (p.inverse)
        unpack_panels(p.w, p.k, panel, panel + 1, static_cast<const std::byte*>(a.tiles.data), a.w);
      else
        pack_panels(p.w, p.k, panel, panel + 1, a.w, static_cast<std::byte*>(a.tiles.data));
      const float* const from = (p.inverse ? a.tiles : a.w).global;
      float* const to = (p.inverse ? a.w : a.tiles).global;
      if (panel == 0 && from && to) *to = *from;
    };
    s.host = std::make_shared<const CpuKernel>(CpuKernel{{}, move});
    return s;
  }
  Traits traits(const Problem& problem, const Arch&, const Candidate&) const override {
    Traits t;
    t.tile_rows = kPanel, t.tile_cols = static_cast<int>(problem.cols()), t.threads = 1;
    t.blocks = static_cast<double>(problem.rows() / kPanel);
    t.unique_bytes = t.global_bytes = problem.min_bytes();
    t.bytes_in_flight = 1e6;
    return t;
  }
};

}  // namespace

std::span<const Family* const> pack_families() {
  static const Panels panels;
  static const Family* const list[] = {&panels};
  return list;
}

}  // namespace tilewright::cpu
