// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tilewright/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tilewright::cli {
namespace {

namespace fs = std::filesystem;

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// `right`: whether all went well so far. Closes without losing the reason.
bool closed(int fd, bool right) {
  const int error = errno;
  if (::close(fd) != 0 && right) return false;
  errno = error;
  return right;
}

}  // namespace

void refuse_input(const char* option, const std::string& path, std::span<const std::string> read) {
  std::error_code missing;
  if (path.empty() || !fs::exists(path, missing)) return;
  const auto check = [&](const fs::path& file) {
    if (fs::equivalent(file, path, missing))
      throw Error(ErrorCode::invalid_argument, option, path,
                  fmt::format("is the file {}, which is read; choose another", file.string()));
  };
  for (const std::string& file : read) {
    check(file);
    if (fs::is_directory(file, missing))
      for (const fs::directory_entry& inside : fs::directory_iterator(file, missing)) check(inside.path());
  }
}

void write_whole(const char* option, const std::string& path, std::string_view text) {
  const auto fail = [&] {
    throw Error(ErrorCode::io, option, path, std::string("cannot be written: ") + std::strerror(errno));
  };
  std::error_code missing;
  const fs::file_status there = fs::status(path, missing);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0 || !closed(fd, write_all(fd, text))) fail();
    return;
  }
  // A link goes on naming what it names.
  const std::string target = fs::exists(there) ? fs::canonical(path).string() : path;
  std::string temporary = target + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) fail();
  const bool right = ::fchmod(fd, 0644) == 0 && write_all(fd, text) && ::fsync(fd) == 0;
  if (closed(fd, right) && ::rename(temporary.c_str(), target.c_str()) == 0) return;
  const int error = errno;
  ::unlink(temporary.c_str());
  errno = error;
  fail();
}

}  // namespace tilewright::cli
