// SPDX-License-Identifier: Apache-2.0
#include <tilewright/gemm.h>

#include "fake_test.h"
#include "support/paths.h"

using namespace tilewright;
using namespace tilewright::test;

namespace {

const auto load = [](const Device& device, const Binary& binary) { Kernel(device, binary); };

}  // namespace

TEST_CASE("limits are refused before the driver sees the image") {
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

TEST_CASE("a device without clusters") {
  const Fake fake;
  const FakeDevice ampere = {"A100", 8, 0, 108, 166912, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(0, &ampere);
  Binary binary = fake_binary({8});
  binary.plan.cluster = 2;
  const Device device = Fake::open();
  CHECK(error_of(ErrorCode::invalid_argument, [&] { load(device, binary); }).field() == "plan.cluster");
}

namespace {

struct MapArgs {
  void* data;
  std::int64_t rows, stride;
};

Binary map_binary() {
  Binary binary = fake_binary({sizeof(MapArgs), 128, 128});
  binary.plan.map_count = 2;
  binary.plan.maps.fill(
      {.pointer = 0, .rows = 8, .inner = 64, .element_bytes = 2, .box_inner = 32, .box_rows = 8, .swizzle = 64});
  return binary;
}

}  // namespace

TEST_CASE(
    "load: what a plan says of persistence and tensor maps is checked by name, before the driver sees the image") {
  const Fake fake;
  const Device device = Fake::open();
  const int first[] = {0};
  Contract contract;
  contract.args_bytes = sizeof(MapArgs);
  long own = 0;
  auto refused = [&](auto change, const char* field) {
    INFO(field);
    Binary binary = map_binary();
    change(binary.plan, binary.plan.maps[1]);
    CHECK(error_of(ErrorCode::invalid_argument, [&] {
            Kernel(device, {&binary, 1}, first, contract);
          }).field() == field);
    CHECK(fake_cuda_calls("cuModuleGetFunction") == own);  // never got that far
    CHECK(error_of(ErrorCode::invalid_argument, [&] { load(device, binary); }).field() == field);
    own = fake_cuda_calls("cuModuleGetFunction");  // whose size only the driver knows
  };
  using Plan = LaunchPlan;
  using Map = TensorMapPlan;
  refused([](Plan& p, Map&) { p.persistent = 33; }, "plan.persistent");
  refused([](Plan& p, Map&) { p.most_rows = 32; }, "plan.most_rows");  // the contract does not divide launches
  refused([](Plan& p, Map&) { p.most_rows = 40; }, "plan.most_rows");
  for (const std::uint64_t value : {std::uint64_t{8}, (std::uint64_t{1} << 40) + 16})
    refused([&](Plan&, Map& m) { m.behind = value; }, "plan.maps[1].behind");
  refused([](Plan& p, Map&) { p.map_count = 4; }, "plan.map_count");
  refused([](Plan& p, Map&) { p.map_count = 0xffffffff; }, "plan.map_count");
  for (const std::uint32_t value : {0, 3, 8, 256})
    refused([&](Plan&, Map& m) { m.element_bytes = value; }, "plan.maps[1].element_bytes");
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{63}, (std::uint64_t{1} << 32) + 8})
    refused([&](Plan&, Map& m) { m.inner = value; }, "plan.maps[1].inner");
  for (const std::uint64_t value : {std::uint64_t{0}, (std::uint64_t{1} << 32) + 1})
    refused([&](Plan&, Map& m) { m.rows = value; }, "plan.maps[1].rows");
  for (const std::uint32_t value : {1u, 16u, 256u})
    refused([&](Plan&, Map& m) { m.swizzle = value; }, "plan.maps[1].swizzle");
  for (const std::uint32_t value : {0u, 1u, 4u, 40u, 264u, 0x80000000u})
    refused([&](Plan&, Map& m) { m.box_inner = value; }, "plan.maps[1].box_inner");
  for (const std::uint32_t value : {0u, 257u})
    refused([&](Plan&, Map& m) { m.box_rows = value; }, "plan.maps[1].box_rows");
  for (const std::uint32_t value : {17u, 24u, 0xfffffffeu}) {
    refused([&](Plan&, Map& m) { m.pointer = value; }, "plan.maps[1].pointer");
    refused([&](Plan&, Map& m) { m.rows_at = value; }, "plan.maps[1].rows_at");
    refused([&](Plan&, Map& m) { m.stride_at = value; }, "plan.maps[1].stride_at");
    refused([&](Plan&, Map& m) { m.inner_at = value; }, "plan.maps[1].inner_at");
  }
  refused([](Plan&, Map& m) { m.pointer = Map::kConstants; }, "plan.maps[1].pointer");
  refused([](Plan&, Map& m) { m.pointer = Map::kNone; }, "plan.maps[1].pointer");
  refused([](Plan&, Map& m) { m.inner_at = Map::kConstants; }, "plan.maps[1].inner_at");  // there are none
  refused([](Plan&, Map& m) { m.box_panels = 257; }, "plan.maps[1].box_panels");
  for (const std::uint32_t value : {0u, 65537u}) {
    refused([&](Plan&, Map& m) { m.block = value; }, "plan.maps[1].block");
    refused([&](Plan&, Map& m) { m.block_elements = value; }, "plan.maps[1].block_elements");
  }
  refused([](Plan&, Map& m) { m.inner = 80, m.box_panels = 1; }, "plan.maps[1].inner");  // panels of 32
  Binary good = map_binary();
  good.plan.persistent = 32;
  good.plan.maps[1] = {
      .pointer = 0, .rows_at = 8, .stride_at = 16, .inner = 63, .element_bytes = 1, .box_inner = 256, .box_rows = 256};
  CHECK_NOTHROW(Kernel(device, {&good, 1}, first, contract));
  CHECK_NOTHROW(load(device, good));
}

TEST_CASE("load: a kernel must declare the maps of its plan, and no others") {
  const Fake fake;
  const Device device = Fake::open();
  for (const auto& params : std::vector<std::vector<std::size_t>>{
           {}, {128, 128}, {24}, {24, 128}, {24, 128, 64}, {24, 128, 128, 128}, {24, 8, 128, 128}}) {
    Binary binary = map_binary();
    binary.image = make_image("k", 90, params);
    const auto error = error_of(ErrorCode::invalid_argument, [&] { load(device, binary); });
    CHECK(error.field() == "binary.entry");
    CHECK(mentions(error, "2 tensor maps of 128"));
  }
  Binary without = map_binary();
  without.plan.map_count = 0;
  error_of(ErrorCode::invalid_argument, [&] { load(device, without); });
}

TEST_CASE("load: a device or a driver without tensor maps") {
  const Fake fake;
  const FakeDevice ampere = {"A100", 8, 0, 108, 166912, 65536, 1 << 30, 1 << 20};
  fake_cuda_set_device(0, &ampere);
  const Device old = Fake::open();
  CHECK(error_of(ErrorCode::invalid_argument, [&] { load(old, map_binary()); }).field() == "plan.map_count");
  Binary overlap = fake_binary({8});
  overlap.plan.overlap = true;
  CHECK(error_of(ErrorCode::invalid_argument, [&] { load(old, overlap); }).field() == "plan.overlap");
  // Another spelling of the path is another driver for the library.
  fake_cuda_set_version(11080);
  std::string path = paths::fake_cuda();
  path.insert(path.rfind('/'), "/.");
  const Device device = Device::open(1, path);
  const auto error = error_of(ErrorCode::library_missing, [&] { load(device, map_binary()); });
  CHECK(mentions(error, "cuTensorMapEncodeTiled"));
  CHECK(mentions(error, "12.0"));
  CHECK(fake_cuda_image_count() == 0);
  CHECK_NOTHROW(load(device, fake_binary({8})));
}

TEST_CASE("bytes that are no whole cubin never reach the driver") {
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

TEST_CASE("an image that the driver refuses is an error, and nothing is left") {
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
  contract.rows_at = sizeof(GemmArgs);
  error_of(ErrorCode::invalid_argument, [&] { Kernel(device, {&binary, 1}, first, contract); });
  contract.rows_at = Contract::kFixedRows;
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
