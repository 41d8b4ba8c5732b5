// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tilewright/arch.h>
#include <tilewright/error.h>

#include <cctype>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "support/must_be.h"
#include "templates/common/suggest.h"

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
     "NVIDIA H200, H100"},
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

// Generations and GPUs by the names that people know, without blanks and capitals.
constexpr std::pair<std::string_view, std::string_view> kChips[] = {
    {"turing", "sm_75"},    {"t4", "sm_75"},      {"ampere", "sm_80"}, {"a100", "sm_80"},    {"rtx3090", "sm_86"},
    {"orin", "sm_87"},      {"ada", "sm_89"},     {"l4", "sm_89"},     {"l40", "sm_89"},     {"rtx4090", "sm_89"},
    {"hopper", "sm_90a"},   {"h100", "sm_90a"},   {"h200", "sm_90a"},  {"gh200", "sm_90a"},  {"blackwell", "sm_100a"},
    {"b200", "sm_100a"},    {"gb200", "sm_100a"}, {"b300", "sm_103a"}, {"gb300", "sm_103a"}, {"thor", "sm_110a"},
    {"rtx5090", "sm_120a"}, {"gb10", "sm_121a"},
};

}  // namespace

std::span<const Arch> archs() { return kArchs; }

const Arch& arch(std::string_view name) {
  std::vector<std::string_view> names;
  for (const std::span<const Arch> list : {archs(), cpu_archs()})
    for (const Arch& a : list) {
      if (name == a.name) return a;
      names.push_back(a.name);
    }
  const Arch* chip = arch_of_chip(name);
  const std::string_view meant = chip ? chip->name : nearest(name, names);
  throw must_be("arch", name, fmt::format("one of {}{}", fmt::join(names, " "), did_you_mean(meant)));
}

const Arch* arch_of_chip(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [known, target] : kChips)
    if (plain == known) return &arch(target);
  const std::size_t digits = plain.find_first_of("0123456789");
  const std::string prefix = plain.substr(0, digits);
  if (digits == std::string::npos || !(prefix.empty() || prefix == "sm" || prefix == "compute" || prefix == "cc"))
    return nullptr;
  int capability = 0;
  const char* const end = plain.data() + plain.size();
  const auto [rest, error] = std::from_chars(plain.data() + digits, end, capability);
  if (error != std::errc() || end - rest > 1) return nullptr;
  for (const Arch& a : kArchs)
    if (10 * a.major + a.minor == capability) return arch_for(a.major, a.minor);
  return nullptr;
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
