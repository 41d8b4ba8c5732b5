// SPDX-License-Identifier: Apache-2.0
// The built tool, as its users run it. No GPU: TILEWRIGHT_DRIVER names a file that does not exist.
#pragma once

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/catch.h"
#include "support/paths.h"
#include "support/sentence.h"

namespace cli_tool {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Ran {
  int code = -1;
  std::string out, err;
  Json json() const {
    INFO(out);
    REQUIRE(Json::accept(out));
    return Json::parse(out);
  }
};

inline std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline constexpr const char* kGemm = "\"gemm x=q8_1 w=q4_0 y=f32 m=4 n=384 k=1536\"";

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A folder of this process alone, gone at the end.
struct Scratch {
  fs::path path = fs::temp_directory_path() / ("tilewright-cli-" + std::to_string(::getpid()));
  Scratch() {
    fs::create_directories(path);
    ::chmod(path.c_str(), 0700);
  }
  ~Scratch() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
};

inline Scratch& scratch() {
  static Scratch s;
  return s;
}

// A shell command in the checkout, its input empty.
inline Ran shell(const std::string& command) {
  const std::string out = scratch() / "stdout", err = scratch() / "stderr";
  const std::string whole =
      "cd '" + tilewright::paths::source_dir() + "' && (" + command + ") >'" + out + "' 2>'" + err + "' </dev/null";
  const int status = std::system(whole.c_str());
  Ran ran{WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(out), slurp(err)};
  INFO(command << " -> " << ran.code << "\n" << ran.err);
  CHECK(ran.code >= 0);
  return ran;
}

inline std::string tool_path() { return "'" + tilewright::paths::binary_dir() + "/bin/tilewright' "; }

// `variables`: assignments before the command.
inline Ran tool(const std::string& arguments, const std::string& variables = "") {
  return shell(variables + " TILEWRIGHT_DRIVER=/nonexistent/libcuda.so " + tool_path() + arguments);
}

inline void refused(const std::string& arguments, int code, const std::string& part) {
  const Ran r = tool(arguments);
  INFO(arguments << "\n" << r.out << r.err);
  CHECK(r.code == code);
  CHECK(r.out.empty());
  const std::string begin = "tilewright: error: ";
  REQUIRE(r.err.starts_with(begin));
  CHECK(r.err.find(part) != std::string::npos);
  // What the parser of the command line says ends with an advice.
  CHECK((r.err.find("see tilewright --help") != std::string::npos || is_sentence(r.err.substr(begin.size()))));
}

// Of `doctor --json`.
inline Json finding(const Json& report, const std::string& subject) {
  for (const Json& f : report["findings"])
    if (f["subject"] == subject) return f;
  FAIL("no finding about " << subject);
  return {};
}

// A Python that draws nothing: its picture is the data that it is given.
inline std::string echoing_python() {
  const std::string path = scratch() / "echoing-python";
  std::ofstream(path) << "#!/bin/sh\n"
                         "[ \"$1\" = -c ] && exit 0\n"
                         "[ \"$1 $2 $3 $4\" = '-m tilewright.plot - --format' ] || exit 1\n"
                         "echo \"$5\"; cat\n";
  ::chmod(path.c_str(), 0700);
  return path;
}

inline std::string cache_flag(const char* name) { return " --cache '" + (scratch() / name) + "' "; }

}  // namespace cli_tool
