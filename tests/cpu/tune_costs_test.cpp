// SPDX-License-Identifier: Apache-2.0
// What keeps a CPU's tuning short where a launch takes long: how much is verified, and how much memory is filled.
#include <tilewright/task.h>

#include <algorithm>

#include "cpu_test.h"
#include "tuner/measure.h"
#include "tuner/verify.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

constexpr std::int64_t kRows = 512, kVerifyRows = 257;

struct Sizes {
  std::vector<std::size_t> filled;  // of x, in rows
  Task task(double ops) {
    Task t;
    t.key = "a problem", t.rows = kRows, t.cols = 1, t.verify_rows = kVerifyRows, t.ops = ops;
    t.contract.op = "gemm", t.contract.rows = true;
    Buffer x;
    x.name = "x.data", x.bytes = 4 * kRows, x.row_bytes = 4;
    x.fill = [this](std::span<std::byte> bytes, std::uint64_t) { filled.push_back(bytes.size() / 4); };
    t.buffers.push_back(x);
    return t;
  }
};

}  // namespace

TEST_CASE("as many rows are verified on a CPU as its oracle has time for") {
  const Device two = Device::open_cpu({.threads = 2, .parallel_for = {}}),
               four = Device::open_cpu({.threads = 4, .parallel_for = {}});
  const auto verified = [&](const Device& device, double ops_per_row) {
    Sizes sizes;
    const Task task = sizes.task(ops_per_row * kRows);
    const tuner::Verifier verifier(task, device, nullptr);
    REQUIRE(sizes.filled.size() == 2);  // trials
    return sizes.filled[0];
  };
  CHECK(verified(two, 1e6) == 257);
  CHECK(verified(two, 1e8) == 129);
  CHECK(verified(four, 1e8) == 257);
  CHECK(verified(two, 1e12) == 65);  // never fewer: a kernel's tile and a row
}

TEST_CASE("inputs rotate on a CPU only where memory decides how long a launch takes") {
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  Sizes sizes;
  const Task light = sizes.task(1e4), heavy = sizes.task(1e6);
  CHECK(tuner::Bench(light, device, 1e5, nullptr).copies() > 2);
  CHECK(tuner::Bench(heavy, device, 1e5, nullptr).copies() == 2);
  CHECK(tuner::Bench(heavy, device, 1e5, nullptr, 1).copies() > 2);  // launches over one row are not heavy
}
