// SPDX-License-Identifier: Apache-2.0
#include "tuner/prepared.h"

#include <algorithm>

namespace tilewright::tuner {

std::optional<Kernel> Prepared::find(const PreparedKey& key, std::int64_t now) {
  const std::shared_lock lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return std::nullopt;
  entry->second.used.store(now, std::memory_order_relaxed);
  return entry->second.kernel;
}

Kernel Prepared::make(const PreparedKey& key, std::int64_t now, bool wait, const std::function<Kernel()>& make) {
  std::promise<Kernel> promise;
  std::shared_future<Kernel> other;
  bool first = false;
  {
    const std::unique_lock lock(mutex_);
    if (const auto entry = entries_.find(key); entry != entries_.end()) return entry->second.kernel;
    const auto running = running_.find(key);
    first = running == running_.end();
    if (first)
      running_.emplace(key, Running{promise.get_future().share()});
    else if (wait)
      other = running->second.kernel;
  }
  if (other.valid()) return other.get();
  if (!first) return keep(key, make(), now);
  try {
    promise.set_value(keep(key, make(), now));
  } catch (...) {
    promise.set_exception(std::current_exception());
  }
  const std::unique_lock lock(mutex_);
  const std::shared_future<Kernel> mine = running_.extract(key).mapped().kernel;
  return mine.get();
}

Kernel Prepared::keep(const PreparedKey& key, Kernel kernel, std::int64_t now) {
  std::optional<Kernel> evicted;  // unloaded after the lock
  const std::unique_lock lock(mutex_);
  if (const auto running = running_.find(key); running != running_.end() && running->second.stale) return kernel;
  if (entries_.size() >= cap_ && !entries_.contains(key)) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return a.second.used.load(std::memory_order_relaxed) < b.second.used.load(std::memory_order_relaxed);
    });
    evicted = oldest->second.kernel;
    entries_.erase(oldest);
  }
  return entries_.try_emplace(key, std::move(kernel), now).first->second.kernel;
}

void Prepared::forget(const PreparedKey& key) {
  std::optional<Kernel> forgotten;
  const std::unique_lock lock(mutex_);
  if (const auto running = running_.find(key); running != running_.end()) running->second.stale = true;
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return;
  forgotten = entry->second.kernel;
  entries_.erase(entry);
}

}  // namespace tilewright::tuner
