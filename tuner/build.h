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

class Builder {
 public:
  // `same_nvrtc`: take nothing that another build of NVRTC compiled (Options::same_nvrtc).
  Builder(Store& store, CompileOptions options, Log& log, bool same_nvrtc = false);

  // The version of the compiler whose binaries are looked for. Learning a compiler's build number takes a compilation,
  // so the store remembers it beside the library's path, size and time; a store that was shipped to a machine without a
  // compiler says which one filled it. Empty when neither knows.
  std::string compiler();

  Key key(const Source& source, const Arch& arch) { return binary_key(source, arch, compiler(), headers_); }
  // What all builds of a source for a target share: StoreEntry::kernel. Needs no compiler.
  std::string kernel(const Source& source, const Arch& arch);
  BinaryPtr find(const Key& key);  // memory, then store; null: neither has it
  // The same by source, and where this compiler's build is missing, one by another NVRTC which the device's driver
  // loads. Without a device no driver is asked.
  BinaryPtr find(const Source& source, const Arch& arch, const Device* device);

  // Throws what compile() throws. With a device, find() answers first, so that a build by another NVRTC will do.
  Built build(const Source& source, const Arch& arch, const Device* device = nullptr);
  Built build(const Source& source, const Arch& arch, const Compiler& compile);

  // The options with the path of the library that was found, for another process. Throws Error (library_missing).
  CompileOptions found();

  std::int64_t compiled() const { return compiled_; }
  std::int64_t cache_hits() const { return hits_; }
  double seconds() const { return static_cast<double>(microseconds_) * 1e-6; }

 private:
  void confirm_compiler();  // before the first compilation: the real version, whatever was remembered
  Built compile_and_store(const Key& key, const Source& source, const Arch& arch, const Compiler& compile);
  BinaryPtr find_other(const Key& key, const Source& source, const Device* device);
  void remember(const std::string& hash, BinaryPtr binary);

  Store& store_;
  const CompileOptions options_;
  Log& log_;
  const bool same_nvrtc_;
  HeaderIndex headers_;

  std::mutex compiler_mutex_;
  std::optional<std::string> compiler_;
  bool confirmed_ = false;

  std::mutex mutex_;
  std::unordered_map<std::string, BinaryPtr> memory_;  // by key hash
  std::deque<std::string> order_;                      // oldest first
  std::size_t memory_bytes_ = 0;
  std::unordered_map<std::string, std::shared_future<BinaryPtr>> running_;

  std::atomic<std::int64_t> compiled_{0}, hits_{0}, microseconds_{0};
};

}  // namespace tilewright::tuner
