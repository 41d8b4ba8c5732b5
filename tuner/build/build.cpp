// SPDX-License-Identifier: Apache-2.0
#include "tuner/build/build.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <tilewright/error.h>
#include <tilewright/problem.h>

#include "cache/key.h"
#include "jit/compile/nvrtc.h"
#include "jit/kernel.h"

namespace tilewright::tuner {
namespace {

constexpr std::size_t kMemoryCap = 64u << 20;  // bytes of images; loaded kernels do not need them any more
constexpr double kClaimSeconds = 5;            // longer than any candidate compiles
const char* stored_name(const Arch& arch) { return arch.cpu ? "llvm" : "nvrtc"; }
const char* compiler_name(const Arch& arch) { return arch.cpu ? "" : "NVRTC "; }

// With the file at `path` as it is now, if there is one: it changes whenever the file does.
StoredCompiler located(StoredCompiler compiler, const std::string& path) {
  struct stat s;
  if (path.empty() || ::stat(path.c_str(), &s) != 0) return compiler;
  compiler.path = path, compiler.bytes = s.st_size;
  compiler.modified = std::int64_t{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
  return compiler;
}

std::string compiler_of(const Key& key) {
  for (const auto& [tag, value] : key.fields())
    if (tag == "compiler") return value;
  return "?";
}

}  // namespace

std::vector<OtherVersion> other_versions(const Store& store) {
  try {
    return store.other_versions();
  } catch (const Error&) {  // a store that cannot be read has nothing to tell
    return {};
  }
}

std::string unacceptable(const Resources& r) {
  if (r.spill_bytes > 0) return fmt::format("spills {} bytes per thread", r.spill_bytes);
  if (r.serialized) return "its wgmma is serialized";
  return {};
}

Builder::Builder(Store& store, CompileOptions options, Log& log, bool same_nvrtc)
    : store_(store), options_(std::move(options)), log_(log), same_nvrtc_(same_nvrtc) {}

std::string Builder::asked_for(const Arch& arch) const {
  return arch.cpu ? options_.llvm
                  : fmt::format("{}|{}|{}", options_.nvrtc, fmt::join(options_.places.before, ":"),
                                fmt::join(options_.places.after, ":"));
}

std::string Builder::compiler(const Arch& arch) {
  std::lock_guard lock(compiler_mutex_);
  std::optional<std::string>& known_version = known(arch).version;
  if (known_version) return *known_version;
  const StoredCompiler stored = store_.find_compiler(stored_name(arch)).value_or(StoredCompiler());
  known_version = stored.version;
  if (!stored.path.empty() && stored == located({stored.name, stored.version, asked_for(arch)}, stored.path))
    return *known_version;
  try {
    known_version = compiler_info(options_, arch).version;
  } catch (const Error&) {
    // No compiler here. What is stored may still serve; a compilation will report the error in full.
  }
  return *known_version;
}

void Builder::confirm_compiler(const Arch& arch) {
  std::lock_guard lock(compiler_mutex_);
  Known& compiler = known(arch);
  if (compiler.confirmed) return;
  const CompilerInfo info = compiler_info(options_, arch);
  const StoredCompiler now = located({stored_name(arch), info.version, asked_for(arch)}, info.path);
  if (store_.find_compiler(now.name) != now) store_.put_compiler(now);
  compiler = {info.version, true};
}

CompileOptions Builder::found() {
  confirm_compiler(archs().front());
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

BinaryPtr Builder::built_in(const Source& source, const Arch& arch) {
  if (!source.host) return nullptr;
  Binary binary;
  binary.target = arch.name;
  binary.entry = source.entry;
  binary.plan = source.plan;
  binary.host = source.host;
  return std::make_shared<const Binary>(std::move(binary));
}

BinaryPtr Builder::find(const Source& source, const Arch& arch, const Device* device) {
  if (source.text.empty() && source.host) return built_in(source, arch);
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
      const char* const compiler = compiler_name(device->arch());
      log_(LogLevel::info, refusal.empty() ? fmt::format("{} for {}: taken as {}{} compiled it", source.name,
                                                         binary->target, compiler, compiler_of(other.key))
                                           : fmt::format("{} for {}: the build by {}{} is passed over: {}", source.name,
                                                         binary->target, compiler, compiler_of(other.key), refusal));
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
  if (source.text.empty() && source.host) return {built_in(source, arch), false, 0};
  if (BinaryPtr found = find(key(source, arch))) return {found, false, 0};
  try {
    confirm_compiler(arch);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::library_missing) throw;
    if (!arch.cpu) throw with_versions(error);
    BinaryPtr binary = built_in(source, arch);
    if (!binary)
      throw Error(ErrorCode::unsupported, "source " + source.name, arch.name,
                  fmt::format("is not built in, and {}", error.what()));
    if (built_ins_++ == 0)
      log_.warn(fmt::format("{} for {}: the kernel that is built in serves, and may take a third longer, since {}",
                            source.name, arch.name, error.what()));
    return {binary, false, 0};
  }
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

Error Builder::with_versions(const Error& error) const {
  std::string allowed = error.allowed();
  for (const OtherVersion& v : other_versions(store_))
    if (v.binaries > 0) allowed += ". " + v.text();
  return Error(error.code(), error.field(), error.value(), allowed);
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
  log_(LogLevel::info, fmt::format("{} for {}: compiled in {:.2f} s by {}{}", source.name, arch.name, binary->seconds,
                                   compiler_name(arch), compiler_of(key)));
  const bool stored = store_.put_binary(key, *binary);
  if (!stored) log_(LogLevel::debug, fmt::format("{} for {} was not stored", source.name, arch.name));
  const double seconds = binary->seconds;
  return {binary, true, seconds, stored};
}

}  // namespace tilewright::tuner
