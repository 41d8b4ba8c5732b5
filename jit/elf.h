// SPDX-License-Identifier: Apache-2.0
// The little that is read out of a cubin (an ELF64 file) before anybody trusts it. Bounds are checked on every access,
// because the driver's own loader hangs or crashes on a damaged file. Pure functions, usable from any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewright::jit {

// Why `image` cannot be a whole cubin ("truncated: ..."); empty when nothing speaks against it. Finds cuts, not flipped
// bits: those are the content hash's task.
std::string elf_defect(std::span<const std::byte> image);

// Names of the kernels that the image defines: global functions of its symbol table. Empty for a defective image.
std::vector<std::string> elf_entries(std::span<const std::byte> image);

bool elf_has_entry(std::span<const std::byte> image, std::string_view entry);

}  // namespace tilewright::jit
