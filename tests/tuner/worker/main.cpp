// SPDX-License-Identifier: Apache-2.0
#include <tilewright/engine.h>

#include <cstdlib>
#include <cstring>

// "compile-worker": serve; with TILEWRIGHT_TEST_DIE, die at the first message, as a compiler that crashes would.
int main(int argc, char** argv) {
  if (argc != 2 || std::strcmp(argv[1], "compile-worker") != 0) return 64;
  if (std::getenv("TILEWRIGHT_TEST_DIE")) std::abort();
  return tilewright::compile_worker_main(0, 1);
}
