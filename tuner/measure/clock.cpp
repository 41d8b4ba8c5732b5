// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure/clock.h"

#include <cstring>

namespace tilewright::tuner {
namespace {

struct ClockArgs {
  unsigned long long* out;  // [2]: SM clocks, nanoseconds
  unsigned long long nanoseconds;
};

// %globaltimer advances in steps of up to a microsecond on some chips, so both ends wait for a step.
constexpr const char* kText = R"(
struct Args { unsigned long long* out; unsigned long long nanoseconds; };
__device__ __forceinline__ unsigned long long now() {
  unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t;
}
extern "C" __global__ void tilewright_clock(const Args a) {
  if (threadIdx.x != 0) return;
  unsigned long long before = now(), start, last, end;
  while ((start = now()) == before) {}
  long long c0 = clock64();
  while ((last = now()) - start < a.nanoseconds) {}
  while ((end = now()) == last) {}
  a.out[0] = clock64() - c0;
  a.out[1] = end - start;
}
)";

constexpr unsigned long long kSpin = 20000;  // ns: a step of 1 us at the end would still be beyond what is looked for

}  // namespace

Source clock_source() {
  Source s;
  s.name = "tuner/clock";
  s.text = kText;
  s.entry = "tilewright_clock";
  s.plan.threads = 32;
  return s;
}

ClockMeter::ClockMeter(const Device& device, const Binary& binary) : out_(device, 16), kernel_(device, binary) {
  out_.fill(0);
}

void ClockMeter::record(Stream stream) {
  ClockArgs args{static_cast<unsigned long long*>(out_.data()), kSpin};
  std::byte bytes[sizeof args];
  std::memcpy(bytes, &args, sizeof args);
  kernel_.launch(stream, bytes, 1, 1);
}

double ClockMeter::mhz() const {
  unsigned long long read[2] = {0, 0};
  out_.download({reinterpret_cast<std::byte*>(read), sizeof read});
  // Anything else did not come from the kernel (a driver double, an emulator).
  if (read[1] < kSpin || read[1] > 1000 * kSpin) return 0;
  double mhz = static_cast<double>(read[0]) * 1e3 / static_cast<double>(read[1]);
  return mhz > 50 && mhz < 10000 ? mhz : 0;
}

}  // namespace tilewright::tuner
