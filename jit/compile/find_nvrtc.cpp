// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/find_nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <tilewright/error.h>

#include "jit/shared_library.h"

namespace tilewright::jit {
namespace {

namespace fs = std::filesystem;

// Newest first. A future major version is found under the plain name.
constexpr const char* kNames[] = {"libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
                                  "libnvrtc.so"};

// NVIDIA's wheels in a directory of Python packages, newest first.
constexpr const char* kWheels[] = {"nvidia/cu14/lib", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};

// Directories that match a pattern, which follows `root` literally; the last in the alphabet first, since Python's
// directories carry its version.
std::vector<std::string> matching(const std::string& root, const std::string& pattern) {
  std::string escaped;
  for (char c : root) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') escaped += '\\';
    escaped += c;
  }
  glob_t found = {};
  std::vector<std::string> paths;
  if (::glob((escaped + "/" + pattern).c_str(), GLOB_ONLYDIR, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::reverse(paths.begin(), paths.end());
  return paths;
}

// Opens candidates and remembers what was looked at, for the error.
class Search {
 public:
  void* open(const std::string& file) {
    std::string why;
    if (void* library = open_shared_library(file, why)) return library;
    failures_.push_back(why);
    return nullptr;
  }
  void* open_in(const fs::path& directory) {
    std::error_code failed;
    for (const char* name : kNames)
      if (fs::exists(directory / name, failed))
        if (void* library = open((directory / name).string())) return library;
    return nullptr;
  }
  void* open_under(const std::string& root) {
    searched_.push_back(root);
    for (const std::string& directory : nvrtc_directories(root))
      if (void* library = open_in(directory)) return library;
    return nullptr;
  }
  void* open_by_loader() {
    searched_.push_back("the dynamic loader's directories");
    for (const char* name : kNames)
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    return nullptr;
  }
  void searched(std::string place) { searched_.push_back(std::move(place)); }

  std::string report() const {
    std::string text = fmt::format("Searched: {}", fmt::join(searched_, ", "));
    if (!failures_.empty()) text += fmt::format(". Could not be opened: {}", fmt::join(failures_, "; "));
    return text;
  }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  std::vector<std::string> searched_, failures_;
};

void* already_loaded() {
  for (const char* name : kNames)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  return nullptr;
}

// Directories of Python packages, judged by the libraries this process has loaded: a process that runs PyTorch or any
// extension module has one, and no environment variable or interpreter need be asked.
std::vector<std::string> package_directories() {
  std::vector<std::string> found;
  auto visit = [](dl_phdr_info* info, std::size_t, void* out) {
    auto& paths = *static_cast<std::vector<std::string>*>(out);
    const std::string path = info->dlpi_name ? info->dlpi_name : "";
    for (const char* marker : {"/site-packages/", "/dist-packages/"}) {
      const auto at = path.find(marker);
      if (at == std::string::npos) continue;
      const std::string directory = path.substr(0, at + std::string(marker).size() - 1);
      if (std::find(paths.begin(), paths.end(), directory) == paths.end()) paths.push_back(directory);
    }
    return 0;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

// Of the program and of the shared library that this code is in; the same directory where it is linked statically.
std::vector<fs::path> own_directories() {
  std::vector<fs::path> found;
  std::error_code failed;
  const auto add = [&](const fs::path& file) {
    const fs::path directory = file.parent_path();
    if (!directory.empty() && std::find(found.begin(), found.end(), directory) == found.end())
      found.push_back(directory);
  };
  Dl_info here{};
  // A program's own name may be relative, so only a name with a directory is of use; the program comes next.
  if (dladdr(reinterpret_cast<void*>(&own_directories), &here) && here.dli_fname &&
      std::string_view(here.dli_fname).find('/') != std::string_view::npos)
    add(fs::canonical(here.dli_fname, failed));
  add(fs::read_symlink("/proc/self/exe", failed));
  return found;
}

// What `./dev` fetched into a build tree (BUILD/bin/PROGRAM or BUILD/libtilewright.so beside BUILD/nvrtc), and what
// stands beside an install (PREFIX/bin, PREFIX/lib).
std::vector<std::string> places_beside(const fs::path& directory) {
  std::vector<std::string> roots;
  for (const char* near : {"nvrtc", "../nvrtc", "tilewright", "../lib/tilewright", "../lib64/tilewright"}) {
    std::error_code failed;
    const fs::path path = (directory / near).lexically_normal();
    if (fs::is_directory(path, failed)) roots.push_back(path.string());
  }
  return roots;
}

// /usr/local/cuda first (the administrator's choice), then cuda-13.0, cuda-12.9 ... by number.
std::vector<std::string> toolkits() {
  std::vector<std::pair<double, std::string>> found;
  for (const std::string& path : matching("/usr/local", "cuda*")) {
    const std::string name = fs::path(path).filename().string();
    const double rank = name == "cuda" ? 1e9 : name.size() > 5 ? std::strtod(name.c_str() + 5, nullptr) : 0;
    found.emplace_back(rank, path);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> paths;
  for (auto& [rank, path] : found) paths.push_back(std::move(path));
  return paths;
}

void* search_everywhere(Search& search, const NvrtcPlaces& places) {
  if (void* library = already_loaded()) return library;
  for (const std::string& packages : package_directories())
    if (void* library = search.open_under(packages)) return library;
  for (const std::string& root : places.before)
    if (void* library = search.open_under(root)) return library;
  for (const fs::path& directory : own_directories()) {
    search.searched("beside " + directory.string());
    for (const std::string& root : places_beside(directory))
      if (void* library = search.open_under(root)) return library;
  }
  if (void* library = search.open_by_loader()) return library;
  search.searched("/usr/local/cuda*");
  for (const std::string& root : toolkits())
    if (void* library = search.open_under(root)) return library;
  for (const std::string& root : places.after)
    if (void* library = search.open_under(root)) return library;
  return nullptr;
}

}  // namespace

std::vector<std::string> nvrtc_directories(const std::string& root) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& base, const std::string& pattern) {
    for (std::string& path : matching(base, pattern)) found.push_back(std::move(path));
  };
  std::error_code failed;
  if (fs::is_directory(root, failed)) found.push_back(root);
  for (const char* toolkit : {"lib64", "lib", "targets/*/lib", "lib/tilewright"}) add(root, toolkit);
  std::vector<std::string> packages = {root};
  for (const char* python :
       {"lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages",
        "lib/python3/dist-packages", "versions/*/lib/python3*/site-packages"})
    for (std::string& directory : matching(root, python)) packages.push_back(std::move(directory));
  for (const std::string& directory : packages)
    for (const char* wheel : kWheels) add(directory, wheel);
  return found;
}

void* find_nvrtc(const std::string& path, const NvrtcPlaces& places) {
  Search search;
  std::error_code failed;
  if (path.empty()) {
    if (void* library = search_everywhere(search, places)) return library;
    throw Error(ErrorCode::library_missing, "libnvrtc", "",
                fmt::format("was not found; install a CUDA toolkit or the Python package nvidia-cuda-nvrtc, or set "
                            "TILEWRIGHT_NVRTC (Options::nvrtc) to libnvrtc.so.13 or to a directory that holds it. {}",
                            search.report()));
  }
  void* library = fs::is_directory(path, failed) ? search.open_under(path) : search.open(path);
  if (library) return library;
  throw Error(ErrorCode::library_missing, "libnvrtc", path,
              fmt::format("must be a libnvrtc, or a directory that holds one (TILEWRIGHT_NVRTC, Options::nvrtc): {}",
                          search.failures().empty() ? path + "/libnvrtc.so.* does not exist"
                                                    : fmt::format("{}", fmt::join(search.failures(), "; "))));
}

}  // namespace tilewright::jit
