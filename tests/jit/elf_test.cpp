// SPDX-License-Identifier: Apache-2.0
#include "jit/elf.h"

#include "jit_test.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("elf: every truncation of a cubin is noticed, none is read beyond") {
  const Binary binary =
      compile(source_of("extern \"C\" __global__ void k(int* p) { *p = 1; }"), sm_90a(), real_compiler());
  REQUIRE(jit::elf_defect(binary.image) == "");
  for (std::size_t size = 0; size < binary.image.size(); size += 7) {
    const std::vector<std::byte> cut(binary.image.begin(), binary.image.begin() + size);  // exact, for the sanitizer
    INFO(size << " of " << binary.image.size());
    CHECK(jit::elf_defect(cut) != "");
    CHECK(jit::elf_entries(cut).empty());
  }
}

TEST_CASE("elf: damaged bytes never lead outside the image") {
  const Binary binary =
      compile(source_of("extern \"C\" __global__ void k(int* p) { *p = 1; }"), sm_90a(), real_compiler());
  for (std::size_t at = 0; at < binary.image.size(); ++at) {
    std::vector<std::byte> damaged = binary.image;
    damaged[at] = ~damaged[at];
    (void)jit::elf_entries(damaged);
  }
  CHECK(jit::elf_defect({}) != "");
}
