// SPDX-License-Identifier: Apache-2.0
#include "jit/device.h"

#include <sys/wait.h>
#include <unistd.h>

#include "fake_test.h"
#include "support/paths.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("device: properties") {
  const Fake fake;
  const FakeDevice small = {"NVIDIA Small", 9, 0, 7, 232448, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(1, &small);
  CHECK(Device::count(paths::fake_cuda()) == 2);
  const Device device = Fake::open(1);
  CHECK(device.name() == "NVIDIA Small");
  CHECK(device.ordinal() == 1);
  CHECK(device.sms() == 7);
  CHECK(device.l2_bytes() == 1 << 20);
  CHECK(device.memory_bytes() == 1 << 30);
  CHECK(device.driver_version() == "CUDA 13.0");
  CHECK(device.arch().wgmma);
  CHECK(jit::free_memory(device) == 1 << 30);
  CHECK_NOTHROW(device.synchronize());
}

TEST_CASE("device: an ordinal that does not exist names those that do") {
  const Fake fake;
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { Fake::open(2); }), "0 to 1"));
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { Fake::open(-1); }), "-1"));
  fake_cuda_set_device_count(1);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { Fake::open(1); }), "must be 0, the only device"));
  fake_cuda_set_device_count(0);
  CHECK(Device::count(paths::fake_cuda()) == 0);
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [] { Fake::open(0); }), "no CUDA device"));
}

TEST_CASE("device: older than every target") {
  const Fake fake;
  const FakeDevice old = {"Old", 3, 5, 15, 49152, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(0, &old);
  CHECK(mentions(error_of(ErrorCode::unsupported, [] { Fake::open(0); }), "3.5"));
}

TEST_CASE("device: every step of opening may fail, and nothing is left") {
  const Fake fake;
  for (const char* call : {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
                           "cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuCtxGetId"}) {
    fake_cuda_fail(call, 1, 3);
    const auto error = error_of(ErrorCode::driver_failed, [] { Fake::open(0); });
    CHECK(error.field() == call);
    CHECK(fake_cuda_live("context") == 0);
  }
}

TEST_CASE("memory: copies, fills, ranges, moves") {
  const Fake fake;
  const Device device = Fake::open();
  jit::Memory memory(device, 64), other(device, 64);
  std::vector<std::byte> data(64), back(64);
  for (int i = 0; i < 64; ++i) data[i] = std::byte(i);
  memory.upload(data);
  other.fill(0xee);
  other.copy_from(memory);
  other.download(back);
  CHECK(back == data);
  memory.download(std::span(back).first(4), 60);
  CHECK(back[0] == std::byte(60));
  error_of(ErrorCode::invalid_argument, [&] { memory.upload(data, 1); });
  error_of(ErrorCode::invalid_argument, [&] { memory.download(back, ~std::size_t{0}); });
  error_of(ErrorCode::invalid_argument, [&] { memory.copy_from(jit::Memory(device, 65)); });
  jit::Memory moved = std::move(memory);
  CHECK(memory.data() == nullptr);
  moved = std::move(other);
  CHECK(fake_cuda_live("memory") == 1);
  const jit::Memory none(device, 0);
  CHECK(none.data() == nullptr);
  const auto error = error_of(ErrorCode::driver_failed, [&] { jit::Memory(device, std::size_t{1} << 46); });
  CHECK(mentions(error, "CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST_CASE("device: the caller's context is current again afterwards") {
  const Fake fake;
  const Device first = Fake::open(0), second = Fake::open(1);
  CHECK(fake_cuda_current_device() == -1);
  const jit::Memory memory(first, 16);
  CHECK(fake_cuda_current_device() == -1);
  fake_cuda_push_context(1);
  first.synchronize();
  const jit::OwnedStream stream(first);
  CHECK(fake_cuda_current_device() == 1);
  fake_cuda_fail("cuCtxSynchronize", 1, 719);
  CHECK_THROWS_AS(second.synchronize(), Error);
  CHECK(fake_cuda_current_device() == 1);
  fake_cuda_pop_context();
}

TEST_CASE("the device is reset under everything that lives on it") {
  const Fake fake;
  {
    const Device device = Fake::open();
    jit::Memory memory(device, 16);
    const jit::OwnedStream stream(device);
    jit::Event event(device);
    const jit::Graph graph(device, stream, [](Stream) {});
    fake_cuda_reset_device(0);
    const Device again = Fake::open();  // the context comes back at the same address
    CHECK(mentions(error_of(ErrorCode::driver_failed, [&] { memory.fill(1); }), "reset"));
    error_of(ErrorCode::driver_failed, [&] { stream.synchronize(); });
    error_of(ErrorCode::driver_failed, [&] { event.record(nullptr); });
    error_of(ErrorCode::driver_failed, [&] { graph.launch(nullptr); });
    error_of(ErrorCode::driver_failed, [&] { device.synchronize(); });
    CHECK_NOTHROW(jit::Memory(again, 16).fill(1));
  }
  CHECK(fake_cuda_violation_count() == 0);
}

TEST_CASE("a child of fork() gets Error forked, the parent goes on") {
  const Fake fake;
  const Device device = Fake::open();
  jit::Memory memory(device, 16);
  const long calls = fake_cuda_calls("cuMemsetD8") + fake_cuda_calls("cuCtxGetCurrent");
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    auto expect_forked = [&](auto action) {
      try {
        action();
        ++wrong;
      } catch (const Error& error) {
        wrong += error.code() != ErrorCode::forked;
      }
    };
    expect_forked([&] { memory.fill(0); });
    expect_forked([&] { device.synchronize(); });
    expect_forked([&] { Fake::open(1); });
    wrong += Device::count(paths::fake_cuda()) != 0;
    { const jit::Memory dropped = std::move(memory); }  // no driver call
    wrong += fake_cuda_calls("cuMemsetD8") + fake_cuda_calls("cuCtxGetCurrent") != calls;
    wrong += fake_cuda_calls("cuMemFree") != 0;
    _exit(wrong);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK_NOTHROW(memory.fill(1));
}
