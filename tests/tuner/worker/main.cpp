// SPDX-License-Identifier: Apache-2.0
#include <tilewright/engine.h>

#include <unistd.h>

#include <cstdlib>
#include <cstring>

// "compile-worker": serve. With TILEWRIGHT_TEST_DIE, die at the first message, as a compiler that crashes would; with
// TILEWRIGHT_TEST_LINGER, ignore the end of the input.
int main(int argc, char** argv) {
  if (argc != 2 || std::strcmp(argv[1], "compile-worker") != 0) return 64;
  if (std::getenv("TILEWRIGHT_TEST_DIE")) std::abort();
  const int status = tilewright::compile_worker_main(0, 1);
  if (std::getenv("TILEWRIGHT_TEST_LINGER")) ::sleep(100);
  return status;
}
