// SPDX-License-Identifier: Apache-2.0
#include "quantize/model/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tilewright/byte_source.h>
#include <tilewright/error.h>
#include <tilewright/store.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "support/must_be.h"

namespace tilewright::quantize {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kPiece = 1 << 20;
constexpr std::uint64_t kMostBytes = 1ull << 30;
constexpr int kVersion = 1;

[[noreturn]] void throw_errno(const std::string& path) {
  throw Error(ErrorCode::io, "file", path, std::string("cannot be written: ") + std::strerror(errno));
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno(path);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// Opens a file to write that has no other name, or makes it. `flags` are applied once that is known: what is truncated
// is nobody else's. O_NONBLOCK: opening a FIFO would wait for its reader.
int open_own(const std::string& path, int flags) {
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (flags & ~O_TRUNC), 0666);
  if (fd < 0 && errno != ENXIO) throw_errno(path);
  struct stat info = {};
  const bool own = fd >= 0 && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1;
  if (own && (!(flags & O_TRUNC) || ::ftruncate(fd, 0) == 0)) return fd;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (own) throw Error(ErrorCode::io, "file", path, std::string("cannot be written: ") + std::strerror(error));
  throw Error(ErrorCode::io, "file", path, "must be a regular file without other names (hard links); remove it");
}

std::string text_of(const Json& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_string() ? it->get<std::string>() : std::string();
}
double number_of(const Json& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : 0;
}

}  // namespace

void Digest::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kPiece - piece_.size());
    piece_.append(reinterpret_cast<const char*>(bytes.data()), n);
    bytes = bytes.subspan(n);
    if (piece_.size() < kPiece) continue;
    pieces_ += sha256_hex(piece_);
    piece_.clear();
  }
}

std::string Digest::hex() const { return sha256_hex(pieces_ + sha256_hex(piece_)); }

Journal::Journal(const std::string& path, const std::string& input, const std::string& options, bool resume)
    : path_(path) {
  if (resume) read(input, options);
  fd_ = open_own(path, O_APPEND | (resume ? 0 : O_TRUNC));
  // A line that was cut ends here, and does not spoil the next one.
  pending_ =
      resume ? "\n" : Json{{"tilewright_quantize", kVersion}, {"input", input}, {"options", options}}.dump() + "\n";
  try {
    flush();
  } catch (...) {
    ::close(fd_);
    if (!resume) remove();
    throw;
  }
}

Journal::~Journal() { ::close(fd_); }

void Journal::read(const std::string& input, const std::string& options) {
  const std::string text = read_text(path_, kMostBytes);
  const auto line_at = [&](std::size_t& at) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const Json line = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                  text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    at = end + 1;
    return line;
  };
  std::size_t at = 0;
  const Json head = line_at(at);
  if (!head.is_object() || number_of(head, "tilewright_quantize") != kVersion)
    throw Error(ErrorCode::invalid_argument, "resume", path_,
                "is damaged or of another version: start anew without it");
  if (text_of(head, "input") != input)
    throw Error(ErrorCode::invalid_argument, "resume", path_,
                "was made from other input, or the files have changed since: start anew without it");
  if (text_of(head, "options") != options)
    throw must_be("resume", options,
                  fmt::format("{}, as it was begun; or start anew without it", text_of(head, "options")));
  while (at < text.size()) {
    const Json line = line_at(at);
    const auto outputs = line.is_object() ? line.find("outputs") : line.end();
    if (!line.is_object() || outputs == line.end() || !outputs->is_object()) continue;
    Done done{{}, number_of(line, "squares"), number_of(line, "error_squares"), number_of(line, "max_error"), {}};
    if (const auto output = line.find("output"); output != line.end() && output->is_object())
      done.output = {text_of(*output, "method"),
                     static_cast<std::int64_t>(std::clamp(number_of(*output, "rows"), 0.0, 1e15)),
                     number_of(*output, "error"), number_of(*output, "energy")};
    for (const auto& [name, hash] : outputs->items())
      done.outputs.emplace_back(name, hash.is_string() ? hash.get<std::string>() : std::string());
    done_[text_of(line, "tensor")] = std::move(done);
  }
}

void Journal::add(const std::string& tensor, const Done& done) {
  Json outputs = Json::object();
  for (const auto& [name, hash] : done.outputs) outputs[name] = hash;
  Json line = {{"tensor", tensor},
               {"outputs", outputs},
               {"squares", done.squares},
               {"error_squares", done.error_squares},
               {"max_error", done.max_error}};
  if (const OutputError& o = done.output; !o.method.empty())
    line["output"] = {{"method", o.method}, {"rows", o.rows}, {"error", o.error}, {"energy", o.energy}};
  pending_ += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void Journal::flush() {
  write_all(fd_, pending_, path_);
  pending_.clear();
  if (::fsync(fd_) != 0) throw_errno(path_);
}

void Journal::remove() { ::unlink(path_.c_str()); }

std::string read_text(const std::string& path, std::uint64_t most) {
  const auto source = ByteSource::file(path);
  if (source->size() > most)
    throw Error(ErrorCode::too_large, "file", path,
                fmt::format("has {} bytes, and may have at most {}", source->size(), most));
  std::string text(static_cast<std::size_t>(source->size()), '\0');
  source->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  const int fd = open_own(part, O_TRUNC);
  try {
    write_all(fd, text, part);
    if (::fsync(fd) != 0 || ::rename(part.c_str(), path.c_str()) != 0) throw_errno(path);
  } catch (...) {
    ::close(fd);
    ::unlink(part.c_str());
    throw;
  }
  ::close(fd);
}

}  // namespace tilewright::quantize
