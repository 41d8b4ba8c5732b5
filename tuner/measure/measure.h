// SPDX-License-Identifier: Apache-2.0
// Bench: times candidates of one task the way an application meets them: cold inputs, back to back in a CUDA graph,
// interleaved with each other, with an eye on the SM clock. docs/internals/measurement.md argues the method. One thread
// at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <tilewright/task.h>

#include "jit/device.h"
#include "jit/modules.h"
#include "tuner/measure/clock.h"
#include "tuner/measure/statistics.h"

namespace tilewright::tuner {

class Bench {
 public:
  // Allocates and fills as many copies of the task's buffers as make up `cold_bytes`, at least two where they fit.
  // `clock`: binary of clock_source(), null: the clock is not watched. `least_rows`: of any launch, if there are
  // launches over fewer rows than the task's. Takes 2 * cold_bytes and two copies of all buffers at most, and of a
  // CPU's free memory a quarter where one copy fits in it. Throws Error (too_large) if not even one copy fits.
  Bench(const Task& task, const Device& device, double cold_bytes, const Binary* clock, std::int64_t least_rows = 0);

  // Loads, warms up and records a candidate, over all of the task's rows or over the first `rows`. Throws what the
  // driver says. Returns its index.
  int add(const jit::BinaryPtr& binary, std::int64_t rows = 0);
  // One pass over the given candidates, in order: each one's graph once, or, `loaded`, twice in a row, of which the
  // second counts. The chip rests behind each, so that its power controller lowers no clock for what others drew.
  void round(std::span<const int> candidates, bool loaded = false);

  // Samples (microseconds per launch) taken at a steady clock, and what they amount to.
  std::vector<double> samples(int candidate) const;
  Summary summary(int candidate) const { return summarize(samples(candidate), device_.arch().cpu != nullptr); }
  double mhz(int candidate) const;
  double estimate(int candidate) const { return entries_[candidate].estimate; }  // one launch, from the warm-up
  void forget(int candidate);                                                    // its samples
  bool unsteady() const;                // most samples had to be dropped for their clock
  int copies(std::int64_t rows) const;  // that launches over so many rows rotate over
  std::size_t bytes() const { return arena_.size(); }

 private:
  struct Entry {
    Kernel kernel;
    std::int64_t rows = 0;
    std::unique_ptr<jit::Graph> graph;
    int launches = 0;
    double estimate = 0;
    std::vector<double> samples, clocks;
  };
  // Where copies of a buffer lie, one behind the other. Each is as large as a launch needs it, so that launches over
  // few rows rotate over many.
  struct Ring {
    std::size_t begin = 0, bytes = 0;
  };
  std::size_t lay_out(double cold_bytes, std::int64_t least_rows, int fewest);  // bytes of all rings
  int copies(std::size_t buffer, std::int64_t rows) const;
  std::vector<void*> pointers(int turn, std::int64_t rows) const;
  void fill();
  double time(const Entry& entry, bool loaded, double* mhz);

  const Task& task_;
  Device device_;
  jit::OwnedStream stream_;
  jit::Event start_, stop_;
  std::unique_ptr<ClockMeter> clock_;
  jit::Memory arena_;
  std::vector<Ring> rings_;  // of each buffer
  int turn_ = 0;             // of recorded launches: which copy is next
  std::vector<Entry> entries_;
};

}  // namespace tilewright::tuner
