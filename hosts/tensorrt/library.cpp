// SPDX-License-Identifier: Apache-2.0
// libtilewright_tensorrt: what TensorRT looks for when it loads a library of plugins. It links no library of
// TensorRT's. docs/use/tensorrt.md says how to use it.
#include <tilewright/error.h>

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <string>
#include <vector>

#include "hosts/tensorrt/log.h"
#include "hosts/tensorrt/plugin.h"

namespace tilewright::tensorrt {
namespace {

// Libraries of TensorRT, and the major versions whose interfaces of plugins are those of the headers that this was
// built with.
struct Served {
  const char* file;
  const char* name;
  int least, most;
};
constexpr Served kServed[] = {{"/libnvinfer.so", "TensorRT", 10, 11}, {"/libtensorrt_rtx.so", "TensorRT-RTX", 1, 1}};

// major * 10000 + minor * 100 + patch; 0: the library does not say.
int version_of(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!library) return 0;
  const auto get = reinterpret_cast<std::int32_t (*)()>(dlsym(library, "getInferLibVersion"));
  const int version = get ? get() : 0;
  dlclose(library);
  return version;
}

// Throws Error (unsupported) if this process has loaded another version of TensorRT.
void check_version() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        if (info->dlpi_name) static_cast<std::vector<std::string>*>(to)->push_back(info->dlpi_name);
        return 0;
      },
      &paths);
  for (const std::string& path : paths)
    for (const Served& served : kServed) {
      if (path.find(served.file) == std::string::npos) continue;
      const int version = version_of(path.c_str()), major = version / 10000;
      if (version == 0 || (major >= served.least && major <= served.most)) continue;
      const std::string number = std::to_string(major) + "." + std::to_string(version / 100 % 100);
      throw Error(ErrorCode::unsupported, served.name + (" " + number), "",
                  "is not supported; this library was built with the headers of TensorRT " +
                      std::to_string(NV_TENSORRT_MAJOR) + "." + std::to_string(NV_TENSORRT_MINOR) +
                      " and serves TensorRT 10 and 11 and TensorRT-RTX 1");
    }
}

class Creator final : public nvinfer1::IPluginCreatorV3One {
 public:
  explicit Creator(Kind kind) : kind_(kind) {}

  nvinfer1::IPluginV3* createPlugin(const char* name, const nvinfer1::PluginFieldCollection* fields,
                                    nvinfer1::TensorRTPhase phase) noexcept override {
    std::string who = getPluginName();
    if (name && *name) who += std::string(" ") + name;
    return guarded<nvinfer1::IPluginV3*>(who, nullptr, [&] {
      check_version();
      const Fields given(fields);
      if (phase == nvinfer1::TensorRTPhase::kBUILD) return new Plugin(recipe_of(kind_, given));
      return new Plugin(restored(kind_, given), restored_tactics(given));
    });
  }
  const nvinfer1::PluginFieldCollection* getFieldNames() noexcept override { return field_names(kind_); }
  const char* getPluginName() const noexcept override { return plugin_name(kind_); }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

 private:
  const Kind kind_;
};

}  // namespace
}  // namespace tilewright::tensorrt

#define TILEWRIGHT_TENSORRT_EXPORT extern "C" __attribute__((visibility("default")))

TILEWRIGHT_TENSORRT_EXPORT void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
  tilewright::tensorrt::set_logger_finder(finder);
}

// For programs whose TensorRT has no logger: see last_error() in log.h.
TILEWRIGHT_TENSORRT_EXPORT std::size_t tilewright_tensorrt_last_error(char* to, std::size_t size) {
  return tilewright::tensorrt::last_error(to, size);
}

TILEWRIGHT_TENSORRT_EXPORT nvinfer1::IPluginCreatorInterface* const* getCreators(std::int32_t& count) {
  using tilewright::tensorrt::Creator;
  using tilewright::tensorrt::Kind;
  static Creator gemm(Kind::gemm), w4a8(Kind::w4a8), conv(Kind::conv);
  static const std::array<nvinfer1::IPluginCreatorInterface*, 3> all = {&gemm, &w4a8, &conv};
  count = static_cast<std::int32_t>(all.size());
  return all.data();
}
