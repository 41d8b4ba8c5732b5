// SPDX-License-Identifier: Apache-2.0
// Graph and Event of jit/device.h: what measuring needs.
#include <utility>

#include "jit/context.h"
#include "jit/device.h"

namespace tilewright::jit {
namespace {

constexpr int kCaptureThreadLocal = 1;  // other threads may go on allocating and loading meanwhile

CUstream stream_of(Stream stream) { return static_cast<CUstream>(stream); }

}  // namespace

Graph::Graph(const Device& device, const OwnedStream& stream, const std::function<void(Stream)>& record)
    : device_(device) {
  if (device.impl()->cpu) {
    record_ = record;
    return;
  }
  const ContextScope scope(*device.impl());
  const Driver& driver = *device.impl()->driver;
  CUgraph graph = nullptr;
  driver.must(driver.capture_begin, stream_of(stream.get()), kCaptureThreadLocal);
  try {
    record(stream.get());
  } catch (...) {
    // The stream must leave capture mode whatever happened, or it can never be used again.
    if (driver.capture_end(stream_of(stream.get()), &graph) == 0 && graph) driver.graph_destroy(graph);
    throw;
  }
  driver.must(driver.capture_end, stream_of(stream.get()), &graph);
  graph_ = graph;
  CUgraphExec exec = nullptr;
  if (const CUresult result = driver.graph_instantiate(&exec, graph, 0ull)) {
    driver.graph_destroy(graph);
    driver.fail("cuGraphInstantiate", result);
  }
  exec_ = exec;
}

Graph::Graph(Graph&& other) noexcept
    : device_(std::move(other.device_)),
      record_(std::move(other.record_)),
      graph_(std::exchange(other.graph_, nullptr)),
      exec_(std::exchange(other.exec_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  Graph taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(record_, taken.record_);
  std::swap(graph_, taken.graph_);
  std::swap(exec_, taken.exec_);
  return *this;
}

Graph::~Graph() {
  if (!exec_) return;
  release_quietly(*device_.impl(), [&](const Driver& driver) {
    driver.exec_destroy(static_cast<CUgraphExec>(exec_));
    driver.graph_destroy(static_cast<CUgraph>(graph_));
  });
}

void Graph::launch(Stream stream) const {
  if (record_) return record_(stream);
  const ContextScope scope(*device_.impl());
  const Driver& driver = *device_.impl()->driver;
  driver.must(driver.graph_launch, static_cast<CUgraphExec>(exec_), stream_of(stream));
}

Event::Event(const Device& device) : device_(device) {
  const ContextScope scope(*device.impl());
  CUevent event = nullptr;
  device.impl()->driver->must(device.impl()->driver->event_create, &event, 0u);
  event_ = event;
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  Event taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(event_, taken.event_);
  return *this;
}

Event::~Event() {
  if (!event_) return;
  release_quietly(*device_.impl(), [&](const Driver& driver) { driver.event_destroy(static_cast<CUevent>(event_)); });
}

void Event::record(Stream stream) {
  const ContextScope scope(*device_.impl());
  device_.impl()->driver->must(device_.impl()->driver->event_record, static_cast<CUevent>(event_), stream_of(stream));
}

void Event::synchronize() {
  const ContextScope scope(*device_.impl());
  device_.impl()->driver->must(device_.impl()->driver->event_synchronize, static_cast<CUevent>(event_));
}

double Event::microseconds_since(const Event& start) const {
  const ContextScope scope(*device_.impl());
  const Driver& driver = *device_.impl()->driver;
  float milliseconds = 0;
  driver.must(driver.event_elapsed, &milliseconds, static_cast<CUevent>(start.event_), static_cast<CUevent>(event_));
  return 1000.0 * milliseconds;
}

}  // namespace tilewright::jit
