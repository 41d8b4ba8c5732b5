// SPDX-License-Identifier: Apache-2.0
#include "bench/rivals/rival.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <glob.h>
#include <link.h>

#include <cstdlib>

namespace tilewright::bench {

std::vector<std::string> library_places(const char* variable, std::span<const char* const> names, const char* wheel,
                                        const std::string& nvrtc) {
  if (const char* named = std::getenv(variable); named && *named) return {named};
  std::vector<std::string> found(names.begin(), names.end());
  const std::string own = std::string("/") + wheel + "/lib";
  std::vector<std::string> folders;
  if (const auto slash = nvrtc.rfind('/'); slash != std::string::npos) {
    folders.push_back(nvrtc.substr(0, slash));
    folders.push_back(nvrtc.substr(0, slash) + "/../.." + own);
  }
  std::vector<std::string> pythons = {"/usr/local/lib/python3*", "/usr/lib/python3*", "/opt/*/lib/python3*",
                                      "/opt/*/.venv/lib/python3*"};
  if (const char* venv = std::getenv("VIRTUAL_ENV"))
    pythons.insert(pythons.begin(), std::string(venv) + "/lib/python3*");
  if (const char* home = std::getenv("HOME")) pythons.push_back(std::string(home) + "/.local/lib/python3*");
  for (const std::string& python : pythons)
    for (const char* packages : {"/site-packages", "/dist-packages"})
      for (const std::string& folder : {std::string("/cu13/lib"), own})
        folders.push_back(python + packages + "/nvidia" + folder);
  folders.push_back("/usr/local/cuda*/lib64");
  for (const std::string& folder : folders)
    for (const char* name : names) {
      glob_t g{};
      if (glob((folder + "/" + name).c_str(), 0, nullptr, &g) == 0)
        for (std::size_t i = 0; i < g.gl_pathc; ++i) found.push_back(g.gl_pathv[i]);
      globfree(&g);
    }
  return found;
}

bool RivalLibrary::open(const std::string& path, std::string& why) {
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) {
    const char* reason = dlerror();
    if (path.find('/') != path.npos) why = reason ? reason : path;
    return false;
  }
  link_map* map = nullptr;
  path_ = dlinfo(library_, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : path;
  return true;
}

void* RivalLibrary::symbol(const char* name) { return dlsym(library_, name); }

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace tilewright::bench
