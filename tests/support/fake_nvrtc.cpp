// SPDX-License-Identifier: Apache-2.0
// The compiler double: a libnvrtc of a version that nobody has installed. It refuses the options that its version did
// not have, and "compiles" any source to an image of one kernel named k. FAKE_NVRTC_MAJOR and _MINOR say which it is.
#include <cstring>
#include <string>

#include "support/fake_cuda_image.h"

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMajor = FAKE_NVRTC_MAJOR, kMinor = FAKE_NVRTC_MINOR;
constexpr int kArchs[] = {75, 80, 90};
constexpr int kOk = 0, kInvalidOption = 5, kCompilation = 6;

struct Program {
  std::string name, log, image;
};

}  // namespace

FAKE_API int nvrtcVersion(int* major, int* minor) { return *major = kMajor, *minor = kMinor, kOk; }
FAKE_API int nvrtcGetNumSupportedArchs(int* count) { return *count = 3, kOk; }
FAKE_API int nvrtcGetSupportedArchs(int* archs) { return std::memcpy(archs, kArchs, sizeof(kArchs)), kOk; }
FAKE_API const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR"; }

FAKE_API int nvrtcCreateProgram(Program** out, const char*, const char* name, int, const char* const*,
                                const char* const*) {
  return *out = new Program{name, "", ""}, kOk;
}
FAKE_API int nvrtcDestroyProgram(Program** program) { return delete *program, *program = nullptr, kOk; }

FAKE_API int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    const bool newer = option == "--no-cache" || option == "--no-source-include";
    if (option == "--minimal" && kMajor * 100 + kMinor < 1204)
      return program->log = "unrecognized option " + option, kInvalidOption;
    if (newer && kMajor * 100 + kMinor < 1209) return program->log = "unrecognized option " + option, kInvalidOption;
  }
  if (program->name == "version.cu") return program->log = "remark: \"build=42;\"", kOk;
  // Without --no-source-include the source's own directory must not exist.
  if (program->name.rfind("<tilewright>/", 0) != 0) return program->log = "looks on disk", kCompilation;
  const auto image = tilewright::test::make_image("k", 80, {8});
  program->image.assign(reinterpret_cast<const char*>(image.data()), image.size());
  return kOk;
}

FAKE_API int nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
  return *size = program->log.size() + 1, kOk;
}
FAKE_API int nvrtcGetProgramLog(Program* program, char* log) {
  return std::memcpy(log, program->log.c_str(), program->log.size() + 1), kOk;
}
FAKE_API int nvrtcGetCUBINSize(Program* program, std::size_t* size) { return *size = program->image.size(), kOk; }
FAKE_API int nvrtcGetCUBIN(Program* program, char* image) {
  return std::memcpy(image, program->image.data(), program->image.size()), kOk;
}
