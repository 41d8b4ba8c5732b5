// SPDX-License-Identifier: Apache-2.0
#include "fake_test.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

const auto load = [](const Device& device, const Binary& binary) { Kernel(device, binary); };

}  // namespace

TEST_CASE("row 25: limits are refused before the driver sees the image") {
  const Fake fake;
  const Device device = Fake::open();
  auto refused = [&](auto change, const char* field) {
    Binary binary = fake_binary({8});
    change(binary);
    const auto error = error_of(ErrorCode::invalid_argument, [&] { load(device, binary); });
    CHECK(error.field() == field);
  };
  refused([](Binary& b) { b.plan.threads = 0; }, "plan.threads");
  refused([](Binary& b) { b.plan.threads = 1025; }, "plan.threads");
  refused([](Binary& b) { b.plan.threads = 2048; }, "plan.threads");
  refused([](Binary& b) { b.plan.shared_bytes = 300 << 10; }, "plan.shared_bytes");
  refused([](Binary& b) { b.plan.shared_bytes = 4294967295u; }, "plan.shared_bytes");
  refused([](Binary& b) { b.plan.shared_bytes = 232448, b.resources.shared_bytes = 1; }, "plan.shared_bytes");
  refused([](Binary& b) { b.plan.threads = 512, b.resources.registers = 129; }, "plan.threads");
  refused([](Binary& b) { b.plan.cluster = 0; }, "plan.cluster");
  refused([](Binary& b) { b.plan.cluster = 16; }, "plan.cluster");
  CHECK(fake_cuda_image_count() == 0);
  Binary largest = fake_binary({8});
  largest.plan.threads = 1024;
  largest.plan.shared_bytes = 232448;
  largest.resources.registers = 64;
  CHECK_NOTHROW(load(device, largest));
  CHECK(fake_cuda_calls("cuFuncSetAttribute") == 1);
}

TEST_CASE("row 25: a device without clusters") {
  const Fake fake;
  const FakeDevice ampere = {"A100", 8, 0, 108, 166912, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(0, &ampere);
  Binary binary = fake_binary({8});
  binary.plan.cluster = 2;
  const Device device = Fake::open();
  CHECK(error_of(ErrorCode::invalid_argument, [&] { load(device, binary); }).field() == "plan.cluster");
}

TEST_CASE("row 30: bytes that are no whole cubin never reach the driver") {
  const Fake fake;
  const Device device = Fake::open();
  const Binary good = fake_binary({8});
  for (const double part : {0.0, 0.02, 0.1, 0.5, 0.9, 0.99}) {
    Binary binary = good;
    binary.image.resize(static_cast<std::size_t>(part * good.image.size()));
    const auto error = error_of(ErrorCode::invalid_argument, [&] { load(device, binary); });
    CHECK(error.field() == "binary.image");
  }
  Binary zeros = good, other = good;
  zeros.image.assign(4096, std::byte{0});
  error_of(ErrorCode::invalid_argument, [&] { load(device, zeros); });
  other.entry = "missing";
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { load(device, other); }), "has: k"));
  CHECK(fake_cuda_image_count() == 0);
}

TEST_CASE("row 30, row 28: an image that the driver refuses is an error, and nothing is left") {
  const Fake fake;
  const Device device = Fake::open();
  const Binary good = fake_binary({8});
  for (const int code : {200, 209, 222}) {
    fake_cuda_fail("cuModuleLoadData", 1, code);
    const auto error = error_of(ErrorCode::driver_failed, [&] { load(device, good); });
    CHECK(error.field() == "cuModuleLoadData");
    CHECK(mentions(error, "sm_90a"));
    CHECK(mentions(error, "CUDA 13.0"));
  }
  Binary ampere = good;
  ampere.image = make_image("k", 80, {8});
  CHECK(mentions(error_of(ErrorCode::driver_failed, [&] { load(device, ampere); }), "NO_BINARY_FOR_GPU"));
  for (const char* call : {"cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncGetParamInfo"}) {
    fake_cuda_fail(call, 1, 2);
    CHECK(error_of(ErrorCode::driver_failed, [&] { load(device, good); }).field() == call);
    CHECK(fake_cuda_live("module") == 0);
  }
  CHECK_NOTHROW(load(device, good));
}

TEST_CASE("load: parameters that a launch would not pass") {
  const Fake fake;
  const Device device = Fake::open();
  CHECK(mentions(error_of(ErrorCode::invalid_argument, [&] { load(device, fake_binary({8, 4})); }), "8, 4"));
  CHECK_NOTHROW(load(device, fake_binary({})));
  const Binary binary = fake_binary({sizeof(GemmArgs), 16});
  const int first[] = {0};
  Contract contract;
  contract.op = "gemm";
  contract.args_bytes = sizeof(GemmArgs);
  contract.constants.resize(16);
  CHECK_NOTHROW(Kernel(device, {&binary, 1}, first, contract));
  contract.constants.resize(8);
  error_of(ErrorCode::invalid_argument, [&] { Kernel(device, {&binary, 1}, first, contract); });
  contract.constants.resize(16);
  contract.args_bytes = 8;
  error_of(ErrorCode::invalid_argument, [&] { Kernel(device, {&binary, 1}, first, contract); });
}

TEST_CASE("load: a contract that points outside its struct, a table that points outside its binaries") {
  const Fake fake;
  const Device device = Fake::open();
  const Binary binary = fake_binary({16});
  const int first[] = {0}, none[] = {-1, -1}, outside[] = {1};
  Contract contract;
  contract.args_bytes = 16;
  auto refused = [&](std::span<const int> table, const Contract& rules) {
    error_of(ErrorCode::invalid_argument, [&] { Kernel(device, {&binary, 1}, table, rules); });
  };
  refused(none, contract);
  refused({}, contract);
  refused(outside, contract);
  refused(std::vector<int>(14, 0), contract);
  contract.pointers = {{"x", 12, 16, true}};
  refused(first, contract);
  contract.pointers = {{"x", 0, 12, true}};
  refused(first, contract);
  contract.pointers = {};
  contract.strides = {{"ld", 16, 1, 1}};
  refused(first, contract);
  contract.strides = {{"ld", 8, 1, 0}};
  refused(first, contract);
}

TEST_CASE("load: what the caller did not say is read from the function") {
  const Fake fake;
  const Device device = Fake::open();
  Binary binary = compile(source_of(R"(extern "C" __global__ void k(float* a) {
    __shared__ float s[64]; s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[threadIdx.x ^ 1]; })"),
                          sm_90a(), real_compiler());
  const Resources compiled = binary.resources;
  binary.resources = {};
  const Kernel kernel(device, binary);
  CHECK(kernel.resources(1).registers == compiled.registers);
  CHECK(kernel.resources(1).shared_bytes == 256);
}
