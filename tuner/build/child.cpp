// SPDX-License-Identifier: Apache-2.0
#include "tuner/build/child.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include <tilewright/error.h>

extern char** environ;

namespace tilewright::tuner {
namespace {

constexpr std::size_t kStackBytes = 64 << 10;  // of the child until it execs

struct Launch {
  char* argv[3];
  int stdio;
  pid_t parent;
  sigset_t signals;
  int failure;  // errno of what failed; 0: the program runs
};

// Becomes the program. Runs in the parent's memory until it execs, so it makes system calls only and changes nothing
// but `failure`. Returns the exit status if it fails.
int become(void* argument) {
  Launch& launch = *static_cast<Launch*>(argument);
  launch.failure = [&] {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
    // A parent that died before the call above sends no signal any more. 0: it is in an outer PID namespace.
    const pid_t now = ::getppid();
    if (now != launch.parent && now != 0) return ESRCH;
    // Above the standard descriptors first: `stdio` may be one of them if the host program closed its own.
    const int end = ::fcntl(launch.stdio, F_DUPFD_CLOEXEC, 3), null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    const int errors = null < 0 ? -1 : ::fcntl(null, F_DUPFD_CLOEXEC, 3);
    if (end < 0 || errors < 0 || ::dup2(end, 0) < 0 || ::dup2(end, 1) < 0 || ::dup2(errors, 2) < 0) return errno;
    if (::sigprocmask(SIG_SETMASK, &launch.signals, nullptr) != 0) return errno;
    ::execve(launch.argv[0], launch.argv, environ);
    return errno;
  }();
  return 127;
}

}  // namespace

pid_t start_child(const std::string& program, const char* argument, int stdio) {
  Launch launch{{const_cast<char*>(program.c_str()), const_cast<char*>(argument), nullptr}, stdio, ::getpid(), {}, 0};
  // No signal handler of the host program may run in the child, which shares its memory until it execs.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &launch.signals);
  // As posix_spawn() does it, which cannot set the parent death signal; fork() would copy the host's page tables.
  std::vector<std::max_align_t> stack(kStackBytes / sizeof(std::max_align_t));
  const pid_t child = ::clone(&become, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK | SIGCHLD, &launch);
  if (child < 0) launch.failure = errno;
  ::pthread_sigmask(SIG_SETMASK, &launch.signals, nullptr);
  if (launch.failure == 0) return child;
  if (child > 0) end_child(child, std::chrono::milliseconds(0));
  throw Error(ErrorCode::io, "worker", program, std::string("cannot be started: ") + std::strerror(launch.failure));
}

void end_child(pid_t child, std::chrono::milliseconds grace) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + grace;
  for (auto pause = std::chrono::microseconds(100);; pause = std::min(2 * pause, std::chrono::microseconds(10000))) {
    const pid_t ended = ::waitpid(child, nullptr, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return;  // or the host program reaped it
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace tilewright::tuner
