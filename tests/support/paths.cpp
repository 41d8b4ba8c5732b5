// SPDX-License-Identifier: Apache-2.0
#include "support/paths.h"

namespace tilewright::paths {

std::string source_dir() { return TILEWRIGHT_SOURCE_DIR; }
std::string binary_dir() { return TILEWRIGHT_BINARY_DIR; }
std::string fake_cuda() { return TILEWRIGHT_FAKE_CUDA; }
std::string compile_worker() { return TILEWRIGHT_TEST_WORKER; }
std::string nvrtc_old() { return TILEWRIGHT_NVRTC_OLD; }
std::string nvrtc_mixed() { return TILEWRIGHT_NVRTC_MIXED; }

}  // namespace tilewright::paths
