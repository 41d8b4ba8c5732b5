// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/compile.h"

#include <fmt/format.h>

#include <chrono>

#include <tilewright/error.h>

#include "jit/compile/compiling.h"
#include "jit/cpu/llvm.h"
#include "jit/cpu/object.h"
#include "support/must_be.h"

namespace tilewright::jit::cpu {

Binary compile(const Source& source, const Arch& arch, const CompileOptions& options) {
  Binary binary;
  binary.target = arch.name;
  binary.entry = source.entry;
  binary.plan = source.plan;
  if (source.text.empty() && source.host) {  // nothing to compile
    binary.host = source.host;
    return binary;
  }
  if (!source.options.empty()) throw must_be("source.options", source.options.front(), "none: the target is a CPU");
  const Llvm& llvm = Llvm::open(options.llvm);
  const auto start = std::chrono::steady_clock::now();
  const Compiling compiling;
  std::string failure;
  binary.image = llvm.compile(source.text, *arch.cpu, failure);
  if (!failure.empty()) throw CompileError(source.name, arch.name, arch.cpu->features, source.text, failure);
  // A compiler may turn code into calls of a C library, which there is not: better known here than at the launch.
  if (const std::string defect = object_defect(binary.image); !defect.empty())
    throw CompileError(source.name, arch.name, arch.cpu->features, source.text, "its object " + defect);
  if (!read_object(binary.image).functions.contains(source.entry))
    throw Error(ErrorCode::compile_failed, "source " + source.name, source.entry, "is not a function of the result");
  binary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return binary;
}

CompilerInfo compiler_info(const CompileOptions& options) {
  const Llvm& llvm = Llvm::open(options.llvm);
  return {llvm.path(), llvm.version(), {}};
}

}  // namespace tilewright::jit::cpu
