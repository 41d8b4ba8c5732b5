// SPDX-License-Identifier: Apache-2.0
// Where libnvrtc may be. The only place that knows the layouts of toolkits, wheels, virtual environments and installs.
#pragma once

#include <string>
#include <vector>

#include <tilewright/options.h>

namespace tilewright::jit {

// The directories under `root` that may hold libnvrtc, those that exist only. `root` is such a directory itself, a CUDA
// toolkit, a virtual environment, a Python prefix, a directory of Python packages, or a prefix Tilewright is installed
// in.
std::vector<std::string> nvrtc_directories(const std::string& root);

// Opens the library: `path`, a file or a directory, if not empty; else the first of
//   a libnvrtc that this process has loaded; Python packages beside any loaded library; places.before;
//   beside this library and this program (a build tree's `nvrtc`, an install's lib/tilewright); the system's loader;
//   /usr/local/cuda*, newest first; places.after.
// Throws Error (library_missing) naming every place searched.
void* find_nvrtc(const std::string& path, const NvrtcPlaces& places);

}  // namespace tilewright::jit
