// SPDX-License-Identifier: Apache-2.0
// CPUs as targets. Feature lists and not names of CPUs: a virtual machine's CPU often lacks what its name promises.
#include <tilewright/arch.h>
#include <tilewright/host_archs.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tilewright {
namespace {

constexpr const char* kLinuxX86 = "x86_64-unknown-linux-gnu";
#define TW_V3                                                                                                       \
  "+64bit,+cmov,+cx8,+fxsr,+mmx,+x87,+sse,+sse2,+cx16,+sahf,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3,+avx,+avx2,+bmi,+" \
  "bmi2,"                                                                                                           \
  "+f16c,+fma,+lzcnt,+movbe,+xsave"

constexpr CpuTarget kPlain = {kLinuxX86, "", 0, 0, false, false, false};
constexpr CpuTarget kV3 = {kLinuxX86, TW_V3, 32, 16, false, false, false};
constexpr CpuTarget kV3Vnni = {kLinuxX86, TW_V3 ",+avxvnni", 32, 16, true, false, false};
#define TW_V4 TW_V3 ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,+avx512vnni"
constexpr CpuTarget kV4Vnni = {kLinuxX86, TW_V4, 64, 32, true, false, false};
constexpr CpuTarget kV4VnniAmx = {kLinuxX86, TW_V4 ",+amx-tile,+amx-int8,+amx-bf16", 64, 32, true, false, true};
constexpr const char* kLinuxArm = "aarch64-unknown-linux-gnu";
#define TW_ARM "+neon,+fp-armv8,+v8.2a,+dotprod"
constexpr CpuTarget kArmPlain = {kLinuxArm, "", 0, 0, false, false, false};
constexpr CpuTarget kArmDot = {kLinuxArm, TW_ARM, 16, 32, true, true, false};
constexpr CpuTarget kArmI8mm = {kLinuxArm, TW_ARM ",+i8mm", 16, 32, true, false, false};

// Typical: eight cores, their share of a server's memory bandwidth, and the rate of cpu_codes
// (templates/operations/gemm/cpu/gemm.cpp).
constexpr Arch row(const char* name, const CpuTarget& cpu, double tflops, const char* run_on) {
  Arch a = {};
  a.name = name;
  a.typical_sms = 8;
  a.typical_tbps = 0.08;
  a.typical_mma16_tf = tflops;
  a.threads_per_sm = 1;
  a.run_on = run_on;
  a.cpu = &cpu;
  return a;
}
constexpr std::array kCpus = {
    row("x86-64", kPlain, 0.05, nullptr),
    row("x86-64-v3", kV3, 1.5, "AMD Zen 3"),
    row("x86-64-v3+avxvnni", kV3Vnni, 2.0, nullptr),
    row("x86-64-v4+vnni", kV4Vnni, 3.2, "an Intel Xeon with AMX"),
    row("x86-64-v4+vnni+amx", kV4VnniAmx, 3.2, "an Intel Xeon with AMX"),
    row("aarch64", kArmPlain, 0.05, nullptr),
    row("armv8.2+dotprod", kArmDot, 1.0, nullptr),
    row("armv8.2+dotprod+i8mm", kArmI8mm, 1.0, nullptr),
};

// How this machine tells which of the rows' features it has, each as LLVM spells it.
#if defined(__x86_64__)
constexpr const char* kTriple = kLinuxX86;

// Registers of CPUID that tell of features.
enum Word { kOneC, kOneD, kSevenB, kSevenC, kSevenD, kSevenOneA, kExtendedC, kExtendedD, kWords };
constexpr unsigned bit(int i) { return 1u << i; }
// Bits of XCR0: registers that the operating system saves.
constexpr unsigned kYmm = bit(1) | bit(2), kZmm = kYmm | bit(5) | bit(6) | bit(7), kTiles = bit(17) | bit(18);

struct Feature {
  std::string_view name;
  Word word;
  int bit;
  unsigned saved = 0;  // what it needs of XCR0
};
constexpr Feature kFeatures[] = {
    {"64bit", kExtendedD, 29},
    {"x87", kOneD, 0},
    {"cx8", kOneD, 8},
    {"cmov", kOneD, 15},
    {"mmx", kOneD, 23},
    {"fxsr", kOneD, 24},
    {"sse", kOneD, 25},
    {"sse2", kOneD, 26},
    {"sse3", kOneC, 0},
    {"ssse3", kOneC, 9},
    {"fma", kOneC, 12, kYmm},
    {"cx16", kOneC, 13},
    {"sse4.1", kOneC, 19},
    {"sse4.2", kOneC, 20},
    {"movbe", kOneC, 22},
    {"popcnt", kOneC, 23},
    {"xsave", kOneC, 26, kYmm},
    {"avx", kOneC, 28, kYmm},
    {"f16c", kOneC, 29, kYmm},
    {"sahf", kExtendedC, 0},
    {"lzcnt", kExtendedC, 5},
    {"bmi", kSevenB, 3},
    {"avx2", kSevenB, 5, kYmm},
    {"bmi2", kSevenB, 8},
    {"avx512f", kSevenB, 16, kZmm},
    {"avx512dq", kSevenB, 17, kZmm},
    {"avx512cd", kSevenB, 28, kZmm},
    {"avx512bw", kSevenB, 30, kZmm},
    {"avx512vl", kSevenB, 31, kZmm},
    {"avx512vnni", kSevenC, 11, kZmm},
    {"avxvnni", kSevenOneA, 4, kYmm},
    {"amx-bf16", kSevenD, 22, kTiles},
    {"amx-tile", kSevenD, 24, kTiles},
    {"amx-int8", kSevenD, 25, kTiles},
};

// Whether Linux knows the tiles' state: a process has to ask for it (jit/cpu/driver.cpp).
bool gives_tiles() {
  constexpr int kGetSupported = 0x1021;  // ARCH_GET_XCOMP_SUPP
  unsigned long long components = 0;
  return ::syscall(SYS_arch_prctl, kGetSupported, &components) == 0 && (components >> 18 & 1) != 0;
}

struct Machine {
  unsigned words[kWords] = {};
  unsigned saved = 0;

  Machine() {
    unsigned a = 0, b = 0, c = 0;  // of no interest
    __get_cpuid_count(1, 0, &a, &b, &words[kOneC], &words[kOneD]);
    __get_cpuid_count(7, 0, &a, &words[kSevenB], &words[kSevenC], &words[kSevenD]);
    __get_cpuid_count(7, 1, &words[kSevenOneA], &a, &b, &c);
    __get_cpuid_count(0x80000001u, 0, &a, &b, &words[kExtendedC], &words[kExtendedD]);
    if (words[kOneC] & bit(27)) {  // OSXSAVE
      __asm__ volatile("xgetbv" : "=a"(saved), "=d"(a) : "c"(0));
      if (!gives_tiles()) saved &= ~kTiles;
    }
  }
  bool has(const Feature& f) const { return (words[f.word] & bit(f.bit)) && (saved & f.saved) == f.saved; }
};
#elif defined(__aarch64__)
constexpr const char* kTriple = kLinuxArm;

struct Feature {
  std::string_view name;
  int type, bit;  // of the auxiliary vector
};
constexpr Feature kFeatures[] = {
    {"fp-armv8", AT_HWCAP, 0}, {"neon", AT_HWCAP, 1},   {"v8.2a", AT_HWCAP, 20},  // which has no bit but its SDOT's
    {"dotprod", AT_HWCAP, 20}, {"i8mm", AT_HWCAP2, 13},
};

struct Machine {
  bool has(const Feature& f) const { return ::getauxval(static_cast<unsigned long>(f.type)) >> f.bit & 1; }
};
#else  // the first row, which has no features
constexpr const char* kTriple = kLinuxX86;

struct Feature {
  std::string_view name;
};
constexpr std::array<Feature, 0> kFeatures = {};

struct Machine {
  bool has(const Feature&) const { return false; }
};
#endif

// Whether `has(feature)` of all features of a list: "+avx2,+fma".
template <class Has>
constexpr bool all_of(std::string_view list, Has has) {
  while (!list.empty()) {
    const std::string_view one = list.substr(1, list.find(',') - 1);
    const auto known = std::find_if(std::begin(kFeatures), std::end(kFeatures), [&](auto& f) { return f.name == one; });
    if (known == std::end(kFeatures) || !has(*known)) return false;
    list.remove_prefix(std::min(one.size() + 2, list.size()));
  }
  return true;
}
constexpr bool is_this_machines(const Arch& a) { return std::string_view(a.cpu->triple) == kTriple; }
static_assert(std::all_of(kCpus.begin(), kCpus.end(),
                          [](const Arch& a) {
                            return !is_this_machines(a) || std::size(kFeatures) == 0 ||
                                   all_of(a.cpu->features, [](auto&) { return true; });
                          }),
              "kFeatures lacks a feature of a row, which no machine would run then");

}  // namespace

std::span<const Arch> cpu_archs() { return kCpus; }

std::span<const Arch* const> host_archs() {
  struct Rows {
    std::array<const Arch*, kCpus.size()> row = {};
    std::size_t count = 0;
  };
  static const Rows rows = [] {
    const Machine machine;
    Rows found;
    for (const Arch& a : kCpus)
      if (is_this_machines(a) && all_of(a.cpu->features, [&](auto& f) { return machine.has(f); }))
        found.row[found.count++] = &a;
    return found;
  }();
  return {rows.row.data(), rows.count};
}

const Arch& host_arch() { return *host_archs().back(); }

}  // namespace tilewright
