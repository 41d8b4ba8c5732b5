// SPDX-License-Identifier: Apache-2.0
// Compiling: while one lives, exit() waits. libnvrtc and libLLVM have destructors of their own, which would take away
// what a compile in another thread uses.
#pragma once

namespace tilewright::jit {

class Compiling {
 public:
  Compiling();  // throws Error (would_tune) where the process is exiting already
  ~Compiling();
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  const bool counted_;
};

}  // namespace tilewright::jit
