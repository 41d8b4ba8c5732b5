// SPDX-License-Identifier: Apache-2.0
// The SM clock, read by a kernel that spins for a few microseconds: it needs no library beyond the driver and sees what
// the measured kernels saw. One thread at a time.
#pragma once

#include <optional>

#include <tilewright/kernel.h>

#include "jit/device.h"

namespace tilewright::tuner {

Source clock_source();

class ClockMeter {
 public:
  ClockMeter(const Device& device, const Binary& binary);
  void record(Stream stream);  // enqueues a reading
  double mhz() const;          // of the latest reading, after the stream was synchronized; 0: unknown

 private:
  jit::Memory out_;
  Kernel kernel_;
};

}  // namespace tilewright::tuner
