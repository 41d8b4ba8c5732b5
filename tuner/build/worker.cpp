// SPDX-License-Identifier: Apache-2.0
#include "tuner/build/worker.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include <tilewright/engine.h>
#include <tilewright/error.h>

#include "tuner/build/child.h"

namespace tilewright::tuner {
namespace {

constexpr std::size_t kMostMessage = 64u << 20;
constexpr auto kGrace = std::chrono::milliseconds(500);  // for an idle worker to end once its input has
using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // none: however long it takes

// True if poll() reports `events`, or the other end's close, before the deadline.
bool ready(int fd, short events, const Deadline& deadline) {
  for (;;) {
    int milliseconds = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
      milliseconds = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
    }
    pollfd p{fd, events, 0};
    const int count = ::poll(&p, 1, milliseconds);
    if (count > 0) return true;
    if (count == 0 || errno != EINTR) return false;
  }
}

bool again(ssize_t result) { return result < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK); }

bool read_all(int fd, char* to, std::size_t bytes, const Deadline& deadline) {
  while (bytes > 0) {
    if (!ready(fd, POLLIN, deadline)) return false;
    const ssize_t got = ::read(fd, to, bytes);
    if (again(got)) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// A socket is written without blocking, since a reader that hangs would keep a larger message than its buffer for ever,
// and without SIGPIPE, which would end the host program when a worker dies. compile_worker_main() may also be given a
// pipe, whose other end it does not outlive.
bool write_all(int fd, const char* from, std::size_t bytes, const Deadline& deadline) {
  while (bytes > 0) {
    if (!ready(fd, POLLOUT, deadline)) return false;
    ssize_t put = ::send(fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == ENOTSOCK) put = ::write(fd, from, bytes);
    if (again(put)) continue;
    if (put <= 0) return false;
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

bool write_message(int fd, const std::string& body, const Deadline& deadline) {
  if (body.size() > kMostMessage) return false;
  std::uint32_t n = static_cast<std::uint32_t>(body.size());
  char head[4] = {char(n), char(n >> 8), char(n >> 16), char(n >> 24)};
  return write_all(fd, head, 4, deadline) && write_all(fd, body.data(), body.size(), deadline);
}

std::optional<std::string> read_message(int fd, const Deadline& deadline) {
  unsigned char head[4];
  if (!read_all(fd, reinterpret_cast<char*>(head), 4, deadline)) return std::nullopt;
  std::size_t n = head[0] | head[1] << 8 | head[2] << 16 | static_cast<std::size_t>(head[3]) << 24;
  if (n > kMostMessage) return std::nullopt;
  // Grown as bytes arrive: a length that lies costs no more memory than what was really sent.
  std::string body;
  while (body.size() < n) {
    std::size_t part = std::min<std::size_t>(n - body.size(), 1u << 20);
    std::size_t at = body.size();
    body.resize(at + part);
    if (!read_all(fd, body.data() + at, part, deadline)) return std::nullopt;
  }
  return body;
}

Error lost(const Source& source, const Arch& arch, const std::string& why) {
  return Error(ErrorCode::compile_failed, "compile worker", source.name + " for " + arch.name, why);
}

}  // namespace

Worker::~Worker() { stop(kGrace); }

void Worker::start() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw Error(ErrorCode::io, "worker", program_,
                std::string("cannot be started: socketpair: ") + std::strerror(errno));
  try {
    pid_ = start_child(program_, "compile-worker", pair[1]);
  } catch (...) {
    ::close(pair[0]);
    ::close(pair[1]);
    throw;
  }
  ::close(pair[1]);
  socket_ = pair[0];
}

void Worker::stop(std::chrono::milliseconds grace) {
  if (pid_ < 0) return;
  ::close(socket_);  // a worker ends when its input does
  end_child(pid_, grace);
  pid_ = -1;
  socket_ = -1;
}

Binary Worker::compile(const Source& source, const Arch& arch, double seconds) {
  if (pid_ < 0) start();
  const Deadline deadline = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  const std::string request = encode_request(source, arch, options_);
  if (request.size() > kMostMessage) throw lost(source, arch, "cannot take a source of more than 64 MiB");
  std::optional<std::string> reply;
  if (write_message(socket_, request, deadline)) reply = read_message(socket_, deadline);
  char next;  // what came after the reply would be taken for the next one
  const bool one = reply && ::recv(socket_, &next, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
  try {
    if (one) return decode_reply(*reply, source, arch);
  } catch (const Malformed&) {
    stop(std::chrono::milliseconds(0));
    throw;
  }
  const bool late = !reply && Clock::now() >= *deadline;
  stop(std::chrono::milliseconds(0));
  throw lost(
      source, arch,
      late ? fmt::format("took too long (more than {} s) and was stopped", seconds) : "died or answered nonsense");
}

}  // namespace tilewright::tuner

namespace tilewright {

int compile_worker_main(int in_fd, int out_fd) {
  while (auto body = tuner::read_message(in_fd, std::nullopt)) {
    std::string reply;
    try {
      auto request = tuner::decode_request(*body);
      if (!request) return 2;
      reply = tuner::encode_reply(compile(request->source, arch(request->target), request->options));
    } catch (const std::exception& e) {
      reply = tuner::encode_reply(e);
    }
    if (!tuner::write_message(out_fd, reply, std::nullopt)) return 1;
  }
  return 0;
}

}  // namespace tilewright
