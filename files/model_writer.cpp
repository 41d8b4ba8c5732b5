// SPDX-License-Identifier: Apache-2.0
#include <tilewright/model_writer.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <tilewright/error.h>

#include "files/checked.h"
#include "support/must_be.h"

namespace tilewright {
namespace {

using readers::printable;

constexpr std::size_t kMark = 8;  // bytes that are zero until the file is whole

[[noreturn]] void throw_errno(const std::string& path) {
  throw Error(ErrorCode::io, "file", path, std::string("cannot be written: ") + std::strerror(errno));
}

// PATH.part, open and locked.
class PartFile {
 public:
  PartFile(const std::string& path, bool create) : path_(path) {
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0);
    fd_ = ::open(path.c_str(), flags, 0666);
    if (fd_ < 0) throw_errno(path);
    try {
      lock();
    } catch (...) {
      ::close(fd_);
      throw;
    }
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() { ::close(fd_); }

  std::uint64_t size() const {
    struct stat info = {};
    if (::fstat(fd_, &info) != 0) throw_errno(path_);
    return static_cast<std::uint64_t>(info.st_size);
  }

  // Empties it and reserves `size` bytes of zeros, as far as the file system can reserve.
  void reset(std::uint64_t size) {
    if (size > static_cast<std::uint64_t>(INT64_MAX))
      throw Error(ErrorCode::too_large, "file size", std::to_string(size), "must be less than 2^63");
    const auto length = static_cast<off_t>(size);
    if (::ftruncate(fd_, 0) != 0 || ::ftruncate(fd_, length) != 0) throw_errno(path_);
    if (::fallocate(fd_, 0, 0, length) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) throw_errno(path_);
  }

  void write(std::uint64_t offset, std::span<const std::byte> from) {
    while (!from.empty()) {
      const ssize_t n = ::pwrite(fd_, from.data(), from.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno(path_);
      offset += static_cast<std::uint64_t>(n);
      from = from.subspan(static_cast<std::size_t>(n));
    }
  }

  void read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno(path_);
      if (n == 0) throw Error(ErrorCode::io, "file", path_, fmt::format("ended early, at byte {}", offset));
      offset += static_cast<std::uint64_t>(n);
      to = to.subspan(static_cast<std::size_t>(n));
    }
  }

  void sync() {
    if (::fsync(fd_) != 0) throw_errno(path_);
  }

  void rename_to(const std::string& path) {
    if (::rename(path_.c_str(), path.c_str()) != 0) throw_errno(path);
    // The name is on the disk when the folder is.
    const auto slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;  // a folder that may be written to and not read
    ::fsync(fd);
    ::close(fd);
  }

  void remove() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  // A writer that ended between open() and flock() has renamed or removed the file that is open here.
  void lock() const {
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0)
      throw Error(ErrorCode::io, "file", path_,
                  std::string("cannot be locked: ") +
                      (errno == EWOULDBLOCK ? "another process is writing it" : std::strerror(errno)));
    struct stat here = {}, there = {};
    if (::fstat(fd_, &here) != 0) throw_errno(path_);
    if (!S_ISREG(here.st_mode)) throw Error(ErrorCode::io, "file", path_, "must be a regular file");
    if (here.st_nlink > 1)  // emptying it would empty what somebody keeps under another name
      throw Error(ErrorCode::io, "file", path_, "has other names (hard links); remove this one");
    if (::lstat(path_.c_str(), &there) != 0 || here.st_ino != there.st_ino || here.st_dev != there.st_dev)
      throw Error(ErrorCode::io, "file", path_, "was just finished or removed by another process");
  }

  std::string path_;
  int fd_ = -1;
};

}  // namespace

struct ModelWriter::State {
  struct Slot {
    Place place;
    std::uint64_t written = 0;
  };

  std::string path, header;
  PartFile file;
  std::map<std::string, Slot, std::less<>> slots;
  bool keep = false, finished = false;

  State(const std::string& to, std::string head, bool create)
      : path(to), header(std::move(head)), file(to + ".part", create) {}

  Slot& slot(std::string_view name) {
    const auto it = slots.find(name);
    if (it == slots.end())
      throw must_be("tensor", printable(name), fmt::format("one of the {} that were declared", slots.size()));
    return it->second;
  }
};

ModelWriter::ModelWriter(const std::string& path, std::string header, std::vector<Place> places, std::uint64_t size,
                         Start start) {
  state_ = std::make_unique<State>(path, std::move(header), start == Start::create);
  State& s = *state_;
  s.keep = start == Start::resume;  // what was there before is not this writer's to remove
  for (Place& p : places) {
    std::string name = p.name;
    s.slots.emplace(std::move(name), State::Slot{std::move(p)});
  }
  const auto rest = std::as_bytes(std::span(s.header)).subspan(kMark);
  try {
    if (start == Start::create) {
      s.file.reset(size);
      s.file.write(kMark, rest);
    } else {
      const std::uint64_t there = s.file.size();
      if (there != size)
        throw Error(ErrorCode::invalid_argument, "file", s.file.path(),
                    fmt::format("has {} bytes, these tensors make {}: it was cut, or made from others", there, size));
      std::string found(s.header.size(), '\0');
      s.file.read(0, std::as_writable_bytes(std::span(found)));
      if (found.compare(kMark, found.npos, s.header, kMark, s.header.npos) != 0)
        throw Error(ErrorCode::invalid_argument, "file", s.file.path(),
                    "has a header that is damaged, or was made from other tensors");
    }
  } catch (...) {
    if (start == Start::create) s.file.remove();
    throw;
  }
}

ModelWriter::ModelWriter(ModelWriter&&) noexcept = default;

ModelWriter::~ModelWriter() {
  if (state_ && !state_->finished && !state_->keep) state_->file.remove();
}

void ModelWriter::write(std::string_view tensor, std::span<const std::byte> bytes) {
  State::Slot& slot = state_->slot(tensor);
  if (bytes.size() > slot.place.bytes - slot.written)
    throw must_be(fmt::format("bytes of tensor '{}'", printable(tensor)),
                  fmt::format("{} after {}", bytes.size(), slot.written),
                  fmt::format("at most {} in all, as declared", slot.place.bytes));
  state_->file.write(slot.place.offset + slot.written, bytes);
  slot.written += bytes.size();
}

void ModelWriter::skip(std::string_view tensor) {
  State::Slot& slot = state_->slot(tensor);
  slot.written = slot.place.bytes;
}

void ModelWriter::read(std::string_view tensor, std::uint64_t first, std::span<std::byte> to) const {
  const Place& place = state_->slot(tensor).place;
  if (first > place.bytes || to.size() > place.bytes - first)
    throw Error(ErrorCode::invalid_argument, fmt::format("part of tensor '{}'", printable(tensor)),
                fmt::format("{} bytes from {}", to.size(), first),
                fmt::format("must lie in the tensor, which has {} bytes", place.bytes));
  state_->file.read(place.offset + first, to);
}

std::uint64_t ModelWriter::bytes(std::string_view tensor) const { return state_->slot(tensor).place.bytes; }

void ModelWriter::sync() { state_->file.sync(); }

void ModelWriter::keep_part() { state_->keep = true; }

void ModelWriter::finish() {
  State& s = *state_;
  if (s.finished) throw Error(ErrorCode::invalid_argument, "file", s.path, "is already finished");
  for (const auto& [name, slot] : s.slots)
    if (slot.written != slot.place.bytes)
      throw must_be(fmt::format("bytes of tensor '{}'", printable(name)), slot.written,
                    fmt::format("all {} before the file is finished", slot.place.bytes));
  s.file.sync();  // the mark says that the rest is there
  s.file.write(0, std::as_bytes(std::span(s.header)).first(kMark));
  s.file.sync();
  s.file.rename_to(s.path);
  s.finished = true;
}

}  // namespace tilewright
