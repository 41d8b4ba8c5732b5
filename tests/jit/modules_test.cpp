// SPDX-License-Identifier: Apache-2.0
// Modules that kernels share, and handles that were moved from.
#include <thread>
#include <vector>

#include "kernel_test.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("modules: kernels of one image in one context share a module, which the last one unloads") {
  const Fake fake;
  const Binary binary = fake_binary({8}), other = fake_binary({8}, "k", 1);
  REQUIRE(binary.image.size() == other.image.size());  // told apart by content
  {
    const Device device = Fake::open();
    std::vector<Kernel> kernels(3, Kernel(device, binary));
    for (int i = 0; i < 3; ++i) kernels.emplace_back(Fake::open(), binary);
    CHECK(fake_cuda_calls("cuModuleLoadData") == 1);
    kernels.emplace_back(device, other);
    CHECK(fake_cuda_live("module") == 2);
    kernels.emplace_back(Fake::open(1), binary);  // another context
    CHECK(fake_cuda_live("module") == 3);
    kernels.resize(1, kernels.front());
    CHECK(fake_cuda_live("module") == 1);
  }
  CHECK(fake_cuda_live("module") == 0);
  Kernel again(Fake::open(), binary);
  CHECK(fake_cuda_calls("cuModuleLoadData") == 4);
}

TEST_CASE("modules: one that fails to load is loaded anew, and so is one of a context that was reset") {
  Fake fake;
  const Binary binary = fake_binary({8});
  const Device device = Fake::open();
  fake_cuda_fail("cuModuleLoadData", 1, 209);
  error_of(ErrorCode::driver_failed, [&] { Kernel(device, binary); });
  const Kernel before(device, binary);
  fake_cuda_reset_device(0);
  const Kernel after(Fake::open(), binary);
  CHECK(fake_cuda_calls("cuModuleLoadData") == 3);
  CHECK_NOTHROW(after.launch(nullptr, bytes_of(std::uint64_t{0}), 1, 1));
}

TEST_CASE("modules: threads that load one image load it once") {
  const Fake fake;
  const Binary binary = fake_binary({8});
  const Device device = Fake::open();
  for (int round = 0; round < 20; ++round) {
    const long before = fake_cuda_calls("cuModuleLoadData");
    std::vector<std::thread> threads;
    std::atomic<int> ready{0}, loaded{0};
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        for (++ready; ready < 8;) std::this_thread::yield();
        const Kernel kernel(device, binary);
        for (++loaded; loaded < 8;) std::this_thread::yield();
      });
    for (auto& t : threads) t.join();
    CHECK(fake_cuda_calls("cuModuleLoadData") == before + 1);
    CHECK(fake_cuda_live("module") == 0);
  }
}

TEST_CASE("modules: plans that share a function keep the larger shared memory") {
  const Fake fake;
  const Device device = Fake::open();
  Binary small = fake_binary({8}), large = small;
  small.plan.shared_bytes = 64 << 10, large.plan.shared_bytes = 128 << 10;
  const Kernel first(device, large), second(device, small);
  CHECK_NOTHROW(first.launch(nullptr, bytes_of(std::uint64_t{0}), 1, 1));
  CHECK_NOTHROW(second.launch(nullptr, bytes_of(std::uint64_t{0}), 1, 1));
}

TEST_CASE("handles that were moved from say so or do nothing") {
  const Fake fake;
  Device device = Fake::open();
  Kernel kernel(device, fake_binary({8}));
  const Kernel taken = std::move(kernel);
  CHECK_NOTHROW(kernel.launch(nullptr, bytes_of(std::uint64_t{0}), 1, 1));
  CHECK(kernel.plan(1).threads == taken.plan(1).threads);
  CHECK(kernel.resources(1) == taken.resources(1));
  kernel.check_pointers(true);

  OwnedStream stream(device), moved = std::move(stream);
  for (const auto& use : std::vector<std::function<void()>>{[&] { stream.get(); }, [&] { stream.synchronize(); },
                                                            [&] { stream.capturing(); }})
    CHECK(error_of(ErrorCode::invalid_argument, use).field() == "stream");
  CHECK_NOTHROW(moved.synchronize());
  stream = std::move(moved);
  CHECK_NOTHROW(stream.synchronize());

  jit::Memory memory(device, 64), elsewhere = std::move(memory), none;
  std::byte bytes[8] = {};
  for (jit::Memory* m : {&memory, &none}) {
    CHECK(m->size() == 0);
    CHECK(error_of(ErrorCode::invalid_argument, [&] { m->upload(bytes); }).field() == "memory range");
    CHECK(error_of(ErrorCode::invalid_argument, [&] { m->download(bytes); }).field() == "memory range");
    CHECK(error_of(ErrorCode::invalid_argument, [&] { m->copy_from(elsewhere); }).field() == "memory range");
    CHECK_NOTHROW(m->fill(0));
    CHECK_NOTHROW(elsewhere.copy_from(*m));
  }
  const Device same = std::move(device);
  CHECK(device.name() == same.name());
  CHECK_NOTHROW(device.synchronize());
}
