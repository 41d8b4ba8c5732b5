// SPDX-License-Identifier: Apache-2.0
// A library of NVTX that remembers the calls: "push NAME" and "pop", a line each.
#include <string>

namespace {
std::string calls;
}

extern "C" {

int nvtxRangePushA(const char* name) {
  calls += std::string("push ") + name + "\n";
  return 0;
}

int nvtxRangePop() {
  calls += "pop\n";
  return 0;
}

const char* fake_nvtx_calls() { return calls.c_str(); }

}  // extern "C"
