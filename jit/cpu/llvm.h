// SPDX-License-Identifier: Apache-2.0
// libLLVM, found and opened at run time by its C interface, never linked and never closed. From a module's text to a
// relocatable object, by code generation alone: what it is given has no need of passes. One Llvm per request for the
// life of the process. Thread-safe: each compilation has a context of its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <tilewright/arch.h>

namespace tilewright::jit::cpu {

class Llvm {
 public:
  // `path`: a library or a directory that holds one; empty: the newest version that the dynamic loader or
  // /usr/lib/llvm-N/lib has, from 22 to 15. Throws Error (library_missing) naming what was looked for.
  static const Llvm& open(const std::string& path);

  const std::string& path() const { return path_; }        // of the file that was loaded
  const std::string& version() const { return version_; }  // "LLVM 19.1.7"

  // Returns the object's bytes, or none and the reason: a text that does not parse, functions that are not well
  // formed, an instruction that the target does not have. Prints nothing and ends no process: what LLVM takes for a
  // fatal error is caught too, and loses the memory of that compilation, 1 or 2 MB, every time.
  std::vector<std::byte> compile(const std::string& text, const CpuTarget& target, std::string& failure) const;

 private:
  struct Functions;
  struct Job;
  explicit Llvm(void* library);
  void run(Job& job) const;
  static void on_fatal(const char* reason);

  const Functions* call_ = nullptr;
  std::string path_, version_;
};

}  // namespace tilewright::jit::cpu
