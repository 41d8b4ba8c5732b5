// SPDX-License-Identifier: Apache-2.0
#include "jit/cpu/object.h"

#include <elf.h>
#include <tilewright/family.h>

#include <fstream>
#include <iterator>
#include <random>

#include "cpu_test.h"
#include "support/paths.h"

using namespace tilewright;
using namespace tilewright::jit::cpu;

namespace {

// Objects that compilers made, and what the loader says about each: the corpus of the fuzzer.
std::vector<std::byte> corpus(const std::string& name) {
  std::ifstream file(paths::source_dir() + "/tests/fuzz/corpus/object/" + name, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  REQUIRE_FALSE(bytes.empty());
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

std::string refused_with(const std::vector<std::byte>& image) {
  const Error e = refusal([&] { read_object(image); });
  CHECK(e.code() == ErrorCode::invalid_argument);
  CHECK(e.field() == "binary.image");
  CHECK(object_defect(image) == e.allowed());
  const std::string begin = "cannot be loaded: ";
  REQUIRE(e.allowed().starts_with(begin));
  return e.allowed().substr(begin.size());
}

template <class T>
T at(const std::vector<std::byte>& image, std::size_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof value);
  return value;
}
template <class T>
void put(std::vector<std::byte>& image, std::size_t offset, const T& value) {
  std::memcpy(image.data() + offset, &value, sizeof value);
}
// Where section `index`'s header is.
std::size_t section(const std::vector<std::byte>& image, std::size_t index) {
  return at<Elf64_Ehdr>(image, 0).e_shoff + index * sizeof(Elf64_Shdr);
}
std::size_t find_section(const std::vector<std::byte>& image, std::uint32_t type, std::uint64_t flags = 0) {
  for (std::size_t i = 0; i < at<Elf64_Ehdr>(image, 0).e_shnum; ++i) {
    const auto s = at<Elf64_Shdr>(image, section(image, i));
    if (s.sh_type == type && (s.sh_flags & flags) == flags) return i;
  }
  FAIL("no such section");
  return 0;
}

}  // namespace

TEST_CASE("an object becomes functions that see their constants") {
  const Object object = read_object(corpus("add.o"));
  CHECK(object.functions.size() == 1);
  CHECK(object.code_bytes > 0);
  CHECK(object.bytes.size() > object.code_bytes);  // constants
  const Code code(object);
  CHECK(code.at("absent") == nullptr);
  auto* add = reinterpret_cast<void (*)(float*, int)>(code.at("k"));
  REQUIRE(add);
  float v[4] = {1, 2, 3, 4};
  add(v, 4);
  CHECK(v[0] == 1.5f);
  CHECK(v[3] == 4.5f);
}

TEST_CASE("what an object may not have is refused by name") {
  CHECK(refused_with(corpus("undefined.o")).find("undefined symbol memset") != std::string::npos);
  CHECK(refused_with(corpus("writable.o")).find("can be written") != std::string::npos);
  CHECK(refused_with(corpus("thread_local.o")).find("section .tdata: thread-local") != std::string::npos);
  CHECK(refused_with(corpus("initializer.o")).find("section .init_array: ") != std::string::npos);
  CHECK(refused_with(corpus("absolute.o")).find("relocation of type 1;") != std::string::npos);
}

TEST_CASE("header and tables are held against the image") {
  const std::vector<std::byte> good = corpus("add.o");
  REQUIRE(object_defect(good).empty());
  const auto with = [&](auto change) {
    std::vector<std::byte> image = good;
    change(image);
    return refused_with(image);
  };
  const auto with_header = [&](auto change) {
    return with([&](auto& image) {
      auto h = at<Elf64_Ehdr>(image, 0);
      change(h);
      put(image, 0, h);
    });
  };
  CHECK(with_header([](auto& h) { h.e_ident[0] = 0; }) == "not a 64-bit little-endian ELF file");
  CHECK(with_header([](auto& h) { h.e_type = ET_EXEC; }) == "not a relocatable object");
  CHECK(with_header([](auto& h) { h.e_machine = EM_386; }) == "for machine 3; x86-64 is 62, AArch64 183");
  CHECK(with_header([](auto& h) { h.e_shnum = 0xffff; }).find("65535 sections") == 0);
  CHECK(with_header([](auto& h) { h.e_shoff = ~0ull - 8; }).find("truncated") == 0);
  CHECK(with_header([](auto& h) { h.e_shstrndx = 0xff; }).find("section names") != std::string::npos);
  const std::size_t text = find_section(good, SHT_PROGBITS, SHF_EXECINSTR), symbols = find_section(good, SHT_SYMTAB),
                    relocations = find_section(good, SHT_RELA);
  const auto with_section = [&](std::size_t index, auto change) {
    return with([&](auto& image) {
      auto s = at<Elf64_Shdr>(image, section(image, index));
      change(s);
      put(image, section(image, index), s);
    });
  };
  CHECK(with_section(text, [](auto& s) { s.sh_size = ~0ull; }).find("truncated") == 0);
  CHECK(with_section(text, [](auto& s) { s.sh_flags |= SHF_WRITE; }).find("can be written") != std::string::npos);
  CHECK(with_section(text, [](auto& s) { s.sh_addralign = 3; }).find("aligned to 3") != std::string::npos);
  CHECK(with_section(text, [](auto& s) { s.sh_type = SHT_NOBITS; }).find("type 8") != std::string::npos);
  CHECK(with_section(symbols, [](auto& s) { s.sh_entsize = 8; }).find("table of symbols") != std::string::npos);
  CHECK(with_section(relocations, [](auto& s) { s.sh_type = SHT_REL; }) == "relocations without addends");
  const auto with_relocation = [&](auto change) {
    return with([&](auto& image) {
      const std::size_t offset = at<Elf64_Shdr>(image, section(image, relocations)).sh_offset;
      auto r = at<Elf64_Rela>(image, offset);
      change(r);
      put(image, offset, r);
    });
  };
  CHECK(with_relocation([](auto& r) { r.r_offset = ~0ull - 1; }) == "a relocation outside its section");
  CHECK(with_relocation([](auto& r) { r.r_addend = 1ll << 40; }) == "a relocation far beyond its symbol");
  CHECK(with_relocation([](auto& r) { r.r_addend = -4200; }) == "a relocation to what is not loaded");
  CHECK(with_relocation([](auto& r) { r.r_info = ELF64_R_INFO(9999, R_X86_64_PC32); }) == "a relocation by no symbol");
  CHECK(with_relocation([](auto& r) { r.r_info = ELF64_R_INFO(1, R_X86_64_64); }).find("type 1") != std::string::npos);
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::vector<std::byte> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    if (size < at<Elf64_Ehdr>(good, 0).e_shoff) CHECK_FALSE(object_defect(cut).empty());
    (void)object_defect(cut);
  }
}

// Not a test: writes the corpus' object of a kernel as LLVM makes it (corpus/object/make.py) to the file that is named,
// for TILEWRIGHT_KERNEL_TARGET.
TEST_CASE("write kernel.o", "[.corpus]") {
  const char* file = std::getenv("TILEWRIGHT_KERNEL_OBJECT");
  if (!file) return;  // a filter's wildcards picked it
  const Problem problem = Problem::parse("gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=64 pack=panels x_from=f32");
  const Family& f = family("gemm", "cpu_gemv");
  const char* name = std::getenv("TILEWRIGHT_KERNEL_TARGET");
  const Arch& target = arch(name ? name : "x86-64-v3");
  const Binary b = compile(f.source(problem, target, f.candidates(problem, target).front()), target, test::llvm());
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(b.image.data()), static_cast<std::streamsize>(b.image.size()));
}

// Whatever the bytes, an object is refused or lies in memory; nothing is read or written beyond it. The fuzzer
// (tests/fuzz/object_fuzz.cpp) does the same for longer; TILEWRIGHT_MUTANTS says for how many.
TEST_CASE("mutants of objects are refused or loaded") {
  const char* wanted = std::getenv("TILEWRIGHT_MUTANTS");
  const long mutants = wanted ? std::atol(wanted) : 30000;
  const std::vector<std::vector<std::byte>> seeds = {corpus("add.o"), corpus("kernel.o"), corpus("arm.o"),
                                                     corpus("absolute.o")};
  std::mt19937 random(1);
  long loaded = 0;
  for (long i = 0; i < mutants; ++i) {
    std::vector<std::byte> image = seeds[random() % seeds.size()];
    const auto header = at<Elf64_Ehdr>(image, 0);
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      // Half of the time in the tables, which is where a reader can be led astray.
      std::size_t where = random() % image.size();
      if (random() % 2)
        where = std::min<std::size_t>(image.size() - 8, header.e_shoff + random() % (header.e_shnum * 64u));
      switch (random() % 4) {
        case 0: image[where] = static_cast<std::byte>(random()); break;
        case 1: image[where] ^= static_cast<std::byte>(1u << random() % 8); break;
        case 2:
          for (std::size_t j = where; j < std::min(where + 8, image.size()); ++j) image[j] = std::byte{0xff};
          break;
        default:
          for (std::size_t j = where; j < std::min(where + 4, image.size()); ++j)
            image[j] = static_cast<std::byte>(random() % 3);
      }
    }
    if (random() % 16 == 0) image.resize(random() % image.size());
    image.shrink_to_fit();
    try {
      const Object object = read_object(image);
      for (const auto& [name, begin] : object.functions)
        if (begin >= object.code_bytes) FAIL("a function outside the code");
      if (i % 16 == 0) (void)Code(object);
      ++loaded;
    } catch (const Error& e) {
      if (e.allowed().empty()) FAIL("refused without a reason");
    }
  }
  CHECK(loaded > 0);
  CHECK(loaded < mutants);
}
