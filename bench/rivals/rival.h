// SPDX-License-Identifier: Apache-2.0
// What the rivals share, NVIDIA's libraries that ratios are taken against: where such a library may be, and what is
// known of one of its variants once it was timed.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/rivals/cuda.h"

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

// A library that was loaded, which stays so.
class RivalLibrary {
 public:
  // False if `path` cannot be loaded. `why` then has the loader's reason if `path` names a file; a bare name leaves
  // `why` as it was.
  bool open(const std::string& path, std::string& why);

  // False if the library has no `name`, which missing() then says.
  template <class F>
  bool find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(symbol(name));
    if (!function) missing_ = name;
    return function != nullptr;
  }
  const char* missing() const { return missing_; }

  // The file that the loader found.
  const std::string& path() const { return path_; }

 private:
  void* symbol(const char* name);

  void* library_ = nullptr;
  const char* missing_ = "";
  std::string path_;
};

// "9.19.0" of 91900, as cuBLASLt and cuDNN count.
std::string version_text(std::size_t version);

}  // namespace tilewright::bench
