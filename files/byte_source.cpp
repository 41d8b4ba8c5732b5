// SPDX-License-Identifier: Apache-2.0
#include <tilewright/byte_source.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <tilewright/error.h>

namespace tilewright {
namespace {

class File : public ByteSource {
 public:
  // O_NONBLOCK: opening a FIFO would otherwise wait for its writer, before it can be seen that it is one.
  explicit File(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) throw Error(ErrorCode::io, "file", path_, std::string("cannot be opened: ") + std::strerror(errno));
    struct stat info = {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      throw Error(ErrorCode::io, "file", path_, "must be a regular file");
    }
    size_ = static_cast<std::uint64_t>(info.st_size);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() override { ::close(fd_); }

  std::uint64_t size() const override { return size_; }

  void read(std::uint64_t offset, std::span<std::byte> to) const override {
    while (!to.empty()) {
      const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw Error(ErrorCode::io, "file", path_, std::string("cannot be read: ") + std::strerror(errno));
      if (n == 0) throw Error(ErrorCode::io, "file", path_, fmt::format("ended early, at byte {}", offset));
      offset += static_cast<std::uint64_t>(n);
      to = to.subspan(static_cast<std::size_t>(n));
    }
  }

 private:
  std::string path_;
  int fd_;
  std::uint64_t size_ = 0;
};

class Bytes : public ByteSource {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset > bytes_.size() || to.size() > bytes_.size() - offset)
      throw Error(ErrorCode::io, "file", fmt::format("{} bytes", bytes_.size()),
                  fmt::format("ended before byte {}", offset + to.size()));
    if (!to.empty()) std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

std::unique_ptr<ByteSource> ByteSource::file(const std::string& path) { return std::make_unique<File>(path); }
std::unique_ptr<ByteSource> ByteSource::memory(std::span<const std::byte> bytes) {
  return std::make_unique<Bytes>(bytes);
}

}  // namespace tilewright
