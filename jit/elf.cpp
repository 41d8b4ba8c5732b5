// SPDX-License-Identifier: Apache-2.0
#include "jit/elf.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tilewright::jit {
namespace {

struct FileHeader {
  unsigned char ident[16];
  std::uint16_t type, machine;
  std::uint32_t version;
  std::uint64_t entry, program_offset, section_offset;
  std::uint32_t flags;
  std::uint16_t header_size, program_size, program_count, section_size, section_count, names;
};
static_assert(sizeof(FileHeader) == 64);

struct Section {
  std::uint32_t name, type;
  std::uint64_t flags, address, offset, size;
  std::uint32_t link, info;
  std::uint64_t align, item;
};
static_assert(sizeof(Section) == 64);

struct Symbol {
  std::uint32_t name;
  unsigned char info, other;
  std::uint16_t section;
  std::uint64_t value, size;
};
static_assert(sizeof(Symbol) == 24);

constexpr std::uint32_t kSymbolTable = 2, kNoBits = 8;
constexpr std::uint16_t kCudaMachine = 190;
constexpr unsigned char kGlobalFunction = 0x12, kWeakFunction = 0x22;  // binding << 4 | STT_FUNC

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

std::string_view text_at(std::span<const std::byte> image, const Section& strings, std::uint32_t offset) {
  if (offset >= strings.size) return {};
  const char* begin = reinterpret_cast<const char*>(image.data() + strings.offset + offset);
  return {begin, strnlen(begin, strings.size - offset)};
}

}  // namespace

std::string elf_defect(std::span<const std::byte> image) {
  if (image.size() < sizeof(FileHeader)) return "shorter than an ELF header";
  const auto header = at<FileHeader>(image, 0);
  if (std::memcmp(header.ident,
                  "\x7f"
                  "ELF\x02\x01",
                  6) != 0)
    return "not a 64-bit ELF file";
  if (header.machine != kCudaMachine) return "an ELF file, but not for CUDA";
  if (header.section_count == 0 || header.section_size != sizeof(Section)) return "no sections";
  if (!inside(header.section_offset, std::uint64_t{header.section_count} * sizeof(Section), image.size()))
    return "truncated: its section table lies beyond its end";
  if (!inside(header.program_offset, std::uint64_t{header.program_count} * header.program_size, image.size()))
    return "truncated: its program table lies beyond its end";
  for (int i = 0; i < header.section_count; ++i) {
    const auto section = at<Section>(image, header.section_offset + i * sizeof(Section));
    if (section.type != kNoBits && !inside(section.offset, section.size, image.size()))
      return "truncated: a section lies beyond its end";
  }
  return {};
}

std::vector<std::string> elf_entries(std::span<const std::byte> image) {
  std::vector<std::string> names;
  if (!elf_defect(image).empty()) return names;
  const auto header = at<FileHeader>(image, 0);
  for (int i = 0; i < header.section_count; ++i) {
    const auto table = at<Section>(image, header.section_offset + i * sizeof(Section));
    if (table.type != kSymbolTable || table.link >= header.section_count) continue;
    const auto strings = at<Section>(image, header.section_offset + table.link * sizeof(Section));
    if (strings.type == kNoBits) continue;
    for (std::uint64_t n = 0; n < table.size / sizeof(Symbol); ++n) {
      const auto symbol = at<Symbol>(image, table.offset + n * sizeof(Symbol));
      const bool function = symbol.info == kGlobalFunction || symbol.info == kWeakFunction;
      if (function && symbol.section != 0) names.emplace_back(text_at(image, strings, symbol.name));
    }
  }
  return names;
}

bool elf_has_entry(std::span<const std::byte> image, std::string_view entry) {
  const auto names = elf_entries(image);
  return std::find(names.begin(), names.end(), entry) != names.end();
}

}  // namespace tilewright::jit
