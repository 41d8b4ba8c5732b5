// SPDX-License-Identifier: Apache-2.0
// What the benchmarks need of the driver besides the public headers, so that they can time a rival's launches: a
// current context, copies on the device, a captured sequence that is replayed and timed. Own declarations of the driver
// API, opened at run time. One thread. Functions throw Error (driver_failed, library_missing).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilewright/kernel.h>
#include <tilewright/memory.h>
#include <tilewright/task.h>

namespace tilewright::bench {

inline constexpr double kColdBytes = 4e8;  // of weights, at least, that timed launches rotate over
inline constexpr int kWarmRounds = 2;      // of samples that do not count

class Cuda {
 public:
  // Makes the device's primary context current for this thread, which is what a library of the CUDA runtime launches
  // on. `driver`: Options::driver.
  Cuda(const Device& device, const std::string& driver);
  ~Cuda();
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  Stream stream() const { return stream_.get(); }
  void copy(void* to, const void* from, std::size_t bytes) const;  // on the device, synchronous
  void set(void* at, int byte, std::size_t bytes) const;           // synchronous
  void synchronize() const;                                        // throws what went wrong since the last one
  std::size_t free_bytes() const;
  double most_mhz() const;                                          // that the multiprocessors' clock reaches
  double microseconds(const std::function<void()>& enqueue) const;  // between two events around what it enqueues
  void profiled(const std::function<void()>& enqueue)
      const;  // what it enqueues is seen by a profiler that waits to be told (bench/counters.sh)

  struct Driver;
  const Driver& driver() const { return *driver_; }

 private:
  std::unique_ptr<Driver> driver_;
  OwnedStream stream_;
  void* start_ = nullptr;
  void* stop_ = nullptr;
  int ordinal_ = 0;
};

// Launches captured once into a CUDA graph. launch(i) enqueues the i-th of them on cuda.stream().
class Replay {
 public:
  Replay(const Cuda& cuda, int launches, const std::function<void(int)>& launch);
  Replay(Replay&&) noexcept;
  Replay& operator=(Replay&&) noexcept;
  ~Replay();
  // Microseconds per launch on a chip that has rested, so that its power controller lowers no clock for what ran
  // before. Of the second of two replays: the host's time to launch a graph does not show.
  double time() const;
  // The same in a row for so long that the controller has settled: an average over the second half.
  double sustained(double seconds) const;
  // The same without rests: the median of the second half of replays one after the other.
  double in_a_row() const;
  int launches() const { return launches_; }

 private:
  void enqueue() const;
  double once() const;  // microseconds of a replay
  const Cuda* cuda_;
  void* graph_ = nullptr;
  void* exec_ = nullptr;
  int launches_;
};

// One piece of what a launch reads or writes.
struct Piece {
  std::size_t bytes = 0;
  std::function<void(std::span<std::byte>)> fill;  // empty: written by the launch
  bool weights = false;
  bool scratch = false;  // one for all copies, zero at first
};

// What a task's launches read and write, of all its rows, filled as the tuner fills them.
std::vector<Piece> pieces_of(const Task& task);

// Equal copies of some pieces, as many as make up more than `cold_bytes` of weights, at least two.
class Rotation {
 public:
  Rotation(const Cuda& cuda, const Device& device, std::span<const Piece> pieces, double cold_bytes);
  int copies() const { return copies_; }
  std::size_t bytes() const { return arena_.size(); }
  void* at(int copy, int piece) const;
  std::vector<void*> pointers(int copy) const;
  void download(std::span<std::byte> to, int piece, std::size_t offset) const;  // of copy 0

  // How many launches to capture, given the time of one: whole walks over the copies that take about two milliseconds,
  // beside which what events resolve and the graph's own start do not show.
  int launches(double microseconds) const;

 private:
  Memory arena_;
  std::vector<std::size_t> offsets_;
  std::vector<bool> scratch_;
  std::size_t stride_ = 0;
  int copies_ = 0;
};

}  // namespace tilewright::bench
