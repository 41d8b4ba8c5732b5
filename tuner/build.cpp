// SPDX-License-Identifier: Apache-2.0
#include "tuner/build.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/problem.h>

#include "cache/key.h"
#include "jit/kernel.h"
#include "jit/nvrtc.h"

namespace tilewright::tuner {
namespace {

constexpr std::size_t kMemoryCap = 64u << 20;  // bytes of images; loaded kernels do not need them any more
constexpr double kClaimSeconds = 5;            // longer than any candidate compiles
constexpr const char* kCompilerRow = "compiler";

Key compiler_key() {
  Key key;
  key.add("kind", "compiler").add("library", kLibraryVersion);
  return key;
}

// The row about the compiler is "version\nidentity" in the field that holds a choice's environment; an identity is
// what was asked for, and the path, size and time of the file that was found.
std::string identity_of(const CompileOptions& options, const std::string& file) {
  return fmt::format("{}|{}|{}\n{}", options.nvrtc, fmt::join(options.places.before, ":"),
                     fmt::join(options.places.after, ":"), file);
}

// Changes whenever the file does. Empty if there is no such file.
std::string file_identity(const std::string& path) {
  struct stat s;
  if (path.empty() || ::stat(path.c_str(), &s) != 0) return {};
  return fmt::format("{}\n{}\n{}.{:09}", path, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

std::string compiler_of(const Key& key) {
  for (const auto& [tag, value] : key.fields())
    if (tag == "compiler") return value;
  return "?";
}

}  // namespace

std::string unacceptable(const Resources& r) {
  if (r.spill_bytes > 0) return fmt::format("spills {} bytes per thread", r.spill_bytes);
  if (r.serialized) return "its wgmma is serialized";
  return {};
}

Builder::Builder(Store& store, CompileOptions options, Log& log, bool same_nvrtc)
    : store_(store), options_(std::move(options)), log_(log), same_nvrtc_(same_nvrtc) {}

std::string Builder::compiler() {
  std::lock_guard lock(compiler_mutex_);
  if (compiler_) return *compiler_;
  std::optional<StoredChoice> row = store_.find_choice(compiler_key(), kCompilerRow);
  std::string version;
  if (row) {
    std::size_t first = row->environment.find('\n'), second = row->environment.find('\n', first + 1);
    version = row->environment.substr(0, first);
    if (second != std::string::npos) {
      std::string file = row->environment.substr(second + 1);
      bool same = row->environment.substr(first + 1) == identity_of(options_, file);
      if (same && !file.empty() && file_identity(file.substr(0, file.find('\n'))) == file) {
        compiler_ = version;
        return version;
      }
    }
  }
  try {
    compiler_ = compiler_version(options_);
  } catch (const Error&) {
    // No compiler here. What is stored may still serve; a compilation will report the error in full.
    compiler_ = version;
  }
  return *compiler_;
}

void Builder::confirm_compiler() {
  std::lock_guard lock(compiler_mutex_);
  if (confirmed_) return;
  std::string version = compiler_version(options_);
  std::string identity = identity_of(options_, file_identity(jit::Nvrtc::open(options_.nvrtc, options_.places).path()));
  StoredChoice row;
  row.problem = kCompilerRow;
  row.candidate.family = kCompilerRow;
  row.environment = version + "\n" + identity;
  auto old = store_.find_choice(compiler_key(), kCompilerRow);
  if (!old || old->environment != row.environment) store_.put_choice(compiler_key(), row);
  compiler_ = version;
  confirmed_ = true;
}

CompileOptions Builder::found() {
  confirm_compiler();
  return {jit::Nvrtc::open(options_.nvrtc, options_.places).path(), options_.compiler_cache};
}

std::string Builder::kernel(const Source& source, const Arch& arch) {
  return cache::kernel_hash(binary_key(source, arch, "", headers_));
}

BinaryPtr Builder::find(const Key& key) {
  std::string hash = key.hash();
  {
    std::lock_guard lock(mutex_);
    auto it = memory_.find(hash);
    if (it != memory_.end()) return it->second;
  }
  std::optional<Binary> stored = store_.find_binary(key);
  if (!stored) return nullptr;
  ++hits_;
  auto binary = std::make_shared<const Binary>(std::move(*stored));
  remember(hash, binary);
  return binary;
}

BinaryPtr Builder::find(const Source& source, const Arch& arch, const Device* device) {
  const Key exact = key(source, arch);
  if (BinaryPtr found = find(exact)) return found;
  return same_nvrtc_ ? nullptr : find_other(exact, source, device);
}

// Code compiled for this target runs whichever NVRTC compiled it, unless it is newer than the driver knows.
BinaryPtr Builder::find_other(const Key& key, const Source& source, const Device* device) {
  for (OtherBuild& other : store_.other_builds(key)) {
    const auto binary = std::make_shared<const Binary>(std::move(other.binary));
    if (device) {
      const std::string refusal = jit::load_refusal(*device, binary);
      log_(LogLevel::info, refusal.empty() ? fmt::format("{} for {}: taken as NVRTC {} compiled it", source.name,
                                                         binary->target, compiler_of(other.key))
                                           : fmt::format("{} for {}: the build by NVRTC {} is passed over: {}",
                                                         source.name, binary->target, compiler_of(other.key), refusal));
      if (!refusal.empty()) continue;
    }
    if (!device) return binary;  // not known to load, so not remembered under the exact key
    ++hits_;
    remember(key.hash(), binary);
    return binary;
  }
  return nullptr;
}

void Builder::remember(const std::string& hash, BinaryPtr binary) {
  std::lock_guard lock(mutex_);
  std::size_t bytes = binary->image.size();
  if (!memory_.emplace(hash, std::move(binary)).second) return;
  order_.push_back(hash);
  memory_bytes_ += bytes;
  while (memory_bytes_ > kMemoryCap && order_.size() > 1) {
    auto oldest = memory_.find(order_.front());
    memory_bytes_ -= oldest->second->image.size();
    memory_.erase(oldest);
    order_.pop_front();
  }
}

Built Builder::build(const Source& source, const Arch& arch, const Device* device) {
  if (device)
    if (BinaryPtr found = find(source, arch, device)) return {found, false, 0};
  return build(source, arch, [this](const Source& s, const Arch& a) { return compile(s, a, options_); });
}

Built Builder::build(const Source& source, const Arch& arch, const Compiler& compile) {
  if (BinaryPtr found = find(key(source, arch))) return {found, false, 0};
  confirm_compiler();
  Key exact = key(source, arch);  // the compiler may not be the remembered one
  std::string hash = exact.hash();
  std::promise<BinaryPtr> promise;
  std::shared_future<BinaryPtr> other;
  {
    std::lock_guard lock(mutex_);
    auto it = memory_.find(hash);
    if (it != memory_.end()) return {it->second, false, 0};
    auto running = running_.find(hash);
    if (running != running_.end())
      other = running->second;
    else
      running_.emplace(hash, promise.get_future().share());
  }
  if (other.valid()) return {other.get(), false, 0};  // rethrows the builder's error
  try {
    Built built = compile_and_store(exact, source, arch, compile);
    remember(hash, built.binary);
    promise.set_value(built.binary);
    std::lock_guard lock(mutex_);
    running_.erase(hash);
    return built;
  } catch (...) {
    promise.set_exception(std::current_exception());
    std::lock_guard lock(mutex_);
    running_.erase(hash);
    throw;
  }
}

Built Builder::compile_and_store(const Key& key, const Source& source, const Arch& arch, const Compiler& compile) {
  // Both answers lead to the compiler; only waiting for another process's result is saved.
  store_.claim(key, kClaimSeconds);
  struct Release {
    Store& store;
    const Key& key;
    ~Release() { store.release(key); }
  } release{store_, key};
  if (BinaryPtr found = find(key)) return {found, false, 0};
  ++compiled_;
  auto binary = std::make_shared<Binary>(compile(source, arch));
  microseconds_ += static_cast<std::int64_t>(binary->seconds * 1e6);
  log_(LogLevel::info, fmt::format("{} for {}: compiled in {:.2f} s by NVRTC {}", source.name, arch.name,
                                   binary->seconds, compiler_of(key)));
  const bool stored = store_.put_binary(key, *binary);
  if (!stored) log_(LogLevel::debug, fmt::format("{} for {} was not stored", source.name, arch.name));
  const double seconds = binary->seconds;
  return {binary, true, seconds, stored};
}

}  // namespace tilewright::tuner
