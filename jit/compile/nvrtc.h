// SPDX-License-Identifier: Apache-2.0
// libnvrtc, found and opened at run time, never linked and never closed (its threads and static state do not survive
// dlclose). One Nvrtc per library for the life of the process. Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include <tilewright/options.h>

#include "jit/compile/compiling.h"

namespace tilewright::jit {

using NvrtcProgram = struct _nvrtcProgram*;

class Nvrtc {
 public:
  // find_nvrtc() says where it looks; the same request gives the same object without another search. Throws Error
  // (library_missing) naming every place searched, or the builtins library that does not match.
  static const Nvrtc& open(const std::string& path, const NvrtcPlaces& places = {});

  const std::string& path() const { return path_; }            // of the file that was loaded
  int version() const { return major_ * 1000 + minor_ * 10; }  // 13000, as CUDART_VERSION counts
  std::string version_text() const;                            // "13.0"
  // "13.0 build 88". Compiles an empty program once to learn it. Throws Error (library_missing) if that fails.
  const std::string& build() const;
  // Compute capabilities it has code for, times ten ("75", "90"); empty where it cannot list them.
  const std::vector<int>& archs() const { return archs_; }

  // The functions, as nvrtc.h declares them; 0 is success.
  int (*create)(NvrtcProgram*, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names) = nullptr;
  int (*destroy)(NvrtcProgram*) = nullptr;
  int (*compile)(NvrtcProgram, int options, const char* const*) = nullptr;
  int (*log_size)(NvrtcProgram, std::size_t*) = nullptr;
  int (*log)(NvrtcProgram, char*) = nullptr;
  int (*cubin_size)(NvrtcProgram, std::size_t*) = nullptr;
  int (*cubin)(NvrtcProgram, char*) = nullptr;
  const char* (*error_text)(int) = nullptr;

  static constexpr int kBuiltinFailure = 7;  // NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
  static constexpr int kInvalidOption = 5;   // NVRTC_ERROR_INVALID_OPTION
  static constexpr int kCompilation = 6;     // NVRTC_ERROR_COMPILATION

 private:
  explicit Nvrtc(void* library);
  void bind(void* library);
  void load_builtins() const;

  std::string path_;
  int major_ = 0, minor_ = 0;
  std::vector<int> archs_;
  mutable std::mutex mutex_;
  mutable std::string build_;
};

// One compilation's handle.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const std::string& text, const std::string& name, const std::vector<const char*>& texts,
          const std::vector<const char*>& names);
  ~Program() { nvrtc_.destroy(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int compile(const std::vector<std::string>& options);  // NVRTC's result code
  std::string log() const;
  std::vector<std::byte> cubin() const;  // empty if there is none

 private:
  const Compiling compiling_;
  const Nvrtc& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

}  // namespace tilewright::jit
