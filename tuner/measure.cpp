// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <tilewright/error.h>

#include "tuner/launch.h"

namespace tilewright::tuner {
namespace {

constexpr int kMostCopies = 512;     // a tiny problem's inputs: 512 launches already walk past any L2's associativity
constexpr int kMostLaunches = 1024;  // in one graph
constexpr double kGraphMicroseconds = 400;  // events resolve about 0.5 us: 0.1 % of this
// Of a sample on a CPU, whose launches take as long as whole graphs: a launch, if one takes that long.
constexpr double kCpuMicroseconds = 2000;
// Of a launch on a CPU that computes for much longer than its operands take from memory: two copies do.
constexpr double kCpuOpsPerByte = 200;
constexpr double kRestShare = 2, kMostRest = 20000;  // of a sample's work; microseconds
constexpr double kFreeShare = 0.8;                   // of the device's free memory
constexpr std::size_t kAlign = 256;                  // what the driver's allocator gives

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

Bench::Bench(const Task& task, const Device& device, double cold_bytes, const Binary* clock, std::int64_t least_rows)
    : task_(task), device_(device), stream_(device), start_(device), stop_(device) {
  std::size_t scratch = 0, least = 0;  // bytes; least: that a launch over the fewest rows reads or writes
  for (const Buffer& b : task.buffers) {
    std::size_t& end = b.scratch ? scratch : stride_;
    offsets_.push_back(end);
    end += aligned(std::max<std::size_t>(1, bytes_at(b, task.rows)));
    if (!b.scratch) least += aligned(bytes_at(b, least_rows > 0 ? least_rows : task.rows));
  }
  stride_ = std::max(stride_, kAlign);
  double room = (kFreeShare * static_cast<double>(jit::free_memory(device)) - static_cast<double>(scratch)) /
                static_cast<double>(stride_);
  if (room < 1)
    throw Error(
        ErrorCode::too_large, "buffers", std::to_string(stride_ + scratch) + " bytes",
        "measuring needs them in the device's free memory, which has " + std::to_string(jit::free_memory(device)));
  // An input comes round again only after cold_bytes of others: it has left the L2 by then.
  const bool bound_by_ops = least_rows <= 0 && task.ops > kCpuOpsPerByte * static_cast<double>(stride_);
  if (device.arch().cpu && bound_by_ops) cold_bytes = 0;
  double wanted = std::ceil(std::max(0.0, cold_bytes) / static_cast<double>(std::max(least, kAlign))) + 1;
  copies_ = static_cast<int>(std::clamp(wanted, 2.0, double(kMostCopies)));
  copies_ = std::max(1, static_cast<int>(std::min(double(copies_), room)));
  arena_ = jit::Memory(device, stride_ * static_cast<std::size_t>(copies_) + scratch);
  fill(copies_);
  if (scratch) arena_.upload(std::vector<std::byte>(scratch), stride_ * static_cast<std::size_t>(copies_));
  if (clock) clock_ = std::make_unique<ClockMeter>(device, *clock);
}

void Bench::fill(int copies) {
  // Content matters: zeros run 13 % faster than random data on an H200 (power). The copies may be equal.
  std::vector<std::byte> content(stride_);
  for (std::size_t i = 0; i < task_.buffers.size(); ++i) {
    const Buffer& b = task_.buffers[i];
    if (!b.output && !b.scratch && b.fill) b.fill(std::span(content).subspan(offsets_[i], bytes_at(b, task_.rows)), 1);
  }
  for (int c = 0; c < copies; ++c) arena_.upload(content, stride_ * static_cast<std::size_t>(c));
}

std::vector<void*> Bench::pointers(int copy) const {
  std::vector<void*> p;
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const int place = task_.buffers[i].scratch ? copies_ : copy;
    p.push_back(static_cast<char*>(arena_.data()) + stride_ * static_cast<std::size_t>(place) + offsets_[i]);
  }
  return p;
}

int Bench::add(const jit::BinaryPtr& binary, std::int64_t rows) {
  Entry e{kernel_of(task_, device_, binary), rows > 0 ? rows : task_.rows, nullptr, 0, 0, {}, {}};
  // The first launch loads code and grows pools; the second, on other inputs, says how long a graph will be.
  launch_over(task_, e.kernel, stream_.get(), pointers(0), e.rows);
  stream_.synchronize();
  start_.record(stream_.get());
  launch_over(task_, e.kernel, stream_.get(), pointers(copies_ - 1), e.rows);
  stop_.record(stream_.get());
  stop_.synchronize();
  e.estimate = stop_.microseconds_since(start_);

  double walk = std::max(1.0, e.estimate) * copies_;
  int walks = static_cast<int>(std::ceil(kGraphMicroseconds / walk));
  walks = std::clamp(walks, 1, std::max(1, kMostLaunches / copies_));
  e.launches = walks * copies_;
  if (device_.arch().cpu) e.launches = std::max(1, static_cast<int>(kCpuMicroseconds / std::max(1.0, e.estimate)));
  turn_ = 0;
  e.graph = std::make_unique<jit::Graph>(device_, stream_,
                                         [this, kernel = e.kernel, rows = e.rows, launches = e.launches](Stream s) {
                                           for (int i = 0; i < launches; ++i)
                                             launch_over(task_, kernel, s, pointers(turn_++ % copies_), rows);
                                         });
  if (!device_.arch().cpu) e.graph->launch(stream_.get());  // uploads the graph
  stream_.synchronize();
  entries_.push_back(std::move(e));
  return static_cast<int>(entries_.size()) - 1;
}

double Bench::time(const Entry& e, bool loaded, double* mhz) {
  if (loaded && !device_.arch().cpu) e.graph->launch(stream_.get());
  start_.record(stream_.get());
  e.graph->launch(stream_.get());
  stop_.record(stream_.get());
  if (clock_) clock_->record(stream_.get());
  stream_.synchronize();
  *mhz = clock_ ? clock_->mhz() : 0;
  return stop_.microseconds_since(start_) / e.launches;
}

void Bench::round(std::span<const int> candidates, bool loaded) {
  for (int index : candidates) {
    Entry& e = entries_[static_cast<std::size_t>(index)];
    double mhz = 0;
    double us = time(e, loaded, &mhz);
    // A chip that draws more power than it may lowers its clock some ten milliseconds later, and for up to a second:
    // for whichever candidate is timed then.
    const double rest = device_.arch().cpu ? 0 : std::min(kMostRest, (loaded ? 2 : 1) * kRestShare * us * e.launches);
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(rest));
    e.samples.push_back(us);
    e.clocks.push_back(mhz);
  }
}

std::vector<double> Bench::samples(int candidate) const {
  // Against the candidate's own median clock, because its power draw, and so the clock it runs at, is its own.
  const Entry& e = entries_[static_cast<std::size_t>(candidate)];
  std::vector<double> kept;
  for (int i : steady(e.clocks)) kept.push_back(e.samples[static_cast<std::size_t>(i)]);
  return kept;
}

double Bench::mhz(int candidate) const { return median(entries_[static_cast<std::size_t>(candidate)].clocks); }

void Bench::forget(int candidate) {
  entries_[static_cast<std::size_t>(candidate)].samples.clear();
  entries_[static_cast<std::size_t>(candidate)].clocks.clear();
}

bool Bench::unsteady() const {
  std::size_t taken = 0, kept = 0;
  for (int i = 0; i < static_cast<int>(entries_.size()); ++i) {
    taken += entries_[static_cast<std::size_t>(i)].samples.size();
    kept += samples(i).size();
  }
  return kept * 2 < taken;
}

}  // namespace tilewright::tuner
