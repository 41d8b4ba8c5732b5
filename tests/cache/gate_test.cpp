// SPDX-License-Identifier: Apache-2.0
#include "cache/file/gate.h"

#include <thread>
#include <vector>

#include "support/catch.h"

using tilewright::cache::Gate;

TEST_CASE("a gate lets one in at a time and gives up at the deadline") {
  Gate gate;
  CHECK(gate.try_lock());
  CHECK_FALSE(gate.try_lock());
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(gate.try_lock_until(start + std::chrono::milliseconds(20)));
  CHECK(std::chrono::steady_clock::now() >= start + std::chrono::milliseconds(20));
  gate.unlock();
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const std::lock_guard guard(gate);
        ++count;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(count == 4000);
}
