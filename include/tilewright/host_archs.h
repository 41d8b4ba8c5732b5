// SPDX-License-Identifier: Apache-2.0
// Which targets this machine's CPU runs: those whose features it has, all of them, whichever row is its best.
#pragma once

#include <span>

#include <tilewright/arch.h>
#include <tilewright/export.h>

namespace tilewright {

// Rows of cpu_archs(), in its order; the last is host_arch(). Never empty.
TILEWRIGHT_EXPORT std::span<const Arch* const> host_archs();

}  // namespace tilewright
