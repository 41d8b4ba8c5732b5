// SPDX-License-Identifier: Apache-2.0
// Workload files: reading them, and recording what an Engine is asked for.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>

#include <fmt/format.h>

#include <tilewright/engine.h>
#include <tilewright/error.h>

#include "tuner/recorder.h"

namespace tilewright {
namespace {

constexpr std::size_t kLongestLine = 4096;

// A line without its comment and surrounding space.
std::string content(std::string line) {
  line = line.substr(0, line.find('#'));
  std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == line.npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

std::vector<Problem> read_workload(std::istream& in, const std::string& name) {
  std::vector<Problem> problems;
  std::string buffer(kLongestLine + 1, '\0');  // a file without line breaks must not grow in memory
  for (int number = 1; in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0;
       ++number) {
    const std::string where = fmt::format("{}:{}", name, number);
    if (in.fail() && !in.eof())
      throw Error(ErrorCode::invalid_argument, "workload", where,
                  fmt::format("a line has at most {} characters", kLongestLine));
    const std::string text = content(buffer.c_str());
    if (text.empty()) continue;
    try {
      problems.push_back(Problem::parse(text));
    } catch (const Error& e) {
      throw Error(e.code(), "workload", where, e.what());
    }
  }
  if (in.bad()) throw Error(ErrorCode::io, "workload", name, "could not be read to its end");
  return problems;
}

std::vector<Problem> read_workload(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::io, "workload", path, std::string("cannot be opened: ") + std::strerror(errno));
  return read_workload(file, path);
}

namespace tuner {

void Recorder::load() {
  loaded_ = true;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) seen_.insert(content(line));
}

void Recorder::add(const Problem& problem) {
  std::string text = problem.text();
  std::lock_guard lock(mutex_);
  if (failed_) return;
  if (!loaded_) load();
  if (!seen_.insert(text).second) return;
  text += '\n';
  // One write of one line to a descriptor in append mode: lines of several processes do not mix.
  int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  ssize_t put = fd < 0 ? -1 : ::write(fd, text.data(), text.size());
  int error = errno;
  if (fd >= 0) ::close(fd);
  if (put == static_cast<ssize_t>(text.size())) return;
  failed_ = true;
  log_.warn(fmt::format("{}: problems are not recorded: {}", path_, std::strerror(error)));
}

}  // namespace tuner
}  // namespace tilewright
