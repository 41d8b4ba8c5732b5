// SPDX-License-Identifier: Apache-2.0
// What keeps a CPU's tuning short where a launch takes long: how much is verified, and how much memory is filled.
#include <tilewright/task.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "cpu_test.h"
#include "jit/cpu/memory.h"
#include "tuner/measure/measure.h"
#include "tuner/measure/verify.h"

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
  CHECK(tuner::Bench(light, device, 1e5, nullptr).copies(kRows) > 2);
  CHECK(tuner::Bench(heavy, device, 1e5, nullptr).copies(kRows) == 2);
  CHECK(tuner::Bench(heavy, device, 1e5, nullptr, 1).copies(1) > 2);  // launches over one row are not heavy
}

namespace {

// A root of a file system with 8 GiB of memory, of which 6 are free.
struct Root {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("tilewright-root-" + std::to_string(::getpid()));
  explicit Root(const std::string& groups) {
    write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 6291456 kB\n");
    write("proc/self/cgroup", groups);
  }
  ~Root() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
};

constexpr std::size_t kMiB = 1 << 20, kGiB = 1 << 30;

}  // namespace

TEST_CASE("a control group's limit is the memory that a CPU has") {
  {
    const Root root("0::/\n");
    CHECK(jit::cpu::host_memory(root.path).free == 6 * kGiB);
    CHECK(jit::cpu::host_memory(root.path).total == 8 * kGiB);
    root.write("sys/fs/cgroup/memory.max", "max\n");
    root.write("sys/fs/cgroup/memory.current", "1000\n");
    CHECK(jit::cpu::host_memory(root.path).free == 6 * kGiB);
  }
  {  // version 2: the outer of two groups limits, and what it keeps of files may be had
    const Root root("0::/user/job\n");
    root.write("sys/fs/cgroup/user/job/memory.max", "max\n");
    root.write("sys/fs/cgroup/user/job/memory.current", std::to_string(kGiB));
    root.write("sys/fs/cgroup/user/memory.max", std::to_string(2 * kGiB));
    root.write("sys/fs/cgroup/user/memory.current", std::to_string(kGiB + 512 * kMiB));
    root.write("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file " + std::to_string(256 * kMiB) + "\n");
    CHECK(jit::cpu::host_memory(root.path).free == 768 * kMiB);
    CHECK(jit::cpu::host_memory(root.path).total == 2 * kGiB);
  }
  {  // version 1, in a container that does not see the folder that its group is named by
    const Root root("12:cpu,cpuacct:/docker/1\n7:memory:/docker/1\n0::/\n");
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(kGiB));
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(2 * kGiB));
    CHECK(jit::cpu::host_memory(root.path).free == 0);
    CHECK(jit::cpu::host_memory(root.path).total == kGiB);
  }
}

TEST_CASE("the copies of a small layer for many rows take no more memory than is stated") {
  const Device device = Device::open_cpu({.threads = 1, .parallel_for = {}});
  // 64 KB of weights, and rows of x and y for eight thousand rows: 512 copies of all of it would take 5 GB.
  constexpr std::int64_t kMost = 8192;
  Task task;
  task.rows = kMost, task.cols = 1;
  const auto fill = [](std::span<std::byte> bytes, std::uint64_t) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i % 36);  // a row's bytes
  };
  task.buffers = {{.name = "w", .bytes = 64 << 10, .fill = fill},
                  {.name = "x", .bytes = 36 * kMost, .row_bytes = 36, .fill = fill},
                  {.name = "y", .bytes = 1024 * kMost, .output = true, .row_bytes = 1024}};
  const double cold = 4e7;
  const tuner::Bench bench(task, device, cold, nullptr, 1);
  CHECK(static_cast<double>(bench.bytes()) <= 2 * cold + 2 * (65536.0 + (1024 + 36) * double(kMost)));
  // Launches over one row rotate over as many copies as before, and those over all rows over as many bytes.
  CHECK(bench.copies(1) == 512);
  CHECK(bench.copies(kMost) * 1024.0 * double(kMost) >= cold / 2);
}
