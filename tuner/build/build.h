// SPDX-License-Identifier: Apache-2.0
// Builder: a source's binary, from memory, from a store, or from the compiler, which then runs once per key in this
// process and, as far as the store's claims reach, in all processes. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <tilewright/error.h>
#include <tilewright/kernel.h>
#include <tilewright/store.h>

#include "tuner/keys.h"
#include "tuner/log.h"

namespace tilewright::tuner {

using BinaryPtr = std::shared_ptr<const Binary>;
using Compiler = std::function<Binary(const Source&, const Arch&)>;

struct Built {
  BinaryPtr binary;
  bool compiled = false;  // by this call
  double seconds = 0;     // in the compiler
  bool stored = true;     // false: compiled, and the store did not take it
};

// Spills cost more than any tile is worth, and a serialized wgmma runs at a fraction of its rate. Empty: acceptable.
std::string unacceptable(const Resources& resources);

// Store::other_versions(), or nothing where that fails.
std::vector<OtherVersion> other_versions(const Store& store);

class Builder {
 public:
  // `same_nvrtc`: take nothing that another build of NVRTC compiled (Options::same_nvrtc).
  Builder(Store& store, CompileOptions options, Log& log, bool same_nvrtc = false);

  // The version of the compiler, for a target, whose binaries are looked for. Learning a compiler's build number takes
  // a compilation, so the store remembers it beside the library's path, size and time; a store that was shipped to a
  // machine without a compiler says which one filled it. Empty when neither knows.
  std::string compiler(const Arch& arch);

  Key key(const Source& source, const Arch& arch) { return binary_key(source, arch, compiler(arch), headers_); }
  // What all builds of a source for a target share: StoreEntry::kernel. Needs no compiler.
  std::string kernel(const Source& source, const Arch& arch);
  BinaryPtr find(const Key& key);  // memory, then store; null: neither has it
  // The same by source, and where this compiler's build is missing, one by another NVRTC which the device's driver
  // loads. Without a device no driver is asked.
  BinaryPtr find(const Source& source, const Arch& arch, const Device* device);

  // Of a source with a function of this process (Source::host), that; null: it has none. Nothing of it is stored.
  BinaryPtr built_in(const Source& source, const Arch& arch);

  // Throws what compile() throws, but where no libLLVM is, a kernel that is built in serves, and the others are
  // candidates that did not compile (compile_failed). With a device, find() answers first, so that a build by another
  // NVRTC will do.
  Built build(const Source& source, const Arch& arch, const Device* device = nullptr);
  Built build(const Source& source, const Arch& arch, const Compiler& compile);

  // The options with the path of libnvrtc that was found, for another process. Throws Error (library_missing).
  CompileOptions found();
  // Throws Error (library_missing) if there is no compiler for the target.
  void need_compiler(const Arch& arch) { confirm_compiler(arch); }

  std::int64_t compiled() const { return compiled_; }
  std::int64_t cache_hits() const { return hits_; }
  std::int64_t built_ins() const { return built_ins_; }
  double seconds() const { return static_cast<double>(microseconds_) * 1e-6; }

 private:
  // What is known about a compiler: of CUDA C++, and of LLVM IR.
  struct Known {
    std::optional<std::string> version;
    bool confirmed = false;
  };
  Known& known(const Arch& arch) { return compilers_[arch.cpu ? 1 : 0]; }
  std::string asked_for(const Arch& arch) const;
  // Before the first compilation: the real version, whatever was remembered.
  void confirm_compiler(const Arch& arch);
  // The error that there is no compiler, and which stores would have helped, had this version filled them.
  Error with_versions(const Error& error) const;
  Built compile_and_store(const Key& key, const Source& source, const Arch& arch, const Compiler& compile);
  BinaryPtr find_other(const Key& key, const Source& source, const Device* device);
  void remember(const std::string& hash, BinaryPtr binary);

  Store& store_;
  const CompileOptions options_;
  Log& log_;
  const bool same_nvrtc_;
  HeaderIndex headers_;

  std::mutex compiler_mutex_;
  Known compilers_[2];

  std::mutex mutex_;
  std::unordered_map<std::string, BinaryPtr> memory_;  // by key hash
  std::deque<std::string> order_;                      // oldest first
  std::size_t memory_bytes_ = 0;
  std::unordered_map<std::string, std::shared_future<BinaryPtr>> running_;

  std::atomic<std::int64_t> compiled_{0}, hits_{0}, built_ins_{0}, microseconds_{0};
};

}  // namespace tilewright::tuner
