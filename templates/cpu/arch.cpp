// SPDX-License-Identifier: Apache-2.0
// CPUs as targets. Feature lists and not names of CPUs: a virtual machine's CPU often lacks what its name promises.
#include <tilewright/arch.h>

#include <array>

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

// Typical: eight cores, their share of a server's memory bandwidth, and the rate of cpu_codes (templates/cpu/gemm.cpp).
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

#if defined(__x86_64__)
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}
constexpr bool has(unsigned word, unsigned bits) { return (word & bits) == bits; }
constexpr unsigned bit(int i) { return 1u << i; }

// Which vector registers the operating system saves: bits of XCR0.
unsigned saved_state() {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Whether Linux knows the tiles' state: a process has to ask for it (jit/cpu/driver.cpp).
bool gives_tiles() {
  constexpr int kGetSupported = 0x1021;  // ARCH_GET_XCOMP_SUPP
  unsigned long long components = 0;
  return ::syscall(SYS_arch_prctl, kGetSupported, &components) == 0 && (components >> 18 & 1) != 0;
}

// The number of rows of kCpus whose features this machine has, in the order of the table.
const Arch& find_host() {
  const Registers one = cpuid(1), seven = cpuid(7), more = cpuid(7, 1), extended = cpuid(0x80000001u);
  // FMA, CX16, SSE4.1, SSE4.2, MOVBE, POPCNT, XSAVE and OSXSAVE, AVX, F16C; of leaf 7 BMI1, AVX2, BMI2; LZCNT, LAHF.
  const bool v3 = has(one.c, bit(0) | bit(9) | bit(12) | bit(13) | bit(19) | bit(20) | bit(22) | bit(23) | bit(26) |
                                 bit(27) | bit(28) | bit(29)) &&
                  has(seven.b, bit(3) | bit(5) | bit(8)) && has(extended.c, bit(0) | bit(5));
  const unsigned saved = has(one.c, bit(27)) ? saved_state() : 0;
  if (!v3 || !has(saved, bit(1) | bit(2))) return kCpus[0];
  // AVX512F, DQ, CD, BW, VL and VNNI, with their registers.
  if (has(seven.b, bit(16) | bit(17) | bit(28) | bit(30) | bit(31)) && has(seven.c, bit(11)) &&
      has(saved, bit(5) | bit(6) | bit(7)))
    // AMX-BF16, AMX-TILE and AMX-INT8, with their registers, if the system gives them to processes that ask.
    return has(seven.d, bit(22) | bit(24) | bit(25)) && has(saved, bit(17) | bit(18)) && gives_tiles() ? kCpus[4]
                                                                                                       : kCpus[3];
  return has(more.a, bit(4)) ? kCpus[2] : kCpus[1];
}
#elif defined(__aarch64__)
const Arch& find_host() {
  const unsigned long features = ::getauxval(AT_HWCAP), more = ::getauxval(AT_HWCAP2);
  constexpr unsigned long kDotProduct = 1ul << 20, kI8mm = 1ul << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  return !(features & kDotProduct) ? kCpus[5] : !(more & kI8mm) ? kCpus[6] : kCpus[7];
}
#else
const Arch& find_host() { return kCpus[0]; }
#endif

}  // namespace

std::span<const Arch> cpu_archs() { return kCpus; }

const Arch& host_arch() {
  static const Arch& host = find_host();
  return host;
}

}  // namespace tilewright
