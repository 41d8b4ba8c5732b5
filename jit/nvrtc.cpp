// SPDX-License-Identifier: Apache-2.0
#include "jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include <tilewright/error.h>

namespace tilewright::jit {
namespace {

namespace fs = std::filesystem;

// Newest first. A future major version is found under the plain name.
constexpr const char* kNames[] = {"libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
                                  "libnvrtc.so"};
constexpr const char* kWheels[] = {"nvidia/cu14/lib", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

// Every attempt and why it failed, for the error.
struct Search {
  std::vector<std::string> tried;
  void* open(const std::string& name) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* why = dlerror();
    tried.push_back(why ? why : name);
    return nullptr;
  }
  void* open_in(const fs::path& directory) {
    std::error_code failed;
    bool any = false;
    for (const char* name : kNames) {
      if (!fs::exists(directory / name, failed)) continue;
      any = true;
      if (void* library = open((directory / name).string())) return library;
    }
    if (!any) tried.push_back((directory / "libnvrtc.so*").string() + ": no such file");
    return nullptr;
  }
};

void* already_loaded() {
  for (const char* name : kNames)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  return nullptr;
}

// Directories that hold Python packages, judged by the libraries this process has loaded: a process that runs PyTorch
// or any extension module has one, and no environment variable or interpreter need be asked.
std::vector<fs::path> package_directories() {
  std::vector<fs::path> found;
  auto visit = [](dl_phdr_info* info, std::size_t, void* out) {
    auto& paths = *static_cast<std::vector<fs::path>*>(out);
    const std::string path = info->dlpi_name ? info->dlpi_name : "";
    for (const char* marker : {"/site-packages/", "/dist-packages/"}) {
      const auto at = path.find(marker);
      if (at == std::string::npos) continue;
      const fs::path directory = path.substr(0, at + std::string(marker).size() - 1);
      if (std::find(paths.begin(), paths.end(), directory) == paths.end()) paths.push_back(directory);
    }
    return 0;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

// /usr/local/cuda first (the administrator's choice), then cuda-13.0, cuda-12.9 ... by number.
std::vector<fs::path> toolkit_directories() {
  std::vector<std::pair<double, fs::path>> found;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/usr/local", failed)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("cuda", 0) != 0) continue;
    const double rank = name == "cuda" ? 1e9 : name.size() > 5 ? std::strtod(name.c_str() + 5, nullptr) : 0;
    found.emplace_back(rank, entry.path() / "lib64");
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<fs::path> paths;
  for (auto& [rank, path] : found) paths.push_back(std::move(path));
  return paths;
}

void* search_everywhere(Search& search) {
  if (void* library = already_loaded()) return library;
  for (const auto& packages : package_directories())
    for (const char* wheel : kWheels)
      if (void* library = search.open_in(packages / wheel)) return library;
  for (const char* name : kNames)
    if (void* library = search.open(name)) return library;
  for (const auto& directory : toolkit_directories())
    if (void* library = search.open_in(directory)) return library;
  return nullptr;
}

void* find_library(const std::string& path) {
  Search search;
  std::error_code failed;
  void* library = path.empty()                     ? search_everywhere(search)
                  : fs::is_directory(path, failed) ? search.open_in(path)
                                                   : search.open(path);
  if (library) return library;
  throw Error(ErrorCode::library_missing, "libnvrtc", path,
              fmt::format("not found. Install the CUDA toolkit or the Python wheel nvidia-cuda-nvrtc, or give the "
                          "library's path. Tried: {}",
                          fmt::join(search.tried, "; ")));
}

}  // namespace

const Nvrtc& Nvrtc::open(const std::string& path) {
  // Never destroyed: compiles may still run in other threads while the process exits.
  static auto* const mutex = new std::mutex;
  static auto* const by_path = new std::map<std::string, const Nvrtc*>;
  static auto* const by_library = new std::map<void*, std::unique_ptr<Nvrtc>>;
  const std::lock_guard lock(*mutex);
  if (const auto known = by_path->find(path); known != by_path->end()) return *known->second;
  void* library = find_library(path);
  auto& slot = (*by_library)[library];
  if (!slot) slot.reset(new Nvrtc(library));
  return *by_path->emplace(path, slot.get()).first->second;
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
                fmt::format("has no function {}: NVRTC 11.2 or newer is needed", name));
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
    throw Error(ErrorCode::library_missing, "libnvrtc", path_, "does not tell its version");

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
  Search search;
  std::vector<std::string> others;
  for (const auto& directory : directories) {
    if (fs::exists(directory / name, failed) && search.open((directory / name).string())) return;
    for (const auto& entry : fs::directory_iterator(directory, failed)) {
      const std::string file = entry.path().filename().string();
      if (file.rfind("libnvrtc-builtins.so", 0) == 0 && file.rfind(name, 0) != 0) others.push_back(entry.path());
    }
  }
  if (search.open(name)) return;
  throw Error(ErrorCode::library_missing, name, "",
              fmt::format("not found, but {} (version {}) needs it beside itself. Tried: {}{}{}", path_, version_text(),
                          fmt::join(search.tried, "; "),
                          others.empty() ? "" : ". Of another version: ", fmt::join(others, ", ")));
}

std::string Nvrtc::version_text() const { return fmt::format("{}.{}", major_, minor_); }

const std::string& Nvrtc::build() const {
  const std::lock_guard lock(mutex_);
  if (!build_.empty()) return build_;
  // The build number is only known to the compiler itself; a diagnostic is the cheapest way to make it talk.
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
  if (result != 0) throw Error(ErrorCode::compile_failed, "source " + name, "", nvrtc.error_text(result));
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
