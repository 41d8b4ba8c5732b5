// SPDX-License-Identifier: Apache-2.0
// What the rivals share, NVIDIA's libraries that ratios are taken against: where such a library may be, and what is
// known of one of its variants once it was timed.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/cuda.h"

namespace tilewright::bench {

struct RivalTime {
  std::string name;             // "fp8 rows fast"
  int algorithms = 0;           // timed
  double error = 0;             // worst of a handful of elements, relative to the sum's typical size
  std::vector<double> samples;  // microseconds per launch, one a round
  double sustained = 0;         // the same in a row
  Replay replay;
  std::function<void(int)> launch;  // the i-th of the replay's; as long as its rival lives
};

// Paths to try, in this order: what `variable` of the environment names, and then nothing else; `names` by the loader;
// the folder of `nvrtc` (NVIDIA's wheels lie side by side), and those of toolkits and of Python packages. `wheel`: the
// library's own folder among them, "cublas".
std::vector<std::string> library_places(const char* variable, std::span<const char* const> names, const char* wheel,
                                        const std::string& nvrtc);

// Null if `path` cannot be loaded. `why` then has the loader's reason if `path` names a file; a bare name leaves `why`
// as it was.
void* open_library(const std::string& path, std::string& why);

// The file that the loader took `symbol` from; `otherwise` if it does not say.
std::string library_path(const void* symbol, const std::string& otherwise);

}  // namespace tilewright::bench
