// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include <tilewright/error.h>

#include "jit/compile/find_nvrtc.h"
#include "jit/shared_library.h"

namespace tilewright::jit {

namespace fs = std::filesystem;

const Nvrtc& Nvrtc::open(const std::string& path, const NvrtcPlaces& places) {
  // Never destroyed: compiles may still run in other threads while the process exits.
  static auto* const mutex = new std::mutex;
  static auto* const by_request = new std::map<std::string, const Nvrtc*>;
  static auto* const by_library = new std::map<void*, std::unique_ptr<Nvrtc>>;
  const std::lock_guard lock(*mutex);
  const auto request = fmt::format("{}\n{}\n\n{}", path, fmt::join(places.before, "\n"), fmt::join(places.after, "\n"));
  if (const auto known = by_request->find(request); known != by_request->end()) return *known->second;
  void* library = find_nvrtc(path, places);
  auto& slot = (*by_library)[library];
  if (!slot) slot.reset(new Nvrtc(library));
  return *by_request->emplace(request, slot.get()).first->second;
}

Nvrtc::Nvrtc(void* library) {
  bind(library);
  load_builtins();
}

void Nvrtc::bind(void* library) {
  Dl_info where{};
  void* version_symbol = dlsym(library, "nvrtcVersion");
  if (version_symbol && dladdr(version_symbol, &where) && where.dli_fname) path_ = where.dli_fname;
  auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function) return;
    throw Error(ErrorCode::library_missing, "libnvrtc", path_,
                fmt::format("has no function {}; install NVRTC 11.2 or newer", name));
  };
  int (*get_version)(int*, int*) = nullptr;
  load(get_version, "nvrtcVersion");
  load(create, "nvrtcCreateProgram");
  load(destroy, "nvrtcDestroyProgram");
  load(compile, "nvrtcCompileProgram");
  load(log_size, "nvrtcGetProgramLogSize");
  load(log, "nvrtcGetProgramLog");
  load(cubin_size, "nvrtcGetCUBINSize");
  load(cubin, "nvrtcGetCUBIN");
  load(error_text, "nvrtcGetErrorString");
  if (get_version(&major_, &minor_) != 0)
    throw Error(ErrorCode::library_missing, "libnvrtc", path_, "does not report its version");

  auto count_archs = reinterpret_cast<int (*)(int*)>(dlsym(library, "nvrtcGetNumSupportedArchs"));
  auto list_archs = reinterpret_cast<int (*)(int*)>(dlsym(library, "nvrtcGetSupportedArchs"));
  int count = 0;
  if (!count_archs || !list_archs || count_archs(&count) != 0 || count <= 0) return;
  archs_.resize(count);
  if (list_archs(archs_.data()) != 0) archs_.clear();
}

// NVRTC opens its builtins by file name alone, which finds nothing (or another version) when it was itself opened by
// path. Loading the right file first makes that lookup succeed.
void Nvrtc::load_builtins() const {
  const std::string name = fmt::format("libnvrtc-builtins.so.{}.{}", major_, minor_);
  std::error_code failed;
  std::vector<fs::path> directories = {fs::path(path_).parent_path()};
  const fs::path real = fs::canonical(path_, failed);
  if (!failed && real.parent_path() != directories[0]) directories.push_back(real.parent_path());
  std::vector<std::string> tried, others;
  const auto load = [&](const std::string& file) {
    std::string why;
    if (open_shared_library(file, why)) return true;
    tried.push_back(why);
    return false;
  };
  for (const auto& directory : directories) {
    if (fs::exists(directory / name, failed) && load((directory / name).string())) return;
    for (const auto& entry : fs::directory_iterator(directory, failed)) {
      const std::string file = entry.path().filename().string();
      if (file.rfind("libnvrtc-builtins.so", 0) == 0 && file.rfind(name, 0) != 0) others.push_back(entry.path());
    }
  }
  if (load(name)) return;
  throw Error(
      ErrorCode::library_missing, name, "",
      fmt::format("was not found, and {} (version {}) needs it beside itself; tried: {}{}{}", path_, version_text(),
                  fmt::join(tried, "; "), others.empty() ? "" : ". Of another version: ", fmt::join(others, ", ")));
}

std::string Nvrtc::version_text() const { return fmt::format("{}.{}", major_, minor_); }

const std::string& Nvrtc::build() const {
  const std::lock_guard lock(mutex_);
  if (!build_.empty()) return build_;
  // The build number is only known to the compiler itself; a diagnostic is the cheapest way to learn it.
  const std::string probe =
      "#define TEXT2(x) #x\n#define TEXT(x) TEXT2(x)\n#pragma message(\"build=\" TEXT(__CUDACC_VER_BUILD__) \";\")\n";
  Program program(*this, probe, "version.cu", {}, {});
  const int result = program.compile({});
  const std::string said = program.log();
  const auto start = said.find("build=");
  const auto number = start == std::string::npos ? start : said.find_first_of("0123456789", start);
  const auto end = number == std::string::npos ? number : said.find_first_not_of("0123456789", number);
  if (result != 0 || end == std::string::npos)
    throw Error(ErrorCode::library_missing, "libnvrtc", path_,
                fmt::format("cannot compile an empty program ({}): {}", error_text(result), said.substr(0, 400)));
  build_ = fmt::format("{} build {}", version_text(), said.substr(number, end - number));
  return build_;
}

Program::Program(const Nvrtc& nvrtc, const std::string& text, const std::string& name,
                 const std::vector<const char*>& texts, const std::vector<const char*>& names)
    : nvrtc_(nvrtc) {
  const int result =
      nvrtc.create(&program_, text.c_str(), name.c_str(), static_cast<int>(texts.size()), texts.data(), names.data());
  if (result != 0)
    throw Error(ErrorCode::compile_failed, "source " + name, "",
                "cannot be compiled: " + std::string(nvrtc.error_text(result)));
}

int Program::compile(const std::vector<std::string>& options) {
  std::vector<const char*> pointers;
  for (const auto& option : options) pointers.push_back(option.c_str());
  return nvrtc_.compile(program_, static_cast<int>(pointers.size()), pointers.data());
}

std::string Program::log() const {
  std::size_t size = 0;
  if (nvrtc_.log_size(program_, &size) != 0 || size < 2) return {};
  std::string text(size + 1, '\0');
  if (nvrtc_.log(program_, text.data()) != 0) return {};
  text.resize(text.find_first_of('\0'));  // its size counts the final zeros, of which there may be several
  return text;
}

std::vector<std::byte> Program::cubin() const {
  std::size_t size = 0;
  if (nvrtc_.cubin_size(program_, &size) != 0 || size == 0) return {};
  std::vector<std::byte> image(size);
  if (nvrtc_.cubin(program_, reinterpret_cast<char*>(image.data())) != 0) return {};
  return image;
}

}  // namespace tilewright::jit
