// SPDX-License-Identifier: Apache-2.0
#include <tilewright/arch.h>
#include <tilewright/error.h>

#include <string>

namespace tilewright {
namespace {

constexpr int kKiB = 1024;

// One row per target. Limits: CUDA programming guide, technical specifications per compute capability. Typical devices:
// T4, A100 80GB, RTX 3090, Orin, RTX 4090, H200, B200, B300, Thor, RTX 5090, GB10; matrix rates are what mma.sync
// reaches, which on sm_90 and sm_100 is well below the native matrix instructions.
constexpr Arch kArchs[] = {
    // name     major minor cp.async bf16 s8k32 f8 scaled cluster tma wgmma  shared/block  shared/SM  threads/SM  SMs
    // TB/s  TF  run on
    {"sm_75", 7, 5, false, false, false, false, false, false, false, false, 64 * kKiB, 64 * kKiB, 1024, 40, 0.30, 50,
     nullptr},
    {"sm_80", 8, 0, true, true, true, false, false, false, false, false, 163 * kKiB, 164 * kKiB, 2048, 108, 1.80, 250,
     nullptr},
    {"sm_86", 8, 6, true, true, true, false, false, false, false, false, 99 * kKiB, 100 * kKiB, 1536, 82, 0.87, 70,
     nullptr},
    {"sm_87", 8, 7, true, true, true, false, false, false, false, false, 163 * kKiB, 164 * kKiB, 1536, 16, 0.18, 30,
     nullptr},
    {"sm_89", 8, 9, true, true, true, true, false, false, false, false, 99 * kKiB, 100 * kKiB, 1536, 128, 0.92, 150,
     nullptr},
    {"sm_90a", 9, 0, true, true, true, false, false, true, true, true, 227 * kKiB, 228 * kKiB, 2048, 132, 4.65, 560,
     "NVIDIA H200"},
    {"sm_100a", 10, 0, true, true, true, true, false, true, true, false, 227 * kKiB, 228 * kKiB, 2048, 148, 7.20, 560,
     nullptr},
    {"sm_103a", 10, 3, true, true, true, true, false, true, true, false, 227 * kKiB, 228 * kKiB, 2048, 148, 7.20, 560,
     nullptr},
    {"sm_110a", 11, 0, true, true, true, true, false, true, true, false, 227 * kKiB, 228 * kKiB, 1536, 20, 0.25, 100,
     nullptr},
    {"sm_120", 12, 0, true, true, true, true, false, true, true, false, 99 * kKiB, 100 * kKiB, 1536, 170, 1.60, 210,
     nullptr},
    {"sm_120a", 12, 0, true, true, true, true, true, true, true, false, 99 * kKiB, 100 * kKiB, 1536, 170, 1.60, 210,
     nullptr},
    {"sm_121a", 12, 1, true, true, true, true, true, true, true, false, 99 * kKiB, 100 * kKiB, 1536, 48, 0.27, 60,
     nullptr},
};

bool has_suffix(const Arch& a) {
  const std::string_view name = a.name;
  return name.back() < '0' || name.back() > '9';
}

}  // namespace

std::span<const Arch> archs() { return kArchs; }

const Arch& arch(std::string_view name) {
  std::string names;
  for (const Arch& a : kArchs) {
    if (name == a.name) return a;
    names += names.empty() ? a.name : std::string(" ") + a.name;
  }
  throw Error(ErrorCode::invalid_argument, "arch", std::string(name), "one of " + names);
}

const Arch* arch_for(int major, int minor) {
  // The exact chip, with its feature suffix if it has one: later rows of a chip know more.
  const Arch* best = nullptr;
  for (const Arch& a : kArchs)
    if (a.major == major && a.minor == minor) best = &a;
  if (best) return best;
  // A newer chip of the same major version runs code of a lower minor version, but not of a suffixed target.
  for (const Arch& a : kArchs)
    if (a.major == major && a.minor < minor && !has_suffix(a) && (!best || a.minor > best->minor)) best = &a;
  return best;
}

}  // namespace tilewright
