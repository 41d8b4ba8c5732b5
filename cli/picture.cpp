// SPDX-License-Identifier: Apache-2.0
#include "cli/picture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "cli/output_file.h"

extern char** environ;

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

struct Python {
  std::string program;
  std::string packages;  // the folder that has the package; empty: where Python looks by itself
};

// What a program printed if it ended with 0. Its input is `input`, its errors are shown or not.
std::optional<std::string> output_of(const Python& python, std::vector<std::string> words, const std::string& input,
                                     bool quiet) {
  std::vector<std::string> variables;
  for (char** v = environ; *v; ++v) variables.emplace_back(*v);
  if (!python.packages.empty()) {
    const char* before = std::getenv("PYTHONPATH");
    std::erase_if(variables, [](const std::string& v) { return v.starts_with("PYTHONPATH="); });
    variables.push_back("PYTHONPATH=" + python.packages + (before && *before ? ":" + std::string(before) : ""));
  }
  words.insert(words.begin(), python.program);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& t : texts) all.push_back(t.data());
    all.push_back(nullptr);
    return all;
  };
  // Files instead of pipes: neither side waits for the other.
  std::FILE *const in = std::tmpfile(), *const out = std::tmpfile();
  std::optional<std::string> printed;
  if (in && out && std::fwrite(input.data(), 1, input.size(), in) == input.size() && std::fflush(in) == 0) {
    ::lseek(::fileno(in), 0, SEEK_SET);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ::fileno(in), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ::fileno(out), STDOUT_FILENO);
    if (quiet) ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t child = 0;
    int status = -1;
    if (::posix_spawnp(&child, python.program.c_str(), &actions, nullptr, pointers(words).data(),
                       pointers(variables).data()) == 0)
      while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
      }
    ::posix_spawn_file_actions_destroy(&actions);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      printed.emplace();
      std::rewind(out);
      char part[1 << 16];
      for (std::size_t n; (n = std::fread(part, 1, sizeof part, out)) > 0;) printed->append(part, n);
    }
  }
  if (in) std::fclose(in);
  if (out) std::fclose(out);
  return printed;
}

// The tool is in a wheel (site-packages/tilewright/_bin), in a prefix (bin) or in a checkout's build (build/bin); each
// has its own Python and its own package.
std::vector<Python> pythons() {
  std::error_code failed;
  const fs::path here = fs::read_symlink("/proc/self/exe", failed).parent_path();
  std::string packages;
  for (const fs::path& folder : {here / "../..", here / "../../python"})
    if (packages.empty() && fs::exists(folder / "tilewright/plot.py", failed)) packages = folder.lexically_normal();
  if (const char* named = std::getenv("TILEWRIGHT_PYTHON"); named && *named) return {{named, packages}};
  std::vector<Python> found;
  for (const fs::path& program :
       {here / "../../../../../bin/python3", here / "python3", here / "../venv-python/bin/python3"})
    if (::access(program.c_str(), X_OK) == 0) found.push_back({program.lexically_normal(), packages});
  found.push_back({"python3", packages});
  return found;
}

// One that can draw.
Python artist(const char* option) {
  std::string tried;
  for (const Python& python : pythons()) {
    if (output_of(python, {"-c", "import matplotlib, tilewright.plot"}, "", true)) return python;
    tried += (tried.empty() ? "" : ", ") + python.program;
  }
  throw Error(ErrorCode::library_missing, option, "",
              "needs a Python with matplotlib and the package tilewright, and has none (tried " + tried +
                  "). Run pip install 'tilewright[plots]', or set TILEWRIGHT_PYTHON to such a Python; --json and files "
                  "that end in .json give the data and need neither");
}

std::string drawn(const char* option, const Json& data, const char* format) {
  const Python python = artist(option);
  const std::string text = data.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (auto picture = output_of(python, {"-m", "tilewright.plot", "-", "--format", format}, text, false))
    return *std::move(picture);
  throw Error(ErrorCode::library_missing, option, "",
              "was not drawn: " + python.program +
                  " failed, as it says above; --json and files that end in .json give the data, without Python");
}

bool is_data(const std::string& path) { return path.ends_with(".json"); }

}  // namespace

std::string svg_of(const char* option, const Json& data) { return drawn(option, data, "svg"); }

void need_pictures(const char* option, const std::string& path) {
  if (!path.empty() && !is_data(path)) artist(option);
}

void write_picture(const char* option, const std::string& path, const Json& data) {
  write_whole(option, path,
              is_data(path) ? data.dump(2, ' ', true, Json::error_handler_t::replace) + "\n"
                            : drawn(option, data, path.ends_with(".png") ? "png" : "svg"));
}

}  // namespace tilewright::cli
