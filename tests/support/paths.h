// SPDX-License-Identifier: Apache-2.0
// Where this build's files are. Functions in one translation unit and not macros on every command line, so that a
// compiler cache serves tests of any checkout.
#pragma once

#include <string>

namespace tilewright::paths {

std::string source_dir();
std::string binary_dir();
std::string fake_cuda();       // the driver double
std::string compile_worker();  // a program whose only command is the compile worker
std::string nvrtc_old();       // a libnvrtc that is too old, with its builtins
std::string nvrtc_mixed();     // one beside the builtins of another version

}  // namespace tilewright::paths
