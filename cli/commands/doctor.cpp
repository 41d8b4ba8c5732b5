// SPDX-License-Identifier: Apache-2.0
// doctor: what this machine has of what the library needs, what will fail, and how to fix it.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "cli/command.h"

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

enum class State { ok, note, problem };  // note: something is absent that not everybody needs

struct Finding {
  State state = State::ok;
  const char* subject = "";  // "libnvrtc"
  std::string what;
  std::string fix;  // what fails because of it and what to do; empty where nothing does
  Json facts = Json::object();
};

const char* name(State s) { return s == State::ok ? "ok" : s == State::note ? "note" : "problem"; }

Finding check_variables(const Options& options) {
  if (options.warnings.empty()) return {State::ok, "environment", "every TILEWRIGHT_ variable can be used", "", {}};
  return {State::problem,
          "environment",
          fmt::format("{}", fmt::join(options.warnings, "; ")),
          "correct these variables, or unset them",
          {{"ignored", options.warnings}}};
}

Finding check_driver(const Options& options) {
  const int devices = Device::count(options.driver);
  try {
    const Device first = Device::open(0, options.driver);
    return {State::ok,
            "driver",
            fmt::format("{}, {} device{}", first.driver_version(), devices, devices == 1 ? "" : "s"),
            "",
            {{"version", first.driver_version()}, {"devices", devices}}};
  } catch (const Error& e) {
    return {devices || fs::exists(options.driver) ? State::problem : State::note,
            "driver",
            e.what(),
            devices ? "kernels cannot run here" : "commands take this machine's CPU; --device 0 ends with 4",
            {{"version", nullptr}, {"devices", devices}}};
  }
}

std::vector<Finding> check_devices(const Options& options) {
  std::vector<Finding> findings;
  const int devices = Device::count(options.driver);
  for (int i = 0; i < devices; ++i) try {
      const Device d = Device::open(i, options.driver);
      findings.push_back({State::ok,
                          "device",
                          fmt::format("{}: {}, {}, {} multiprocessors", i, d.name(), d.arch().name, d.sms()),
                          "",
                          {{"ordinal", i}, {"name", d.name()}, {"arch", d.arch().name}, {"sms", d.sms()}}});
    } catch (const Error& e) {
      findings.push_back({State::problem,
                          "device",
                          fmt::format("{}: {}", i, e.what()),
                          "kernels cannot run on this device",
                          {{"ordinal", i}}});
    }
  return findings;
}

// This machine's CPU as a target.
Finding check_cpu() {
  const Device cpu = Device::open_cpu();
  const bool kernels = cpu.arch().cpu->vector_bytes > 0;
  return {kernels ? State::ok : State::note,
          "cpu",
          fmt::format("{}, {}, {} thread{}", cpu.name(), cpu.arch().name, cpu.sms(), cpu.sms() == 1 ? "" : "s"),
          kernels ? "" : "it lacks AVX2, FMA or F16C, which all kernels use: only the plain reference computes on it",
          {{"name", cpu.name()}, {"arch", cpu.arch().name}, {"threads", cpu.sms()}, {"kernels", kernels}}};
}

Finding check_llvm(const Options& options) try {
  const CompilerInfo found = compiler_info(CompileOptions::of(options), host_arch());
  return {State::ok,
          "libLLVM",
          fmt::format("{} at {}", found.version, found.path),
          "",
          {{"version", found.version}, {"path", found.path}}};
} catch (const Error& e) {
  // One that was named, and cannot be used, is a mistake.
  return {options.llvm.empty() ? State::note : State::problem,
          "libLLVM",
          e.what(),
          "on CPUs only stored kernels and those that are built in run, which are slower. Install it ('apt-get install "
          "libllvm19', 'dnf install llvm-libs'), or set TILEWRIGHT_LLVM",
          {{"version", nullptr}, {"path", nullptr}}};
}

// The targets of the table that this compiler has no code for.
std::vector<std::string> unknown_targets(const CompilerInfo& compiler) {
  std::vector<std::string> unknown;
  for (const Arch& a : archs())
    if (!compiler.targets.empty() &&
        std::find(compiler.targets.begin(), compiler.targets.end(), a.major * 10 + a.minor) == compiler.targets.end())
      unknown.push_back(a.name);
  return unknown;
}

// `shipped`: a shipped cache can be used, as in an image whose kernels were compiled elsewhere.
Finding check_compiler(const Options& options, bool shipped) try {
  const CompilerInfo found = compiler_info(CompileOptions::of(options));
  const std::vector<std::string> unknown = unknown_targets(found);
  return {unknown.empty() ? State::ok : State::note,
          "libnvrtc",
          fmt::format("{} at {}", found.version, found.path),
          unknown.empty() ? ""
                          : fmt::format("it does not compile for {}; if you need those, install another version or set "
                                        "TILEWRIGHT_NVRTC",
                                        fmt::join(unknown, ", ")),
          {{"version", found.version}, {"path", found.path}, {"targets", found.targets}}};
} catch (const Error& e) {
  const bool intended = shipped && options.nvrtc.empty();
  return {
      intended ? State::note : State::problem,
      "libnvrtc",
      e.what(),
      fmt::format("nothing can be compiled for GPUs, which leaves what a cache has; for CPUs libLLVM compiles{} "
                  "'pip install nvidia-cuda-nvrtc' in an active virtual environment, install a CUDA toolkit, or set "
                  "TILEWRIGHT_NVRTC",
                  intended ? ". That is enough if every problem was prewarmed; if not, run" : ". Run"),
      {{"version", nullptr}, {"path", nullptr}}};
}

std::string permissions(const std::string& path) {
  struct stat s = {};
  if (::stat(path.c_str(), &s) != 0) return "does not exist";
  return fmt::format("mode {:04o}, user {}, group {}", s.st_mode & 07777u, s.st_uid, s.st_gid);
}

Json facts_of(const fs::path& path, bool usable) {
  return {{"path", path.string()},
          {"file", permissions(path)},
          {"directory", permissions(path.parent_path())},
          {"usable", usable}};
}

std::string describe(const fs::path& path) {
  std::error_code failed;
  const std::uintmax_t size = fs::file_size(path, failed);
  return fmt::format("{}, {}, {}", path.string(), bytes_text(failed ? 0 : static_cast<double>(size)),
                     permissions(path));
}

// What a store warns of when it is opened, and whether it does without its file.
struct Opening {
  bool degraded = false;
  std::string said;
  std::vector<OtherVersion> others;  // rows that this version does not use
  bool ours = false;                 // has kernels that it does
};

Opening try_open(StoreOptions store) {
  Opening opening;
  store.log = [&](LogLevel level, std::string_view text) {
    if (level > LogLevel::warning) return;
    if (!opening.said.empty()) opening.said += "; ";
    opening.said += text;
  };
  const Store opened(std::move(store));
  opening.degraded = opened.degraded();
  try {
    opening.others = opened.other_versions();
    std::int64_t binaries = 0;
    if (!opening.others.empty()) binaries = opened.totals({.kind = "binary"})["binary"].rows;
    for (const OtherVersion& other : opening.others) binaries -= other.binaries;
    opening.ours = binaries > 0;
  } catch (const Error&) {  // a file that cannot be read, which has been said
  }
  return opening;
}

// Adds to a finding about a store what of it is another version's.
Finding with_versions(Finding finding, const Opening& opening, bool own, State state) {
  Json others = Json::array();
  for (OtherVersion o : opening.others) {
    o.writable = own;  // which it was not opened for
    others.push_back(
        {{"version", o.version}, {"binaries", o.binaries}, {"choices", o.choices}, {"measurements", o.measurements}});
    finding.fix += (finding.fix.empty() ? "" : "; ") + o.text();
  }
  if (!others.empty() && finding.state == State::ok) finding.state = state;
  finding.facts["other_versions"] = others;
  return finding;
}

bool may_write(const fs::path& path, int how) { return ::access(path.c_str(), how) == 0; }

// `path`, or the first directory above it that is missing.
fs::path first_missing(fs::path path) {
  std::error_code failed;
  while (path.has_relative_path() && !fs::exists(path.parent_path(), failed)) path = path.parent_path();
  return path;
}

// Only looks: nothing is created, repaired or moved away.
Finding check_own(StoreOptions store) {
  std::error_code failed;
  const fs::path path = fs::absolute(store.path, failed), directory = path.parent_path();
  const bool is_there = fs::exists(path, failed);
  // Where there is no file yet, the store judges the directory in which something will be made: the file, or a
  // directory. The latter may be made in a sticky directory, such as /tmp.
  const fs::path made = is_there ? path : first_missing(path), above = made.parent_path();
  const bool sticky = made != path && (fs::status(above, failed).permissions() & fs::perms::sticky_bit) != fs::perms{};
  store.path = made.string();
  store.read_only = true;
  const Opening opening = sticky ? Opening() : try_open(std::move(store));
  const bool usable = !opening.degraded && (is_there || may_write(above, W_OK | X_OK));
  Json facts = facts_of(path, usable);
  if (!usable)
    return {State::problem, "cache",
            fmt::format("{} cannot be used: {}", path.string(),
                        !opening.said.empty() ? opening.said
                        : is_there            ? "see cache verify"
                                              : above.string() + " cannot be written"),
            fmt::format("nothing is remembered: every process compiles again. Its directory must belong to you alone "
                        "({}); set TILEWRIGHT_CACHE to a file in such a directory",
                        permissions(directory)),
            facts};
  const std::string what = is_there ? describe(path) : path.string() + ", which the first kernel that is stored makes";
  const fs::space_info space = fs::space(above, failed);
  facts["free_bytes"] = space.available;
  if (space.available < (64u << 20))
    return {State::problem, "cache", what,
            fmt::format("only {} are free there", bytes_text(static_cast<double>(space.available))), facts};
  if (is_there && !(may_write(path, W_OK) && may_write(directory, W_OK | X_OK)))
    return {State::note, "cache", what, "it cannot be written: what is compiled here is not kept", facts};
  return with_versions({State::ok, "cache", what, "", facts}, opening, true, State::note);
}

Finding check_shipped(StoreOptions store) {
  std::error_code failed;
  const fs::path path = fs::absolute(store.path, failed);
  store.shipped = {std::exchange(store.path, ":memory:")};
  const Opening opening = try_open(std::move(store));
  const bool usable = opening.said.empty();
  Json facts = facts_of(path, usable);
  if (usable)
    return with_versions({State::ok, "shipped", describe(path), "", facts}, opening, false,
                         opening.ours ? State::note : State::problem);
  return {State::problem, "shipped", fmt::format("{} cannot be used: {}", path.string(), opening.said),
          "its kernels are compiled again; correct TILEWRIGHT_SHIPPED or the file", facts};
}

std::vector<Finding> check_caches(const Options& options) {
  std::vector<Finding> findings;
  StoreOptions store;
  store.path = options.cache;
  store.cap = options.cache_cap;
  store.allow_shared = options.allow_shared;
  if (options.cache.empty())
    findings.push_back({State::problem,
                        "cache",
                        "there is no place for one: neither HOME nor XDG_CACHE_HOME is set",
                        "nothing is remembered: every process compiles again. Set TILEWRIGHT_CACHE to a file",
                        {{"path", nullptr}}});
  else if (options.cache == ":memory:")
    findings.push_back(
        {State::note, "cache", "in memory, as asked", "every process compiles again", {{"path", ":memory:"}}});
  else
    findings.push_back(check_own(store));
  for (const std::string& path : options.shipped) {
    store.path = path;
    findings.push_back(check_shipped(store));
  }
  return findings;
}

Finding check_templates(const std::string& directory) {
  if (fs::is_directory(directory))
    return {State::note, "templates", "kernels are read from " + directory, "", {{"path", directory}}};
  return {State::problem,
          "templates",
          directory + " is no directory",
          "correct or unset TILEWRIGHT_TEMPLATES",
          {{"path", directory}}};
}

const char* colour(State s) { return s == State::ok ? "32" : s == State::note ? "33" : "1;31"; }

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    print_coloured(fmt::format("{:<8}", name(f.state)), colour(f.state));
    print(fmt::format(" {:<12} {}", f.subject, f.what));
    if (!f.fix.empty()) print(fmt::format("{:<21} -> {}", "", f.fix));
  }
}

int run_doctor(const Context& context) {
  const Options options = context.options();
  std::vector<Finding> findings;
  findings.push_back({State::ok,
                      "tilewright",
                      fmt::format("{}, {} cores", TILEWRIGHT_VERSION_STRING, std::thread::hardware_concurrency()),
                      "",
                      {{"version", TILEWRIGHT_VERSION_STRING}, {"cores", std::thread::hardware_concurrency()}}});
  findings.push_back(check_variables(options));
  findings.push_back(check_driver(options));
  for (Finding& f : check_devices(options)) findings.push_back(std::move(f));
  findings.push_back(check_cpu());
  std::vector<Finding> caches = check_caches(options);
  const bool shipped = std::any_of(caches.begin(), caches.end(), [](const Finding& f) {
    return std::string_view(f.subject) == "shipped" && f.state != State::problem;
  });
  findings.push_back(check_compiler(options, shipped));
  findings.push_back(check_llvm(options));
  for (Finding& f : caches) findings.push_back(std::move(f));
  if (!options.templates.empty()) findings.push_back(check_templates(options.templates));
  const bool bad =
      std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.state == State::problem; });
  if (context.json) {
    Json list = Json::array();
    for (const Finding& f : findings) {
      Json one{{"state", name(f.state)}, {"subject", f.subject}, {"what", f.what}, {"fix", f.fix}};
      for (const auto& [key, value] : f.facts.items()) one[key] = value;
      list.push_back(std::move(one));
    }
    print_json(Json{{"healthy", !bad}, {"findings", list}});
  } else {
    print_text(findings);
  }
  return bad ? kEnvironment : kOk;
}

}  // namespace

void add_doctor(Context& context) {
  CLI::App* command =
      add_command(context, *context.app, "doctor",
                  "Check driver, CPU, compilers, caches and variables; 4 if something will fail that should not");
  command->callback([&context] { context.action = [&context] { return run_doctor(context); }; });
}

}  // namespace tilewright::cli
