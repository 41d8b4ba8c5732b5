// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "fake_test.h"

using namespace tilewright;
using namespace tilewright::test;

TEST_CASE("graph: records once, runs at every launch, on the scripted clock") {
  const Fake fake;
  const Device device = Fake::open();
  const Kernel kernel(device, fake_binary({8}));
  static int runs;
  runs = 0;
  fake_cuda_set_launch_handler([](const FakeLaunch*, void*) { ++runs; }, nullptr);
  fake_cuda_set_duration([](const FakeLaunch*, void*) { return 25.0; }, nullptr);
  const jit::OwnedStream stream(device);
  const std::uint64_t argument = 0;
  const jit::Graph graph(device, stream, [&](Stream s) {
    CHECK(stream.capturing());
    for (int i = 0; i < 3; ++i) kernel.launch(s, bytes_of(argument), 1, 1);
  });
  CHECK(runs == 0);
  CHECK_FALSE(stream.capturing());
  jit::Event start(device), stop(device);
  start.record(stream.get());
  graph.launch(stream.get());
  graph.launch(stream.get());
  stop.record(stream.get());
  stop.synchronize();
  CHECK(runs == 6);
  CHECK(stop.microseconds_since(start) == Approx(150));
  jit::Event never(device);
  error_of(ErrorCode::driver_failed, [&] { never.microseconds_since(start); });
}

TEST_CASE("graph: an exception while recording leaves the stream usable") {
  const Fake fake;
  const Device device = Fake::open();
  const jit::OwnedStream stream(device);
  CHECK_THROWS_AS(jit::Graph(device, stream, [](Stream) { throw std::runtime_error("stop"); }), std::runtime_error);
  CHECK_FALSE(stream.capturing());
  CHECK_NOTHROW(stream.synchronize());
  fake_cuda_fail("cuGraphInstantiateWithFlags", 1, 2);
  error_of(ErrorCode::driver_failed, [&] { jit::Graph(device, stream, [](Stream) {}); });
  CHECK_NOTHROW(stream.synchronize());
}

TEST_CASE("graph: an allocation while recording spoils the capture") {
  const Fake fake;
  const Device device = Fake::open();
  const jit::OwnedStream stream(device);
  const auto error =
      error_of(ErrorCode::driver_failed, [&] { jit::Graph(device, stream, [&](Stream) { jit::Memory(device, 16); }); });
  CHECK(mentions(error, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
  CHECK_FALSE(stream.capturing());
}
