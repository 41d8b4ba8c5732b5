// SPDX-License-Identifier: Apache-2.0
// w of a gemm with pack=panels.
#pragma once

#include <tilewright/gemm.h>

#include <algorithm>

#include "templates/backends/cpu/panels.h"

namespace tilewright::cpu {

inline std::int64_t panel_bytes(const Gemm& g) {  // of a stack, of one of its matrices
  return g.n / kPanel * panel_bytes(g.w, g.k);
}
// All of w, and back; but for its tensor-wide scale.
inline void pack_panels(const Gemm& g, Operand w, void* panels) {
  pack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, w, static_cast<std::byte*>(panels));
}
inline void unpack_panels(const Gemm& g, const void* panels, MutableOperand w) {
  unpack_panels(g.w, g.k, 0, std::max(g.groups, 1) * g.n / kPanel, static_cast<const std::byte*>(panels), w);
}

}  // namespace tilewright::cpu
