// SPDX-License-Identifier: Apache-2.0
#include "jit/compile/compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include <tilewright/error.h>

#include "jit/compile/nvrtc.h"
#include "jit/cpu/compile.h"
#include "jit/elf.h"

namespace tilewright {
namespace jit {
namespace {

constexpr int kHasNoCache = 12090;  // first version with --no-cache; --no-source-include is there as well
constexpr int kHasMinimal = 12040;  // first version with --minimal
constexpr std::size_t kLogLimit = 4096;

// The number before `unit` in "0 bytes stack frame, 16 bytes spill stores"; 0 if the unit does not occur.
int number_before(std::string_view line, std::string_view unit) {
  const auto at = line.find(unit);
  if (at == std::string_view::npos || at == 0) return 0;
  auto begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + at, value);
  return value;
}

template <class Visit>
void each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    visit(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool starts_with_any(const std::string& option, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return option.rfind(n, 0) == 0; });
}

std::vector<std::string> all_options(const Source& source, const Arch& arch, const CompileOptions& options,
                                     const Nvrtc& nvrtc) {
  std::vector<std::string> all = {fmt::format("--gpu-architecture={}", arch.name), "-default-device",
                                  "--ptxas-options=-v"};
  bool standard = false;
  for (const auto& option : source.options) standard |= starts_with_any(option, {"--std", "-std"});
  if (!standard) all.push_back("--std=c++17");
  if (nvrtc.version() >= kHasNoCache) {
    if (!options.compiler_cache) all.push_back("--no-cache");
    all.push_back("--no-source-include");
  }
  for (const auto& option : source.options) {
    if (starts_with_any(option, {"--gpu-architecture", "-arch"}))
      throw Error(ErrorCode::invalid_argument, "source.options", option,
                  "is not allowed: the target comes from the Arch argument");
    if (option == kMinimal && nvrtc.version() < kHasMinimal) continue;
    all.push_back(option);
  }
  return all;
}

// 90 of "sm_90a"; 0 if the name has no number.
int capability(std::string_view name) {
  const auto digit = name.find_first_of("0123456789");
  int value = 0;
  if (digit != std::string_view::npos) std::from_chars(name.data() + digit, name.data() + name.size(), value);
  return value;
}

[[noreturn]] void throw_too_old(const Nvrtc& nvrtc, const Arch& arch) {
  throw Error(
      ErrorCode::library_missing, "libnvrtc", nvrtc.version_text(),
      fmt::format("is too old or too new for {}: {} compiles for sm_{}; sm_90a needs 12.0, sm_100a and sm_120a 12.8",
                  arch.name, nvrtc.path(), fmt::join(nvrtc.archs(), ", sm_")));
}

void check_target(const Nvrtc& nvrtc, const Arch& arch) {
  const auto& known = nvrtc.archs();
  if (!known.empty() && std::find(known.begin(), known.end(), capability(arch.name)) == known.end())
    throw_too_old(nvrtc, arch);
}

[[noreturn]] void throw_failure(const Nvrtc& nvrtc, const Source& source, const Arch& arch, int result,
                                const std::vector<std::string>& options, std::string log) {
  if (result == Nvrtc::kBuiltinFailure)
    throw Error(ErrorCode::library_missing, "libnvrtc-builtins", nvrtc.version_text(), "cannot be used: " + log);
  if (result == Nvrtc::kInvalidOption && contains(log, "--gpu-architecture")) throw_too_old(nvrtc, arch);
  if (log.empty()) log = nvrtc.error_text(result);
  throw CompileError(source.name, arch.name, fmt::format("{}", fmt::join(options, " ")), source.text, std::move(log));
}

}  // namespace

Resources parse_resources(std::string_view log, std::string_view entry) {
  Resources found;
  const std::string mine = fmt::format("'{}'", entry), properties = fmt::format("Function properties for {}", entry);
  bool inside = false;
  each_line(log, [&](std::string_view line) {
    // One warning is enough, whichever function it names: device functions are inlined into the entry.
    if (contains(line, "wgmma") && contains(line, "serialized")) found.serialized = true;
    if (contains(line, "Compiling entry function")) inside = contains(line, mine);
    if (contains(line, "Function properties for")) inside = line.ends_with(properties);
    if (!inside) return;
    if (contains(line, "bytes stack frame")) {
      found.stack_bytes = number_before(line, " bytes stack frame");
      found.spill_bytes = number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
    }
    if (contains(line, "Used ")) {
      found.registers = number_before(line, " registers");
      found.shared_bytes = number_before(line, " bytes smem");
    }
  });
  return found;
}

std::string without_statistics(std::string_view log, std::size_t limit) {
  std::string kept;
  each_line(log, [&](std::string_view line) {
    const bool statistics = line.rfind("ptxas info", 0) == 0 && !contains(line, "serialized");
    const bool continued = line.rfind("ptxas         .", 0) == 0;
    if (statistics || continued || kept.size() >= limit) return;
    kept.append(line).push_back('\n');
  });
  while (kept.ends_with('\n')) kept.pop_back();
  if (kept.size() > limit) kept.resize(limit);
  return kept;
}

}  // namespace jit

Binary compile(const Source& source, const Arch& arch, const CompileOptions& options) {
  using namespace jit;
  if (arch.cpu) return cpu::compile(source, arch, options);
  const auto start = std::chrono::steady_clock::now();
  const Nvrtc& nvrtc = Nvrtc::open(options.nvrtc, options.places);
  check_target(nvrtc, arch);
  const auto all = all_options(source, arch, options, nvrtc);
  std::vector<const char*> texts, names;
  for (const auto& header : source.headers) {
    texts.push_back(header.text.c_str());
    names.push_back(header.name.c_str());
  }
  // NVRTC looks for headers beside the source's name on disk. Where that cannot be switched off, the name gets a
  // directory that does not exist, so that the working directory never decides what is compiled.
  const std::string prefix = nvrtc.version() >= kHasNoCache ? "" : "<tilewright>/";
  Program program(nvrtc, source.text, prefix + source.name + ".cu", texts, names);
  const int result = program.compile(all);
  const std::string log = program.log();
  if (result != 0) throw_failure(nvrtc, source, arch, result, all, log);

  Binary binary;
  binary.target = arch.name;
  binary.entry = source.entry;
  binary.plan = source.plan;
  binary.image = program.cubin();
  // An empty source compiles without complaint.
  if (!elf_has_entry(binary.image, source.entry))
    throw Error(
        ErrorCode::compile_failed, "source " + source.name, source.entry,
        fmt::format("is not a kernel of the result, which has: {}; it must be an extern \"C\" __global__ function",
                    fmt::join(elf_entries(binary.image), ", ")));
  binary.resources = parse_resources(log, source.entry);
  binary.log = without_statistics(log, kLogLimit);
  binary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return binary;
}

CompilerInfo compiler_info(const CompileOptions& options) {
  const jit::Nvrtc& nvrtc = jit::Nvrtc::open(options.nvrtc, options.places);
  return {nvrtc.path(), nvrtc.build(), nvrtc.archs()};
}

CompilerInfo compiler_info(const CompileOptions& options, const Arch& arch) {
  return arch.cpu ? jit::cpu::compiler_info(options) : compiler_info(options);
}

std::string compiler_version(const CompileOptions& options) { return compiler_info(options).version; }

}  // namespace tilewright
