// SPDX-License-Identifier: Apache-2.0
#include "tuner/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include <tilewright/engine.h>
#include <tilewright/error.h>

extern char** environ;

namespace tilewright::tuner {
namespace {

constexpr std::size_t kMostMessage = 64u << 20;
using Clock = std::chrono::steady_clock;

// Milliseconds until `deadline` for poll(); -1 when there is none.
int wait_ms(const std::optional<Clock::time_point>& deadline) {
  if (!deadline) return -1;
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left) + 1;
}

bool read_all(int fd, char* to, std::size_t bytes, const std::optional<Clock::time_point>& deadline) {
  while (bytes > 0) {
    pollfd p{fd, POLLIN, 0};
    int ready = ::poll(&p, 1, wait_ms(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    ssize_t got = ::read(fd, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

// Sockets are written with MSG_NOSIGNAL: a dead worker must not raise SIGPIPE in the host program.
bool write_all(int fd, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    ssize_t put = ::send(fd, from, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == ENOTSOCK) put = ::write(fd, from, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

bool write_message(int fd, const std::string& body) {
  if (body.size() > kMostMessage) return false;
  std::uint32_t n = static_cast<std::uint32_t>(body.size());
  char head[4] = {char(n), char(n >> 8), char(n >> 16), char(n >> 24)};
  return write_all(fd, head, 4) && write_all(fd, body.data(), body.size());
}

std::optional<std::string> read_message(int fd, const std::optional<Clock::time_point>& deadline) {
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

void Worker::start() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw Error(ErrorCode::io, "worker", program_, std::string("socketpair: ") + std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], 0);
  posix_spawn_file_actions_adddup2(&actions, pair[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);  // the library prints nothing
  char command[] = "compile-worker";
  char* argv[] = {program_.data(), command, nullptr};
  int failed = ::posix_spawn(&pid_, program_.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pair[1]);
  if (failed) {
    ::close(pair[0]);
    pid_ = -1;
    throw Error(ErrorCode::io, "worker", program_, std::string("cannot be started: ") + std::strerror(failed));
  }
  socket_ = pair[0];
}

void Worker::stop(bool kill) {
  if (pid_ < 0) return;
  if (kill) ::kill(pid_, SIGKILL);
  ::close(socket_);  // a worker ends when its input does
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  socket_ = -1;
}

Binary Worker::compile(const Source& source, const Arch& arch, double seconds) {
  if (pid_ < 0) start();
  auto deadline = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  std::string request = encode_request(source, arch, options_);
  if (request.size() > kMostMessage) throw lost(source, arch, "the source is larger than 64 MiB");
  std::optional<std::string> reply;
  if (write_message(socket_, request)) reply = read_message(socket_, deadline);
  if (!reply) {
    bool late = Clock::now() >= deadline;
    stop(true);
    throw lost(source, arch, late ? "took too long and was stopped" : "died or answered nonsense");
  }
  if (reply->compare(0, 4, "TWA1") != 0) {
    stop(true);
    throw lost(source, arch, "answered nonsense");
  }
  return decode_reply(*reply, source, arch);
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
    if (!tuner::write_message(out_fd, reply)) return 1;
  }
  return 0;
}

}  // namespace tilewright
