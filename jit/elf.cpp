// SPDX-License-Identifier: Apache-2.0
#include "jit/elf.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tilewright::jit {
namespace {

constexpr unsigned char kGlobalFunction = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                        kWeakFunction = ELF64_ST_INFO(STB_WEAK, STT_FUNC);

bool inside(std::uint64_t offset, std::uint64_t size, std::uint64_t total) {
  return offset <= total && size <= total - offset;
}

// memcpy, because an image may start at any address.
template <class T>
T at(std::span<const std::byte> image, std::uint64_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof(T));
  return value;
}

std::string_view text_at(std::span<const std::byte> image, const Elf64_Shdr& strings, std::uint32_t offset) {
  if (offset >= strings.sh_size) return {};
  const char* begin = reinterpret_cast<const char*>(image.data() + strings.sh_offset + offset);
  return {begin, strnlen(begin, strings.sh_size - offset)};
}

}  // namespace

std::string elf_defect(std::span<const std::byte> image) {
  if (image.size() < sizeof(Elf64_Ehdr)) return "shorter than an ELF header";
  const auto header = at<Elf64_Ehdr>(image, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB)
    return "not a 64-bit ELF file";
  if (header.e_machine != EM_CUDA) return "an ELF file, but not for CUDA";
  if (header.e_shnum == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return "no sections";
  if (!inside(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), image.size()))
    return "truncated: its section table lies beyond its end";
  if (!inside(header.e_phoff, std::uint64_t{header.e_phnum} * header.e_phentsize, image.size()))
    return "truncated: its program table lies beyond its end";
  for (int i = 0; i < header.e_shnum; ++i) {
    const auto section = at<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOBITS && !inside(section.sh_offset, section.sh_size, image.size()))
      return "truncated: a section lies beyond its end";
  }
  return {};
}

std::vector<std::string> elf_entries(std::span<const std::byte> image) {
  std::vector<std::string> names;
  if (!elf_defect(image).empty()) return names;
  const auto header = at<Elf64_Ehdr>(image, 0);
  for (int i = 0; i < header.e_shnum; ++i) {
    const auto table = at<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header.e_shnum) continue;
    const auto strings = at<Elf64_Shdr>(image, header.e_shoff + table.sh_link * sizeof(Elf64_Shdr));
    if (strings.sh_type == SHT_NOBITS) continue;
    for (std::uint64_t n = 0; n < table.sh_size / sizeof(Elf64_Sym); ++n) {
      const auto symbol = at<Elf64_Sym>(image, table.sh_offset + n * sizeof(Elf64_Sym));
      const bool function = symbol.st_info == kGlobalFunction || symbol.st_info == kWeakFunction;
      if (function && symbol.st_shndx != SHN_UNDEF) names.emplace_back(text_at(image, strings, symbol.st_name));
    }
  }
  return names;
}

bool elf_has_entry(std::span<const std::byte> image, std::string_view entry) {
  const auto names = elf_entries(image);
  return std::find(names.begin(), names.end(), entry) != names.end();
}

}  // namespace tilewright::jit
