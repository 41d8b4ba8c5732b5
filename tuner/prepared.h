// SPDX-License-Identifier: Apache-2.0
// Prepared: the kernels that prepare() made, the most recently used ones, each made by one thread however many ask for
// it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include <tilewright/kernel.h>
#include <tilewright/problem.h>

namespace tilewright::tuner {

// Identity of a prepared object: the problem without its rows, and the context it was made in. Compared and hashed by
// fields: a hit must not print or parse anything.
struct PreparedKey {
  Problem problem;
  int ordinal = 0;
  unsigned long long context = 0;
};
struct PreparedHash {
  std::size_t operator()(const PreparedKey& key) const;
};
struct PreparedEqual {
  bool operator()(const PreparedKey& a, const PreparedKey& b) const;
};
PreparedKey prepared_key(const Problem& problem, const Device& device);

class Prepared {
 public:
  explicit Prepared(std::size_t cap) : cap_(cap) {}

  // `now` orders uses; larger is later.
  std::optional<Kernel> find(const PreparedKey& key, std::int64_t now);
  // The kernel that another thread is making, with its error if it fails, or else what `make` returns here, which is
  // kept. `wait` false: does not wait for another thread, which may be waiting for this one.
  Kernel make(const PreparedKey& key, std::int64_t now, bool wait, const std::function<Kernel()>& make);
  // The next find() misses, and what is being made now is not kept: a better choice is known.
  void forget(const PreparedKey& key);

 private:
  struct Running {
    std::shared_future<Kernel> kernel;
    bool stale = false;
  };
  struct Entry {
    Entry(Kernel made, std::int64_t now) : kernel(std::move(made)), used(now) {}
    Kernel kernel;
    std::atomic<std::int64_t> used;
  };
  template <class Value>
  using Map = std::unordered_map<PreparedKey, Value, PreparedHash, PreparedEqual>;

  Kernel keep(const PreparedKey& key, Kernel kernel, std::int64_t now);

  const std::size_t cap_;
  std::shared_mutex mutex_;
  Map<Entry> entries_;
  Map<Running> running_;
};

}  // namespace tilewright::tuner
