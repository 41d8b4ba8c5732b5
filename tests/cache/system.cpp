// SPDX-License-Identifier: Apache-2.0
#include "system.h"

#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

namespace fake {
std::atomic<long> filesystem_type{0};
std::atomic<long> clock_shift{0};
}  // namespace fake

extern "C" {

int fstatfs(int fd, struct statfs* out) noexcept {
  const long rc = syscall(SYS_fstatfs, fd, out);
  if (rc == 0 && fake::filesystem_type != 0) out->f_type = fake::filesystem_type;
  return static_cast<int>(rc);
}

int clock_gettime(clockid_t clock, struct timespec* out) noexcept {
  const long rc = syscall(SYS_clock_gettime, clock, out);
  if (clock == CLOCK_REALTIME) out->tv_sec += fake::clock_shift;
  return static_cast<int>(rc);
}

int gettimeofday(struct timeval* __restrict out, void* __restrict) noexcept {
  struct timespec now {};
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) noexcept {
  struct timespec now {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
}
