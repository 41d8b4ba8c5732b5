// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda_image.h"

#include <elf.h>

#include <cstdint>
#include <cstring>

#include "jit/elf.h"

namespace tilewright::test {
namespace {

// Attributes of .nv.info sections: format, attribute, then a 16-bit value or a length and so many bytes.
constexpr unsigned char kSized = 4, kParameter = 0x17, kRegisters = 0x2f;

template <class T>
T at(std::span<const std::byte> image, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= image.size()) std::memcpy(&value, image.data() + offset, sizeof(T));
  return value;
}

struct Reader {
  std::span<const std::byte> image;
  Elf64_Ehdr header = at<Elf64_Ehdr>(image, 0);
  Elf64_Shdr section(int i) const { return at<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr)); }
  std::string text(const Elf64_Shdr& strings, std::size_t offset) const {
    const char* begin = reinterpret_cast<const char*>(image.data() + strings.sh_offset + offset);
    return offset < strings.sh_size ? std::string(begin, strnlen(begin, strings.sh_size - offset)) : std::string();
  }
  template <class Visit>
  void attributes(const Elf64_Shdr& info, Visit visit) const {
    for (std::size_t p = info.sh_offset; p + 4 <= info.sh_offset + info.sh_size;) {
      const auto format = at<unsigned char>(image, p), what = at<unsigned char>(image, p + 1);
      const auto size = at<std::uint16_t>(image, p + 2);
      if (format == kSized) visit(what, p + 4);
      p += 4 + (format == kSized ? size : 0);
    }
  }
};

std::map<std::uint32_t, std::string> symbol_names(const Reader& reader) {
  std::map<std::uint32_t, std::string> names;
  for (int i = 0; i < reader.header.e_shnum; ++i) {
    const auto table = reader.section(i);
    if (table.sh_type != SHT_SYMTAB) continue;
    for (std::uint32_t n = 0; n < table.sh_size / sizeof(Elf64_Sym); ++n) {
      const auto symbol = at<Elf64_Sym>(reader.image, table.sh_offset + n * sizeof(Elf64_Sym));
      names[n] = reader.text(reader.section(static_cast<int>(table.sh_link)), symbol.st_name);
    }
  }
  return names;
}

}  // namespace

FakeImageInfo read_image(std::span<const std::byte> image) {
  FakeImageInfo found;
  for (const auto& name : jit::elf_entries(image)) found.entries[name];
  if (found.entries.empty()) return found;
  const Reader reader{image};
  const bool wide = reader.header.e_ident[EI_ABIVERSION] >= 8;  // where CUDA 13 keeps the target
  found.sm = static_cast<int>(reader.header.e_flags >> (wide ? 8 : 0)) & 0xff;
  const auto symbols = symbol_names(reader);
  const auto strings = reader.section(reader.header.e_shstrndx);
  for (int i = 0; i < reader.header.e_shnum; ++i) {
    const auto section = reader.section(i);
    const std::string name = reader.text(strings, section.sh_name);
    for (auto& [entry, info] : found.entries) {
      if (name == ".nv.shared." + entry)
        info.shared_bytes = static_cast<int>(section.sh_size) - (found.sm >= 90 ? 1024 : 0);  // the system's share
      if (name != ".nv.info." + entry) continue;
      reader.attributes(section, [&, &params = info.params](unsigned char what, std::size_t p) {
        if (what != kParameter) return;
        const auto ordinal = at<std::uint16_t>(image, p + 4);
        if (params.size() <= ordinal) params.resize(ordinal + 1);
        params[ordinal] = at<std::uint32_t>(image, p + 8) >> 18;
      });
    }
    if (name == ".nv.info")
      reader.attributes(section, [&](unsigned char what, std::size_t p) {
        const auto symbol = symbols.find(at<std::uint32_t>(image, p));
        if (what != kRegisters || symbol == symbols.end()) return;
        const auto entry = found.entries.find(symbol->second);
        if (entry != found.entries.end()) entry->second.registers = at<int>(image, p + 4);
      });
  }
  return found;
}

std::vector<std::byte> make_image(const std::string& entry, int sm, const std::vector<std::size_t>& params,
                                  unsigned salt) {
  std::string bytes(sizeof(Elf64_Ehdr), '\0');
  std::vector<Elf64_Shdr> sections(1);
  std::string names(1, '\0');
  auto add = [&](const std::string& name, std::uint32_t type, const std::string& content, std::uint32_t link) {
    Elf64_Shdr section{};
    section.sh_name = static_cast<std::uint32_t>(names.size());
    section.sh_type = type;
    section.sh_offset = bytes.size();
    section.sh_size = content.size();
    section.sh_link = link;
    names += name + '\0';
    bytes += content;
    sections.push_back(section);
  };
  auto raw = [](const auto& value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); };

  Elf64_Sym kernel{};
  kernel.st_name = 1;
  kernel.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  kernel.st_shndx = 4;
  add(".strtab", SHT_STRTAB, '\0' + entry + '\0', 0);
  add(".symtab", SHT_SYMTAB, raw(Elf64_Sym{}) + raw(kernel), 1);
  std::string info;
  for (std::size_t i = 0; i < params.size(); ++i) {
    info += {static_cast<char>(kSized), static_cast<char>(kParameter), 12, 0};
    info += raw(std::uint32_t{0}) + raw(static_cast<std::uint16_t>(i)) + raw(std::uint16_t{0}) +
            raw(static_cast<std::uint32_t>(params[i] << 18));
  }
  add(".nv.info." + entry, SHT_PROGBITS, info, 2);
  add(".text." + entry, SHT_PROGBITS, raw(salt), 2);
  add(".shstrtab", SHT_STRTAB, names + ".shstrtab" + '\0', 0);

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident,
              "\x7f"
              "ELF\x02\x01\x01\x41\x08",
              9);
  header.e_type = ET_EXEC;
  header.e_machine = 190;
  header.e_version = 1;
  header.e_flags = static_cast<std::uint32_t>(sm) << 8;
  header.e_shoff = bytes.size();
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<std::uint16_t>(sections.size());
  header.e_shstrndx = static_cast<std::uint16_t>(sections.size() - 1);
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (const auto& section : sections) bytes += raw(section);
  std::vector<std::byte> image(bytes.size());
  std::memcpy(image.data(), bytes.data(), bytes.size());
  return image;
}

}  // namespace tilewright::test
