// SPDX-License-Identifier: Apache-2.0
// Workload files: reading them, and recording what an Engine is asked for.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>

#include <fmt/format.h>

#include <tilewright/engine.h>
#include <tilewright/error.h>

#include "tuner/recorder.h"

namespace tilewright {
namespace {

constexpr std::streamsize kLongestLine = 4096;
constexpr std::size_t kMostBytes = 16u << 20;

// Opens a regular file. Opening another kind may block, or never come to its end: a FIFO, a terminal, /dev/zero.
// Otherwise -1, and why.
int open_regular(const std::string& path, int flags, std::string& why) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
  struct stat s;
  if (fd >= 0 && ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) return fd;
  why = fd >= 0 || errno == ENXIO ? "is not a regular file" : std::strerror(errno);
  if (fd >= 0) ::close(fd);
  return -1;
}

// Calls `take` with each line and its number. Throws Error (invalid_argument, too_large, io).
void read_lines(std::istream& stream, const std::string& name, const std::function<void(std::string, int)>& take) {
  std::string buffer(kLongestLine + 1, '\0');
  std::size_t bytes = 0;
  for (int number = 1; stream.getline(buffer.data(), kLongestLine + 1) || stream.gcount() > 0; ++number) {
    const std::string where = fmt::format("{}:{}", name, number);
    if (stream.fail())
      throw Error(ErrorCode::invalid_argument, "workload", where,
                  fmt::format("has a line of more than {} characters", kLongestLine));
    bytes += static_cast<std::size_t>(stream.gcount());
    if (bytes > kMostBytes)
      throw Error(ErrorCode::too_large, "workload", where, fmt::format("has more than {} bytes", kMostBytes));
    take(buffer.substr(0, static_cast<std::size_t>(stream.gcount()) - !stream.eof()), number);
  }
  if (stream.bad()) throw Error(ErrorCode::io, "workload", name, "cannot be read to its end");
}

// A line without its comment, surrounding space and the byte order mark that some editors write first.
std::string content(std::string line) {
  if (line.compare(0, 3, "\xEF\xBB\xBF") == 0) line.erase(0, 3);
  line = line.substr(0, line.find('#'));
  std::size_t begin = line.find_first_not_of(" \t\r");
  if (begin == line.npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

std::vector<Problem> read_workload(std::istream& stream, const std::string& name) {
  std::vector<Problem> problems;
  read_lines(stream, name, [&](std::string line, int number) {
    const std::string text = content(std::move(line));
    if (text.empty()) return;
    try {
      problems.push_back(Problem::parse(text));
    } catch (const Error& e) {
      throw Error(e.code(), "workload", fmt::format("{}:{}", name, number), std::string("has an error: ") + e.what());
    }
  });
  return problems;
}

std::vector<Problem> read_workload(const std::string& path) {
  std::string why;
  const int fd = open_regular(path, O_RDONLY, why);
  if (fd < 0) throw Error(ErrorCode::io, "workload", path, "cannot be opened: " + why);
  ::close(fd);
  std::ifstream file(path);
  return read_workload(file, path);
}

namespace tuner {

// Reads the problems that the file has already: they are not repeated.
void Recorder::load() {
  loaded_ = true;
  std::string why;
  const int fd = open_regular(path_, O_RDONLY, why);
  if (fd < 0) return;  // not there yet, or add() will say
  ::close(fd);
  std::ifstream file(path_);
  read_lines(file, path_, [&](std::string line, int) { seen_.insert(content(std::move(line))); });
}

void Recorder::add(const Problem& problem) {
  std::string text = problem.text();
  std::lock_guard lock(mutex_);
  if (failed_) return;
  std::string why;
  try {
    if (!loaded_) load();
  } catch (const Error& e) {
    why = e.what();
  }
  if (why.empty()) {
    if (!seen_.insert(text).second) return;
    text += '\n';
    // One write of one line to a descriptor in append mode: lines of several processes do not mix.
    const int fd = open_regular(path_, O_WRONLY | O_CREAT | O_APPEND, why);
    if (fd >= 0 && ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
  }
  if (why.empty()) return;
  failed_ = true;
  log_.warn(fmt::format("{}: problems are not recorded: {}", path_, why));
}

}  // namespace tuner
}  // namespace tilewright
