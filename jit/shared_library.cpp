// SPDX-License-Identifier: Apache-2.0
#include "jit/shared_library.h"

#include <dlfcn.h>
#include <sys/stat.h>

namespace tilewright::jit {

void* open_shared_library(const std::string& name, std::string& why) {
  struct stat s;
  if (name.find('/') != std::string::npos && ::stat(name.c_str(), &s) == 0 && !S_ISREG(s.st_mode)) {
    why = name + ": not a regular file";
    return nullptr;
  }
  if (void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* reason = ::dlerror();
  why = reason ? reason : name;
  return nullptr;
}

}  // namespace tilewright::jit
