// SPDX-License-Identifier: Apache-2.0
// compile() and compiler_info() (tilewright/kernel.h) for CPUs. Thread-safe.
#pragma once

#include <tilewright/kernel.h>

namespace tilewright::jit::cpu {

Binary compile(const Source& source, const Arch& arch, const CompileOptions& options);
CompilerInfo compiler_info(const CompileOptions& options);

}  // namespace tilewright::jit::cpu
