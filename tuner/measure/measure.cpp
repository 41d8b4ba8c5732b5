// SPDX-License-Identifier: Apache-2.0
#include "tuner/measure/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include <tilewright/error.h>

#include "tuner/measure/launch.h"

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
// Of the device's free memory; of a CPU's, which it shares with all that is being verified and compiled, if one copy
// fits.
constexpr double kFreeShare = 0.8, kCpuShare = 0.25;
constexpr std::size_t kAlign = 256;  // what the driver's allocator gives

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// From a copy to the next, for launches over `rows` rows. Of an input whole rows, so that wherever a copy begins there
// is content that a kernel may read.
std::size_t step(const Buffer& b, std::int64_t rows) {
  const std::size_t unit = b.row_bytes && !b.output ? std::lcm(b.row_bytes, kAlign) : kAlign;
  return rounded(std::max<std::size_t>(1, bytes_at(b, rows)), unit);
}

}  // namespace

Bench::Bench(const Task& task, const Device& device, double cold_bytes, const Binary* clock, std::int64_t least_rows)
    : task_(task), device_(device), stream_(device), start_(device), stop_(device) {
  const bool cpu = device.arch().cpu != nullptr;
  double bytes = 0;
  for (const Buffer& b : task.buffers) bytes += b.scratch ? 0 : static_cast<double>(bytes_at(b, task.rows));
  if (cpu && least_rows <= 0 && task.ops > kCpuOpsPerByte * bytes) cold_bytes = 0;
  if (least_rows <= 0) least_rows = task.rows;
  const auto free = static_cast<double>(jit::free_memory(device));
  std::size_t all = lay_out(cold_bytes, least_rows, 2);
  while (static_cast<double>(all) > (cpu ? kCpuShare : kFreeShare) * free && cold_bytes > 1)
    all = lay_out(cold_bytes /= 2, least_rows, 2);
  if (static_cast<double>(all) > (cpu ? kCpuShare : kFreeShare) * free) all = lay_out(0, least_rows, 1);
  if (static_cast<double>(all) > kFreeShare * free)
    throw Error(ErrorCode::too_large, "buffers", std::to_string(all) + " bytes",
                fmt::format("must fit into the device's free memory to be measured, which has {:.0f} bytes", free));
  arena_ = jit::Memory(device, all);
  fill();
  if (clock) clock_ = std::make_unique<ClockMeter>(device, *clock);
}

std::size_t Bench::lay_out(double cold_bytes, std::int64_t least_rows, int fewest) {
  double least = 0, most = 0;  // bytes of a launch over the fewest rows, and over all
  for (const Buffer& b : task_.buffers) {
    if (b.scratch) continue;
    least += static_cast<double>(step(b, least_rows));
    most += static_cast<double>(step(b, task_.rows));
  }
  // An input comes round again only after cold_bytes of others: it has left the L2 by then.
  const auto copies_of = [&](double bytes) {
    return static_cast<std::size_t>(
        std::clamp(std::ceil(cold_bytes / std::max(1.0, bytes)) + 1, double(fewest), double(kMostCopies)));
  };
  std::size_t end = 0;
  rings_.clear();
  for (const Buffer& b : task_.buffers) {
    const std::size_t copies = b.scratch ? 1 : copies_of(b.row_bytes ? most : least);
    rings_.push_back({end, copies * step(b, task_.rows)});
    end += rounded(rings_.back().bytes, kAlign);
  }
  return std::max(end, kAlign);
}

int Bench::copies(std::size_t buffer, std::int64_t rows) const {
  const Buffer& b = task_.buffers[buffer];
  if (b.scratch) return 1;
  const std::size_t behind = rings_[buffer].bytes - bytes_at(b, rows);
  return static_cast<int>(std::min<std::size_t>(behind / step(b, rows) + 1, kMostCopies));
}

int Bench::copies(std::int64_t rows) const {
  int most = 1;
  for (std::size_t i = 0; i < rings_.size(); ++i) most = std::max(most, copies(i, rows));
  return most;
}

void Bench::fill() {
  // Content matters: zeros run 13 % faster than random data on an H200 (power). The copies may be equal.
  arena_.fill(0);
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    const Buffer& b = task_.buffers[i];
    const Ring& ring = rings_[i];
    if (b.output || b.scratch || !b.fill) continue;
    const std::size_t bytes = bytes_at(b, task_.rows);
    std::vector<std::byte> content(b.row_bytes ? bytes : step(b, task_.rows));
    b.fill(std::span(content).first(bytes), 1);
    for (std::size_t at = 0; at < ring.bytes; at += content.size())
      arena_.upload(std::span(content).first(std::min(content.size(), ring.bytes - at)), ring.begin + at);
  }
}

std::vector<void*> Bench::pointers(int turn, std::int64_t rows) const {
  std::vector<void*> p;
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    const auto copy = static_cast<std::size_t>(turn % copies(i, rows));
    p.push_back(static_cast<char*>(arena_.data()) + rings_[i].begin + copy * step(task_.buffers[i], rows));
  }
  return p;
}

int Bench::add(const jit::BinaryPtr& binary, std::int64_t rows) {
  Entry e{kernel_of(task_, device_, binary), rows > 0 ? rows : task_.rows, nullptr, 0, 0, {}, {}};
  const int copies = this->copies(e.rows);
  // The first launch loads code and grows pools; the second, on other inputs, says how long a graph will be.
  launch_over(task_, e.kernel, stream_.get(), pointers(0, e.rows), e.rows);
  stream_.synchronize();
  start_.record(stream_.get());
  launch_over(task_, e.kernel, stream_.get(), pointers(copies - 1, e.rows), e.rows);
  stop_.record(stream_.get());
  stop_.synchronize();
  e.estimate = stop_.microseconds_since(start_);

  double walk = std::max(1.0, e.estimate) * copies;
  int walks = static_cast<int>(std::ceil(kGraphMicroseconds / walk));
  walks = std::clamp(walks, 1, std::max(1, kMostLaunches / copies));
  e.launches = walks * copies;
  if (device_.arch().cpu) e.launches = std::max(1, static_cast<int>(kCpuMicroseconds / std::max(1.0, e.estimate)));
  turn_ = 0;
  e.graph = std::make_unique<jit::Graph>(device_, stream_,
                                         [this, kernel = e.kernel, rows = e.rows, launches = e.launches](Stream s) {
                                           for (int i = 0; i < launches; ++i)
                                             launch_over(task_, kernel, s, pointers(turn_++, rows), rows);
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
