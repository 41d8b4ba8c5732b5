// SPDX-License-Identifier: Apache-2.0
// The only reader of the environment.
#include <tilewright/options.h>
#include <tilewright/text.h>

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "templates/common/suggest.h"

namespace tilewright {
namespace {

constexpr std::size_t kLongestPath = PATH_MAX - 1;
constexpr std::int64_t kLeastCap = 1ll << 20, kMostCap = 1ll << 40;  // 1 MiB to 1 TiB
constexpr std::int64_t kMostJobs = 256;

// Reads variables into an Options and writes one warning for each value that cannot be used.
class Reader {
 public:
  explicit Reader(std::vector<std::string>& warnings) : warnings_(warnings) {}

  std::optional<std::string> text(const char* name) {
    names_.push_back(name);
    const char* value = std::getenv(name);
    if (!value) return std::nullopt;
    std::string s = value;
    if (s.empty()) return refuse(name, s, "is empty");
    if (s.find_first_of("\n\r") != s.npos) return refuse(name, s, "contains a line break");
    if (s.size() > kLongestPath) return refuse(name, s, fmt::format("is longer than {} bytes", kLongestPath));
    return s;
  }

  std::optional<std::int64_t> number(const char* name, std::int64_t least, std::int64_t most) {
    std::optional<std::string> s = text(name);
    if (!s) return std::nullopt;
    std::int64_t value = 0;
    for (char c : *s) {
      // Checked before it is multiplied, so that no input overflows.
      if (c < '0' || c > '9' || value > most) {
        refuse(name, *s, fmt::format("is not a number from {} to {}", least, most));
        return std::nullopt;
      }
      value = value * 10 + (c - '0');
    }
    if (value >= least && value <= most) return value;
    refuse(name, *s, fmt::format("is not a number from {} to {}", least, most));
    return std::nullopt;
  }

  std::optional<bool> flag(const char* name) {
    std::optional<std::string> s = text(name);
    if (!s) return std::nullopt;
    if (*s == "0" || *s == "1") return *s == "1";
    refuse(name, *s, "is neither 0 nor 1");
    return std::nullopt;
  }

  // A level, "launch", or both with a comma between. Whoever sets it wants to see something: a value that cannot be
  // used counts as "warn", so that it is named.
  void logging(const char* name, Options& o) {
    if (!std::getenv(name)) return;
    o.log = log_to_stderr;
    o.log_level = LogLevel::warning;
    const std::string words = text(name).value_or("warn") + ",";
    for (std::size_t at = 0, end; (end = words.find(',', at)) != words.npos; at = end + 1) {
      const std::string_view word = std::string_view(words).substr(at, end - at);
      if (word == "error")
        o.log_level = LogLevel::error;
      else if (word == "info")
        o.log_level = LogLevel::info;
      else if (word == "debug")
        o.log_level = LogLevel::debug;
      else if (word == "launch")
        o.log_launches = true;
      else if (word != "warn" && word != "warning")
        refuse(name, std::string(word), "is none of error, warn, info, debug, launch");
    }
  }
  // XDG and HOME are not ours: unset and empty mean the same (XDG Base Directory Specification), and a relative path,
  // which would make the cache follow the working directory, is invalid.
  std::optional<std::string> directory(const char* name) {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    std::optional<std::string> s = text(name);
    if (s && s->front() != '/') return refuse(name, *s, "is not an absolute path");
    return s;
  }

  // A variable of another tool, which only adds a place to search: what is wrong with it is not ours to say.
  std::optional<std::string> hint(const char* name) {
    const char* value = std::getenv(name);
    if (!value || *value != '/' || std::strlen(value) > kLongestPath) return std::nullopt;
    return value;
  }

  // A variable of another reader, which is no misspelling of one of ours.
  void known(const char* name) { names_.push_back(name); }

  // Warns of variables whose names are almost one that was asked for.
  void check_spelling() {
    constexpr std::string_view kPrefix = "TILEWRIGHT_";
    for (char** entry = environ; entry && *entry; ++entry) {
      const std::string_view variable = *entry, name = variable.substr(0, variable.find('='));
      if (!name.starts_with(kPrefix) || std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
      if (const std::string_view meant = nearest(name, names_); meant.starts_with(kPrefix))
        warnings_.push_back(fmt::format("{} is not a variable of Tilewright{}", name, did_you_mean(meant)));
    }
  }

 private:
  std::nullopt_t refuse(const char* name, const std::string& value, std::string_view why) {
    std::string shown;
    for (char c : value.substr(0, 60)) shown += (c == '\n' || c == '\r') ? ' ' : c;
    if (value.size() > 60) shown += "...";
    warnings_.push_back(fmt::format("{} = \"{}\": ignored, because it {}", name, shown, why));
    return std::nullopt;
  }

  std::vector<std::string>& warnings_;
  std::vector<std::string_view> names_;  // that were asked for
};

std::string default_cache(Reader& reader) {
  constexpr std::string_view tail = "/tilewright/v1/cache.db";
  std::string path;
  if (auto xdg = reader.directory("XDG_CACHE_HOME"))
    path = *xdg + std::string(tail);
  else if (auto home = reader.directory("HOME"))
    path = *home + "/.cache" + std::string(tail);
  return path.size() > kLongestPath ? std::string() : path;
}

std::vector<std::string> split_paths(const std::string& list) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= list.size();) {
    std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) paths.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

// The prefix of the first python3 on PATH: /usr of /usr/bin/python3, ~/.pyenv of ~/.pyenv/shims/python3.
std::optional<std::string> python_prefix(Reader& read) {
  for (const std::string& directory : split_paths(read.hint("PATH").value_or(""))) {
    if (directory.front() != '/') continue;
    const std::string program = directory + "/python3";
    if (::access(program.c_str(), X_OK) != 0) continue;
    const auto slash = directory.find_last_of('/', directory.find_last_not_of('/'));
    return directory.substr(0, std::max<std::size_t>(slash, 1));
  }
  return std::nullopt;
}

NvrtcPlaces read_places(Reader& read) {
  NvrtcPlaces places;
  for (const char* active : {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_PATH", "CUDA_HOME"})
    if (auto v = read.hint(active)) places.before.push_back(*v);
  if (auto prefix = python_prefix(read)) places.after.push_back(*prefix);
  if (auto home = read.hint("HOME")) places.after.push_back(*home + "/.local");
  for (const char* system : {"/usr/local", "/usr"})
    if (std::find(places.after.begin(), places.after.end(), system) == places.after.end())
      places.after.push_back(system);
  return places;
}

}  // namespace

Options Options::from_env() {
  Options o;
  Reader read(o.warnings);
  if (auto v = read.text("TILEWRIGHT_CACHE"))
    o.cache = *v;
  else
    o.cache = default_cache(read);
  if (auto v = read.text("TILEWRIGHT_SHIPPED")) o.shipped = split_paths(*v);
  if (auto v = read.number("TILEWRIGHT_CACHE_CAP", kLeastCap, kMostCap)) o.cache_cap = *v;
  if (auto v = read.flag("TILEWRIGHT_ALLOW_SHARED")) o.allow_shared = *v;
  if (auto v = read.text("TILEWRIGHT_NVRTC")) o.nvrtc = *v;
  if (auto v = read.flag("TILEWRIGHT_SAME_NVRTC")) o.same_nvrtc = *v;
  if (auto v = read.text("TILEWRIGHT_LLVM")) o.llvm = *v;
  if (auto v = read.text("TILEWRIGHT_DRIVER")) o.driver = *v;
  if (auto v = read.text("TILEWRIGHT_TEMPLATES")) o.templates = *v;
  if (auto v = read.text("TILEWRIGHT_RECORD")) o.record = *v;
  if (auto v = read.flag("TILEWRIGHT_TUNE")) o.tune = *v;
  if (auto v = read.number("TILEWRIGHT_JOBS", 1, kMostJobs)) o.jobs = static_cast<int>(*v);
  if (auto v = read.flag("TILEWRIGHT_CHECK_POINTERS")) o.check_pointers = *v;
  read.logging("TILEWRIGHT_LOG", o);
  if (auto v = read.text("TILEWRIGHT_NVTX"); v && *v != "0") o.nvtx = *v;
  read.known("TILEWRIGHT_VLLM");  // of the vLLM plugin; almost TILEWRIGHT_LLVM
  o.nvrtc_places = read_places(read);
  read.check_spelling();
  return o;
}

void log_to_stderr(LogLevel level, std::string_view text) {
  constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S", &utc);
  // One call, so that the lines of threads do not mix.
  const std::string line = fmt::format("tilewright {}.{:03}Z {}: {}\n", time, now.tv_nsec / 1000000,
                                       kNames[static_cast<int>(level)], printable(text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace tilewright
