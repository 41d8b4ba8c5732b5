// SPDX-License-Identifier: Apache-2.0
// Tests on the driver double: a fresh one for each, and nothing left behind at its end.
#pragma once

#include <cstring>

#include "jit/device.h"
#include "jit_test.h"
#include "support/fake_cuda.h"
#include "support/fake_cuda_image.h"
#include "support/paths.h"

namespace tilewright::test {

struct Fake {
  Fake() { fake_cuda_reset(); }
  ~Fake() {
    for (std::size_t i = 0; i < fake_cuda_violation_count(); ++i) UNSCOPED_INFO(fake_cuda_violation(i));
    CHECK(fake_cuda_violation_count() == violations);
    for (const char* kind : {"memory", "module", "stream", "event", "graph", "context"}) {
      INFO("live: " << kind);
      CHECK(fake_cuda_live(kind) == 0);
    }
    fake_cuda_reset();
  }
  std::size_t violations = 0;  // expected ones

  static Device open(int ordinal = 0) { return Device::open(ordinal, paths::fake_cuda()); }
};

// A binary for the double: `params` are the sizes of the kernel's parameters.
inline Binary fake_binary(std::vector<std::size_t> params, const std::string& entry = "k", unsigned salt = 0) {
  Binary binary;
  binary.target = "sm_90a";
  binary.entry = entry;
  binary.plan.threads = 128;
  binary.image = make_image(entry, 90, params, salt);
  return binary;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T>(&value, 1));
}

}  // namespace tilewright::test
