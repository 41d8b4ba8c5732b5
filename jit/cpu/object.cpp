// SPDX-License-Identifier: Apache-2.0
// Layout and numbers: System V ABI, chapter 4, its AMD64 supplement, table 4.9, and ELF for the Arm 64-bit
// Architecture, sections 5.7.5 to 5.7.7.
#include "jit/cpu/object.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <tilewright/error.h>

namespace tilewright::jit::cpu {
namespace {

constexpr std::size_t kPage = 4096, kArmPage = 65536;  // Arm's systems have pages of 4, 16 or 64 KiB
#if defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#else
constexpr int kMachine = EM_X86_64;
#endif
constexpr std::uint64_t kMostAlign = kPage;
constexpr std::size_t kMostSections = 256, kMostName = 256;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "binary.image", "", "cannot be loaded: " + why);
}

std::size_t rounded(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

class Reader {
 public:
  explicit Reader(std::span<const std::byte> image) : image_(image) {}
  Object read() {
    check_header();
    read_sections();
    place(true);
    object_.code_bytes = object_.bytes.size();
    place(false);
    for (std::size_t i = 0; i < sections_.size(); ++i)
      if (sections_[i].sh_type == SHT_SYMTAB) read_symbols(i);
    for (const Elf64_Shdr& s : sections_)
      if (s.sh_type == SHT_RELA || s.sh_type == SHT_REL) relocate(s);
    return std::move(object_);
  }

 private:
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  template <class T>
  T at(std::uint64_t offset) const {  // the range was checked; an image may start at any address
    T value;
    std::memcpy(&value, image_.data() + offset, sizeof value);
    return value;
  }
  bool inside(std::uint64_t offset, std::uint64_t size) const {
    return offset <= image_.size() && size <= image_.size() - offset;
  }

  void check_header() {
    if (image_.size() > kMostObjectBytes)
      refuse(fmt::format("an object of {} bytes; at most {} are taken", image_.size(), kMostObjectBytes));
    if (image_.size() < sizeof(Elf64_Ehdr)) refuse("shorter than an ELF header");
    header_ = at<Elf64_Ehdr>(0);
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0 || header_.e_ident[EI_CLASS] != ELFCLASS64 ||
        header_.e_ident[EI_DATA] != ELFDATA2LSB)
      refuse("not a 64-bit little-endian ELF file");
    if (header_.e_type != ET_REL) refuse("not a relocatable object");
    if (header_.e_machine != EM_X86_64 && header_.e_machine != EM_AARCH64)
      refuse(fmt::format("for machine {}; x86-64 is {}, AArch64 {}", header_.e_machine, EM_X86_64, EM_AARCH64));
    object_.machine = header_.e_machine;
    if (header_.e_shentsize != sizeof(Elf64_Shdr) || header_.e_shnum == 0 || header_.e_shnum > kMostSections)
      refuse(fmt::format("{} sections; 1 to {} are taken", header_.e_shnum, kMostSections));
    if (!inside(header_.e_shoff, std::uint64_t{header_.e_shnum} * sizeof(Elf64_Shdr)))
      refuse("truncated: its section table lies beyond its end");
    if (header_.e_shstrndx >= header_.e_shnum) refuse("its table of section names is none of its sections");
  }

  void read_sections() {
    for (std::size_t i = 0; i < header_.e_shnum; ++i) {
      const auto s = at<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr));
      if (s.sh_type != SHT_NOBITS && s.sh_type != SHT_NULL && !inside(s.sh_offset, s.sh_size))
        refuse(fmt::format("truncated: section {} lies beyond its end", i));
      sections_.push_back(s);
    }
    if (sections_[header_.e_shstrndx].sh_type != SHT_STRTAB)
      refuse("its table of section names is no table of strings");
    for (std::size_t i = 0; i < sections_.size(); ++i)
      if (is_loaded(sections_[i])) check_loaded(i);
    places_.assign(sections_.size(), kNowhere);
  }
  // GCC has empty sections for data, too.
  static bool is_loaded(const Elf64_Shdr& s) { return (s.sh_flags & SHF_ALLOC) && s.sh_size > 0; }
  void check_loaded(std::size_t index) const {
    const Elf64_Shdr& s = sections_[index];
    const std::string name = text(sections_[header_.e_shstrndx], s.sh_name);
    constexpr std::uint64_t kTaken = SHF_ALLOC | SHF_EXECINSTR | SHF_MERGE | SHF_STRINGS;
    if (s.sh_flags & SHF_TLS) refuse(fmt::format("section {}: thread-local memory", name));
    if (s.sh_flags & SHF_WRITE) refuse(fmt::format("section {}: memory that can be written", name));
    if (s.sh_flags & ~kTaken) refuse(fmt::format("section {}: flags {:#x}", name, s.sh_flags));
    if (s.sh_type != SHT_PROGBITS)
      refuse(fmt::format("section {}: type {}; only code and constants are taken", name, s.sh_type));
    if (s.sh_addralign > kMostAlign || (s.sh_addralign && !std::has_single_bit(s.sh_addralign)))
      refuse(fmt::format("section {}: aligned to {}; a power of two up to {}", name, s.sh_addralign, kMostAlign));
  }

  // Copies the sections of one kind to the end of what there is, which becomes whole pages.
  void place(bool code) {
    std::size_t end = object_.bytes.size();
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      const Elf64_Shdr& s = sections_[i];
      if (!is_loaded(s) || bool(s.sh_flags & SHF_EXECINSTR) != code) continue;
      places_[i] = rounded(end, std::max<std::uint64_t>(s.sh_addralign, 1));
      end = places_[i] + s.sh_size;
      if (end > 2 * kMostObjectBytes) refuse("sections that overlap");
    }
    const bool arm = object_.machine == EM_AARCH64;
    // Where no code is, an instruction that stops the program: int3; of Arm's, all zero.
    object_.bytes.resize(rounded(end, arm ? kArmPage : kPage), code && !arm ? std::byte{0xcc} : std::byte{0});
    for (std::size_t i = 0; i < sections_.size(); ++i)
      if (places_[i] != kNowhere && bool(sections_[i].sh_flags & SHF_EXECINSTR) == code)
        std::copy_n(image_.data() + sections_[i].sh_offset, sections_[i].sh_size, object_.bytes.data() + places_[i]);
  }

  std::string text(const Elf64_Shdr& strings, std::uint32_t offset) const {
    if (strings.sh_type != SHT_STRTAB || offset >= strings.sh_size) refuse("a name outside the table of names");
    const char* begin = reinterpret_cast<const char*>(image_.data() + strings.sh_offset + offset);
    const std::size_t most = std::min<std::size_t>(strings.sh_size - offset, kMostName);
    const std::size_t length = ::strnlen(begin, most);
    if (length == most) refuse("a name without an end");
    return {begin, length};
  }

  void read_symbols(std::size_t index) {
    const Elf64_Shdr& table = sections_[index];
    if (symbols_ != kNowhere) refuse("two tables of symbols");
    if (table.sh_entsize != sizeof(Elf64_Sym) || table.sh_size % sizeof(Elf64_Sym) != 0 ||
        table.sh_link >= sections_.size())
      refuse("a table of symbols that is none");
    symbols_ = index;
    const std::size_t count = table.sh_size / sizeof(Elf64_Sym);
    for (std::size_t i = 1; i < count; ++i) {
      const auto symbol = at<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym));
      const unsigned type = ELF64_ST_TYPE(symbol.st_info), binding = ELF64_ST_BIND(symbol.st_info);
      const std::string name = text(sections_[table.sh_link], symbol.st_name);
      if (type == STT_FILE && symbol.st_shndx == SHN_ABS) continue;
      if (symbol.st_shndx == SHN_UNDEF) refuse(fmt::format("undefined symbol {}", name));
      if (symbol.st_shndx >= sections_.size())
        refuse(fmt::format("symbol {} is in nonexistent section {:#x}", name, symbol.st_shndx));
      if (type != STT_NOTYPE && type != STT_OBJECT && type != STT_FUNC && type != STT_SECTION)
        refuse(fmt::format("symbol {} of type {}", name, type));
      if (binding != STB_LOCAL && binding != STB_GLOBAL) refuse(fmt::format("symbol {} of binding {}", name, binding));
      const Elf64_Shdr& s = sections_[symbol.st_shndx];
      if (symbol.st_value > s.sh_size || symbol.st_size > s.sh_size - symbol.st_value)
        refuse(fmt::format("symbol {} lies outside its section", name));
      if (type != STT_FUNC || binding != STB_GLOBAL) continue;
      if (places_[symbol.st_shndx] == kNowhere || !(s.sh_flags & SHF_EXECINSTR) || symbol.st_size == 0)
        refuse(fmt::format("function {} is no code", name));
      if (!object_.functions.emplace(name, places_[symbol.st_shndx] + symbol.st_value).second)
        refuse(fmt::format("two functions {}", name));
    }
  }

  void relocate(const Elf64_Shdr& list) {
    if (list.sh_info >= sections_.size()) refuse("relocations of no section");
    const Elf64_Shdr& target = sections_[list.sh_info];
    const std::size_t place = places_[list.sh_info];
    if (place == kNowhere) return;  // of what is not loaded
    if (list.sh_type != SHT_RELA || list.sh_entsize != sizeof(Elf64_Rela) || list.sh_size % sizeof(Elf64_Rela) != 0)
      refuse("relocations without addends");
    if (symbols_ == kNowhere || list.sh_link != symbols_) refuse("relocations without symbols");
    const Elf64_Shdr& table = sections_[symbols_];
    for (std::uint64_t i = 0; i < list.sh_size / sizeof(Elf64_Rela); ++i) {
      const auto r = at<Elf64_Rela>(list.sh_offset + i * sizeof(Elf64_Rela));
      const std::uint32_t type = ELF64_R_TYPE(r.r_info), number = ELF64_R_SYM(r.r_info);
      check_type(type);
      if (target.sh_size < sizeof(std::int32_t) || r.r_offset > target.sh_size - sizeof(std::int32_t))
        refuse("a relocation outside its section");
      if (number == 0 || number >= table.sh_size / sizeof(Elf64_Sym)) refuse("a relocation by no symbol");
      const auto symbol = at<Elf64_Sym>(table.sh_offset + number * sizeof(Elf64_Sym));
      if (symbol.st_shndx >= sections_.size() || places_[symbol.st_shndx] == kNowhere)
        refuse("a relocation to what is not loaded");
      const auto size = static_cast<std::int64_t>(object_.bytes.size());
      // The addend counts from the instruction's end, which may be 8 bytes behind the field.
      constexpr std::int64_t kBehind = 16;
      if (r.r_addend < -size || r.r_addend > size) refuse("a relocation far beyond its symbol");
      const std::int64_t to = static_cast<std::int64_t>(places_[symbol.st_shndx] + symbol.st_value) + r.r_addend;
      if (to < -kBehind || to > size) refuse("a relocation to what is not loaded");
      resolve(type, to, static_cast<std::int64_t>(place + r.r_offset));
    }
  }

  void check_type(std::uint32_t type) const {
    if (object_.machine == EM_X86_64) {
      if (type != R_X86_64_PC32 && type != R_X86_64_PLT32)
        refuse(fmt::format("relocation of type {}; R_X86_64_PC32 and R_X86_64_PLT32 are taken", type));
      return;
    }
    for (const std::uint32_t taken :
         {R_AARCH64_PREL32, R_AARCH64_ADR_PREL_PG_HI21, R_AARCH64_ADD_ABS_LO12_NC, R_AARCH64_LDST8_ABS_LO12_NC,
          R_AARCH64_LDST16_ABS_LO12_NC, R_AARCH64_LDST32_ABS_LO12_NC, R_AARCH64_LDST64_ABS_LO12_NC,
          R_AARCH64_LDST128_ABS_LO12_NC})
      if (type == taken) return;
    refuse(fmt::format("relocation of type {}; PREL32, ADR_PREL_PG_HI21 and the twelve lower bits are taken", type));
  }
  // The 32 bits at `at` refer to `to`.
  void resolve(std::uint32_t type, std::int64_t to, std::int64_t at) {
    std::uint32_t word = 0;
    std::memcpy(&word, object_.bytes.data() + at, sizeof word);
    // Of code and constants that lie together, a distance of 32 bits is all that there can be.
    const auto put = [&](std::int64_t value, int bits, std::uint32_t mask, int shift) {
      if (value < -(std::int64_t{1} << (bits - 1)) || value >= std::int64_t{1} << (bits - 1))
        refuse("a relocation that does not fit");
      word = (word & ~mask) | (static_cast<std::uint32_t>(value) << shift & mask);
    };
    if (object_.machine == EM_X86_64 || type == R_AARCH64_PREL32) {
      put(to - at, 32, ~0u, 0);
    } else if (type == R_AARCH64_ADR_PREL_PG_HI21) {
      const std::int64_t pages = (to >> 12) - (at >> 12);
      put(pages & 3, 32, 3u << 29, 29);
      put(pages >> 2, 19, 0x7ffffu << 5, 5);
    } else {
      // The lower twelve bits, in units of what an instruction loads. The object lies at the beginning of a page.
      const int unit = type == R_AARCH64_LDST16_ABS_LO12_NC    ? 1
                       : type == R_AARCH64_LDST32_ABS_LO12_NC  ? 2
                       : type == R_AARCH64_LDST64_ABS_LO12_NC  ? 3
                       : type == R_AARCH64_LDST128_ABS_LO12_NC ? 4
                                                               : 0;
      if (to & ((1 << unit) - 1)) refuse("a relocation to what is not aligned");
      put((to & 0xfff) >> unit, 32, 0xfffu << 10, 10);
    }
    std::memcpy(object_.bytes.data() + at, &word, sizeof word);
  }

  std::span<const std::byte> image_;
  Elf64_Ehdr header_ = {};
  std::vector<Elf64_Shdr> sections_;
  std::vector<std::size_t> places_;  // of each section in the object's bytes
  std::size_t symbols_ = kNowhere;
  Object object_;
};

}  // namespace

Object read_object(std::span<const std::byte> image) { return Reader(image).read(); }

std::string object_defect(std::span<const std::byte> image) {
  try {
    (void)read_object(image);
    return {};
  } catch (const Error& error) {
    return error.allowed();
  }
}

Code::Code(const Object& object) : functions_(object.functions), bytes_(object.bytes.size()) {
  if (object.machine != kMachine) refuse(fmt::format("for machine {}; this one is {}", object.machine, kMachine));
  if (bytes_ == 0) return;
  const auto failed = [](const char* call) {
    throw Error(ErrorCode::driver_failed, call, std::strerror(errno),
                "failed: a kernel needs memory, and this system may forbid executable memory to the process");
  };
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) failed("mmap");
  memory_ = static_cast<std::byte*>(memory);
  std::memcpy(memory_, object.bytes.data(), bytes_);
  const std::size_t code = object.code_bytes;
#if defined(__aarch64__)
  __builtin___clear_cache(reinterpret_cast<char*>(memory_), reinterpret_cast<char*>(memory_) + code);
#endif
  const bool protected_all = (code == 0 || ::mprotect(memory_, code, PROT_READ | PROT_EXEC) == 0) &&
                             (code == bytes_ || ::mprotect(memory_ + code, bytes_ - code, PROT_READ) == 0);
  if (!protected_all) {
    const int error = errno;
    ::munmap(memory_, bytes_);
    errno = error;
    failed("mprotect");
  }
}

Code::~Code() {
  if (memory_) ::munmap(memory_, bytes_);
}

void* Code::at(const std::string& function) const {
  const auto found = functions_.find(function);
  return found == functions_.end() ? nullptr : memory_ + found->second;
}

}  // namespace tilewright::jit::cpu
